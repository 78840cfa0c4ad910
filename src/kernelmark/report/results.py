"""Results as rows: their fraction of the roofline, their rank, and the columns of every output.

The shortest possible time of a problem is the larger of flops / compute roof and bytes / memory
roof; the fraction of the roof is that time over the measured one. It is not clamped: above 1,
either the op overcounts the required work or traffic, or the roof was measured under load, and both
must be visible.
"""

from __future__ import annotations

import html
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from kernelmark.core.dtype import DTYPES
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.files import Cell
from kernelmark.core.metric import Metric, Roof
from kernelmark.core.micro import is_micro
from kernelmark.core.problem import Option
from kernelmark.core.result import (
    Measurement,
    Mode,
    Result,
    ResultSet,
    Run,
    Status,
    StopReason,
    config_key,
)
from kernelmark.core.timing import Cache
from kernelmark.core.units import join_or, rate_text, width_text
from kernelmark.report.names import backend_text, distinguishing, short
from kernelmark.report.tables import NONE, Column, Table, csv_names, file_column, record, tabulate
from kernelmark.runners.impossible import Bound, threads_of

MARK = "!"  # after the ± of a result with a warning
_CANARIES = "canaries:"
_DISTURBED = "disturbed"  # an ok microbenchmark whose repetitions disagree


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Measured speed as a fraction of the attainable speed, and the roof that limits it."""

    value: float
    bound: Bound
    roof: Roof


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roofs:
    """The roofs for results of one device, thread count and dtype; None where unknown."""

    compute: Roof | None
    memory: Roof | None
    f32: Roof | None


RoofCache = dict[tuple[str, str, int, str], _Roofs]


def share(
    result: Result,
    roofs: Sequence[Roof],
    info: DeviceInfo | None = None,
    cache: RoofCache | None = None,
) -> Share | None:
    """Return the fraction of the roof that limits this result; None if no matching roof is known.

    A hot problem that fits the last-level cache is not memory-bound, and an op without FLOPs is not
    compute-bound. A float dtype without a measured roof is compared only with memory, and only if
    the problem is memory-bound even at the f32 compute roof: hardware for the narrower dtype can
    only raise the compute roof.

    `cache` keeps the roofs that were found, for more results with the same `roofs`.
    """
    if result.measurement is None:
        return None
    near = _roofs(result, roofs, info, {} if cache is None else cache)
    compute = near.compute if result.flops else None
    memory = near.memory if result.bytes and not _stays_in_cache(result, info) else None
    if compute is None and result.flops:
        if memory is None or near.f32 is None or not _is_narrow_float(_dtype(result)):
            return None
        if _least_s(result, memory) < _least_s(result, near.f32):
            return None
    bounds = [roof for roof in (compute, memory) if roof is not None]
    if not bounds:
        return None
    roof = max(bounds, key=lambda r: _least_s(result, r))
    return Share(
        value=_least_s(result, roof) / result.measurement.median_s,
        bound="compute" if roof.kind == "flops" else "memory",
        roof=roof,
    )


def _roofs(
    result: Result, roofs: Sequence[Roof], info: DeviceInfo | None, cache: RoofCache
) -> _Roofs:
    kind, dtype = result.device.partition(":")[0], _dtype(result)
    key = (kind, result.arch, threads_of(result, info), dtype)
    if key not in cache:
        fitting = [
            roof
            for roof in roofs
            if (roof.device.partition(":")[0], roof.arch) == key[:2] and roof.threads in (0, key[2])
        ]
        cache[key] = _Roofs(
            compute=_newest(r for r in fitting if r.kind == "flops" and r.name == dtype),
            memory=_newest(r for r in fitting if r.kind == "bytes" and r.name == "dram"),
            f32=_newest(r for r in fitting if r.kind == "flops" and r.name == "f32"),
        )
    return cache[key]


def _newest(roofs: Iterable[Roof]) -> Roof | None:
    """Return the newest roof, preferring matrix units, which good kernels use."""
    return max(roofs, key=lambda r: (r.unit == "matrix", r.measured), default=None)


def _dtype(result: Result) -> str:
    """Return the dtype of the first input, which the multiplications read."""
    return next(iter(result.case.problem.dtypes.values()), "")


def _is_narrow_float(name: str) -> bool:
    return name in DTYPES and DTYPES[name].kind == "float" and DTYPES[name].bits < 32


def _stays_in_cache(result: Result, info: DeviceInfo | None) -> bool:
    if result.case.timing.cache is not Cache.HOT:
        return False
    return info is None or result.bytes <= info.cache_bytes


def _least_s(result: Result, roof: Roof) -> float:
    return (result.flops if roof.kind == "flops" else result.bytes) / roof.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One result with what other results and roofs say about it. `times_best` is its time over that
    of the fastest correct result for the same problem, None without another result. `tied`: its
    interval overlaps the fastest one's, so the ranking is within the noise; None if one of them has
    no interval, as an imported mean. `sentinel`: it is a
    canary. `timing` distinguishes it from rows with the same problem, backend and device."""

    result: Result
    run: Run
    backend: str
    share: Share | None
    times_best: float | None = None
    tied: bool | None = False
    sentinel: bool = False
    timing: str = ""

    @property
    def problem(self) -> str:
        """The short name, computed lazily: looking up an unknown op loads all plugins, 40 ms."""
        return short(self.result.case.problem)

    @property
    def measurement(self) -> Measurement | None:
        return self.result.measurement

    @property
    def timed(self) -> bool:
        """Whether the result is correct and has a time."""
        return self.result.status is Status.OK and self.result.measurement is not None

    @property
    def ranks(self) -> bool:
        """Whether the time may be compared with others."""
        return _ranks(self.result)

    @property
    def shown_share(self) -> Share | None:
        """The share of the roof to print; None for a wrong result, which did other work."""
        return None if self.result.status is Status.WRONG else self.share

    @property
    def has_interval(self) -> bool:
        """Whether the time can differ from others by more than the noise."""
        return self.measurement is not None and self.measurement.has_interval

    @property
    def is_above_roof(self) -> bool:
        return self.ranks and self.share is not None and self.share.value > 1.0

    @property
    def is_warned(self) -> bool:
        measured = self.result.measurement
        return self.is_above_roof or bool(measured and (measured.warnings or measured.modes))


