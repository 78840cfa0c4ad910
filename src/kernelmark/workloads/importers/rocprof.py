"""rocprof: rocprofv3's kernel traces and statistics, as CSV or as its rocpd database.

A trace gives the time of every launch: samples of one process. Statistics give a bare mean.
Kernels of other launches than the one meant (fills, copies) are rows of their own.
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.result import ResultSet
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    gathered,
    number,
    problem_of,
    text_of,
)

_TIMING = Timing(cache=Cache.HOT, timer=Timer.PROFILER)
_NS = 1e-9
_SQLITE = b"SQLite format 3\0"
_SIZES = tuple(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ")


class RocProf(Importer):
    name = "rocprof"
    summary = "kernel_trace.csv, kernel_stats.csv or rocpd database of rocprofv3"

    def recognizes(self, name: str, head: bytes) -> bool:
        first = head.partition(b"\n")[0]
        if name.endswith(".db"):
            return head.startswith(_SQLITE)
        trace = b"Kernel_Name" in first and b"Start_Timestamp" in first
        return trace or (b"AverageNs" in first and b"Calls" in first)

    def read(self, path: Path, given: Given) -> ResultSet:
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
        rows = _database(path) if is_database else _table(path)
        return gathered(path, given, rows, method="rocprofv3")


def _table(path: Path) -> Iterable[Found]:
    reader = csv.DictReader(text_of(path).splitlines())
    names = reader.fieldnames or []
    if "Start_Timestamp" in names:
        return _trace(path, reader)
    if "AverageNs" in names:
        return _statistics(path, reader)
    raise UsageError(
        f"{path}: neither a kernel trace nor kernel statistics",
        hint="rocprofv3 --kernel-trace --stats --output-format csv",
    )


def _statistics(path: Path, reader: Iterable[Mapping[str, str | None]]) -> Iterator[Found]:
    for line, row in enumerate(reader, 2):
        place = f"{path}: line {line}"
        also = {
            name: number(row[key], place) * _NS
            for name, key in (("min_s", "MinNs"), ("max_s", "MaxNs"), ("stdev_s", "StdDev"))
            if row.get(key)
        }
        yield _found(str(row.get("Name")), {}, (number(row.get("AverageNs"), place) * _NS,), also)


def _trace(path: Path, reader: Iterable[Mapping[str, str | None]]) -> Iterator[Found]:
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    for line, row in enumerate(reader, 2):
        place = f"{path}: line {line}"
        sizes = tuple((name, str(row[name])) for name in _SIZES if row.get(name))
        start, end = (number(row.get(f"{side}_Timestamp"), place) for side in ("Start", "End"))
        groups.setdefault((str(row.get("Kernel_Name")), sizes), []).append((end - start) * _NS)
    for (name, sizes), times in groups.items():
        yield _found(name, dict(sizes), tuple(times), {})


def _database(path: Path) -> Iterator[Found]:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        query = "SELECT name, start, end FROM kernels ORDER BY start"
        groups: dict[str, list[float]] = {}
        for name, start, end in connection.execute(query):
            groups.setdefault(str(name), []).append((end - start) * _NS)
    except sqlite3.Error as error:
        raise UsageError(
            f"{path}: is not a rocpd database that can be read ({error})",
            hint="rocpd convert -i FILE --output-format csv, and import the CSV",
        ) from None
    finally:
        connection.close()
    for name, times in groups.items():
        yield _found(name, {}, tuple(times), {})


def _found(
    name: str, sizes: Mapping[str, str], times: tuple[float, ...], also: Mapping[str, float]
) -> Found:
    return Found(
        problem=problem_of("kernel", {"name": name, **sizes}),
        backend="rocprof",
        timing=_TIMING,
        samples_s=tuple(t for t in times if t > 0),
        kernel=name,
        also=also,
    )


importer = RocProf()
