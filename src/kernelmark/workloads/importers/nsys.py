"""nsys: kernel times of Nsight Systems, from its SQLite export or the CSV of its reports.

The export and the report cuda_gpu_trace have every launch: samples of a process. The reports
cuda_gpu_kern_gb_sum and cuda_gpu_kern_sum have means over launches, the latter over all launch
shapes. Copies and fills are not kernels, and are left out.
"""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import CodecError, NothingToDo, UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import ResultSet
from kernelmark.workloads.importers._launches import (
    SECONDS,
    SQLITE,
    Launch,
    columns_of,
    database,
    elapsed_s,
    found,
)
from kernelmark.workloads.importers._lines import EACH, Row, header_of, lines_of, printed_rows
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    number,
    unexpected,
    whole,
)

_KERNELS, _GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_UNITS = {**SECONDS, "µs": 1e-6, "μs": 1e-6, "nsec": 1e-9, "usec": 1e-6, "msec": 1e-3, "sec": 1.0}
_TIME = re.compile(r"(Duration|Avg|Average|Med|Min|Minimum|Max|Maximum|StdDev) ?\((\S+)\)\Z")
_BARE = ("Average", "Minimum", "Maximum")  # column names of 2020, in ns like the total
_ALSO = {
    "median_s": ("Med",),
    "min_s": ("Min", "Minimum"),
    "max_s": ("Max", "Maximum"),
    "stdev_s": ("StdDev",),
}
_SHAPES = {"grid": ("GrdX", "GrdY", "GrdZ"), "block": ("BlkX", "BlkY", "BlkZ")}
_SUMMED = {"grid": "GridXYZ", "block": "BlockXYZ"}
_DEVICE = re.compile(r"(.*)\(([0-9]{1,9})\)\s*\Z", re.DOTALL)
_END = re.compile(r"\s*\Z|Processing \[")
_COPY = re.compile(r"\[CUDA (?:memcpy|memset)")
_REPORT = re.compile(
    rb"^[^\n]*\b(?:GrdX\b[^\n]*\bBlkX\b|Instances\b[^\n]*\bName\s*$)", re.MULTILINE
)
_HINT = (
    "nsys stats --report cuda_gpu_trace --format csv REPORT, or nsys export --type sqlite REPORT"
)
_NODES = "profile with: nsys profile --cuda-graph-trace=node"


