"""docs/fields.md: every field of the JSON documents, and every column of the CSV files."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from kernelmark.core.environment import Environment
from kernelmark.core.problem import Problem, parse_key
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, ResultSet, Run, Status
from kernelmark.report import render, tables

HEAD = """\
# Fields of JSON and CSV

<!-- Written by scripts/write-docs from the code. Do not edit. -->

Times are in seconds, sizes in bytes, clocks in MHz; dates are seconds since 1970, UTC. A JSON
document also has `kernelmark` (the kind of document) and `version`. Where a field is a sentence,
`reasons` next to it has the code and the values of that sentence. A field marked *optional* is
omitted if it has its default.

## CSV of a run

`kmark run`, `show` and `export` write one row per result; for microbenchmarks, one row per metric.
Each parameter of the problems is an additional column.

"""
COLUMNS = {
    "run": "id of the run",
    "label": "label of the run",
    "case": "id of the case: a hash of its series",
    "started": "when the case began",
    "op": "op",
    "problem": "problem, with every parameter",
    "backend": "backend, or path of a kernel file",
    "config": "config as JSON; `{}` is the default",
    "device": "device: cpu, cuda:0, …",
    "arch": "architecture of the device",
    "cache": "state of the caches: cold, flush or hot",
    "timer": "requested timer",
    "strain": "background load",
    "duty": "sustained or burst",
    "threads": "requested CPU threads; 0 is every core",
    "status": "status of the result",
    "median_s": "time of a launch: median over blocks of the block medians",
    "low_s": "lower end of the 95 % confidence interval of the median",
    "high_s": "upper end of the interval",
    "modes": "[seconds, fraction] of each mode as JSON, if there are several",
    "host_s": "time of an eager launch, with launch overhead of the host",
    "hot_s": "time of a launch with hot caches",
    "profiler_s": "time measured by ncu or rocprofv3",
    "profiler_at_clock_s": "profiler_s at the clock of median_s",
    "clock_mhz": "median core clock during timing",
    "blocks": "blocks (allocations × processes) that were timed",
    "samples": "samples in all blocks",
    "stop": "why measuring stopped: precise, time, blocks or fixed",
    "method": "timer that was used: loop, cpu, graph, gate, …",
    "flops": "floating-point operations of the problem",
    "bytes": "bytes of the inputs and outputs, each once",
    "flops_per_s": "flops / median_s",
    "bytes_per_s": "bytes / median_s",
    "roof_share": "shortest time that the roofs allow / median_s",
    "roof_bound": "bottleneck: compute, or the memory level",
    "roof_per_s": "value of that roof",
    "error_worst": "largest error found, relative to the tolerance",
    "kernel": "name of the kernel",
    "compile_s": "compile time",
    "warnings": "warnings as a JSON list",
    "error": "why the case failed",
}


def fields() -> str:
    """The page."""
    return HEAD + _columns() + "\n## JSON of a run\n" + "".join(_documents())


def _columns() -> str:
    problem = parse_key("gemm m=1 n=1 k=1 a=f32 b=f32 c=f32")
    result = Result(case=Case(problem=problem, backend="x"), device="cpu", status=Status.OK)
    run = Run(id="x", started=0.0, environment=Environment())
    whole = ResultSet(run=run, results=(result,))
    (record,) = render.records(whole, tables.rows(whole, ()))
    own = {*problem.dims, *problem.dtypes, *problem.options}
    names = [name for name in record if name not in own]
    return _table("column", [(name, COLUMNS[name]) for name in names])


def _documents() -> Iterator[str]:
    todo: list[type] = [ResultSet]
    for kind in todo:
        hints = typing.get_type_hints(kind)
        rows = []
        for field in dataclasses.fields(kind):
            optional = " (*optional*)" if field.metadata else ""
            rows.append((field.name, f"{_text(hints[field.name])}{optional}"))
            found = _classes(hints[field.name])
            todo += [one for one in found if one not in todo]
        yield f"\n### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n" + _table("field", rows)


def _classes(hint: Any) -> list[type]:
    """Value types in a type hint that are objects in JSON."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return [] if hint in (Problem, Reason) else [hint]
    return [one for part in typing.get_args(hint) for one in _classes(part)]


def _text(hint: Any) -> str:
    """A type as JSON has it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(map(_text, parts)))
    if origin is tuple:
        return f"list of {_text(parts[0])}"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object of {_text(parts[1])}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ", ".join(f"`{one.value}`" for one in hint)
    if dataclasses.is_dataclass(hint) and hint is not Problem:
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    plain = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "true or false",
        type(None): "null",
        Reason: "text",
        Problem: "text",
    }
    return plain.get(hint, "any value")


def _table(what: str, rows: list[tuple[str, str]]) -> str:
    head = (
        f"| {what} | meaning |\n|---|---|\n"
        if what == "column"
        else "| field | type |\n|---|---|\n"
    )
    return head + "".join(f"| `{name}` | {text} |\n" for name, text in rows)
