"""Tasks of other projects as kernel files: definitions and solutions of flashinfer-bench and
SOL-ExecBench (JSON), and tasks of KernelBench (`Model` and `ModelNew`).

A task becomes two files in the cache: one that defines an op, by the definition's reference, which
is trusted because the user named it as reference, and the kernel file that is judged.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.dtype import BY_TORCH_NAME
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Status
from kernelmark.host.cache import cache_root, digest
from kernelmark.host.permissions import private_folder
from kernelmark.judge.verdict import Verdict

# Languages whose entry point is a Python function.
_PYTHON = {"python", "pytorch", "triton", "cute_dsl", "cutile", "cudnn_frontend", "tilelang"}
_HINT = "see docs/judge.md for what is read of flashinfer-bench, SOL-ExecBench and KernelBench"
_OP_FILE = """# Made by kmark judge.
from kernelmark.judge.adapters import {kind}

op = {op!r}
tensors = "torch"
_task = {kind}(__file__)


def inputs({parameters}):
    return _task.inputs({values})


reference, output, prepare = _task.reference, _task.output, _task.prepare
"""
_KERNEL_FILE = """# Made by kmark judge.
from kernelmark.judge.adapters import {kind}

op = {op!r}
name = {name!r}
tensors = "torch"
prepare = {kind}(__file__).prepare
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as kernel files. `workloads` are the problems as text, each with the workload that it
    came from; there may be none."""

    kernel: str
    reference: str
    definition: str
    solution: str
    workloads: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    has_hack_status: bool = False  # SOL-ExecBench's traces

    def trace(
        self,
        verdict: Verdict,
        workload: Mapping[str, Any],
        hardware: str,
        libraries: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return a verdict as a line of a trace file."""
        status = self._status(verdict)
        evaluation: dict[str, Any] = {
            "status": status,
            "environment": {"hardware": hardware, "libs": dict(libraries)},
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(verdict.started)),
            "log": "" if verdict.accepted else f"{verdict.code}: {verdict.reason}",
        }
        check = verdict.check
        if status in ("PASSED", "INCORRECT_NUMERICAL"):
            evaluation["correctness"] = {
                "max_absolute_error": check.max_abs if check is not None else 0.0,
                "extra": {
                    "kernelmark_code": verdict.code,
                    "kernelmark_seed": verdict.seed,
                    "kernelmark_error_over_allowed": None if check is None else check.worst,
                },
            }
        if status == "PASSED" and verdict.measurement is not None:
            theirs = verdict.reference_measurement
            evaluation["performance"] = {
                "latency_ms": 1e3 * verdict.measurement.median_s,
                "reference_latency_ms": 0.0 if theirs is None else 1e3 * theirs.median_s,
                "speedup_factor": 1 / verdict.ratio if verdict.ratio else 0.0,
            }
        return {
            "definition": self.definition,
            "workload": dict(workload),
            "solution": self.solution,
            "evaluation": _finite(evaluation),
        }

    def _status(self, verdict: Verdict) -> str:
        status = verdict.status
        if status is Status.OK:
            return "PASSED"
        if status is Status.WRONG and verdict.code in _NUMERICAL:
            return "INCORRECT_NUMERICAL"
        if status in (Status.WRONG, Status.IMPOSSIBLE) and self.has_hack_status:
            return "REWARD_HACK"
        return {Status.TIMEOUT: "TIMEOUT", Status.COMPILE_ERROR: "COMPILE_ERROR"}.get(
            status, "RUNTIME_ERROR"
        )


_NUMERICAL = ("values-wrong", "projection-wrong", "not-written")


def _finite(value: Any) -> Any:
    """Return JSON values without the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def read_task(kernel: str, reference: str | None, workloads: str = "") -> Task | None:
    """Return the task that these files are, or None if they are a kernel file and a reference of
    kernelmark's own."""
    if kernel.endswith(".json") or (reference or "").endswith(".json"):
        return _read_solution(kernel, reference, workloads)
    if workloads:
        raise UsageError(
            "workloads belong to a definition: KERNEL and --reference are no JSON files", hint=_HINT
        )
    if reference is not None and _defines(reference, "class", "Model"):
        return _read_model(kernel, reference)
    if _defines(kernel, "class", "ModelNew") and not _defines(kernel, "function", "prepare"):
        raise UsageError(
            f"{kernel} has a class ModelNew: it needs the task that it solves",
            hint="give the KernelBench task, with Model and get_inputs, by --reference TASK.py",
        )
    return None