def result_rows(
    results: ResultSet, roofs: Sequence[Roof] = (), sentinels: Collection[str] = ()
) -> list[ResultRow]:
    """Return one row per result in the requested order, grouped by problem. Canaries (`sentinels`:
    problem keys) come last."""
    infos = {info.name: info for info in results.run.environment.devices}
    best = _best(results.results)
    cache: RoofCache = {}
    ordered = results.ordered(sentinels)
    names = [(item.case.problem.key, backend_text(item.case), item.device) for item in ordered]
    timings = distinguishing(names, [item.case.timing for item in ordered])
    rows = []
    for result, (key, backend, device), timing in zip(ordered, names, timings, strict=True):
        fastest = best.get(key)
        ratio: float | None = None
        tied: bool | None = False
        if _ranks(result) and fastest is not None:
            ratio, tied = _compare_with_best(result, fastest)
        row = ResultRow(
            result=result,
            run=results.run,
            backend=backend,
            share=share(result, roofs, infos.get(device), cache),
            times_best=ratio,
            tied=tied,
            sentinel=key in sentinels,
            timing=timing,
        )
        rows.append(row)
    return rows


def _best(results: Iterable[Result]) -> dict[str, Result]:
    """Return the fastest result of each problem that has at least two comparable results."""
    ranked: dict[str, list[Result]] = {}
    for result in results:
        if _ranks(result):
            ranked.setdefault(result.case.problem.key, []).append(result)
    several = {key: ranks for key, ranks in ranked.items() if len(ranks) > 1}
    return {key: min(ranks, key=_median_s) for key, ranks in several.items()}


def _median_s(result: Result) -> float:
    return result.measurement.median_s if result.measurement is not None else math.inf


