"""rocprof: kernel traces and statistics of rocprofv3, as CSV or as its rocpd database, and the CSVs
of the rocprof before it.

A trace gives the time of every launch: samples of one process. Statistics give a bare mean.
Kernels of other launches than the one meant (fills, copies) are rows of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.result import ResultSet
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers._lines import Row, table_of
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    gathered,
    number,
    problem_of,
)

_TIMING = Timing(cache=Cache.HOT, timer=Timer.PROFILER)
_NS = 1e-9
_SQLITE = b"SQLite format 3\0"
_SIZES = tuple(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ")
_OLD_SIZES = ("wgr", "grd")
# The same in the database's view of kernels, so that one profile is one series in both forms.
_DB_SIZES = {name: f"{name.split('_')[0]}_{name[-1]}".lower() for name in _SIZES}
# The kernel, where it began and where it ended, as each generation calls them.
_NEW = ("Kernel_Name", "Start_Timestamp", "End_Timestamp")
_OLD = ("KernelName", "BeginNs", "EndNs")


class RocProf(Importer):
    name = "rocprof"
    summary = "kernel_trace.csv, kernel_stats.csv or rocpd database of rocprofv3"

    def recognizes(self, name: str, head: bytes) -> bool:
        first = head.partition(b"\n")[0]
        if name.endswith(".db"):
            return head.startswith(_SQLITE)
        trace = any(all(one.encode() in first for one in names) for names in (_NEW, _OLD))
        return trace or (b"AverageNs" in first and b"Calls" in first)

    def read(self, path: Path, given: Given) -> ResultSet:
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
        rows = _database(path) if is_database else _table(path)
        return gathered(path, given, rows, method="rocprofv3")


def _table(path: Path) -> Iterable[Found]:
    names, rows = table_of(path)
    for columns in (_NEW, _OLD):
        if set(columns) <= set(names):
            return _trace(rows, columns)
    if "AverageNs" in names:
        return _statistics(rows)
    raise UsageError(
        f"{path}: neither a kernel trace nor kernel statistics",
        hint="rocprofv3 --kernel-trace --stats --output-format csv",
    )


def _statistics(rows: Iterable[Row]) -> Iterator[Found]:
    for row in rows:
        also = {
            name: number(row.cells[key], row.place) * _NS
            for name, key in (("min_s", "MinNs"), ("max_s", "MaxNs"), ("stdev_s", "StdDev"))
            if row.cells.get(key)
        }
        mean_s = number(row.cells["AverageNs"], row.place) * _NS
        yield _found(str(row.cells.get("Name")), {}, (mean_s,), also, row.doubt)


def _trace(rows: Iterable[Row], columns: tuple[str, str, str]) -> Iterator[Found]:
    name, begin, finish = columns
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    key, doubt = None, ""
    for row in rows:
        cells = row.cells
        sizes = tuple((one, cells[one]) for one in (*_SIZES, *_OLD_SIZES) if cells.get(one))
        key, doubt = (cells[name], sizes), row.doubt
        groups.setdefault(key, []).append(_lasted(cells[begin], cells[finish], row.place))
    for place, times in groups.items():
        kernel, sizes = place
        yield _found(kernel, dict(sizes), tuple(times), {}, doubt if place == key else "")


def _lasted(start: object, end: object, place: str) -> float:
    """Seconds of a launch between two times in ns."""
    start_ns, end_ns = _instant(start, place), _instant(end, place)
    if end_ns < start_ns:
        raise UsageError(
            f"{place}: the launch ends {start_ns - end_ns:.0f} ns before it starts",
            hint="leave that launch out, or profile again",
        )
    return (end_ns - start_ns) * _NS


def _instant(value: object, place: str) -> int | float:
    """Nanoseconds since 1970 have more digits than a float."""
    text = str(value).strip()
    short = text.isascii() and text.isdecimal() and len(text) < 20
    return int(text) if short else number(value, place)


def _database(path: Path) -> Iterator[Found]:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        there = {row[1] for row in connection.execute("PRAGMA table_info(kernels)")}
        sized = {name: column for name, column in _DB_SIZES.items() if column in there}
        columns = ", ".join(("name", "start", "end", *sized.values()))
        groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
        for name, start, end, *sizes in connection.execute(
            f"SELECT {columns} FROM kernels ORDER BY start"
        ):
            given = zip(sized, sizes, strict=True)
            key = tuple((size, str(value)) for size, value in given if value is not None)
            place = f"{path}: {name} that started at {start}"
            groups.setdefault((str(name), key), []).append(_lasted(start, end, place))
    except sqlite3.Error as error:
        raise UsageError(
            f"{path}: is not a rocpd database that can be read ({error})",
            hint="rocpd convert -i FILE --output-format csv, and import the CSV",
        ) from None
    finally:
        connection.close()
    for (kernel, key), times in groups.items():
        yield _found(kernel, dict(key), tuple(times), {})


def _found(
    name: str,
    sizes: Mapping[str, str],
    times: tuple[float, ...],
    also: Mapping[str, float],
    doubt: str = "",
) -> Found:
    return Found(
        problem=problem_of("kernel", {"name": name, **sizes}),
        backend="rocprof",
        timing=_TIMING,
        samples_s=times,
        kernel=name,
        also=also,
        doubt=doubt,
    )


importer = RocProf()
