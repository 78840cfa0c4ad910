"""Kernel files are executed in a worker, which then measures them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelmark import ops
from kernelmark.api.plan import plan
from kernelmark.api.run import measure
from kernelmark.api.selection import Selection
from kernelmark.backends.base import Backend
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.result import Status
from kernelmark.core.timing import Timing
from kernelmark.runners import kernel_files
from kernelmark.runners.targets import find
from kernelmark_dev.raising import raises

LOGGED = """
import os
from pathlib import Path
with open("loads", "a") as log: log.write(f"{os.getpid()}\\n")
"""
GEMM = """
import numpy as np
op = "gemm"
space = {"rows": [2, 1]}
def prepare(problem, config, sets):
    def launch(index):
        np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])
    return launch
"""
OWN = """
op = "own_double"
def inputs(n=4, dtype="f32"):
    if n == 7: raise ValueError("seven")
    return {"x": ((n,), dtype)}
def reference(x): return 2 * x
def flops(n): return n
def prepare(problem, config, sets):
    def launch(index):
        sets[index]["out"][:] = 2 * sets[index]["x"]
    return launch
"""
SMALL = ("m=4", "n=4", "k=4")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernel_files, "_current", None)
    yield tmp_path
    if kernel_files._current is not None:
        kernel_files._current.close()
    ops.registry._loaded.pop("own_double", None)


def planned(text: str, *axes: str, **more: object):
    with Path("k.py").open("w") as file:
        file.write(text)
    chosen = {"backends": ("./k.py",), "devices": ("fake",), "axes": axes, **more}
    return plan(Selection.parse(**chosen), Timing.load("quick"), load_s=more.pop("load_s", 60.0))


def test_a_file_is_executed_once_and_never_here(folder):
    made = planned(LOGGED + GEMM, *SMALL, ops=("gemm",), dtypes=("f32",))
    results = measure(made)
    loads = (folder / "loads").read_text().split()
    assert [result.status for result in results] == [Status.OK]
    assert len(loads) == 1
    assert str(os.getpid()) not in loads


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos._exit(0)",
        "import ctypes\nctypes.string_at(0)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import sys\nsys.exit(0)",
        "1 / 0",
        "op = 'gemm'",
    ],
)
def test_a_file_that_cannot_be_loaded_is_an_error(text):
    with pytest.raises(UsageError):
        planned(text, *SMALL, ops=("gemm",))


def test_a_file_that_hangs_is_ended():
    with Path("k.py").open("w") as file:
        file.write("while True: pass")
    selection = Selection.parse(backends=("./k.py",), devices=("fake",))
    with pytest.raises(UsageError):
        plan(selection, Timing(), load_s=1.0)
    assert kernel_files._current.worker is None


def test_an_own_op_is_known_here_by_its_facts():
    made = planned(OWN, "n=[4,8]")
    op = ops.registry.get("own_double")
    assert [problem.dims["n"] for problem in made.problems] == [4, 8]
    assert [op.flops(p) for p in made.problems] == [4, 8]
    assert [op.bytes(p) for p in made.problems] == [32, 64]
    assert list(op.parameters) == ["n", "dtype"]
    assert all(result.status is Status.OK for result in measure(made))


def test_what_the_files_code_refuses_is_raised_here():
    with raises(ProblemError):
        planned(OWN, "n=7")
    with raises(ProblemError):
        planned(OWN, "m=7")


def test_a_space_is_read_in_its_order():
    with Path("k.py").open("w") as file:
        file.write(GEMM)
    backend, (_, info) = kernel_files.find("./k.py"), find("fake")
    space = backend.space(ops.parse("gemm m=4 n=4 k=4 dtype=f32"), info)
    assert space is not None
    assert space.parameters == {"rows": (2, 1)}
    assert type(backend).compile is Backend.compile


@pytest.mark.parametrize("broken", ["out[:-1]", "1 / 0"])
def test_a_kernel_that_fails_is_not_loaded_again_for_its_versions(folder, broken):
    body = GEMM.replace('out=sets[index]["d"])', f'out=sets[index]["d"]); {broken}')
    body = body.replace("out[:-1]", 'sets[index]["d"][-1] = 7')
    results = measure(planned(LOGGED + body, *SMALL, ops=("gemm",), dtypes=("f32",)))
    assert [result.status.failed for result in results] == [True]
    assert len((folder / "loads").read_text().split()) == 1