def _compare_with_best(result: Result, best: Result) -> tuple[float, bool | None]:
    """Return the time over that of the best, and whether the difference may be chance (None if it
    is unknown). Results measured by turns have the same `started`: their blocks are compared in
    pairs."""
    own, fastest = result.measurement, best.measurement
    assert own is not None
    assert fastest is not None
    if own is fastest:
        return 1.0, False
    if result.started == best.started > 0 and result.device == best.device:
        # On demand: numpy takes a tenth of a second, which figures of results save.
        from kernelmark.stats.interval import paired_blocks

        if pairs := paired_blocks(own.blocks, fastest.blocks):
            ratio, low, high = pairs
            return ratio, low <= 1.0 <= high
    known = own.has_interval and fastest.has_interval
    return own.median_s / fastest.median_s, own.low_s <= fastest.high_s if known else None


def _ranks(result: Result) -> bool:
    measured = result.measurement
    return result.status is Status.OK and measured is not None and measured.reliable


def first_problems(rows: Sequence[ResultRow], count: int) -> list[ResultRow]:
    """Return the rows of the first `count` problems, and all that are not ok."""
    keys = dict.fromkeys(row.result.case.problem.key for row in rows)
    first = frozenset(itertools.islice(keys, count))
    return [
        row
        for row in rows
        if row.result.status is not Status.OK or row.result.case.problem.key in first
    ]


def with_separator(rows: Sequence[ResultRow]) -> list[ResultRow | None]:
    """Return the rows with None as the separator in front of the canaries."""
    first = next((i for i, row in enumerate(rows) if row.sentinel), 0)
    return [*rows[:first], None, *rows[first:]] if first else list(rows)


def rate(row: ResultRow) -> str:
    """Return bytes/s for memory-bound results and ops without FLOPs, else FLOP/s."""
    result = row.result
    if result.measurement is None or not (result.flops or result.bytes):
        return NONE
    if (row.share and row.share.bound == "memory") or (result.flops == 0 and result.bytes):
        return rate_text(result.bytes_per_s or 0.0, "B/s")
    return rate_text(result.flops_per_s or 0.0, "FLOP/s")


def share_text(share: Share | None) -> str:
    """Return `87 % compute`; values above 100 % are not clamped."""
    return NONE if share is None else f"{share_percent(share)} % {share.bound}"


def share_percent(share: Share) -> str:
    """Return the percentage as it is rounded in tables."""
    percent = 100 * share.value
    return f"{percent:.1f}" if percent < 9.95 else f"{percent:.0f}"


def status_text(result: Result, metrics: Sequence[Metric]) -> str:
    """Return the status; `disturbed` if the repetitions of one of the metrics disagree."""
    disturbed = result.status is Status.OK and any(metric.disturbed for metric in metrics)
    return _DISTURBED if disturbed else result.status.value


def status_counts(results: Iterable[Result]) -> dict[str, int]:
    """Return the number of results by status, in the order of `Status`. A microbenchmark is
    `disturbed` if one of its headline metrics is."""
    counts = Counter(status_text(result, result.headlines) for result in results)
    status_names = (Status.OK.value, _DISTURBED, *(status.value for status in Status))
    return {word: counts[word] for word in status_names if counts[word]}


def _status(row: ResultRow) -> str:
    parts, measured = [row.result.status.value], row.result.measurement
    if measured is not None:
        parts += [] if measured.reliable else ["unreliable"]
        parts += ["launch-bound"] if measured.launch_bound else []
    return ", ".join(parts)


def _times_best(row: ResultRow) -> str:
    if row.times_best is None:
        return NONE
    if row.tied or row.tied is None:
        return f"{'?' if row.tied is None else '≈'} {row.times_best:.2f} ×"
    return "best" if row.times_best == 1.0 else f"{row.times_best:.2f} ×"


def modes_json(modes: Iterable[Mode]) -> str:
    """Return [seconds, share] of each mode, as JSON."""
    return json.dumps([[mode.value_s, mode.share] for mode in modes])


