"""nsys: kernel times of Nsight Systems, from its SQLite export or the CSV of its reports.

The export and the report cuda_gpu_trace have every launch: samples of a process. The reports
cuda_gpu_kern_gb_sum and cuda_gpu_kern_sum have means over launches, the latter over all launch
shapes. Copies and fills are not kernels, and are left out.
"""

from __future__ import annotations

import csv
import dataclasses
import re
import sqlite3
from collections.abc import Iterator, Mapping

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.workloads.importers import (
    EACH_TABLE,
    SECONDS,
    SQLITE,
    Importer,
    Launch,
    Launches,
    ResultFile,
    ResultRow,
    columns_of,
    database,
    elapsed_s,
    is_database,
    mean_row,
)
from kernelmark.workloads.source import BadLine, Fields, parse_number, parse_whole, unexpected

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
_OF_SUMMARY = frozenset(
    (
        *("Time (%)", "Time(%)", "Instances", "Name", *_BARE, *_SUMMED.values()),
        *(f"Total Time ({unit})" for unit in _UNITS),
    )
)
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
    method = "nsys"

    def recognizes(self, name: str, head: bytes) -> bool:
        if name.endswith(".sqlite"):
            return head.startswith(SQLITE)
        return bool(_REPORT.search(head.replace(b'"', b"").replace(b"\r", b"")))

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        return _export(file) if is_database(file.path) else _report(file)


def _report(file: ResultFile) -> Iterator[ResultRow]:
    header, rows = _table(file)
    times = {match[1]: name for name in header if (match := _TIME.match(name))}
    if "Total Time (ns)" in header:
        times |= {name: name for name in header if name in _BARE}
    mean = times.get("Avg") or times.get("Average")
    if "GrdX" in header and "Duration" in times:
        yield from _trace(file, rows, times["Duration"])
    elif mean is None:
        column = "Duration (ns)" if "GrdX" in header else "Avg (ns)"
        raise UsageError(f"the table has no column {column}", hint=_HINT)
    else:
        others = [name for name in header if not _TIME.match(name) and name not in _OF_SUMMARY]
        if others:
            raise UsageError(f"the column {others[0]!r} is of no summary of kernels", hint=_HINT)
        for cells in rows:
            also = {
                name: _seconds(cells, times[key])
                for name, keys in _ALSO.items()
                for key in keys
                if key in times and cells[times[key]]
            }
            launch = Launch(kernel=_name(cells), sizes=_summed_sizes(cells))
            yield mean_row(launch, (_seconds(cells, mean),), "nsys", also=also)


