"""Figures of results as Vega-Lite specs; vega.py renders them.

Every function takes rows (`tables.rows`) or stories and returns a spec that needs no network.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.result import Measurement
from kernelmark.core.units import counted, is_noise, time_text
from kernelmark.report import vega
from kernelmark.report.names import rerun
from kernelmark.report.results import ResultRow, rate, share_text
from kernelmark.report.vega import SCHEMA, Spec

if TYPE_CHECKING:
    from kernelmark.compare.history import History, Story
    from kernelmark.core.environment import Environment
    from kernelmark.report.changes import Change

MOST_BARS = 40  # problems in a bar chart
WIDTH, HEIGHT = 620, 360
# The Okabe-Ito palette: distinguishable with every common colour blindness, in print and on dark.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
# The dark blue has too little contrast on a dark background.
_DARK_PALETTE = (PALETTE[4], *PALETTE[1:4], PALETTE[0], *PALETTE[5:])
_INK = {False: vega.LIGHT, True: vega.DARK}
_PAGE_INK = ("transparent", "currentColor", "var(--line)")
_TIP = {
    "shown": "value",
    "problem": "problem",
    "backend": "backend",
    "time": "median",
    "share": "of roof",
}
# A dashed line at ratio 1.
NO_CHANGE: Spec = {
    "data": {"values": [{"one": 1}]},
    "mark": {"type": "rule", "strokeDash": [4, 4]},
    "encoding": {"x": {"field": "one", "type": "quantitative"}},
}
Values = list[dict[str, Any]]


def themed(
    spec: Spec, *, title: str = "", subtitle: str = "", dark: bool = False, inline: bool = False
) -> Spec:
    """Return a figure with its title, in light or dark colours, or in the colours of the page it is
    embedded in (`inline`). The figure's description is appended to the subtitle."""
    paper, ink, grid = _PAGE_INK if inline else _INK[dark]
    lines = [line for line in (subtitle, spec.get("description", "")) if line]
    text_style = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12}
    return {
        "$schema": SCHEMA,
        "background": paper,
        "title": {"text": title, "subtitle": lines},
        "config": {
            "font": "sans-serif",
            "title": {"color": ink, "subtitleColor": ink, "fontSize": 14, "anchor": "start"}
            | {"offset": 12},
            "axis": {**text_style, "gridColor": grid, "domainColor": ink, "tickColor": ink},
            "legend": {**text_style, "symbolLimit": 60, "labelLimit": 320},
            "header": text_style,
            "text": {"color": ink},
            "rule": {"color": ink},
            "range": {"category": list(PALETTE if not dark else _DARK_PALETTE)},
            "view": {"stroke": None},
        },
        **spec,
    }


def time_unit(typical_s: float) -> tuple[str, float]:
    """Return the unit for times of this size, and its number per second."""
    if typical_s >= 1:
        return "s", 1.0
    return ("ms", 1e3) if typical_s >= 1e-3 else ("µs", 1e6) if typical_s >= 1e-6 else ("ns", 1e9)


