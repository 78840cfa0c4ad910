"""Tasks of other projects: definitions, workloads and solutions as JSON, Model and ModelNew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernelmark import backends, ops
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Check, Fault, Status
from kernelmark.judge.tasks import read_task
from kernelmark.judge.verdict import Verdict

DEFINITION = {
    "name": "scale_h8",
    "op_type": "scale",
    "axes": {
        "rows": {"type": "var"},
        "cols": {"type": "const", "value": 8},
        "wide": {"type": "expr", "expression": "2 * cols"},
    },
    "inputs": {
        "x": {"shape": ["rows", "wide"], "dtype": "bfloat16"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "wide"], "dtype": "bfloat16"}},
    "reference": "def run(x, factor):\n    return x * factor\n",
}
WORKLOAD = {
    "uuid": "one",
    "axes": {"rows": 3},
    "inputs": {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 0.5}},
}
SOLUTION = {
    "name": "My-Scale",
    "definition": "scale_h8",
    "author": "somebody",
    "spec": {
        "language": "triton",
        "target_hardware": ["B200"],
        "entry_point": "src/kernel.py::run",
        "destination_passing_style": True,
    },
    "sources": [{"path": "src/kernel.py", "content": "def run(x, factor, y):\n    y[:] = x\n"}],
}
TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 4)

    def forward(self, x, mask):
        return self.linear(x) * mask

def get_inputs():
    return [torch.rand(3, 6), torch.triu(torch.ones(3, 4))]

def get_init_inputs():
    return [6]
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ops.registry, "_loaded", dict(ops.registry._loaded))
    monkeypatch.chdir(tmp_path)


def written(name: str, document: object) -> str:
    text = document if isinstance(document, str) else json.dumps(document)
    Path(name).write_text(text)
    return name


def changed(document: dict, *path: str, value: object) -> dict:
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


def read(definition=DEFINITION, solution=SOLUTION, workloads=(WORKLOAD,)):
    lines = "\n".join(map(json.dumps, workloads)) + "\n"
    return read_task(
        written("solution.json", solution),
        written("definition.json", definition),
        written("w.jsonl", lines) if workloads else "",
    )


@pytest.mark.slow  # it imports torch
@pytest.mark.parametrize("is_trace", [False, True])
def test_a_definition_is_an_op_and_a_workload_a_problem(is_trace):
    pytest.importorskip("torch")
    line = {"definition": "scale_h8", "solution": None, "workload": WORKLOAD}
    task = read(workloads=[line if is_trace else WORKLOAD])
    backends.find(task.reference)
    ((text, workload),) = task.workloads
    assert workload == WORKLOAD
    problem = ops.parse(text)
    op = ops.registry.get(problem.op)
    x, out = op.tensors(problem)
    assert (x.shape, x.dtype, out.shape, out.dtype) == ((3, 16), "bf16", (3, 16), "bf16")
    reference = op.reference(problem, _Ones(), np.arange(48))
    assert np.all(reference.value == 0.5)


class _Ones:
    def whole(self, name: str) -> np.ndarray:
        return np.ones((3, 16))


@pytest.mark.parametrize(
    ("what", "path", "value"),
    [
        ("solution", ("definition",), "other"),
        ("solution", ("spec", "language"), "cuda"),
        ("solution", ("spec", "entry_point"), "kernel.py"),
        ("solution", ("sources",), [{"path": "../../evil.py", "content": ""}]),
        ("solution", ("sources",), [{"content": ""}]),
        ("definition", ("outputs", "z"), {"shape": ["rows"], "dtype": "float32"}),
        ("definition", ("inputs", "x", "dtype"), "bool"),
        ("definition", ("inputs", "x", "shape"), ["depth"]),
        ("workload", ("axes",), {}),
        ("workload", ("inputs", "x"), {"type": "safetensors", "path": "a", "tensor_key": "b"}),
    ],
)
def test_what_is_not_read_is_refused(what, path, value):
    documents = {"definition": DEFINITION, "solution": SOLUTION, "workload": WORKLOAD}
    documents[what] = changed(documents[what], *path, value=value)
    workload = documents.pop("workload")
    with pytest.raises(UsageError):
        read(**documents, workloads=[workload])


def test_damaged_files_are_refused():
    for text in ("", "{", "[]", "\0"):
        with pytest.raises(UsageError):
            read_task(written("s.json", text), written("d.json", DEFINITION))
    with pytest.raises(UsageError):
        read_task(written("s.json", SOLUTION), None)
    with pytest.raises(UsageError):
        read_task("kernel.py", "numpy", "w.jsonl")


def test_kernel_files_are_no_tasks():
    written("kernel.py", "op = 'gemm'\ndef prepare(problem, config, sets): ...\n")
    assert read_task("kernel.py", "numpy") is None
    assert read_task("kernel.py", None) is None


@pytest.mark.slow  # it imports torch
def test_a_model_is_an_op_whose_parameters_are_inputs():
    pytest.importorskip("torch")
    written("task.py", TASK)
    written("new.py", TASK.replace("Model(", "ModelNew("))
    task = read_task("new.py", "task.py")
    backends.find(task.reference)
    problem = ops.parse(task.workloads[0][0])
    tensors = {spec.name: spec for spec in ops.registry.get(problem.op).tensors(problem)}
    assert set(tensors) == {"x0", "x1", "p_linear_weight", "p_linear_bias", "out"}
    assert (tensors["x0"].low, tensors["x0"].high) == (0.0, 1.0)
    assert tensors["x1"].given is not None  # triangular
    assert tensors["out"].shape == (3, 4)
    with pytest.raises(UsageError):
        read_task("new.py", None)
    with pytest.raises(UsageError):
        read_task("task.py", "task.py")


def test_verdicts_are_traces():
    task = read(solution=changed(SOLUTION, "spec", "languages", value=["triton"]))
    problem = ops.parse("gemm m=1 n=1 k=1 dtype=f32")

    def traced(status: Status, code: str = "text"):
        check = Check(
            positions=1, worst=2.0, max_abs=float("inf"), unwritten=0, guards_intact=True,
            faults=(Fault.VALUES,),
        )  # fmt: skip
        verdict = Verdict(
            kernel="k", problem=problem, device="cpu", status=status, check=check,
            reason=Reason("because", code) if code != "text" else Reason("because"),
        )  # fmt: skip
        trace = task.trace(verdict, WORKLOAD, "a GPU", {"torch": "2"})
        json.dumps(trace, allow_nan=False)
        assert (trace["definition"], trace["solution"]) == ("scale_h8", "My-Scale")
        return trace["evaluation"]

    passed = traced(Status.OK)
    assert passed["status"] == "PASSED"
    assert passed["environment"] == {"hardware": "a GPU", "libs": {"torch": "2"}}
    assert traced(Status.TIMEOUT)["status"] == "TIMEOUT"
    assert traced(Status.CRASHED)["status"] == "RUNTIME_ERROR"
    assert traced(Status.WRONG)["status"] == "REWARD_HACK"
    assert "correctness" not in traced(Status.WRONG)
