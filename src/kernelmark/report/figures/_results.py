"""Roofline, samples and sweeps: figures of the results themselves."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from kernelmark.core.errors import NothingToDo
from kernelmark.core.metric import Roof
from kernelmark.core.units import counted, time_text
from kernelmark.report.figures._parts import (
    HEIGHT,
    PALETTE,
    WIDTH,
    Values,
    by_field,
    dims_hint,
    dots,
    interval_of,
    log_axis,
    measurement_of,
    point_of,
    require_rows,
    rows_of_main_op,
    si_prefix,
    time_unit,
    timed_rows,
    tooltips,
    varying_dims,
)
from kernelmark.report.results import ResultRow
from kernelmark.report.vega import Spec

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
    known = [roof for roof in roofs if roof.device in devices and roof.value > 0]
    lines, labels = _roof_lines(known, [point["x"] for point in points])
    axes = _roof_axes()
    layers = _roof_layers(lines, labels, points)
    layers.append(
        {
            "data": {"values": points},
            "mark": dots(len(points)),
            "encoding": {
                **axes,
                # Otherwise the legend's symbols are as faint as the points.
                "color": by_field("backend") | {"legend": {"symbolOpacity": 1}},
                "shape": {"field": "op", "type": "nominal", "title": None}
                | {"legend": {"symbolFillColor": "#888888", "symbolStrokeColor": "#888888"}},
                "tooltip": tooltips("problem", "backend", "time", "rate", "share", "again"),
            },
        }
    )
    return {"width": WIDTH, "height": HEIGHT, "layer": layers}


def ceilings(roofs: Sequence[Roof]) -> Spec:
    """Return the roofs of one device: attainable FLOP/s over arithmetic intensity."""
    known = [roof for roof in roofs if roof.value > 0]
    lines, labels = _roof_lines(known, _INTENSITIES)
    if not lines:
        raise NothingToDo("no device has a memory roof to draw", hint="kmark roofs measures them")
    return {"width": WIDTH, "height": HEIGHT, "layer": _roof_layers(lines, labels, [])}


def _roof_axes() -> Spec:
    """Return axes with padding, so that no point lies on an axis line."""
    made = {
        "x": log_axis("x", "arithmetic intensity, FLOP per byte"),
        "y": log_axis("y", "FLOP/s", "~s"),
    }
    return {name: axis | {"scale": axis["scale"] | {"padding": 10}} for name, axis in made.items()}


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
        both = [{"x": x, "y": x * roof.value} for x in (first, end)]
        lines += [point | {"roof": name, "kind": "memory"} for point in both]
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
    found: dict[tuple[str, str], Roof] = {}
    for roof in roofs:
        key = roof.name, roof.unit
        if key not in found or found[key].value < roof.value:
            found[key] = roof
    return list(found.values())


def _si_text(value: float) -> str:
    factor, prefix = si_prefix(value)
    return f"{value / factor:.3g} {prefix}"


_MOST_SAMPLES = 6  # maximum number of results


def samples(rows: Sequence[ResultRow]) -> Spec:
    """Return every sample of some results, by block in measured order, with the clock below."""
    every = require_rows(timed_rows(rows))
    timed = every[:_MOST_SAMPLES]
    words = "colours are blocks; the band is the 95 % interval of the median"
    if left := len(every) - len(timed):
        words += f"; {counted(left, 'more result')} not shown"
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
        one: Spec = {"width": WIDTH, "height": HEIGHT // 2, "layer": layers}
        parts: list[Spec] = [{"title": title, "data": {"values": values}, **one}]
        if any("MHz" in value for value in values):
            clock_y = {"field": "MHz", "type": "quantitative", "scale": {"zero": False}}
            clock_y["title"] = "clock, MHz"
            strip = {"x": along, "y": clock_y}
            line = {"type": "line", "color": "#888888"}
            data = {"data": {"values": values}, "width": WIDTH, "height": 50}
            parts.append({**data, "mark": line, "encoding": strip})
        panels.append({"vconcat": parts})
    return {"description": words, "vconcat": panels}


_MOST_LINES = 12  # per backend: more would overlap
_MOST_DASHES = 5  # dash patterns that remain distinguishable


def sweep(rows: Sequence[ResultRow], x: str = "") -> Spec:
    """Return rates over a dim, FLOP/s above bytes/s, with intervals."""
    some = require_rows(timed_rows(rows))
    timed, words = (some, "") if x else rows_of_main_op(some)
    x = x or varying_dims(timed, 1)[0]
    found = [row for row in timed if x in row.result.case.problem.dims]
    if not found:
        raise NothingToDo(f"no result has a dim {x!r}", hint=dims_hint(timed))
    values: Values = []
    for row, rest in zip(found, _line_labels(found, x), strict=True):
        measured = measurement_of(row)
        point = point_of(row) | {"x": row.result.case.problem.dims[x], "rest": rest}
        for name, work in (("flops", row.result.flops), ("bytes", row.result.bytes)):
            if work:
                low_s, high_s = interval_of(measured)
                point |= {name: work / measured.median_s, f"{name}_low": work / high_s}
                point[f"{name}_high"] = work / low_s
        values.append(point)
    lines = len({value["rest"] for value in values})
    bands = "bands are 95 % intervals"
    tips = ["problem", "backend", "time", "rate", "share", "again"]
    if lines > _MOST_LINES:
        values, tips = _medians(values), ["backend", "problems"]
        bands = f"lines are medians over up to {lines} problems, bands hold 80 % of them"
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
        panels.append(
            {
                "width": WIDTH,
                "height": HEIGHT * 2 // 3,
                "layer": [
                    {
                        "mark": {"type": "area", "opacity": 0.2},
                        "encoding": {**along, **colour, "y": band, "y2": band_to},
                    },
                    {"mark": "line", "encoding": {**along, **colour, **dashes, "y": y}},
                    {"mark": dots(len(values)), "encoding": {**along, **colour, "y": y, **tooltip}},
                ],
            }
        )
    notes = "; ".join(filter(None, (words, bands)))
    return {"description": notes, "data": {"values": values}, "vconcat": panels}


def _medians(points: Values) -> Values:
    """Return the median rate per backend and x, with the 10 % and 90 % quantiles over problems."""
    found: dict[tuple[str, float], Values] = {}
    for point in points:
        found.setdefault((point["backend"], point["x"]), []).append(point)
    values: Values = []
    for (backend, x), own in found.items():
        value: dict[str, Any] = {"backend": backend, "x": x, "rest": "", "problems": len(own)}
        for name in ("flops", "bytes"):
            rates = [point[name] for point in own if name in point]
            if rates:
                one = len(rates) == 1  # quantiles need two values
                cuts = rates * 9 if one else statistics.quantiles(rates, n=10, method="inclusive")
                value |= {name: cuts[4], f"{name}_low": cuts[0], f"{name}_high": cuts[8]}
        values.append(value)
    return values


def _line_labels(rows: Sequence[ResultRow], without: str) -> list[str]:
    """Return a line label per row: the op, dims, dtypes and options that vary among the rows."""
    words = []
    for row in rows:
        problem = row.result.case.problem
        words.append({"": problem.op, **problem.dims, **problem.dtypes, **problem.options})
    names = dict.fromkeys(name for own in words for name in own if name != without)
    vary = [name for name in names if len({str(own.get(name)) for own in words}) > 1]
    return [
        " ".join(f"{name}={own[name]}" if name else str(own[name]) for name in vary if name in own)
        for own in words
    ]


def _spans_octaves(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 8
