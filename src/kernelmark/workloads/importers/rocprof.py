"""rocprof: kernel traces and statistics of rocprofv3, as CSV, JSON or rocpd database, and CSVs of
the older rocprof.

A trace has the time of every launch: samples of one process. Statistics are bare means. Auxiliary
kernels (fills, copies) are separate results, and so are kernels of another agent, a GPU. A file of
counters has a row per counter of a launch, which is one sample. Statistics of other things than
kernels have the same columns, and are recognised by the file name.
"""

from __future__ import annotations

import codecs
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet
from kernelmark.workloads.importers._launches import (
    SECONDS,
    SQLITE,
    Launch,
    columns_of,
    database,
    elapsed_s,
    found,
    instant_ns,
)
from kernelmark.workloads.importers._lines import Row, table_of
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    fields_of,
    items_of,
    json_object,
    number,
    unexpected,
    whole,
)

_NS = SECONDS["ns"]
_JSON = "rocprofiler-sdk-tool"
_SIZES = tuple(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ")
# Columns of the older rocprof, of counters, and of tables of rocprof-compute.
_OTHER_SIZES = ("wgr", "grd", "Workgroup_Size", "Grid_Size")
_COUNTER = "Counter_Name"
_AGENTS = ("Agent_Id", "gpu-id", "GPU_ID")
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


class RocProf(Importer):
    name = "rocprof"
    summary = "kernel_trace.csv, kernel_stats.csv, results.json or rocpd database of rocprofv3"
    facts = FormatFacts(
        versions="rocprofiler-sdk 8ab1ed78 (2024-10), rocm-systems 0980d0d7, rocpd, rocprof 1",
        exactness="every launch by kernel, launch shape and agent; statistics of anything but "
        "kernels are rejected",
        checked="compared with rocprofiler-sdk's generateCSV.cpp and generateJSON.cpp; read the "
        "files in its documentation, a database made from its schema, and traces, counters and a "
        "database recorded on MI100 to MI350 in public repositories; the same launches from CSV, "
        "JSON and database in tests",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        first = head.partition(b"\n")[0]
        if name.endswith(".db"):
            return head.startswith(SQLITE)
        if name.endswith(".json"):
            return f'"{_JSON}"'.encode() in head
        trace = any(all(one.encode() in first for one in names) for names in (_NEW, _OLD))
        return trace or (b"AverageNs" in first and b"Calls" in first)

    def read(self, path: Path, given: Given) -> ResultSet:
        with path.open("rb") as file:
            head = file.read(1024).removeprefix(codecs.BOM_UTF8)
        if head.startswith(SQLITE):
            rows = _database(path)
        else:
            rows = _document(path) if head.lstrip()[:1] == b"{" else _table(path)
        return build_run(path, given, rows, method="rocprofv3")


def _table(path: Path) -> Iterator[Found]:
    names, rows = table_of(path)
    for columns in (_NEW, _OLD):
        if set(columns) <= set(names):
            return _trace(rows, columns)
    if "AverageNs" in names:
        if _OTHER_STATS.search(path.name):
            raise _no_kernels(path)
        return _statistics(path, rows)
    raise UsageError(
        Reason("no-kernel-table", file=str(path)),
        hint="rocprofv3 --kernel-trace --stats --output-format csv",
    )


def _no_kernels(path: Path) -> UsageError:
    return UsageError(
        Reason("statistics-not-of-kernels", file=str(path)),
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
        launch = Launch(kernel=str(row.cells.get("Name")))
        yield found(launch, (mean_s,), "rocprof", also=also, doubt=row.doubt)


def _trace(rows: Iterable[Row], columns: tuple[str, str, str]) -> Iterator[Found]:
    name, begin, finish = columns
    groups: dict[Launch, list[float]] = {}
    dispatches: set[str] = set()
    last, doubt = None, ""
    for row in rows:
        cells = row.cells
        sizes = tuple((one, cells[one]) for one in (*_SIZES, *_OTHER_SIZES) if cells.get(one))
        agent = next((cells[one] for one in _AGENTS if cells.get(one)), "")
        last = Launch(kernel=cells[name], sizes=sizes, device=agent.removeprefix("Agent "))
        doubt = row.doubt
        if _COUNTER in cells:  # the launch is repeated for each counter
            dispatch = f"{cells.get('Process_Id')} {cells.get('Dispatch_Id')} {cells[begin]}"
            if dispatch in dispatches:
                continue
            dispatches.add(dispatch)
        groups.setdefault(last, []).append(elapsed_s(cells[begin], cells[finish], row.place))
    yield from _rows(groups, {last: doubt})


def _database(path: Path) -> Iterator[Found]:
    groups: dict[Launch, list[float]] = {}
    for launch, start, end, place in _stored(path):
        groups.setdefault(launch, []).append(elapsed_s(start, end, place))
    yield from _rows(groups)


def _stored(path: Path) -> Iterator[tuple[Launch, int, int, str]]:
    """Yield the launches of a database with start and end, in the order of their start."""
    hint = "rocpd convert -i FILE --output-format csv, and import the CSV"
    with database(path, "a rocpd database", hint) as connection:
        there = columns_of(connection, "kernels")
        sized = {name: column for name, column in _DB_SIZES.items() if column in there}
        agent = next((f'"{name}"' for name in _DB_AGENTS if name in there), "''")
        columns = ", ".join(("name", "start", "end", agent, *sized.values()))
        for name, start, end, of, *sizes in connection.execute(
            f"SELECT {columns} FROM kernels ORDER BY start"
        ):
            given = zip(sized, sizes, strict=True)
            key = tuple((size, str(value)) for size, value in given if value is not None)
            place = f"{path}: {name} that started at {start}"
            launch = Launch(kernel=str(name), sizes=key, device="" if of is None else str(of))
            yield launch, start, end, place


def timeline(path: Path) -> list[tuple[str, float]]:
    """Return (kernel, seconds) of a trace, a database or a CSV of rocprofv3 or rocpd, in the order
    of their start."""
    with path.open("rb") as file:
        stored = file.read(len(SQLITE)) == SQLITE
    if stored:
        return [
            (launch.kernel, elapsed_s(start, end, place))
            for launch, start, end, place in _stored(path)
        ]
    names, rows = table_of(path)
    if not set(_NEW) <= set(names):
        raise UsageError(Reason("no-kernel-table", file=str(path)))
    found = []
    for row in rows:
        kernel, start, end = (row.cells[name] for name in _NEW)
        seconds = elapsed_s(start, end, row.place)
        found.append((instant_ns(start, row.place), kernel, seconds))
    return [(kernel, seconds) for _, kernel, seconds in sorted(found)]


def _document(path: Path) -> Iterator[Found]:
    """Read results.json: each process has launches, kernels by id and agents by handle."""
    document = json_object(path)
    groups: dict[Launch, list[float]] = {}
    for order, one in enumerate(items_of(document.get(_JSON), f"{path}: {_JSON}"), 1):
        place = f"{path}: process {order}"
        process = fields_of(one, place)
        names, agents = _kernel_names(process, place), _agents(process, place)
        for number_in_file, record in enumerate(_dispatches(process, place), 1):
            here = f"{place}, launch {number_in_file}"
            launch = dataclasses.replace(_launch(record, names, agents, here), process=str(order))
            lasted = elapsed_s(record.get("start_timestamp"), record.get("end_timestamp"), here)
            groups.setdefault(launch, []).append(lasted)
    yield from _rows(groups)


def _dispatches(process: Mapping[str, Any], place: str) -> Iterator[Mapping[str, Any]]:
    """Yield the records of launches from the trace or, without one, from the counters."""
    traced = fields_of(process.get("buffer_records", {}), f"{place}, buffer_records")
    records = items_of(traced.get("kernel_dispatch"), f"{place}, kernel_dispatch")
    counted = fields_of(process.get("callback_records", {}), f"{place}, callback_records")
    for record in records:
        yield fields_of(record, f"{place}, kernel_dispatch")
    if not records:
        for record in items_of(counted.get("counter_collection"), f"{place}, counter_collection"):
            counters = fields_of(record, f"{place}, counter_collection")
            yield fields_of(counters.get("dispatch_data"), f"{place}, dispatch_data")


def _launch(
    record: Mapping[str, Any],
    names: Mapping[tuple[str, int], str],
    agents: Mapping[int, tuple[str, str]],
    place: str,
) -> Launch:
    info = fields_of(record.get("dispatch_info"), f"{place}, dispatch_info")
    kernel = _id(info.get("kernel_id"), f"{place}, kernel_id")
    correlation = fields_of(record.get("correlation_id", {}), f"{place}, correlation_id")
    renamed = _id(correlation.get("external", 0), f"{place}, correlation_id")
    # rocprofv3 --kernel-rename: the name of the roctx range replaces that of the kernel.
    name = names.get(("external", renamed)) or names.get(("kernel", kernel))
    handle = _id(fields_of(info.get("agent_id"), f"{place}, agent_id").get("handle"), place)
    if name is None or handle not in agents:
        what, missing = ("kernel", kernel) if name is None else ("agent", handle)
        cause = Reason("unknown-name", what=what, name=missing)
        raise CodecError(Reason("at", where=place, cause=cause))
    sizes = []
    for size in _SIZES:
        what = size[:-2].lower()
        shape = fields_of(info.get(what), f"{place}, {what}")
        sizes.append((size, whole(shape.get(size[-1].lower()), f"{place}, {what}")))
    node, arch = agents[handle]
    return Launch(kernel=name, sizes=tuple(sizes), device=node, arch=arch)


def _kernel_names(process: Mapping[str, Any], place: str) -> dict[tuple[str, int], str]:
    names: dict[tuple[str, int], str] = {}
    for entry in items_of(process.get("kernel_symbols"), f"{place}, kernel_symbols"):
        symbol = fields_of(entry, f"{place}, kernel_symbols")
        name = symbol.get("formatted_kernel_name")
        if isinstance(name, str) and name:
            names["kernel", _id(symbol.get("kernel_id"), f"{place}, kernel_id")] = name
    strings = fields_of(process.get("strings", {}), f"{place}, strings")
    renamed = fields_of(strings.get("correlation_id", {}), f"{place}, strings.correlation_id")
    for entry in items_of(renamed.get("external"), f"{place}, strings.correlation_id"):
        pair = fields_of(entry, f"{place}, strings.correlation_id")
        names["external", _id(pair.get("key"), f"{place}, key")] = str(pair.get("value"))
    return names


def _agents(process: Mapping[str, Any], place: str) -> dict[int, tuple[str, str]]:
    """Return the node and the architecture of each agent by its handle."""
    agents: dict[int, tuple[str, str]] = {}
    for entry in items_of(process.get("agents"), f"{place}, agents"):
        agent = fields_of(entry, f"{place}, agents")
        node = whole(
            next((agent[name] for name in _NODES if name in agent), None), f"{place}, node_id"
        )
        name = str(agent.get("name"))
        handle = _id(fields_of(agent.get("id"), f"{place}, agents").get("handle"), place)
        agents[handle] = (str(node), name if name.startswith("gfx") else "")
    return agents


def _id(value: object, place: str) -> int:
    """Return an id; raise CodecError unless it is an integer: 64-bit hashes and addresses exceed
    the precision of a float."""
    if type(value) is not int:
        raise unexpected(place, "an integer id", value)
    return value


def _rows(
    groups: Mapping[Launch, list[float]], doubts: Mapping[Launch | None, str] | None = None
) -> Iterator[Found]:
    """Yield a row per launch key. Agents are named as devices only if there are several; a single
    one is the device given by --device."""
    several = len({launch.device for launch in groups}) > 1
    for launch, times in groups.items():
        device = f"agent:{launch.device}" if several else ""
        shown = dataclasses.replace(launch, device=device)
        yield found(shown, tuple(times), "rocprof", doubt=(doubts or {}).get(launch, ""))


importer = RocProf()
