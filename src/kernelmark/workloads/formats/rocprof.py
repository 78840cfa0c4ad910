"""rocprof: kernel traces and statistics of rocprofv3, as CSV, JSON or rocpd database, and CSVs of
the older rocprof.

A trace has the time of every launch: samples of one process. Statistics are bare means. Auxiliary
kernels (fills, copies) are separate results, and so are kernels of another agent, a GPU. A file of
counters has a row per counter of a launch, which is one sample. Statistics of other things than
kernels have the same columns, and are recognised by the file name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.registry import FormatFacts
from kernelmark.workloads.importers import (
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
    instant_ns,
    is_database,
    mean_row,
)
from kernelmark.workloads.source import BadLine, Fields, unexpected

_NS = SECONDS["ns"]
_JSON = "rocprofiler-sdk-tool"
_SIZES = tuple(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ")
# Columns of the older rocprof, of counters, and of tables of rocprof-compute.
_OTHER_SIZES = ("wgr", "grd", "Workgroup_Size", "Grid_Size")
_COUNTER = "Counter_Name"
_DISPATCH = "KERNEL_DISPATCH"
_AGENTS = ("Agent_Id", "gpu-id", "GPU_ID")
_ALSO = (("min_s", "MinNs"), ("max_s", "MaxNs"), ("stdev_s", "StdDev"))
# The CSV has logical numbers (--agent-index=relative) by default.
_DB_AGENTS = ("agent_log_index", "agent_abs_index", "agent_type_index")
_NODES = ("logical_node_id", "node_id")
# hip_api_stats.csv, domain_stats.csv; of the older rocprof: results.hip_stats.csv.
_OTHER_STATS = re.compile(r"(?:api|hip|hsa|copy|marker|roctx|domain|scratch_memory)_stats\.csv\Z")
# RCCL's kernels begin like its API calls: ncclDevKernel_Generic, ncclKernel_…, mscclKernel_….
_OTHER_NAMES = re.compile(
    r"(?:__)?hip[A-Z]\w*\Z|hsa_\w+\Z|(?:nccl|msccl)(?!(?:Dev)?Kernel)[A-Z]\w*\Z|"
    r"(?:HIP|HSA|KERNEL|MARKER|MEMORY|RCCL|SCRATCH)_[A-Z_]+\Z"
)
# The same columns in the database, so that a profile is one series in both forms.
_DB_SIZES = {name: f"{name.split('_')[0]}_{name[-1]}".lower() for name in _SIZES}
# Columns of the kernel, its start and its end, by generation.
_NEW = ("Kernel_Name", "Start_Timestamp", "End_Timestamp")
_OLD = ("KernelName", "BeginNs", "EndNs")
_WITH_KERNELS = "import *_kernel_stats.csv or *_kernel_trace.csv"


class RocProf(Importer):
    name = "rocprof"
    summary = "kernel_trace.csv, kernel_stats.csv, results.json or rocpd database of rocprofv3"
    facts = FormatFacts(
        versions="rocprofiler-sdk 8ab1ed78 (2024-10), rocm-systems 0980d0d7, rocpd, rocprof 1",
        exactness="every launch by kernel, launch shape and agent; statistics of anything but "
        "kernels, and times that a spreadsheet rounded, are rejected",
        checked="compared with rocprofiler-sdk's generateCSV.cpp and generateJSON.cpp; read the "
        "files in its documentation, a database made from its schema, and traces, counters and a "
        "database recorded on MI100 to MI350 in public repositories; the same launches from CSV, "
        "JSON and database in tests",
    )
    method = "rocprofv3"

    def recognizes(self, name: str, head: bytes) -> bool:
        first = head.partition(b"\n")[0]
        if name.endswith(".db"):
            return head.startswith(SQLITE)
        if name.endswith(".json"):
            return f'"{_JSON}"'.encode() in head
        trace = any(all(item.encode() in first for item in names) for names in (_NEW, _OLD))
        return trace or (b"AverageNs" in first and b"Calls" in first)

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        if is_database(file.path):
            launches = Launches("rocprof")
            for launch, start, end, where in _stored(file.path):
                launches.add(launch, elapsed_s(start, end, where))
            return launches.rows_by_agent()
        return _document(file) if file.text.lstrip()[:1] == "{" else _table(file)


def _table(file: ResultFile) -> Iterator[ResultRow]:
    names, rows = file.table()
    for columns in (_NEW, _OLD):
        if set(columns) <= set(names):
            return _trace(file, rows, columns)
    if "AverageNs" not in names:
        hint = "rocprofv3 --kernel-trace --stats --output-format csv"
        raise UsageError("the file has no table of kernels", hint=hint)
    if _OTHER_STATS.search(file.name):
        raise UsageError("the statistics are not of kernels", hint=_WITH_KERNELS)
    return _statistics(file, rows)


def _statistics(file: ResultFile, rows: Iterable[Fields]) -> Iterator[ResultRow]:
    of_kernels = "kernel_stats" in file.name
    for cells in rows:
        kernel = str(cells.get("Name"))
        if not of_kernels and _OTHER_NAMES.match(kernel):
            raise UsageError("the statistics are not of kernels", hint=_WITH_KERNELS)
        also = {name: cells.number(column) * _NS for name, column in _ALSO if cells.get(column)}
        mean_s = cells.number("AverageNs") * _NS
        yield mean_row(Launch(kernel=kernel), (mean_s,), "rocprof", also=also)


def _trace(
    file: ResultFile, rows: Iterable[Fields], columns: tuple[str, str, str]
) -> Iterator[ResultRow]:
    name, begin, finish = columns
    launches = Launches("rocprof")
    dispatches: set[str] = set()
    for cells in rows:
        if (kind := cells.text("Kind", _DISPATCH)) != _DISPATCH:
            raise unexpected("Kind", _DISPATCH, kind, "import *_kernel_trace.csv")
        sizes = tuple((size, cells[size]) for size in (*_SIZES, *_OTHER_SIZES) if cells.get(size))
        agent = next((cells[column] for column in _AGENTS if cells.get(column)), "")
        launch = Launch(kernel=cells[name], sizes=sizes, device=agent.removeprefix("Agent "))
        if _COUNTER in cells:  # the launch is repeated for each counter
            dispatch = f"{cells.get('Process_Id')} {cells.get('Dispatch_Id')} {cells[begin]}"
            if dispatch in dispatches:
                continue
            dispatches.add(dispatch)
        seconds = elapsed_s(cells[begin], cells[finish], "the launch")
        if cells.text("DurationNs") and cells.number("DurationNs") != round(seconds / _NS):
            raise unexpected("DurationNs", f"{round(seconds / _NS)}", cells["DurationNs"])
        launches.add(launch, seconds, file.doubt)
    yield from launches.rows_by_agent()


def _stored(path: Path) -> Iterator[tuple[Launch, int, int, str]]:
    """Yield the launches of a database with start and end, in the order of their start."""
    hint = "rocpd convert -i FILE --output-format csv, and import the CSV"
    with database(path, "a rocpd database", hint) as connection:
        there = columns_of(connection, "kernels")
        sized = {name: column for name, column in _DB_SIZES.items() if column in there}
        agent = next((f'"{name}"' for name in _DB_AGENTS if name in there), "''")
        columns = ", ".join(("name", "start", "end", agent, *sized.values()))
        for name, start, end, of, *values in connection.execute(
            f"SELECT {columns} FROM kernels ORDER BY start"
        ):
            pairs = zip(sized, values, strict=True)
            sizes = tuple((size, str(value)) for size, value in pairs if value is not None)
            launch = Launch(kernel=str(name), sizes=sizes, device="" if of is None else str(of))
            yield launch, start, end, f"{name} that started at {start}"


def timeline(path: Path) -> list[tuple[str, float]]:
    """Return (kernel, seconds) of a trace, a database or a CSV of rocprofv3 or rocpd, in the order
    of their start."""
    if is_database(path):
        return [
            (launch.kernel, elapsed_s(start, end, f"{path}: {where}"))
            for launch, start, end, where in _stored(path)
        ]
    file = ResultFile(path)
    names, rows = file.table()
    if not set(_NEW) <= set(names):
        raise UsageError(f"{path} has no table of kernels")
    launches = []
    for cells in rows:
        kernel, start, end = (cells[name] for name in _NEW)
        where = f"{path}: {file.at}"
        launches.append((instant_ns(start, where), kernel, elapsed_s(start, end, where)))
    return [(kernel, seconds) for _, kernel, seconds in sorted(launches)]


def _document(file: ResultFile) -> Iterator[ResultRow]:
    """Read results.json: each process has launches, kernels by id and agents by handle."""
    launches = Launches("rocprof")
    for order, process in enumerate(file.document().objects(_JSON), 1):
        names, agents = _kernel_names(process), _agents(process)
        for number, record in enumerate(_dispatches(process), 1):
            record.where = f"process {order}, launch {number}"
            launch = _launch(record, names, agents, str(order))
            times = record.get("start_timestamp"), record.get("end_timestamp")
            launches.add(launch, elapsed_s(*times, record.where))
    yield from launches.rows_by_agent()


def _dispatches(process: Fields) -> Iterator[Fields]:
    """Yield the records of launches from the trace or, without one, from the counters."""
    traced = process.object("buffer_records")
    yield from traced.objects("kernel_dispatch")
    if not traced.list("kernel_dispatch"):
        for record in process.object("callback_records").objects("counter_collection"):
            yield record.object("dispatch_data")


def _launch(
    record: Fields,
    names: dict[tuple[str, int], str],
    agents: dict[int, tuple[str, str]],
    process: str,
) -> Launch:
    info = record.object("dispatch_info")
    kernel = _id(info, "kernel_id")
    # rocprofv3 --kernel-rename: the name of the roctx range replaces that of the kernel.
    correlation = record.object("correlation_id")
    renamed = _id(correlation, "external") if "external" in correlation else 0
    name = names.get(("external", renamed)) or names.get(("kernel", kernel))
    handle = _id(info.object("agent_id"), "handle")
    if name is None or handle not in agents:
        missing = f"kernel {kernel}" if name is None else f"agent {handle}"
        raise BadLine(f"{record.where}: the file does not name the {missing}")
    sizes = []
    for size in _SIZES:
        shape = info.object(size[:-2].lower())
        sizes.append((size, shape.whole(size[-1].lower())))
    node, arch = agents[handle]
    return Launch(kernel=name, sizes=tuple(sizes), device=node, arch=arch, process=process)


def _kernel_names(process: Fields) -> dict[tuple[str, int], str]:
    names: dict[tuple[str, int], str] = {}
    for symbol in process.objects("kernel_symbols"):
        name = symbol.get("formatted_kernel_name")
        if isinstance(name, str) and name:
            names["kernel", _id(symbol, "kernel_id")] = name
    for pair in process.object("strings").object("correlation_id").objects("external"):
        names["external", _id(pair, "key")] = str(pair.get("value"))
    return names


def _agents(process: Fields) -> dict[int, tuple[str, str]]:
    """Return the node and the architecture of each agent by its handle."""
    agents: dict[int, tuple[str, str]] = {}
    for agent in process.objects("agents"):
        node = agent.whole(next((name for name in _NODES if name in agent), _NODES[-1]))
        name = str(agent.get("name"))
        agents[_id(agent.object("id"), "handle")] = (
            str(node),
            name if name.startswith("gfx") else "",
        )
    return agents


def _id(fields: Fields, name: str) -> int:
    """Return an id, which must be an integer: 64-bit hashes and addresses exceed the precision of a
    float."""
    value = fields.get(name)
    if type(value) is not int:
        raise unexpected(fields.at(name), "an integer id", value)
    return value


importers = (RocProf(),)