class Nsys(Importer):
    name = "nsys"
    summary = "SQLite export of Nsight Systems, or CSV of its kernel trace or kernel summaries"
    facts = FormatFacts(
        versions="Nsight Systems 2020 to 2026: export to SQLite, cuda_gpu_trace, "
        "cuda_gpu_kern_gb_sum, cuda_gpu_kern_sum",
        exactness="every launch by kernel, launch shape and device; summaries are means; the "
        "fraction of GPU time in graphs whose kernels were not traced is reported; two tables of "
        "one report are rejected",
        checked="compared with NVIDIA's report scripts, whose queries were executed on a "
        "database of our own: the same launches and means",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        if name.endswith(".sqlite"):
            return head.startswith(SQLITE)
        return bool(_REPORT.search(head.replace(b'"', b"").replace(b"\r", b"")))

    def read(self, path: Path, given: Given) -> ResultSet:
        with path.open("rb") as file:
            is_export = file.read(len(SQLITE)) == SQLITE
        devices: dict[int, DeviceInfo] = {}
        if not is_export:
            rows = list(_report(path, devices))
            started = None
        else:
            rows, started = _export(path, devices)
        environment = Environment(devices=tuple(devices[index] for index in sorted(devices)))
        return build_run(path, given, rows, method="nsys", environment=environment, started=started)


def _report(path: Path, devices: dict[int, DeviceInfo]) -> Iterator[Found]:
    header, rows = _table(path)
    times = {match[1]: name for name in header if (match := _TIME.match(name))}
    if "Total Time (ns)" in header:
        times |= {name: name for name in header if name in _BARE}
    if "GrdX" in header and "Duration" in times:
        yield from _trace(rows, times["Duration"], devices)
    elif mean := times.get("Avg") or times.get("Average"):
        for row in rows:
            also = {
                name: _seconds(row, times[key])
                for name, keys in _ALSO.items()
                for key in keys
                if key in times and row.cells[times[key]]
            }
            launch = Launch(kernel=_name(row), sizes=_summed_sizes(row))
            yield found(launch, (_seconds(row, mean),), "nsys", also=also, doubt=row.doubt)
    else:
        column = "Duration (ns)" if "GrdX" in header else "Avg (ns)"
        raise UsageError(Reason("column-missing", file=str(path), column=column), hint=_HINT)


def _table(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Return the header and rows of the kernel trace, or of the first kernel summary. nsys stats
    prints several reports, each after some other lines. The MPI summary has the columns of a kernel
    summary, and Source."""
    lines = lines_of(path)
    headers = {
        i: header_of(line)
        for i, line in enumerate(lines.texts)
        if "Name" in line and ("GrdX" in line or "Instances" in line)
    }
    traces = [i for i, header in headers.items() if {"GrdX", "Name"} <= set(header)]
    sums = [
        i
        for i, header in headers.items()
        if {"Instances", "Name"} <= set(header) and "Source" not in header
    ]
    begin = next(iter(traces + sums), None)
    if begin is None:
        raise NothingToDo(Reason("no-kernel-table", file=str(path)), hint=_HINT)
    header = headers[begin]
    starts = [i for i, other in headers.items() if other == header]
    if len(starts) > 1:
        reason = Reason("table-twice", file=str(path), line=starts[1] + 1)
        raise UsageError(reason, hint=EACH)
    following = range(begin + 1, len(lines.texts))
    end = next((i for i in following if _END.match(lines.texts[i])), following.stop)
    return header, printed_rows(path, lines, range(begin + 1, end), header, len(header))


def _trace(rows: Iterator[Row], duration: str, devices: dict[int, DeviceInfo]) -> Iterator[Found]:
    groups: dict[Launch, list[float]] = {}
    last, doubt = None, ""
    for row in rows:
        if not row.cells["GrdX"] and _COPY.match(row.cells["Name"]):
            continue
        sizes = tuple(
            (f"{what}_{axis}", whole(row.cells.get(column), f"{row.place}, {column}"))
            for what, columns in _SHAPES.items()
            for axis, column in zip("xyz", columns, strict=True)
        )
        match = _DEVICE.match(row.cells.get("Device", ""))
        if match is None:
            raise unexpected(
                f"{row.place}, Device", "NAME (NUMBER)", row.cells.get("Device"), _HINT
            )
        device = DeviceInfo(
            name=f"cuda:{int(match[2])}",
            kind="cuda",
            model=match[1].strip(),
            arch="",
            index=int(match[2]),
        )
        devices[device.index] = device
        last, doubt = Launch(kernel=_name(row), sizes=sizes, device=device.name), row.doubt
        groups.setdefault(last, []).append(_seconds(row, duration))
    for launch, times in groups.items():
        yield found(launch, tuple(times), "nsys", doubt=doubt if launch == last else "")


def _name(row: Row) -> str:
    if not row.cells["Name"]:
        raise CodecError(Reason("field-missing", where=row.place, name="Name"), hint=_HINT)
    return row.cells["Name"]


def _seconds(row: Row, column: str) -> float:
    match = _TIME.match(column)
    unit = match[2] if match else "ns"
    if unit not in _UNITS:
        raise unexpected(f"{row.place}, {column}", "a unit of time", unit, _HINT)
    return number(row.cells[column], f"{row.place}, {column}") * _UNITS[unit]


def _summed_sizes(row: Row) -> tuple[tuple[str, int], ...]:
    sizes: list[tuple[str, int]] = []
    for what, column in _SUMMED.items():
        if column in row.cells:
            here = f"{row.place}, {column}"
            words = row.cells[column].split()
            if len(words) != 3:
                raise unexpected(here, "three sizes", row.cells[column], _HINT)
            named = zip("xyz", words, strict=True)
            sizes += [(f"{what}_{axis}", whole(n, here)) for axis, n in named]
    return tuple(sizes)


def _export(path: Path, devices: dict[int, DeviceInfo]) -> tuple[list[Found], float | None]:
    """Return the launches of an export, and the time of profiling."""
    hint = "export it again: nsys export --type sqlite REPORT"
    groups: dict[Launch, list[float]] = {}
    with database(path, "an export of nsys", hint) as connection:
        kernels, graphs = columns_of(connection, _KERNELS), columns_of(connection, _GRAPHS)
        devices |= _devices(connection, path)
        if kernels:
            _read_kernels(connection, path, kernels, devices, groups)
        note = _untraced(connection, groups, path) if graphs else NO_REASON
        started = _started(connection)
    if not groups:
        raise NothingToDo(
            Reason("file-without-kernels", file=str(path)),
            hint=_NODES if note else "is it an export of: nsys profile --trace=cuda?",
        )
    rows = [found(launch, tuple(times), "nsys") for launch, times in groups.items()]
    if note:
        rows[0] = dataclasses.replace(rows[0], doubt=note)
    return rows, started


def _read_kernels(
    connection: sqlite3.Connection,
    path: Path,
    there: set[str],
    devices: Mapping[int, DeviceInfo],
    groups: dict[Launch, list[float]],
) -> None:
    name = "demangledName" if "demangledName" in there else "shortName"
    process = "k.globalPid" if "globalPid" in there else "0"
    axes = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    shape = ", ".join(f"k.{axis[:-2]}{axis[-1].upper()}" for axis in axes)
    gpus = _gpus(connection)
    for kernel, start, end, ordinal, of, *sizes in connection.execute(
        f'SELECT names.value, k.start, k."end", k.deviceId, {process}, {shape} '
        f"FROM {_KERNELS} AS k LEFT JOIN StringIds AS names ON names.id = k.{name} ORDER BY k.start"
    ):
        place = f"{path}: the kernel that started at {start}"
        if not isinstance(kernel, str) or not kernel:
            raise CodecError(
                Reason("field-missing", where=place, name=name),
                hint="export it again, it may be damaged",
            )
        # Device numbers are per process: the same number may be another GPU in another process.
        pid = of >> 24 & 0xFFFFFF if isinstance(of, int) else 0
        index = gpus.get((pid, ordinal), ordinal)
        index = whole(index, f"{place}, deviceId")
        launch = Launch(
            kernel=kernel,
            sizes=tuple(
                (axis, whole(size, f"{place}, {axis}"))
                for axis, size in zip(axes, sizes, strict=True)
            ),
            device=f"cuda:{index}",
            arch=devices[index].arch if index in devices else "",
            process=str(of),
        )
        groups.setdefault(launch, []).append(elapsed_s(start, end, place))


def _gpus(connection: sqlite3.Connection) -> dict[tuple[object, object], object]:
    """Return the GPU of each (process, device number)."""
    needed = {"pid", "cudaId", "gpuId"}
    if not needed <= columns_of(connection, "TARGET_INFO_CUDA_DEVICE"):
        return {}
    query = "SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE"
    return {(pid, ordinal): gpu for pid, ordinal, gpu in connection.execute(query)}


def _devices(connection: sqlite3.Connection, path: Path) -> dict[int, DeviceInfo]:
    there = columns_of(connection, "TARGET_INFO_GPU")
    if not {"id", "name"} <= there:
        return {}
    known = {"computeMajor", "computeMinor"} <= there
    columns = "computeMajor, computeMinor" if known else "NULL, NULL"
    found_here: dict[int, DeviceInfo] = {}
    for gpu_id, name, major, minor in connection.execute(
        f"SELECT id, name, {columns} FROM TARGET_INFO_GPU"
    ):
        index = whole(gpu_id, f"{path}: TARGET_INFO_GPU, id")
        arch = f"sm_{major}{minor}" if isinstance(major, int) and isinstance(minor, int) else ""
        found_here[index] = DeviceInfo(
            name=f"cuda:{index}", kind="cuda", model=str(name), arch=arch, index=index
        )
    return found_here


def _untraced(
    connection: sqlite3.Connection, groups: Mapping[Launch, list[float]], path: Path
) -> Reason:
    """Return a note on the fraction of GPU time in graphs that were traced as a whole, if any."""
    query = f'SELECT count(*), sum("end" - start) FROM {_GRAPHS}'
    count, lasted = next(iter(connection.execute(query)))
    if not count:
        return NO_REASON
    graphs_s = number(lasted, f"{path}: {_GRAPHS}") * SECONDS["ns"]
    kernels_s = sum(map(sum, groups.values()))
    share = graphs_s / (graphs_s + kernels_s) if graphs_s > 0 else 0.0
    return Reason("graphs-untraced", share=share)


def _started(connection: sqlite3.Connection) -> float | None:
    if "utcEpochNs" not in columns_of(connection, "TARGET_INFO_SESSION_START_TIME"):
        return None
    query = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
    start_ns = next(iter(connection.execute(query)), (None,))[0]
    return start_ns * SECONDS["ns"] if isinstance(start_ns, int) else None


importer = Nsys()