def _table(file: ResultFile) -> tuple[list[str], Iterator[Fields]]:
    """Return the header and rows of the kernel trace, or of the first kernel summary. nsys stats
    prints several reports, each after some other lines. The MPI summary has the columns of a kernel
    summary, and Source."""
    texts = file.texts
    headers = {
        i: next(csv.reader([line]), [])
        for i, line in enumerate(texts)
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
        raise NothingToDo("the file has no table of kernels", hint=_HINT)
    starts = [i for i, other in headers.items() if other == headers[begin]]
    if len(starts) > 1:
        error = f"line {starts[1] + 1}: the same table begins a second time"
        raise UsageError(error, hint=EACH_TABLE)
    following = range(begin + 1, len(texts))
    end = next((i for i in following if _END.match(texts[i])), following.stop)
    return file.table(begin, end)


def _trace(file: ResultFile, rows: Iterator[Fields], duration: str) -> Iterator[ResultRow]:
    launches = Launches("nsys")
    devices: dict[int, DeviceInfo] = {}
    for cells in rows:
        if not cells["GrdX"] and _COPY.match(cells["Name"]):
            continue
        sizes = tuple(
            (f"{what}_{axis}", cells.whole(column))
            for what, columns in _SHAPES.items()
            for axis, column in zip("xyz", columns, strict=True)
        )
        match = _DEVICE.match(cells.text("Device"))
        if match is None:
            raise unexpected("Device", "NAME (NUMBER)", cells.get("Device"), _HINT)
        device = _device_info(int(match[2]), match[1].strip())
        devices[device.index] = device
        launch = Launch(kernel=_name(cells), sizes=sizes, device=device.name)
        launches.add(launch, _seconds(cells, duration), file.doubt)
    file.environment = _environment(devices)
    yield from launches.rows()


def _device_info(index: int, model: str, arch: str = "") -> DeviceInfo:
    return DeviceInfo(name=f"cuda:{index}", kind="cuda", model=model, arch=arch, index=index)


def _environment(devices: Mapping[int, DeviceInfo]) -> Environment:
    return Environment(devices=tuple(devices[index] for index in sorted(devices)))


def _name(cells: Fields) -> str:
    if not cells["Name"]:
        raise BadLine("Name is missing", hint=_HINT)
    return str(cells["Name"])


def _seconds(cells: Fields, column: str) -> float:
    match = _TIME.match(column)
    unit = match[2] if match else "ns"
    if unit not in _UNITS:
        raise unexpected(column, "a unit of time", unit, _HINT)
    return cells.number(column) * _UNITS[unit]


def _summed_sizes(cells: Fields) -> tuple[tuple[str, int], ...]:
    sizes: list[tuple[str, int]] = []
    for what, column in _SUMMED.items():
        if column in cells:
            numbers = cells[column].split()
            if len(numbers) != 3:
                raise unexpected(column, "three sizes", cells[column], _HINT)
            axes = zip("xyz", numbers, strict=True)
            sizes += [(f"{what}_{axis}", parse_whole(number, column)) for axis, number in axes]
    return tuple(sizes)


def _export(file: ResultFile) -> Iterator[ResultRow]:
    hint = "export it again: nsys export --type sqlite REPORT"
    launches = Launches("nsys")
    with database(file.path, "an export of nsys", hint) as connection:
        kernels, graphs = columns_of(connection, _KERNELS), columns_of(connection, _GRAPHS)
        devices = _devices(connection)
        if kernels:
            _read_kernels(connection, kernels, devices, launches)
        note = _untraced(connection, launches.total_s) if graphs else NO_REASON
        file.started = _started(connection)
    file.environment = _environment(devices)
    if not launches:
        raise NothingToDo(
            "the file has no kernels",
            hint=_NODES if note else "is it an export of: nsys profile --trace=cuda?",
        )
    for number, row in enumerate(launches.rows()):
        yield dataclasses.replace(row, doubt=note) if note and not number else row


def _read_kernels(
    connection: sqlite3.Connection,
    there: set[str],
    devices: Mapping[int, DeviceInfo],
    launches: Launches,
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
        where = f"the kernel that started at {start}"
        if not isinstance(kernel, str) or not kernel:
            raise BadLine(f"{where} has no {name}", hint="export it again, it may be damaged")
        # Device numbers are per process: the same number may be another GPU in another process.
        pid = of >> 24 & 0xFFFFFF if isinstance(of, int) else 0
        index = parse_whole(gpus.get((pid, ordinal), ordinal), f"{where}, deviceId")
        launch = Launch(
            kernel=kernel,
            sizes=tuple(
                (axis, parse_whole(size, f"{where}, {axis}"))
                for axis, size in zip(axes, sizes, strict=True)
            ),
            device=f"cuda:{index}",
            arch=devices[index].arch if index in devices else "",
            process=str(of),
        )
        launches.add(launch, elapsed_s(start, end, where))


def _gpus(connection: sqlite3.Connection) -> dict[tuple[object, object], object]:
    """Return the GPU of each (process, device number)."""
    needed = {"pid", "cudaId", "gpuId"}
    if not needed <= columns_of(connection, "TARGET_INFO_CUDA_DEVICE"):
        return {}
    query = "SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE"
    return {(pid, ordinal): gpu for pid, ordinal, gpu in connection.execute(query)}


def _devices(connection: sqlite3.Connection) -> dict[int, DeviceInfo]:
    there = columns_of(connection, "TARGET_INFO_GPU")
    if not {"id", "name"} <= there:
        return {}
    has_arch = {"computeMajor", "computeMinor"} <= there
    columns = "computeMajor, computeMinor" if has_arch else "NULL, NULL"
    devices: dict[int, DeviceInfo] = {}
    for gpu_id, name, major, minor in connection.execute(
        f"SELECT id, name, {columns} FROM TARGET_INFO_GPU"
    ):
        index = parse_whole(gpu_id, "TARGET_INFO_GPU, id")
        arch = f"sm_{major}{minor}" if isinstance(major, int) and isinstance(minor, int) else ""
        devices[index] = _device_info(index, str(name), arch)
    return devices


def _untraced(connection: sqlite3.Connection, kernels_s: float) -> Reason:
    """Return a note on the fraction of GPU time in graphs that were traced as a whole, if any."""
    query = f'SELECT count(*), sum("end" - start) FROM {_GRAPHS}'
    count, lasted = next(iter(connection.execute(query)))
    if not count:
        return NO_REASON
    graphs_s = parse_number(lasted, _GRAPHS) * SECONDS["ns"]
    share = graphs_s / (graphs_s + kernels_s) if graphs_s > 0 else 0.0
    return Reason(
        f"{100 * share:.0f} % of the GPU time in the file is of replayed"
        " graphs: nsys profile --cuda-graph-trace=node names their kernels",
        "graphs-untraced",
        share=share,
    )


def _started(connection: sqlite3.Connection) -> float | None:
    if "utcEpochNs" not in columns_of(connection, "TARGET_INFO_SESSION_START_TIME"):
        return None
    query = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
    start_ns = next(iter(connection.execute(query)), (None,))[0]
    return start_ns * SECONDS["ns"] if isinstance(start_ns, int) else None


importers = (Nsys(),)