def drawn_interval(middle: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the interval to draw; (middle, middle) if it is unknown or too noisy, which would
    stretch the axis too far."""
    if low and high and not is_noise(low, high):
        return low, high
    return middle, middle


def log_axis(field: str, title: str, form: str = "~g") -> Spec:
    scale = {"type": "log", "nice": False}
    axis = {"format": form, "tickCount": 6}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def by_field(field: str, *, legend: bool = True) -> Spec:
    encoding: Spec = {"field": field, "type": "nominal", "title": None}
    return encoding if legend else {**encoding, "legend": None}


def tooltips(*names: str) -> list[Spec]:
    return [{"field": name, "type": "nominal", "title": _TIP.get(name, name)} for name in names]


def dots(count: int) -> Spec:
    """Return point marks that stay readable for ten thousand points."""
    size, opacity = (60, 0.9) if count <= 300 else (25, 0.6) if count <= 3000 else (8, 0.35)
    return {"type": "point", "filled": True, "size": size, "opacity": opacity}


def si_prefix(value: float) -> tuple[float, str]:
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= limit:
            return limit, prefix
    return 1.0, ""


def timed_rows(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return rows with a time; canaries only if there is nothing else."""
    timed = [row for row in rows if row.timed]
    return [row for row in timed if not row.sentinel] or timed


def failed_cross(size: int = 70) -> Spec:
    """Return the mark of a failure."""
    cross: Spec = {"type": "point", "shape": "cross", "angle": 45, "size": size}
    return cross | {"filled": True, "color": PALETTE[5], "opacity": 1}


def failure_of(row: ResultRow) -> dict[str, Any]:
    """Return the values of a mark of a failed result."""
    state = row.result.status.value.replace("_", " ")
    named = {"problem": row.problem, "op": row.result.case.problem.op, "backend": row.backend}
    return named | {"failed": f"✕ {state}", "again": rerun(row.result)}


def require_rows(rows: list[ResultRow]) -> list[ResultRow]:
    if not rows:
        raise NothingToDo("no result has a time to draw")
    return rows


def measurement_of(row: ResultRow) -> Measurement:
    assert row.result.measurement is not None
    return row.result.measurement


def point_of(row: ResultRow) -> dict[str, Any]:
    return {
        "problem": row.problem,
        "op": row.result.case.problem.op,
        "backend": row.backend,
        "time": time_text(measurement_of(row).median_s),
        "rate": rate(row),
        "share": share_text(row.shown_share),
        "again": rerun(row.result),
    }


def interval_of(measured: Measurement) -> tuple[float, float]:
    return drawn_interval(measured.median_s, measured.low_s, measured.high_s)


def times_by_backend(rows: Sequence[ResultRow]) -> dict[str, dict[str, float]]:
    times: dict[str, dict[str, float]] = {}
    for row in timed_rows(rows):
        key = row.result.case.problem.key
        times.setdefault(row.backend, {})[key] = measurement_of(row).median_s
    return times


def varying_dims(rows: Sequence[ResultRow], count: int) -> tuple[str, ...]:
    """Return the `count` dims with the most distinct values."""
    values: dict[str, set[int]] = {}
    for row in rows:
        for name, size in row.result.case.problem.dims.items():
            values.setdefault(name, set()).add(size)
    varying = sorted((n for n in values if len(values[n]) > 1), key=lambda n: -len(values[n]))
    if len(varying) < count:
        raise NothingToDo(
            f"{len(varying)} of {count} dims vary", hint="measure several sizes: -a m=[256:4096:*2]"
        )
    return tuple(varying[:count])


def dims_hint(rows: Sequence[ResultRow]) -> str:
    names = dict.fromkeys(name for row in rows for name in row.result.case.problem.dims)
    return f"dims: {', '.join(names)}"


def rows_of_main_op(rows: list[ResultRow]) -> tuple[list[ResultRow], str]:
    """Return the rows of the op with the most results, and a note if there are other ops: a dim of
    the same name in two ops, such as n of gemm and copy, is not one axis."""
    ops = [row.result.case.problem.op for row in rows]
    if len(set(ops)) < 2:
        return rows, ""
    main = max(dict.fromkeys(ops), key=ops.count)
    return [row for row in rows if row.result.case.problem.op == main], f"only {main}"


_INTENSITIES = (0.125, 2048.0)  # range in FLOP per byte if no results are drawn


def roofline(rows: Sequence[ResultRow], roofs: Sequence[Roof]) -> Spec:
    """Return FLOP/s over arithmetic intensity: measured roofs as lines, results as points."""
    points = [
        point_of(row) | {"x": row.result.flops / row.result.bytes, "y": row.result.flops_per_s}
        for row in timed_rows(rows)
        if row.result.flops and row.result.bytes
    ]
    if not points:
        raise NothingToDo(
            "no result has operations and bytes to draw", hint="'kmark plot bars' shows times"
        )
    devices = {row.result.device for row in timed_rows(rows)}
    drawn_roofs = [roof for roof in roofs if roof.device in devices and roof.value > 0]
    lines, labels = _roof_lines(drawn_roofs, [point["x"] for point in points])
    axes = _roof_axes()
    layers = _roof_layers(lines, labels, points)
    # One op needs no legend of shapes.
    several = len({row.result.case.problem.op for row in timed_rows(rows)}) > 1
    grey = {"symbolFillColor": "#888888", "symbolStrokeColor": "#888888"}
    shapes = grey if several else None
    layers.append(
        {
            "data": {"values": points},
            "mark": dots(len(points)),
            "encoding": {
                **axes,
                # Otherwise the legend's symbols are as faint as the points.
                "color": by_field("backend") | {"legend": {"symbolOpacity": 1}},
                "shape": {"field": "op", "type": "nominal", "title": None, "legend": shapes},
                "tooltip": tooltips("problem", "backend", "time", "rate", "share", "again"),
            },
        }
    )
    return {"width": WIDTH, "height": HEIGHT, "layer": layers}


def ceilings(roofs: Sequence[Roof]) -> Spec:
    """Return the roofs of one device: attainable FLOP/s over arithmetic intensity."""
    positive = [roof for roof in roofs if roof.value > 0]
    lines, labels = _roof_lines(positive, _INTENSITIES)
    if not lines:
        raise NothingToDo("no device has a memory roof to draw", hint="kmark roofs measures them")
    return {"width": WIDTH, "height": HEIGHT, "layer": _roof_layers(lines, labels, [])}


def _roof_axes() -> Spec:
    """Return axes with padding, so that no point lies on an axis line."""
    axes = {
        "x": log_axis("x", "arithmetic intensity, FLOP per byte"),
        "y": log_axis("y", "FLOP/s", "~s"),
    }
    return {name: axis | {"scale": axis["scale"] | {"padding": 10}} for name, axis in axes.items()}


def _rise(drawn: Values) -> float:
    """Return the angle of memory roofs in the plot, in degrees clockwise."""
    decades = [
        math.log10(max(value[name] for value in drawn) / min(value[name] for value in drawn))
        for name in ("x", "y")
    ]
    return -math.degrees(math.atan2(HEIGHT * decades[0], WIDTH * decades[1]))


def _roof_layers(lines: Values, labels: Values, points: Values) -> list[Spec]:
    """Return layers for the roof lines and their labels; [] without lines."""
    if not lines:
        return []
    axes = _roof_axes()
    line: Spec = {"type": "line", "strokeWidth": 1.5}
    dashed = {"strokeDash": {"field": "kind", "type": "nominal", "legend": None}}
    detail = {"detail": {"field": "roof"}, "color": {"value": "#888888"}}
    layers: list[Spec] = [
        {"data": {"values": lines}, "mark": line, "encoding": axes | dashed | detail}
    ]
    for align in ("left", "right"):
        text: Spec = {"type": "text", "align": align, "dx": 4, "dy": -6, "fontSize": 10}
        if align == "left":  # label along the slope of a memory roof
            text |= {"angle": _rise([*lines, *points]), "dx": 14}
        mine = [label for label in labels if label["align"] == align]
        shown = axes | {"text": {"field": "roof"}}
        layers.append({"data": {"values": mine}, "mark": text, "encoding": shown})
    return layers


def _roof_lines(roofs: Sequence[Roof], at: Sequence[float]) -> tuple[Values, Values]:
    """Return lines and labels: each memory level up to the highest compute roof, and each compute
    roof from where the fastest memory reaches it."""
    memory = _highest(roof for roof in roofs if roof.kind == "bytes")
    compute = _highest(roof for roof in roofs if roof.kind == "flops")
    if not memory:
        return [], []
    first, last = min(at) / 2, max(at) * 2
    slowest, fastest = (choose(roof.value for roof in memory) for choose in (min, max))
    top = max((roof.value for roof in compute), default=math.inf)
    if math.isfinite(top):
        # Include the ridge points, where memory levels meet the highest compute roof: they show
        # whether a point is memory-bound or compute-bound.
        ridge = top / slowest
        first, last = min(first, ridge / 4, top / fastest / 2), max(last, ridge * 2)
    lines: Values = []
    labels: Values = []
    for roof in memory:
        end = min(last, top / roof.value) if math.isfinite(top) else last
        if end <= first:
            continue
        name = f"{roof.name} {_si_text(roof.value)}B/s"
        line_ends = [{"x": x, "y": x * roof.value} for x in (first, end)]
        lines += [point | {"roof": name, "kind": "memory"} for point in line_ends]
        labels.append({"x": first, "y": first * roof.value, "roof": name, "align": "left"})
    for roof in compute:
        start = max(first, roof.value / fastest)
        if start >= last:
            continue
        name = f"{roof.name} {roof.unit} {_si_text(roof.value)}FLOP/s".replace("  ", " ")
        ends = [{"x": x, "y": roof.value} for x in (start, last)]
        lines += [point | {"roof": name, "kind": "compute"} for point in ends]
        labels.append({"x": last, "y": roof.value, "roof": name, "align": "right"})
    return lines, labels


def _highest(roofs: Iterable[Roof]) -> list[Roof]:
    highest: dict[tuple[str, str], Roof] = {}
    for roof in roofs:
        key = roof.name, roof.unit
        if key not in highest or highest[key].value < roof.value:
            highest[key] = roof
    return list(highest.values())


def _si_text(value: float) -> str:
    factor, prefix = si_prefix(value)
    return f"{value / factor:.3g} {prefix}"


_MOST_SAMPLES = 6  # maximum number of results


def samples(rows: Sequence[ResultRow]) -> Spec:
    """Return every sample of some results, by block in measured order, with the clock below."""
    every = require_rows(timed_rows(rows))
    timed = every[:_MOST_SAMPLES]
    description = "colours are blocks; the band is the 95 % interval of the median"
    if left := len(every) - len(timed):
        description += f"; {counted(left, 'more result')} not shown"
    panels = []
    for row in timed:
        values: Values = []
        unit, scale = time_unit(measurement_of(row).median_s)
        count = itertools.count()
        for number, block in enumerate(measurement_of(row).blocks):
            clocks = itertools.chain(block.clocks_mhz, itertools.repeat(None))
            for sample, clock in zip(block.samples_s, clocks, strict=False):
                point = {"at": next(count), "time": sample * scale, "block": f"block {number}"}
                values.append(point if clock is None else point | {"MHz": clock})
        measured = measurement_of(row)
        times = {"field": "time", "type": "quantitative", "scale": {"zero": False}}
        times["title"] = f"time, {unit}"
        along: Spec = {"field": "at", "type": "quantitative", "axis": {"tickMinStep": 1}}
        along["scale"] = {"padding": 8, "nice": False}
        along["title"] = "sample, in the order taken"
        low_s, high_s = interval_of(measured)
        band = [{"low": low_s * scale, "high": high_s * scale}]
        layers: list[Spec] = [
            {
                "mark": dots(len(values)),
                "encoding": {"x": along, "y": times, "color": by_field("block", legend=False)},
            }
        ]
        if low_s < high_s:
            box = {"type": "rect", "opacity": 0.15, "color": PALETTE[0]}
            ends = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
            layers.insert(0, {"data": {"values": band}, "mark": box, "encoding": ends})
        title = f"{row.problem}, {row.backend}: {time_text(measured.median_s)}"
        panel: Spec = {"width": WIDTH, "height": HEIGHT // 2, "layer": layers}
        parts: list[Spec] = [{"title": title, "data": {"values": values}, **panel}]
        if any("MHz" in value for value in values):
            clock_y = {"field": "MHz", "type": "quantitative", "scale": {"zero": False}}
            clock_y["title"] = "clock, MHz"
            strip = {"x": along, "y": clock_y}
            line = {"type": "line", "color": "#888888"}
            data = {"data": {"values": values}, "width": WIDTH, "height": 50}
            parts.append({**data, "mark": line, "encoding": strip})
        panels.append({"vconcat": parts})
    return {"description": description, "vconcat": panels}


_MOST_LINES = 12  # per backend: more would overlap
_MOST_DASHES = 5  # dash patterns that remain distinguishable


def sweep(rows: Sequence[ResultRow], x: str = "") -> Spec:
    """Return rates over a dim, FLOP/s above bytes/s, with intervals. A case without a time breaks
    its line, and a failure is marked."""
    some = require_rows(timed_rows(rows))
    timed, description = (some, "") if x else rows_of_main_op(some)
    x = x or varying_dims(timed, 1)[0]
    with_dim = [row for row in timed if x in row.result.case.problem.dims]
    if not with_dim:
        raise NothingToDo(f"no result has a dim {x!r}", hint=dims_hint(timed))
    with_dim += _without_time(rows, with_dim, x)
    values: Values = []
    for row, rest in zip(with_dim, _line_labels(with_dim, x), strict=True):
        position = {"x": row.result.case.problem.dims[x], "rest": rest}
        if not row.timed:
            values.append(failure_of(row) | {"is_failure": row.result.status.failed} | position)
            continue
        measured = measurement_of(row)
        point = point_of(row) | position
        for name, work in (("flops", row.result.flops), ("bytes", row.result.bytes)):
            if work:
                low_s, high_s = interval_of(measured)
                point |= {name: work / measured.median_s, f"{name}_low": work / high_s}
                point[f"{name}_high"] = work / low_s
        values.append(point)
    failed = [value for value in values if value.get("is_failure")]
    lines = len({value["rest"] for value in values})
    bands = "bands are 95 % intervals"
    tips = ["problem", "backend", "time", "rate", "share", "again"]
    if lines > _MOST_LINES:
        values, tips = _medians(values), ["backend", "problems"]
        bands = f"lines are medians over up to {lines} problems, bands hold 80 % of them"
    bands += "; ✕: failed" if failed else ""
    panels = []
    for name, unit in (("flops", "FLOP/s"), ("bytes", "B/s")):
        rates = [value[name] for value in values if name in value]
        if not rates:
            continue
        along: Spec = {"x": {"field": "x", "type": "quantitative", "title": x}}
        along["x"]["axis"] = {"format": "d"}
        if _spans_octaves([value["x"] for value in values]):
            along["x"]["scale"] = {"type": "log", "base": 2, "nice": False}
        # Otherwise the legend's symbols are as faint as the band.
        opaque = by_field("backend") | {"legend": {"symbolOpacity": 1}}
        colour: Spec = {"color": opaque, "detail": {"field": "rest"}}
        dashes: Spec = {}
        if 1 < lines <= _MOST_DASHES:
            grey = {"symbolStrokeColor": "#888888", "symbolFillColor": "transparent"}
            stroke = {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolSize": 300}
            dashes = {"strokeDash": by_field("rest") | {"legend": grey | stroke}}
        factor, prefix = si_prefix(max(rates))
        title = f"{prefix}{unit}"
        axis = {"labelExpr": f"format(datum.value / {factor:g}, '~g')"}
        y = {"field": name, "type": "quantitative", "title": title, "axis": axis}
        band = {"field": f"{name}_low", "type": "quantitative", "title": title, "axis": axis}
        band_to = {"field": f"{name}_high"}
        tooltip = {"tooltip": tooltips(*tips)}
        # Vega draws a line through a missing value unless it is asked to break it.
        broken = {"invalid": "break-paths-filter-domains"}
        panels.append(
            {
                "width": WIDTH,
                "height": HEIGHT * 2 // 3,
                "layer": [
                    {
                        "mark": {"type": "area", "opacity": 0.2} | broken,
                        "encoding": {**along, **colour, "y": band, "y2": band_to},
                    },
                    {
                        "mark": {"type": "line"} | broken,
                        "encoding": {**along, **colour, **dashes, "y": y},
                    },
                    {"mark": dots(len(values)), "encoding": {**along, **colour, "y": y, **tooltip}},
                    *([_failures(failed, along)] if failed else []),
                ],
            }
        )
    notes = "; ".join(filter(None, (description, bands)))
    return {"description": notes, "data": {"values": values}, "vconcat": panels}


def _without_time(rows: Sequence[ResultRow], timed: Sequence[ResultRow], x: str) -> list[ResultRow]:
    """Return the rows that break or mark a line: those without a time that failed, or are of a
    backend with times."""
    ops = {row.result.case.problem.op for row in timed}
    backends = {row.backend for row in timed}
    return [
        row
        for row in rows
        if not row.timed
        and not row.sentinel
        and x in row.result.case.problem.dims
        and row.result.case.problem.op in ops
        and (row.result.status.failed or row.backend in backends)
    ]


def _failures(failed: Values, along: Spec) -> Spec:
    """Return the layer with a cross at the bottom for each failure."""
    low = {**along, "y": {"value": HEIGHT * 2 // 3 - 8}}
    why = {"tooltip": tooltips("problem", "backend", "failed", "again")}
    return {"data": {"values": failed}, "mark": failed_cross(), "encoding": low | why}


def _medians(points: Values) -> Values:
    """Return the median rate per backend and x, with the 10 % and 90 % quantiles over problems;
    no rate where no problem has a time."""
    medians: dict[tuple[str, float], Values] = {}
    for point in points:
        medians.setdefault((point["backend"], point["x"]), []).append(point)
    values: Values = []
    for (backend, x), own in medians.items():
        problems = sum("is_failure" not in point for point in own)
        value: dict[str, Any] = {"backend": backend, "x": x, "rest": "", "problems": problems}
        for name in ("flops", "bytes"):
            rates = [point[name] for point in own if name in point]
            if rates:
                is_single = len(rates) == 1  # quantiles need two values
                cuts = (
                    rates * 9
                    if is_single
                    else statistics.quantiles(rates, n=10, method="inclusive")
                )
                value |= {name: cuts[4], f"{name}_low": cuts[0], f"{name}_high": cuts[8]}
        values.append(value)
    return values


def _line_labels(rows: Sequence[ResultRow], without: str) -> list[str]:
    """Return a line label per row: the op, dims, dtypes and options that vary among the rows."""
    labels = []
    for row in rows:
        problem = row.result.case.problem
        labels.append({"": problem.op, **problem.dims, **problem.dtypes, **problem.options})
    names = dict.fromkeys(name for own in labels for name in own if name != without)
    vary = [name for name in names if len({str(own.get(name)) for own in labels}) > 1]
    return [
        " ".join(f"{name}={own[name]}" if name else str(own[name]) for name in vary if name in own)
        for own in labels
    ]


def _spans_octaves(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 8


_ONE_BACKEND = "'kmark plot sweep' draws one"
_BARS_WIDTH = 640  # not WIDTH, which a page stretches: the labels above are no wider
_LOG_AXIS_RATIO = 10.0  # larger ratios need a logarithmic axis
_CELL, _MAP = (64, 36), (1280, 900)  # heat map in pixels: maximum of a cell, and of the map
_LEAST_CELL = (30, 14)  # smallest cell in which a ratio is legible
_MOST_SHADED = 4.0  # larger ratios get the colour of this one
_LEAST_SHADED = 1.25  # the darkest colour is at least this ratio: 3 % is not a large difference


def bars(rows: Sequence[ResultRow]) -> Spec:
    """Return bars of each backend's time over the fastest's, per problem, labelled with the time;
    failures are labelled in place of a bar."""
    backends_by_problem: dict[str, set[str]] = {}
    best: dict[str, float] = {}
    for row in [*timed_rows(rows), *(row for row in rows if row.result.status.failed)]:
        key = row.result.case.problem.key
        backends_by_problem.setdefault(key, set()).add(row.backend)
        if row.timed:
            best[key] = min(measurement_of(row).median_s, best.get(key, math.inf))
    compared = [key for key in best if len(backends_by_problem[key]) > 1]
    if not compared:
        raise NothingToDo("no problem was measured by two backends", hint=_ONE_BACKEND)
    # Evenly spaced: the first problems of a sweep differ in one dim only.
    count = min(len(compared), MOST_BARS)
    shown = {compared[at * len(compared) // count] for at in range(count)}
    values: Values = []
    failed: Values = []
    for row in rows:
        key = row.result.case.problem.key
        if key in shown and row.timed:
            low_s, high_s = interval_of(measurement_of(row))
            ratio = measurement_of(row).median_s / best[key]
            ends = {"low": low_s / best[key], "high": high_s / best[key]}
            values.append(point_of(row) | {"ratio": ratio, "end": max(ratio, ends["high"])} | ends)
        elif key in shown and row.result.status.failed:
            failed.append(failure_of(row))
    y: Spec = {"field": "problem", "type": "nominal", "sort": None, "title": None}
    # Labels are above their bars: beside them, they would be all that a phone shows.
    count = len({value["backend"] for value in [*values, *failed]})
    y["scale"] = {"paddingInner": 1.3 / (count + 1.3), "paddingOuter": 0.6 / (count + 1.3)}
    y["axis"] = {"labelAlign": "left", "labelPadding": -2, "labelOffset": -7 * count - 8}
    y["axis"] |= {"labelLimit": _BARS_WIDTH, "ticks": False, "domain": False}
    offset = {"yOffset": {"field": "backend", "type": "nominal"}}
    colour = {"color": by_field("backend")}
    title = "time over that of the fastest (1 is best)"
    farthest = max(value["end"] for value in values)
    scale: Spec = {"zero": True, "domainMax": 1.15 * farthest}  # room for labels
    if farthest > _LOG_AXIS_RATIO:
        scale = {"type": "log", "domainMin": 0.5, "domainMax": 3 * farthest, "nice": False}
    x = {"field": "ratio", "type": "quantitative", "title": title, "scale": scale}
    tips = {"tooltip": tooltips("problem", "backend", "time", "ratio", "share", "again")}
    error = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}}
    label: Spec = {"type": "text", "align": "left", "dx": 4, "fontSize": 9}
    at_end = {"x": {"field": "end", "type": "quantitative"}, "text": {"field": "time"}}
    at_start = {"x": {"value": 0}, "text": {"field": "failed"}}
    left = len(compared) - len(shown)
    description = "labels are medians, lines their 95 % intervals"
    if left:
        description += f"; {counted(left, 'more problem')} not shown"
    layers: list[Spec] = [
        {"mark": "bar", "encoding": {"y": y, "x": x, **offset, **colour, **tips}},
        {"mark": {"type": "rule"}, "encoding": {"y": y, **error, **offset}},
        {"mark": label, "encoding": {"y": y, **at_end, **offset}},
    ]
    if failed:
        why = {"tooltip": tooltips("problem", "backend", "failed", "again")}
        shape = {"y": y, **at_start, **offset, **why}
        data = {"data": {"values": failed}}
        layers.append({**data, "mark": {**label, "color": PALETTE[5]}, "encoding": shape})
    return {
        "width": _BARS_WIDTH,
        "height": {"step": 14},
        "description": description,
        "data": {"values": values},
        "layer": layers,
    }


def ecdf(rows: Sequence[ResultRow], base: str = "") -> Spec:
    """Return the fraction of problems (y) with at most a speed-up of x over the backend `base`."""
    times = times_by_backend(require_rows(timed_rows(rows)))
    base = base or max(times, key=lambda name: len(times[name]))
    if base not in times:
        raise UsageError(f"{base!r} measured nothing here", hint=f"backends: {', '.join(times)}")
    values: Values = []
    for name, own in times.items():
        ratios = sorted(times[base][key] / own[key] for key in own if key in times[base])
        if name == base or not ratios:
            continue
        label = f"{name}: {statistics.geometric_mean(ratios):.3g} ×"
        values.append({"ratio": ratios[0], "share": 0.0, "backend": label})
        for at, ratio in enumerate(ratios, 1):
            values.append({"ratio": ratio, "share": at / len(ratios), "backend": label})
    if not values:
        raise NothingToDo(
            "no problem was measured by two backends"
            + (f", one of which is {base}" if base else "")
        )
    title = f"speed-up over {base} (above 1: faster than {base})"
    ratios = [value["ratio"] for value in values]
    x = log_axis("ratio", title)
    x["scale"] |= {"padding": 10}
    if (
        max(ratios) / min(ratios) < _LOG_AXIS_RATIO
    ):  # Vega labels only some ticks of a logarithmic axis
        x["axis"] |= {"labelExpr": "format(datum.value, '~g')", "labelOverlap": "greedy"}
        if max(ratios) / min(ratios) > 2:  # Vega draws no ticks between 1 and 2
            ticks = _log_ticks(min(ratios), max(ratios))
            # If there are more than tickCount values, Vega draws only every n-th.
            x["axis"] |= {"values": ticks, "tickCount": len(ticks), "labelOverlap": False}
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "description": "the legend has geometric means",
        "layer": [
            {
                "data": {"values": values},
                "mark": {"type": "line", "interpolate": "step-after", "point": len(values) < 200},
                "encoding": {
                    "x": x,
                    "y": {"field": "share", "type": "quantitative", "axis": {"format": "%"}}
                    | {"title": "problems with at most this speed-up"},
                    "color": by_field("backend"),
                },
            },
            {
                **NO_CHANGE,
                # In the legend too, so that the other backends keep their colours of all figures.
                "data": {"values": [{"one": 1, "backend": f"{base}: 1 ×"}]},
                "encoding": NO_CHANGE["encoding"] | {"color": by_field("backend")},
            },
        ],
    }


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round tick values for a logarithmic axis that spans less than two decades."""
    first = math.floor(math.log10(low))
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)
    ticks = [step * 10.0**power for power in (first, first + 1, first + 2) for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def heatmap(
    rows: Sequence[ResultRow], x: str = "", y: str = "", base: str = "", head: str = ""
) -> Spec:
    """Return a heat map of `head`'s speed-up over `base` for two dims; above 1 `head` is faster.
    A cell without a ratio in which one of them failed is marked."""
    some = require_rows(timed_rows(rows))
    timed, description = (some, "") if x and y else rows_of_main_op(some)
    times = times_by_backend(timed)
    for name in filter(None, (base, head)):
        if name not in times:
            backend_names = ", ".join(times)
            raise UsageError(f"{name!r} measured nothing here", hint=f"backends: {backend_names}")
    if len(times) < 2:
        raise NothingToDo("no problem was measured by two backends", hint=_ONE_BACKEND)
    base = base or next(name for name in times if name != head)
    head = head or next(name for name in times if name != base)
    if not (x and y):
        x, y = varying_dims(timed, 2)
    cells: dict[tuple[int, int], list[float]] = {}
    for row in timed:
        key, dims = row.result.case.problem.key, row.result.case.problem.dims
        has_both = key in times[base] and key in times[head]
        if row.backend == head and has_both and x in dims and y in dims:
            ratio = times[base][key] / times[head][key]
            cells.setdefault((dims[x], dims[y]), []).append(ratio)
    values: Values = [
        {"x": a, "y": b, "ratio": statistics.geometric_mean(ratios), "count": len(ratios)}
        for (a, b), ratios in cells.items()
    ]
    failed: dict[tuple[int, int], dict[str, Any]] = {}
    ops = {row.result.case.problem.op for row in timed}
    for row in rows:
        problem = row.result.case.problem
        if not (row.result.status.failed and row.backend in (base, head) and problem.op in ops):
            continue
        if x not in problem.dims or y not in problem.dims:
            continue
        cell = problem.dims[x], problem.dims[y]
        if cell not in cells:
            failed.setdefault(cell, failure_of(row) | {"x": cell[0], "y": cell[1]})
    if not values:
        raise NothingToDo(
            f"{base} and {head} share no problem with {x} and {y}", hint=dims_hint(timed)
        )
    most = max(max(value["ratio"], 1 / value["ratio"]) for value in values)
    most = min(_MOST_SHADED, max(_LEAST_SHADED, most))
    ticks = [most**power for power in (-1, -0.5, 0, 0.5, 1)]
    legend = {"format": ".2f", "titleLimit": 320, "values": ticks}
    title = ["above 1:", f"{head} is faster", f"than {base}"]
    colour = {"field": "ratio", "type": "quantitative", "title": title, "legend": legend}
    # purpleorange is readable with every colour blindness; its middle means no difference
    scale: Spec = {"scheme": "purpleorange", "type": "log", "domainMid": 1, "clamp": True}
    scale["domain"] = [1 / most, most]
    position: Spec = {
        "x": {"field": "x", "type": "ordinal", "title": x, "axis": {"labelAngle": 0}},
        "y": {"field": "y", "type": "ordinal", "title": y, "sort": "descending"},
    }
    position["x"]["axis"]["labelOverlap"] = True
    position["y"]["axis"] = {"labelOverlap": True}
    pale = f"datum.ratio > {most**-0.6} && datum.ratio < {most**0.6}"
    # Fixed names, because the text must contrast with the cell, not with the page's theme.
    ink = {"condition": {"test": pale, "value": "black"}, "value": "white"}
    text = {"text": {"field": "ratio", "format": ".2f"}, "color": ink}
    cell_tips = [
        {"field": at, "type": "nominal", "title": dim} for at, dim in zip("xy", (x, y), strict=True)
    ]
    tip = {"tooltip": [*cell_tips, *tooltips("ratio", "count")]}
    layers: list[Spec] = [
        {"mark": "rect", "encoding": {**position, "color": {**colour, "scale": scale}, **tip}}
    ]
    drawn = [*values, *failed.values()]
    counts = len({value["x"] for value in drawn}), len({value["y"] for value in drawn})
    wide, high = (min(_CELL[at], max(2, _MAP[at] // counts[at])) for at in (0, 1))
    if wide >= _LEAST_CELL[0] and high >= _LEAST_CELL[1]:
        layers.append({"mark": {"type": "text", "fontSize": 10}, "encoding": {**position, **text}})
    if failed:
        why = {"tooltip": [*cell_tips, *tooltips("backend", "failed", "again")]}
        cross = failed_cross((min(wide, high) // 3) ** 2)
        marks = {"data": {"values": list(failed.values())}, "mark": cross}
        layers.append({**marks, "encoding": position | why})
    base_spec: Spec = {
        "data": {"values": values},
        "width": {"step": wide},
        "height": {"step": high},
    }
    shared = any(value["count"] > 1 for value in values)
    notes = [description, f"time of {base} over that of {head}"]
    notes.append("geometric means where problems share a cell" if shared else "")
    notes.append("✕: failed" if failed else "")
    base_spec["description"] = "; ".join(filter(None, notes))
    return {**base_spec, "layer": layers}


__all__ = [
    "HEIGHT",
    "OPTIONS",
    "PALETTE",
    "RESULT_KINDS",
    "TITLES",
    "WIDTH",
    "Values",
    "bars",
    "by_field",
    "ceilings",
    "changes",
    "ecdf",
    "heatmap",
    "history",
    "roofline",
    "samples",
    "sweep",
    "themed",
    "trend",
]

RESULT_KINDS: dict[str, Callable[..., Spec]] = {
    "roofline": roofline,
    "bars": bars,
    "ecdf": ecdf,
    "sweep": sweep,
    "heatmap": heatmap,
    "samples": samples,
}
# Parameters of each kind in addition to its rows.
OPTIONS: dict[str, tuple[str, ...]] = {
    "ecdf": ("base",),
    "sweep": ("x",),
    "heatmap": ("x", "y", "base", "head"),
}
TITLES = {
    "roofline": "Roofline, with measured roofs",
    "bars": "Backends, problem by problem",
    "ecdf": "Speed-ups",
    "sweep": "Rates over a dim",
    "heatmap": "Speed of one backend over another",
    "samples": "Samples by block",
    "history": "History",
    "changes": "Head over base",
    "roofs": "Measured roofs",
    "trend": "Suites over time",
    "tuning": "Tuning: progress, importance of parameters, candidates",
}


# Imported on demand: the statistics of comparisons take a second, which figures of results save.
def changes(found: Sequence[Change]) -> Spec:
    """Return head over base of each compared kernel with its interval, by cost per call."""
    from kernelmark.report import change_figures

    return change_figures.changes(found)


def history(stories: Sequence[Story], environments: Iterable[Environment] = ()) -> Spec:
    """Return each series over its runs: the expected range of the newest point as a band, steps as
    lines, and changes of the environment, which are named if they are among `environments`."""
    from kernelmark.report import change_figures

    return change_figures.history(stories, environments)


def trend(past: History) -> Spec:
    """Return the geometric mean of each suite's times by each backend over the runs."""
    from kernelmark.report import change_figures

    return change_figures.trend(past)
