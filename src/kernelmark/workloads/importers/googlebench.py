"""googlebench: JSON of Google Benchmark, also that of iree-benchmark-module.

Repetitions of a benchmark are samples of one process. Aggregates are used only if the file has
nothing else, as a bare mean.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.environment import Environment
from kernelmark.core.errors import CodecError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet, Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers._launches import SECONDS
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    fields_of,
    iso_time,
    json_object,
    number,
    problem_of,
    unexpected,
)

# Any of these is enough: people shorten files.
_MARKS = (b'"library_build_type"', b'"num_cpus"', b'"run_type"')
# Parts of a name that describe how it was timed, not what was timed.
_MANNERS = re.compile(
    r"(real_time|process_time|manual_time|repeats:\d+|iterations:\d+|min_time:.*|"
    r"min_warmup_time:.*|threads:1)\Z"
)
# Characters that the name of an op loses: f<int> becomes f_int, f<float*> and f<float&> the same.
_LOST = re.compile(r"\W")
_TIMING = Timing(cache=Cache.HOT, timer=Timer.LOOP)


class GoogleBench(Importer):
    name = "googlebench"
    summary = "JSON of Google Benchmark and of iree-benchmark-module"
    facts = FormatFacts(
        versions="JSON, with and without run_name",
        exactness="every repetition; names that differ stay different",
        checked="samples of our own in tests",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        return (
            name.endswith(".json") and b'"context"' in head and any(word in head for word in _MARKS)
        )

    def read(self, path: Path, given: Given) -> ResultSet:
        document = json_object(path)
        if not isinstance(document.get("benchmarks"), list):
            raise unexpected(f"{path}: benchmarks", "a list", document.get("benchmarks"))
        context = document.get("context")
        fields: Mapping[str, Any] = context if isinstance(context, dict) else {}
        executable = str(fields.get("executable", ""))
        backend = "iree" if "iree" in executable else "googlebench"
        return build_run(
            path,
            given,
            _rows(path, document["benchmarks"], backend),
            method="Google Benchmark",
            environment=Environment(host=str(fields.get("host_name", ""))),
            started=iso_time(fields.get("date")),
        )


def _rows(path: Path, entries: list[Any], backend: str) -> Iterator[Found]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for i, one in enumerate(entries, 1):
        place = f"{path}: benchmark {i}"
        entry = fields_of(one, place)
        if "name" not in entry:
            raise CodecError(Reason("field-missing", where=place, name="name"))
        groups.setdefault(str(entry.get("run_name", entry["name"])), []).append(entry)
    problems = _problems(groups)
    for name, group in groups.items():
        yield _found(f"{path}: {name}", problems[name], group, backend)


def _problems(names: Iterable[str]) -> dict[str, Problem]:
    """Return the problem of each name. If different names would give the same problem, such as
    names that differ only in case, each gets its name as an option: if possible without the way of
    timing, so that a series continues when that changes. The manual time and the real time of one
    benchmark are two problems."""
    labels = {name: "/".join(_parts(name)) for name in names}
    found = {
        name: _problem(name, label if _LOST.search(name.partition("/")[0]) else "")
        for name, label in labels.items()
    }
    for option in (labels, {name: name for name in labels}):
        times = Counter(problem.key for problem in found.values())
        found = {
            name: problem if times[problem.key] == 1 else _problem(name, option[name])
            for name, problem in found.items()
        }
    return found


def _parts(name: str) -> list[str]:
    """Return the parts of a name that describe what was timed."""
    return [part for part in name.split("/") if not _MANNERS.match(part)]


def _found(place: str, problem: Problem, group: list[Mapping[str, Any]], backend: str) -> Found:
    broken = next((e for e in group if e.get("error_occurred") or e.get("skipped")), None)
    if broken is not None:
        skipped = bool(broken.get("skipped")) and not broken.get("error_occurred")
        message = broken.get("error_message") or broken.get("skip_message")
        return Found(
            problem=problem,
            backend=backend,
            timing=_TIMING,
            status=Status.SKIPPED if skipped else Status.RUNTIME_ERROR,
            error=str(message) if message else Reason("failure-unexplained"),
        )
    runs = [e for e in group if e.get("run_type", "iteration") == "iteration"]
    if not runs:
        runs = [e for e in group if e.get("aggregate_name") == "mean"]
    times = tuple(_seconds(e, "real_time", place) for e in runs)
    host = [_seconds(e, "cpu_time", place) for e in runs if "cpu_time" in e]
    return Found(
        problem=problem,
        backend=backend,
        timing=_TIMING,
        samples_s=times,
        also={"cpu_s": sorted(host)[len(host) // 2]} if host else {},
    )


def _seconds(entry: Mapping[str, Any], key: str, place: str) -> float:
    unit = str(entry.get("time_unit", "ns"))
    if unit not in SECONDS:
        raise unexpected(f"{place}, time_unit", "a unit of time", unit)
    return number(entry.get(key), place) * SECONDS[unit]


def _problem(name: str, label: str) -> Problem:
    """Return the problem of a name: `BM_matmul/64/k:128/real_time` is bm_matmul arg=64 k=128. A
    label is added as name=label."""
    first, *kept = _parts(name) or [name]
    values: dict[str, str] = {"name": label} if label else {}
    for part in kept:
        key, colon, value = part.partition(":")
        if not colon:
            key, value = "arg", part
        while key in values:
            key += "_"
        values[key] = value
    return problem_of(first, values)


importer = GoogleBench()