def _width(row: ResultRow) -> str:
    return NONE if row.measurement is None else width_text(row.measurement.rel_half_width)


def _modes(row: ResultRow) -> str | None:
    return modes_json(row.measurement.modes) if row.measurement and row.measurement.modes else None


def _warnings(row: ResultRow) -> str | None:
    return json.dumps(row.measurement.warnings, ensure_ascii=False) if row.measurement else None


def _setting(name: str) -> Callable[[ResultRow], str]:
    """Return the value of a column of the timing."""
    return lambda row: "unknown" if row.run.imported else str(getattr(row.result.case.timing, name))


def _other_time(name: str, title: str, meaning: str) -> Column:
    """Return the column of an additional time of the kernel."""

    def value(row: ResultRow) -> float | None:
        return row.measurement.also.get(name) if row.measurement else None

    return Column(name, value, meaning, "number", "s", title=title, show="any", page="-")


# Every column of results: in the tables of `run`, `show` and the report, in CSV, in the dashboard
# and in docs/fields.md.
COLUMNS = (
    file_column("run", "run.id", "id of the run"),
    file_column("label", "run.label", "label of the run"),
    file_column("case", "result.case.id", "id of the case: a hash of its series"),
    file_column("started", "result.started", "when the case began", "number", "date"),
    file_column("op", "result.case.problem.op", "op"),
    Column(
        "problem",
        "result.case.problem.key",
        "problem, with every parameter",
        text=lambda row: row.problem,
        page="problem:name",
    ),
    Column(
        "backend",
        "result.case.backend",
        "backend, or path of a kernel file",
        text=lambda row: row.backend,
    ),
    file_column(
        "config",
        lambda row: config_key(row.result.case.config),
        "config; `{}` is the default",
        "JSON",
    ),
    Column("device", "result.device", "device: cpu, cuda:0, …", show="several"),
    file_column("arch", "result.arch", "architecture of the device"),
    Column("timing", text=lambda row: row.timing, show="any", page="-"),
    file_column(
        "cache",
        _setting("cache"),
        "state of the caches: cold, flush or hot; if another tool measured, this and the next four "
        "are unknown",
    ),
    file_column("timer", _setting("timer"), "requested timer"),
    file_column("strain", _setting("strain"), "background load"),
    file_column("duty", _setting("duty"), "sustained or burst"),
    file_column(
        "threads",
        lambda row: None if row.run.imported else row.result.case.timing.threads,
        "requested CPU threads; 0 is every core",
        "integer",
    ),
    Column(
        "status",
        "result.status.value",
        "status of the result",
        text=_status,
        usual=Status.OK.value,
        last=True,
        page="status:state",
    ),
    Column(
        "median_s",
        "measurement.median_s",
        "time of a launch: median over blocks of the block medians",
        "number",
        "s",
        title="median",
    ),
    Column(
        "width",
        "measurement.rel_half_width",
        title="±",
        text=_width,
        in_files=False,
        type="number",
        page="width:width",
    ),
    file_column(
        "low_s",
        "measurement.low_s",
        "lower end of the 95 % confidence interval of the median",
        "number",
        "s",
    ),
    file_column("high_s", "measurement.high_s", "upper end of the interval", "number", "s"),
    file_column(
        "modes", _modes, "[time, fraction] of each mode, if there are several", "JSON", "s"
    ),
    _other_time("hot_s", "hot", "time of a launch with hot caches"),
    _other_time("host_s", "eager", "time of an eager launch, with launch overhead of the host"),
    _other_time("profiler_s", "profiler", "time measured by ncu or rocprofv3"),
    _other_time("profiler_at_clock_s", "at our clock", "profiler_s at the clock of median_s"),
    file_column(
        "clock_mhz", "measurement.clock_mhz", "median core clock during timing", "number", "MHz"
    ),
    file_column(
        "blocks",
        lambda row: len(row.measurement.blocks) if row.measurement else 0,
        "blocks (allocations × processes) that were timed",
        "integer",
    ),
    file_column(
        "samples",
        lambda row: row.measurement.samples if row.measurement else 0,
        "samples in all blocks",
        "integer",
    ),
    file_column(
        "stop", "measurement.stop.value", f"why measuring stopped: {join_or([*StopReason])}"
    ),
    file_column("method", "measurement.method", "timer that was used: loop, cpu, graph, gate, …"),
    file_column(
        "flops", "result.flops", "floating-point operations of the problem", "integer", "FLOP"
    ),
    file_column(
        "bytes", "result.bytes", "size of the inputs and outputs, each counted once", "integer", "B"
    ),
    file_column("flops_per_s", "result.flops_per_s", "flops / median_s", "number", "FLOP/s"),
    file_column("bytes_per_s", "result.bytes_per_s", "bytes / median_s", "number", "B/s"),
    Column("rate", align="right", text=rate, page="rate:right"),
    Column(
        "roof_share",
        "share.value",
        "shortest time that the roofs allow / median_s",
        "number",
        title="of roof",
        text=lambda row: share_text(row.shown_share),
        page="share:share",
    ),
    file_column("roof_bound", "share.bound", "bottleneck: compute, or the memory level"),
    file_column("roof_per_s", "share.roof.value", "value of that roof", "number", "FLOP/s or B/s"),
    Column(
        "times_best",
        "times_best",
        title="vs best",
        text=_times_best,
        in_files=False,
        type="number",
        show="any",
        page="times_best:ratio",
    ),
    file_column("error_worst", "result.check.worst", "largest error / tolerance", "number"),
    file_column("kernel", "result.kernel.name", "name of the kernel"),
    file_column("compile_s", "result.kernel.compile_s", "compile time", "number", "s"),
    file_column("warnings", _warnings, "list of warnings", "JSON"),
    file_column("error", "result.error", "why the case failed"),
)
# One record per metric of a microbenchmark; last, if any result has metrics.
METRIC_COLUMNS = (
    file_column("metric", lambda item: item[0], "name of the metric, or `time`"),
    file_column(
        "value", lambda entry: entry[1], "value of the metric, or median_s", "number", "`unit`"
    ),
    file_column("unit", lambda element: element[2], "unit of value: B/s, s, cycles, …"),
)
_TAKEN = frozenset(csv_names((*COLUMNS, *METRIC_COLUMNS)))


