"""googlebench: JSON of Google Benchmark, also that of iree-benchmark-module.

Repetitions of a benchmark are samples of one process. Aggregates are used only if the file has
nothing else, as a bare mean. A fit of the complexity (BigO, RMS) is no time. Before version 1.5,
aggregates are known by their names only: NAME_mean beside NAME_stddev.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelmark.core.environment import Environment
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers import (
    SECONDS,
    Importer,
    ResultFile,
    ResultRow,
    iso_time,
    problem_of,
)
from kernelmark.workloads.source import BadLine, Fields, unexpected

# Any of these is enough: people shorten files.
_MARKS = (b'"library_build_type"', b'"num_cpus"', b'"run_type"')
_FITS = ("BigO", "RMS")
# Parts of a name that describe how often it was timed, and what CPU time is of: benchmarks that
# differ in these alone are one. A manual time is another than the real one.
_MANNERS = re.compile(
    r"(real_time|process_time|repeats:\d+|min_time:.*|min_warmup_time:.*|threads:1)\Z"
)
_AGGREGATE = re.compile(r"(.+)_(mean|median|stddev|cv)\Z")
_UNNAMED = re.compile(r"arg(?:_\d+)?=")
_TIMING = Timing(cache=Cache.HOT, timer=Timer.LOOP)


class GoogleBench(Importer):
    name = "googlebench"
    summary = "JSON of Google Benchmark and of iree-benchmark-module"
    facts = FormatFacts(
        versions="JSON, with and without run_name",
        exactness="every repetition; names that differ in more than how often was timed stay "
        "different; fits of the complexity are not times and are left out",
        checked="samples of our own in tests; nine public files",
    )
    method = "Google Benchmark"

    def recognizes(self, name: str, head: bytes) -> bool:
        return (
            name.endswith(".json") and b'"context"' in head and any(word in head for word in _MARKS)
        )

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        document = file.document()
        document.required("benchmarks")
        context = document.get("context")
        context = Fields(context if isinstance(context, dict) else {})
        backend = "iree" if "iree" in context.text("executable") else "googlebench"
        file.environment = Environment(host=context.text("host_name"))
        file.started = iso_time(context.get("date"))
        groups: dict[str, list[Fields]] = {}
        for entry in _with_aggregates(list(document.objects("benchmarks"))):
            if entry.get("aggregate_name") not in _FITS:
                groups.setdefault(str(entry.get("run_name", entry["name"])), []).append(entry)
        for name, group in groups.items():
            if len({str(entry.get("family_index")) for entry in group}) > 1:
                raise BadLine(
                    f"{name} is the name of several benchmarks", hint="name each: ->Name(…)"
                )
            yield _row(_problem(name), group, backend)


def _with_aggregates(entries: list[Fields]) -> Iterator[Fields]:
    """Yield the entries, with the fields that aggregates have since version 1.5."""
    names = {str(entry.required("name")) for entry in entries}
    for entry in entries:
        match = _AGGREGATE.match(str(entry["name"]))
        if (
            match
            and "run_type" not in entry
            and {f"{match[1]}_mean", f"{match[1]}_stddev"} <= names
        ):
            old = {"run_name": match[1], "run_type": "aggregate", "aggregate_name": match[2]}
            entry = Fields({**entry, **old}, entry.where)
        yield entry


def _row(problem: Problem, group: list[Fields], backend: str) -> ResultRow:
    broken = next((e for e in group if e.get("error_occurred") or e.get("skipped")), None)
    if broken is not None:
        skipped = bool(broken.get("skipped")) and not broken.get("error_occurred")
        message = broken.get("error_message") or broken.get("skip_message")
        return ResultRow(
            problem=problem,
            backend=backend,
            timing=_TIMING,
            status=Status.SKIPPED if skipped else Status.RUNTIME_ERROR,
            error=str(message) if message else Reason("no reason was recorded in the file"),
        )
    runs = [e for e in group if e.get("run_type", "iteration") == "iteration"]
    runs = runs or [e for e in group if e.get("aggregate_name") == "mean"]
    host = sorted(_seconds(e, "cpu_time") for e in runs if "cpu_time" in e)
    return ResultRow(
        problem=problem,
        backend=backend,
        timing=_TIMING,
        samples_s=tuple(_seconds(e, "real_time") for e in runs),
        also={"cpu_s": host[len(host) // 2]} if host else {},
    )


def _seconds(entry: Fields, name: str) -> float:
    unit = entry.text("time_unit", "ns")
    if unit not in SECONDS:
        raise unexpected(entry.at("time_unit"), "a unit of time", unit)
    return entry.number(name) * SECONDS[unit]


def _parts(name: str) -> list[str]:
    """Return the parts of a name that describe what was timed."""
    return [part for part in name.split("/") if not _MANNERS.match(part)]


def _problem(name: str) -> Problem:
    """Return the problem of a name: `BM_matmul/64/k:128/real_time` is bm_matmul arg=64 k=128.

    If the problem does not determine the name, such as one that differs from another in case or
    in signs, it is an option, whatever else is in the file.
    """
    first, *rest = parts = _parts(name) or [name]
    values: dict[str, str] = {}
    for part in rest:
        key, colon, value = part.partition(":")
        if not colon:
            key, value = "arg", part
        while key in values:
            key += "_"
        values[key] = value
    problem = problem_of(first, values)
    if _spelled(problem) == parts:
        return problem
    return problem_of(first, {"name": "/".join(parts), **values})


def _spelled(problem: Problem) -> list[str]:
    """Return the parts of the usual name of a problem."""
    op, *parameters = problem.key.split()
    first = f"BM_{op[3:]}" if op.startswith("bm_") else op
    return [first, *(_UNNAMED.sub("", word).replace("=", ":") for word in parameters)]


importers = (GoogleBench(),)