# -- flashinfer-bench and SOL-ExecBench


def _read_solution(kernel: str, reference: str | None, workloads: str) -> Task:
    if not kernel.endswith(".json") or reference is None or not reference.endswith(".json"):
        raise UsageError(
            "a solution and its definition are both JSON files",
            hint="kmark judge SOLUTION.json --reference DEFINITION.json --workloads FILE",
        )
    solution, definition = _document(kernel), _document(reference)
    try:
        if solution["definition"] != definition["name"]:
            raise UsageError(
                f"{kernel} solves {solution['definition']!r}, not {definition['name']!r}",
                hint=f"give the definition {solution['definition']!r} by --reference",
            )
        _check_definition(reference, definition)
        _check_solution(kernel, solution)
        lines = _workloads(Path(workloads), definition) if workloads else []
        definition["custom_inputs"] = _custom_inputs(definition, lines)
        op = _identifier(definition["name"])
        folder = _new_folder(json.dumps([definition, solution]))
        _write(folder / "definition.json", json.dumps(definition))
        _write(folder / "solution.json", json.dumps(solution))
        for source in solution["sources"]:
            _write(_source_place(folder / "sources", kernel, source["path"]), source["content"])
        names = _parameters(definition)
        _write_files(folder, op, str(solution["name"]), ("Definition", "Solution"), names)
        problems = [(_problem(op, definition, line), line) for line in lines]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(
            f"{kernel} or {reference} lacks what it should have: {type(error).__name__}: {error}",
            hint=_HINT,
        ) from None
    return Task(
        kernel=str(folder / f"{_identifier(solution['name'])}_kernel.py"),
        reference=str(folder / f"{op}.py"),
        definition=definition["name"],
        solution=solution["name"],
        workloads=tuple(problems),
        has_hack_status="languages" in solution["spec"],
    )


def _check_definition(file: str, definition: Mapping[str, Any]) -> None:
    if len(definition["outputs"]) != 1:
        raise UsageError(
            f"{file} has {len(definition['outputs'])} outputs: an op has one", hint=_HINT
        )
    for name, tensor in (definition["inputs"] | definition["outputs"]).items():
        if tensor["shape"] is not None and tensor["dtype"] not in BY_TORCH_NAME:
            raise UsageError(
                f"{file}: {name} is of dtype {tensor['dtype']}",
                hint=f"dtypes that are checked: {', '.join(BY_TORCH_NAME)}",
            )
        for axis in tensor["shape"] or ():
            if axis not in definition["axes"]:
                raise UsageError(f"{file}: {name} has an axis {axis!r}, which is not defined")


def _check_solution(file: str, solution: Mapping[str, Any]) -> None:
    spec = solution["spec"]
    languages = {str(name).lower() for name in spec.get("languages", [spec.get("language")])}
    if not languages <= _PYTHON:
        raise UsageError(
            f"{file} is in {', '.join(sorted(languages))}: solutions that are built by a compiler"
            " with the headers of torch or TVM are not read",
            hint="a .cu file with a kmark comment is judged directly (docs/own-kernel-gpu.md)",
        )
    if not str(spec["entry_point"]).partition("::")[2].isidentifier():
        raise UsageError(f"{file}: entry_point {spec['entry_point']!r} is not FILE.py::FUNCTION")