_DRAWN_MOST = 3.0  # an interval beyond so many medians says nothing


def _marked(rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """Return the widths with a mark at those that have a warning."""
    if not any(row.is_warned for row in rows):
        return {}
    # Unmarked rows are padded, so that the numbers stay aligned.
    return {
        "width": [
            _width(row) + (f" {MARK if row.is_warned else ' '}" if row.measurement else "")
            for row in rows
        ]
    }


def results_table(rows: Sequence[ResultRow]) -> Table:
    """Return the table printed by `run` and `show`."""
    table = tabulate(COLUMNS, rows, texts=_marked(rows))
    if (separated := with_separator(rows)) and None in separated:
        cells = list(table.rows)
        cells.insert(separated.index(None), (_CANARIES, *[""] * (len(table.columns) - 1)))
        return Table(columns=table.columns, rows=tuple(cells))
    return table


_SORT = (
    "const h=event.target.closest('th'),i=h.cellIndex,b=this.parentNode.tBodies[0];"
    "const d=h.dataset.d=-(h.dataset.d||-1),k=r=>r.cells[i].dataset.v??r.cells[i].textContent;"
    "[...b.rows].sort((p,q)=>d*((k(p)-k(q))||k(p).localeCompare(k(q)))).forEach(r=>b.append(r))"
)


def sortable_table(rows: Sequence[ResultRow]) -> str:
    """Return the table of results for a notebook: with a bar of each interval, on one scale for a
    problem, and sorted by a click on a heading."""
    table = tabulate(COLUMNS, rows, texts=_marked(rows))
    columns = {column.heading: column for column in COLUMNS}
    head = "".join(
        f'<th style="text-align:{column.align}">{html.escape(column.name)}</th>'
        for column in table.columns
    )
    longest: dict[str, float] = {}
    for row in rows:
        if row.measurement:
            high = max(row.measurement.median_s, _drawn_high(row.measurement))
            longest[row.problem] = max(high, longest.get(row.problem, 0.0))
    body = ""
    for row, texts in zip(rows, table.rows, strict=True):
        for column, text in zip(table.columns, texts, strict=True):
            value = columns[column.name].value_of(row)
            key = f' data-v="{value!r}"' if isinstance(value, int | float) else ""
            body += f'<td{key} style="text-align:{column.align}">{html.escape(text)}</td>'
        body += f"<td>{_interval_bar(row.measurement, longest.get(row.problem, 1.0))}</td></tr><tr>"
    return (
        f'<table><thead style="cursor:pointer" onclick="{_SORT}">'
        f"<tr>{head}<th>interval</th></tr></thead>"
        f"<tbody><tr>{body.removesuffix('<tr>')}</tbody></table>"
    )


def _drawn_high(measured: Measurement) -> float:
    return measured.high_s if measured.high_s < _DRAWN_MOST * measured.median_s else 0.0


def _interval_bar(measured: Measurement | None, longest_s: float) -> str:
    """Return the median as a bar with its confidence interval as a whisker, if it says anything."""
    if measured is None:
        return ""
    at = 100 * measured.median_s / longest_s
    whisker = ""
    if high := _drawn_high(measured):
        low = 100 * measured.low_s / longest_s
        width = max(1.0, 100 * high / longest_s - low)
        whisker = f'<rect x="{low:.1f}" y="4" width="{width:.1f}" height="4" fill="#d55e00"/>'
    return (
        '<svg width="100" height="12" role="img"><title>median and 95 % interval</title>'
        f'<rect width="{at:.1f}" height="12" fill="#0072b2" opacity="0.6"/>{whisker}</svg>'
    )


def result_records(rows: Sequence[ResultRow]) -> list[dict[str, Cell]]:
    """Return one flat record per result, in seconds and bytes, with the union of all problems'
    parameters after the common columns. If any result has metrics: one record per metric, time
    included."""
    parameters = _parameter_columns(rows)
    records = []
    for row in rows:
        problem = row.result.case.problem
        values: dict[str, Cell] = {**problem.dims, **problem.dtypes}
        values |= {name: _option(value) for name, value in problem.options.items()}
        own = {column: values.get(name) for name, column in parameters.items()}
        records.append(record(COLUMNS, row) | own)
    if not any(row.result.metrics for row in rows):
        return records
    return [
        own_record | record(METRIC_COLUMNS, metric)
        for own_record, row in zip(records, rows, strict=True)
        for metric in _metrics(row.result)
    ]


def result_columns(rows: Sequence[ResultRow]) -> list[str]:
    """Return the names in `result_records`, which a run without results has too."""
    metrics = METRIC_COLUMNS if any(row.result.metrics for row in rows) else ()
    return [*csv_names(COLUMNS), *_parameter_columns(rows).values(), *csv_names(metrics)]


def _parameter_columns(rows: Sequence[ResultRow]) -> dict[str, str]:
    """Return the column of each parameter: its name, or `param_NAME` if NAME is another column."""
    names: dict[str, None] = {}
    for row in rows:
        problem = row.result.case.problem
        names |= dict.fromkeys((*problem.dims, *problem.dtypes, *problem.options))
    columns = {}
    for name in names:
        column = name
        while column in _TAKEN or (column != name and column in names):
            column = f"param_{column}"
        columns[name] = column
    return columns


def _metrics(result: Result) -> list[tuple[str | None, float | None, str | None]]:
    """Return the metrics of a result, or its time; the value of a failure is None."""
    if result.metrics:
        return [(metric.name, metric.value, metric.unit) for metric in result.metrics]
    median = result.measurement.median_s if result.measurement else None
    return [(None, median, None) if is_micro(result.case) else ("time", median, "s")]


def _option(value: Option) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value
