"""rocprof: kernel traces and statistics of rocprofv3, as CSV or as its rocpd database, and the CSVs
of the rocprof before it.

A trace gives the time of every launch: samples of one process. Statistics give a bare mean.
Kernels of other launches than the one meant (fills, copies) are rows of their own, and so are those
of another agent, a GPU. A file of counters has a row for each counter of a launch, which is one
sample. Statistics of anything but kernels have the same columns; their name tells them apart.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
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
_COUNTED_SIZES = ("Workgroup_Size", "Grid_Size")
_COUNTER = "Counter_Name"
_AGENTS = ("Agent_Id", "gpu-id")
_DB_AGENTS = ("agent_abs_index", "agent_log_index", "agent_type_index")
# hip_api_stats.csv, domain_stats.csv; of the rocprof before: results.hip_stats.csv.
_OTHER_STATS = re.compile(r"(?:api|hip|hsa|copy|marker|roctx|domain|scratch_memory)_stats\.csv\Z")
_OTHER_NAMES = re.compile(
    r"hip[A-Z]\w*\Z|hsa_\w+\Z|(?:HIP|HSA|KERNEL|MARKER|MEMORY|RCCL|SCRATCH)_[A-Z_]+\Z"
)
# The same in the database's view of kernels, so that one profile is one series in both forms.
_DB_SIZES = {name: f"{name.split('_')[0]}_{name[-1]}".lower() for name in _SIZES}
# The kernel, where it began and where it ended, as each generation calls them.
_NEW = ("Kernel_Name", "Start_Timestamp", "End_Timestamp")
_OLD = ("KernelName", "BeginNs", "EndNs")


class RocProf(Importer):
    name = "rocprof"
    summary = "kernel_trace.csv, kernel_stats.csv or rocpd database of rocprofv3"
    facts = FormatFacts(
        versions="rocprofiler-sdk 8ab1ed78 (2024-10), rocpd, rocprof 1",
        exactness="every launch by kernel, launch shape and agent; other statistics than those of "
        "kernels are refused",
        checked="rocprofiler-sdk's generateCSV.cpp read, its documentation's files read",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        first = head.partition(b"\n")[0]
        if name.endswith(".db"):
            return head.startswith(_SQLITE)
        trace = any(all(one.encode() in first for one in names) for names in (_NEW, _OLD))
        return trace or (b"AverageNs" in first and b"Calls" in first)

    def read(self, path: Path, given: Given) -> ResultSet:
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
        rows = list(_database(path) if is_database else _table(path))
        agents = {row.device for row in rows}
        if given.device and len(agents) > 1:
            raise UsageError(
                f"{path}: has launches of {len(agents)} agents, and {given.device} is one device",
                hint="leave --device out: each agent is a device of its own",
            )
        return gathered(path, given, rows, method="rocprofv3")


def _table(path: Path) -> Iterable[Found]:
    names, rows = table_of(path)
    for columns in (_NEW, _OLD):
        if set(columns) <= set(names):
            return _trace(rows, columns)
    if "AverageNs" in names:
        if _OTHER_STATS.search(path.name):
            raise _no_kernels(path)
        return _statistics(path, rows)
    raise UsageError(
        f"{path}: neither a kernel trace nor kernel statistics",
        hint="rocprofv3 --kernel-trace --stats --output-format csv",
    )


def _no_kernels(path: Path) -> UsageError:
    return UsageError(
        f"{path}: statistics of something else than kernels",
        hint="import *_kernel_stats.csv or *_kernel_trace.csv",
    )


def _statistics(path: Path, rows: Iterable[Row]) -> Iterator[Found]:
    sure = "kernel_stats" in path.name
    for row in rows:
        if not sure and _OTHER_NAMES.match(str(row.cells.get("Name"))):
            raise _no_kernels(path)
        also = {
            name: number(row.cells[key], row.place) * _NS
            for name, key in (("min_s", "MinNs"), ("max_s", "MaxNs"), ("stdev_s", "StdDev"))
            if row.cells.get(key)
        }
        mean_s = number(row.cells["AverageNs"], row.place) * _NS
        yield _found(_Launch(str(row.cells.get("Name"))), (mean_s,), also, row.doubt)


@dataclass(frozen=True, slots=True)
class _Launch:
    """What launches must share to be samples of one case."""

    kernel: str
    sizes: tuple[tuple[str, str], ...] = ()
    agent: str = ""


def _trace(rows: Iterable[Row], columns: tuple[str, str, str]) -> Iterator[Found]:
    name, begin, finish = columns
    groups: dict[_Launch, list[float]] = {}
    dispatches: set[str] = set()
    last, doubt = None, ""
    for row in rows:
        cells = row.cells
        sized = _COUNTED_SIZES if _COUNTER in cells else (*_SIZES, *_OLD_SIZES)
        sizes = tuple((one, cells[one]) for one in sized if cells.get(one))
        agent = next((cells[one] for one in _AGENTS if cells.get(one)), "")
        last, doubt = _Launch(cells[name], sizes, agent), row.doubt
        if _COUNTER in cells:  # the launch again, for its next counter
            dispatch = f"{cells.get('Process_Id')} {cells.get('Dispatch_Id')} {cells[begin]}"
            if dispatch in dispatches:
                continue
            dispatches.add(dispatch)
        groups.setdefault(last, []).append(_lasted(cells[begin], cells[finish], row.place))
    several = len({launch.agent for launch in groups}) > 1
    for launch, times in groups.items():
        yield _found(launch, tuple(times), {}, doubt if launch == last else "", several=several)


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
        agent = next((f'"{name}"' for name in _DB_AGENTS if name in there), "''")
        columns = ", ".join(("name", "start", "end", agent, *sized.values()))
        groups: dict[_Launch, list[float]] = {}
        for name, start, end, of, *sizes in connection.execute(
            f"SELECT {columns} FROM kernels ORDER BY start"
        ):
            given = zip(sized, sizes, strict=True)
            key = tuple((size, str(value)) for size, value in given if value is not None)
            place = f"{path}: {name} that started at {start}"
            launch = _Launch(str(name), key, "" if of is None else str(of))
            groups.setdefault(launch, []).append(_lasted(start, end, place))
    except sqlite3.Error as error:
        raise UsageError(
            f"{path}: is not a rocpd database that can be read ({error})",
            hint="rocpd convert -i FILE --output-format csv, and import the CSV",
        ) from None
    finally:
        connection.close()
    several = len({launch.agent for launch in groups}) > 1
    for launch, times in groups.items():
        yield _found(launch, tuple(times), {}, several=several)


def _found(
    launch: _Launch,
    times: tuple[float, ...],
    also: Mapping[str, float],
    doubt: str = "",
    *,
    several: bool = False,
) -> Found:
    """`several`: the file has launches of more than one agent, so it names the device."""
    return Found(
        problem=problem_of("kernel", {"name": launch.kernel, **dict(launch.sizes)}),
        backend="rocprof",
        timing=_TIMING,
        samples_s=times,
        kernel=launch.kernel,
        device=f"agent:{launch.agent.removeprefix('Agent ')}" if several else "",
        also=also,
        doubt=doubt,
    )


importer = RocProf()