def _workloads(path: Path, definition: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the workloads of a file: lines of workloads, or of traces that have them."""
    found = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        document = _parsed(line, f"{path}, line {number}")
        workload = document.get("workload", document)
        for name, value in workload["inputs"].items():
            if value["type"] == "safetensors":
                raise UsageError(
                    f"{path}, line {number}: {name} comes from a safetensors file, which is not"
                    " read",
                    hint="judge workloads with random, scalar and custom inputs",
                )
        missing = set(_parameters(definition)) - {*workload["axes"], *workload["inputs"]}
        if missing:
            raise UsageError(f"{path}, line {number} lacks {', '.join(sorted(missing))}")
        found.append(workload)
    if not found:
        raise UsageError(f"{path} has no workloads", hint=_HINT)
    return found


def _custom_inputs(definition: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the inputs that the definition's own function makes."""
    if not definition.get("custom_inputs_entrypoint"):
        return []
    if not lines:
        return [
            name for name, tensor in definition["inputs"].items() if tensor["shape"] is not None
        ]
    return [name for name, value in lines[0]["inputs"].items() if value["type"] == "custom"]


def _parameters(definition: Mapping[str, Any]) -> list[str]:
    variable = [name for name, axis in definition["axes"].items() if axis["type"] == "var"]
    scalars = [name for name, tensor in definition["inputs"].items() if tensor["shape"] is None]
    return [*variable, *scalars]


def _problem(op: str, definition: Mapping[str, Any], workload: Mapping[str, Any]) -> str:
    scalars = {name: value.get("value") for name, value in workload["inputs"].items()}
    values = {**scalars, **workload["axes"]}
    return " ".join([op, *(f"{name}={values[name]}" for name in _parameters(definition))])


# -- KernelBench


def _read_model(kernel: str, reference: str) -> Task:
    if not _defines(kernel, "class", "ModelNew"):
        raise UsageError(
            f"{reference} is a task of KernelBench, and {kernel} has no class ModelNew", hint=_HINT
        )
    for name in ("get_inputs", "get_init_inputs"):
        if not _defines(reference, "function", name):
            raise UsageError(f"{reference} has a class Model but no function {name}", hint=_HINT)
    texts = _text(Path(reference)), _text(Path(kernel))
    op, solution = _identifier(f"kb_{Path(reference).stem}"), Path(kernel).stem
    folder = _new_folder(json.dumps(texts))
    _write(folder / "task_source.py", texts[0])
    _write(folder / "solution_source.py", texts[1])
    _write_files(folder, op, solution, ("ModelTask", "ModelSolution"), [])
    return Task(
        kernel=str(folder / f"{_identifier(solution)}_kernel.py"),
        reference=str(folder / f"{op}.py"),
        definition=Path(reference).stem,
        solution=solution,
        workloads=((op, {"axes": {}, "inputs": {}, "uuid": op}),),
    )


# -- files


def _write_files(
    folder: Path, op: str, solution: str, kinds: tuple[str, str], parameters: Iterable[str]
) -> None:
    names = list(parameters)
    text = _OP_FILE.format(
        kind=kinds[0],
        op=op,
        parameters=", ".join(names),
        values=", ".join(f"{name}={name}" for name in names),
    )
    _write(folder / f"{op}.py", text)
    text = _KERNEL_FILE.format(kind=kinds[1], op=f"./{op}.py", name=solution)
    _write(folder / f"{_identifier(solution)}_kernel.py", text)


def _new_folder(content: str) -> Path:
    """Return a folder for the files of one task, by its content: an op is defined by one file."""
    root = cache_root()
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
    parent = private_folder(root / "tasks")
    folder = parent / digest(content)[:16]
    shutil.rmtree(folder, ignore_errors=True)
    return private_folder(folder)


def _source_place(folder: Path, file: str, name: str) -> Path:
    place = (folder / name).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise UsageError(f"{file}: the source {name!r} is outside of its folder")
    return place


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", str(name).lower())
    return plain if plain[:1].isalpha() else f"t_{plain}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"cannot read {path}: {why}") from None


def _document(file: str) -> dict[str, Any]:
    return _parsed(_text(Path(file)), file)


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{where} is not a JSON object", hint=_HINT)
    return document


def _defines(file: str, kind: str, name: str) -> bool:
    """Return whether a Python file defines a class or function, without executing it."""
    if not file.endswith(".py"):
        return False
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    nodes = {"class": ast.ClassDef, "function": ast.FunctionDef}[kind]
    return any(isinstance(node, nodes) and getattr(node, "name", "") == name for node in tree.body)
