"""Figures of results as Vega-Lite specs: what is drawn, from which values. vega.py draws them.

Every function takes rows (`tables.rows`) or stories and returns a spec that needs no network.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kernelmark.compare.history import Point, Screen, Story, judged_s
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.result import Measurement, Status
from kernelmark.core.roof import Roof
from kernelmark.core.units import counted, time_text, value_text
from kernelmark.report import vega
from kernelmark.report.changes import Change, ranked
from kernelmark.report.history import parts as series_parts
from kernelmark.report.names import rerun
from kernelmark.report.tables import Row, rate, share_text
from kernelmark.report.vega import SCHEMA, Spec

WIDTH, HEIGHT = 620, 360
_BARS_WIDTH = 640  # not WIDTH, which a page stretches: the labels beside the bars are long
# Okabe and Ito's colours: distinguishable with every common colour blindness, in print and on dark.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
# The dark blue is hard to see on a dark ground.
_DARK_PALETTE = (PALETTE[4], *PALETTE[1:4], PALETTE[0], *PALETTE[5:])
_INK = {False: vega.LIGHT, True: vega.DARK}
_PAGE_INK = ("transparent", "currentColor", "var(--line)")
_MOST_BARS = 40  # problems in a bar chart
_MOST_LINES = 12  # of a backend: more cover each other
_CELL, _MAP = (64, 36), (1280, 900)  # pixels of a heat map: a cell at most, and all of them
_LEAST_CELL = (30, 14)  # that a ratio can be read in
_MOST_DASHES = 5  # dash patterns that a reader can distinguish
_MOST_SAMPLES = 6  # results whose samples are drawn
_MOST_SERIES = 12
_LEAST_RANGE = 0.03  # of an axis of history, to both sides of its middle
_DAY_S = 86400.0
_FAR = 10.0  # ratios above need a logarithmic axis
_MOST_SHADED = 4.0  # ratios beyond have the colour of this one
_LEAST_SHADED = 1.25  # the darkest colour is at least this ratio: 3 % is not a large difference
_INTENSITIES = (0.125, 2048.0)  # FLOP per byte that roofs alone are drawn over
# Verdicts with the palette's colours: what is worse is warm.
_VERDICTS = {
    "slower": "#D55E00",
    "broken": "#CC79A7",
    "slower, suppressed": "#F0E442",
    "faster": "#0072B2",
    "faster, suppressed": "#F0E442",
    "fixed": "#56B4E9",
    "unsure": "#E69F00",
    "same": "#999999",
}
_TIP = {
    "shown": "value",
    "problem": "problem",
    "backend": "backend",
    "time": "median",
    "share": "of roof",
}
# A dashed line at ratio 1.
_NO_CHANGE: Spec = {
    "data": {"values": [{"one": 1}]},
    "mark": {"type": "rule", "strokeDash": [4, 4]},
    "encoding": {"x": {"field": "one", "type": "quantitative"}},
}

Values = list[dict[str, Any]]


def themed(
    spec: Spec, *, title: str = "", subtitle: str = "", dark: bool = False, inline: bool = False
) -> Spec:
    """A figure with its title, in the colours of a light or a dark page, or `inline` in those of
    the page that it is part of. The subtitle ends with the figure's description."""
    paper, ink, grid = _PAGE_INK if inline else _INK[dark]
    lines = [line for line in (subtitle, spec.get("description", "")) if line]
    words = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12}
    return {
        "$schema": SCHEMA,
        "background": paper,
        "title": {"text": title, "subtitle": lines},
        "config": {
            "font": "sans-serif",
            "title": {"color": ink, "subtitleColor": ink, "fontSize": 14, "anchor": "start"}
            | {"offset": 12},
            "axis": {**words, "gridColor": grid, "domainColor": ink, "tickColor": ink},
            "legend": {**words, "symbolLimit": 60, "labelLimit": 320},
            "header": words,
            "text": {"color": ink},
            "rule": {"color": ink},
            "range": {"category": list(PALETTE if not dark else _DARK_PALETTE)},
            "view": {"stroke": None},
        },
        **spec,
    }


def roofline(rows: Sequence[Row], roofs: Sequence[Roof]) -> Spec:
    """FLOP/s over FLOPs per byte: measured roofs as lines, each result a point."""
    points = [
        _point(row) | {"x": row.result.flops / row.result.bytes, "y": row.result.flops_per_s}
        for row in _timed(rows)
        if row.result.flops and row.result.bytes
    ]
    if not points:
        raise NothingToDo(
            "no result has operations and bytes to draw", hint="'kmark plot bars' shows times"
        )
    devices = {row.result.device for row in _timed(rows)}
    known = [roof for roof in roofs if roof.device in devices and roof.value > 0]
    lines, labels = _roof_lines(known, [point["x"] for point in points])
    axes = _roof_axes()
    layers = _roof_layers(lines, labels, points)
    layers.append(
        {
            "data": {"values": points},
            "mark": _dots(len(points)),
            "encoding": {
                **axes,
                # The legend's symbols would be as faint as the points.
                "color": by_field("backend") | {"legend": {"symbolOpacity": 1}},
                "shape": {"field": "op", "type": "nominal", "title": None}
                | {"legend": {"symbolFillColor": "#888888", "symbolStrokeColor": "#888888"}},
                "tooltip": _tips("problem", "backend", "time", "rate", "share", "again"),
            },
        }
    )
    return {"width": WIDTH, "height": HEIGHT, "layer": layers}


def _roof_axes() -> Spec:
    """Axes with room around: a point at the edge would lie on an axis."""
    made = {
        "x": log_axis("x", "arithmetic intensity, FLOP per byte"),
        "y": log_axis("y", "FLOP/s", "~s"),
    }
    return {name: axis | {"scale": axis["scale"] | {"padding": 10}} for name, axis in made.items()}


def _rise(drawn: Values) -> float:
    """The angle, in degrees clockwise, at which a line of memory rises over what is drawn."""
    decades = [
        math.log10(max(value[name] for value in drawn) / min(value[name] for value in drawn))
        for name in ("x", "y")
    ]
    return -math.degrees(math.atan2(HEIGHT * decades[0], WIDTH * decades[1]))


def _roof_layers(lines: Values, labels: Values, points: Values) -> list[Spec]:
    """Roofs as lines with their names, beside `points`; none without any."""
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
        if align == "left":  # a line of memory: its name runs along it
            text |= {"angle": _rise([*lines, *points]), "dx": 14}
        mine = [label for label in labels if label["align"] == align]
        shown = axes | {"text": {"field": "roof"}}
        layers.append({"data": {"values": mine}, "mark": text, "encoding": shown})
    return layers


def _roof_lines(roofs: Sequence[Roof], at: Sequence[float]) -> tuple[Values, Values]:
    """Lines of the memory levels up to the highest compute roof, and of the compute roofs from
    where the fastest memory reaches them; a label each."""
    memory = _highest(roof for roof in roofs if roof.kind == "bytes")
    compute = _highest(roof for roof in roofs if roof.kind == "flops")
    if not memory:
        return [], []
    first, last = min(at) / 2, max(at) * 2
    slowest, fastest = (choose(roof.value for roof in memory) for choose in (min, max))
    top = max((roof.value for roof in compute), default=math.inf)
    if math.isfinite(top):
        # Where each memory level meets the highest roof is drawn too: without it, a point does not
        # show which of them bounds it.
        ridge = top / slowest
        first, last = min(first, ridge / 4, top / fastest / 2), max(last, ridge * 2)
    lines: Values = []
    labels: Values = []
    for roof in memory:
        end = min(last, top / roof.value) if math.isfinite(top) else last
        if end <= first:
            continue
        name = f"{roof.name} {_si(roof.value)}B/s"
        both = [{"x": x, "y": x * roof.value} for x in (first, end)]
        lines += [point | {"roof": name, "kind": "memory"} for point in both]
        labels.append({"x": first, "y": first * roof.value, "roof": name, "align": "left"})
    for roof in compute:
        start = max(first, roof.value / fastest)
        if start >= last:
            continue
        name = f"{roof.name} {roof.unit} {_si(roof.value)}FLOP/s".replace("  ", " ")
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


def bars(rows: Sequence[Row]) -> Spec:
    """Time of each backend over that of the fastest, problem by problem, with the time itself; what
    failed is named where its bar would be."""
    tried: dict[str, set[str]] = {}
    best: dict[str, float] = {}
    for row in [*_timed(rows), *(row for row in rows if row.result.status.failed)]:
        key = row.result.case.problem.key
        tried.setdefault(key, set()).add(row.backend)
        if row.timed:
            best[key] = min(_measurement(row).median_s, best.get(key, math.inf))
    compared = [key for key in best if len(tried[key]) > 1]
    if not compared:
        raise NothingToDo(
            "no problem was measured by two backends", hint="'kmark plot sweep' draws one"
        )
    # Spread over all: the first ones of a sweep share all dims but one.
    count = min(len(compared), _MOST_BARS)
    shown = {compared[at * len(compared) // count] for at in range(count)}
    values: Values = []
    failed: Values = []
    for row in rows:
        key = row.result.case.problem.key
        if key in shown and row.timed:
            low_s, high_s = _interval(_measurement(row))
            ratio = _measurement(row).median_s / best[key]
            ends = {"low": low_s / best[key], "high": high_s / best[key]}
            values.append(_point(row) | {"ratio": ratio, "end": max(ratio, ends["high"])} | ends)
        elif key in shown and row.result.status.failed:
            named = {"problem": row.problem, "backend": row.backend, "again": rerun(row.result)}
            failed.append(named | {"failed": f"✕ {row.result.status.value.replace('_', ' ')}"})
    y: Spec = {"field": "problem", "type": "nominal", "sort": None, "title": None}
    y |= {"axis": {"labelLimit": 320}}
    offset = {"yOffset": {"field": "backend", "type": "nominal"}}
    colour = {"color": by_field("backend")}
    title = "time over that of the fastest (1 is best)"
    farthest = max(value["end"] for value in values)
    scale: Spec = {"zero": True, "domainMax": 1.15 * farthest}  # with room for labels
    if farthest > _FAR:
        scale = {"type": "log", "domainMin": 0.5, "domainMax": 3 * farthest, "nice": False}
    x = {"field": "ratio", "type": "quantitative", "title": title, "scale": scale}
    tips = {"tooltip": _tips("problem", "backend", "time", "ratio", "share", "again")}
    error = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}}
    label: Spec = {"type": "text", "align": "left", "dx": 4, "fontSize": 9}
    at_end = {"x": {"field": "end", "type": "quantitative"}, "text": {"field": "time"}}
    at_start = {"x": {"value": 0}, "text": {"field": "failed"}}
    left = len(compared) - len(shown)
    words = "labels are medians, lines their 95 % intervals"
    if left:
        words += f"; {counted(left, 'more problem')} not shown"
    layers: list[Spec] = [
        {"mark": "bar", "encoding": {"y": y, "x": x, **offset, **colour, **tips}},
        {"mark": {"type": "rule"}, "encoding": {"y": y, **error, **offset}},
        {"mark": label, "encoding": {"y": y, **at_end, **offset}},
    ]
    if failed:
        why = {"tooltip": _tips("problem", "backend", "failed", "again")}
        shape = {"y": y, **at_start, **offset, **why}
        data = {"data": {"values": failed}}
        layers.append({**data, "mark": {**label, "color": PALETTE[5]}, "encoding": shape})
    return {
        "width": _BARS_WIDTH,
        "height": {"step": 14},
        "description": words,
        "data": {"values": values},
        "layer": layers,
    }


def ecdf(rows: Sequence[Row], base: str = "") -> Spec:
    """The fraction of problems (y) with at most a speed-up of x over the backend `base`."""
    times = _by_backend(_some(_timed(rows)))
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
        raise NothingToDo(f"no other backend measured a problem of {base}")
    title = f"speed-up over {base} (above 1: faster than {base})"
    ratios = [value["ratio"] for value in values]
    x = log_axis("ratio", title)
    x["scale"] |= {"padding": 10}
    if max(ratios) / min(ratios) < _FAR:  # Vega labels only some ticks of a logarithmic axis
        x["axis"] |= {"labelExpr": "format(datum.value, '~g')", "labelOverlap": "greedy"}
        if max(ratios) / min(ratios) > 2:  # and has none between 1 and 2
            ticks = _log_ticks(min(ratios), max(ratios))
            # Vega draws every n-th of given ticks if they are more than tickCount.
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
                **_NO_CHANGE,
                # In the legend too: the others then have their colours of all figures.
                "data": {"values": [{"one": 1, "backend": f"{base}: 1 ×"}]},
                "encoding": _NO_CHANGE["encoding"] | {"color": by_field("backend")},
            },
        ],
    }


def sweep(rows: Sequence[Row], x: str = "") -> Spec:
    """Rates over a dim, FLOP/s and bytes/s beneath each other, with intervals."""
    some = _some(_timed(rows))
    timed, words = (some, "") if x else _of_main_op(some)
    x = x or _varying(timed, 1)[0]
    found = [row for row in timed if x in row.result.case.problem.dims]
    if not found:
        raise NothingToDo(f"no result has a dim {x!r}", hint=_dims_hint(timed))
    values: Values = []
    for row, rest in zip(found, _rests(found, x), strict=True):
        measured = _measurement(row)
        point = _point(row) | {"x": row.result.case.problem.dims[x], "rest": rest}
        for name, work in (("flops", row.result.flops), ("bytes", row.result.bytes)):
            if work:
                low_s, high_s = _interval(measured)
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
        # The legend's symbols would be as faint as the band.
        opaque = by_field("backend") | {"legend": {"symbolOpacity": 1}}
        colour: Spec = {"color": opaque, "detail": {"field": "rest"}}
        dashes: Spec = {}
        if 1 < lines <= _MOST_DASHES:
            grey = {"symbolStrokeColor": "#888888", "symbolFillColor": "transparent"}
            stroke = {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolSize": 300}
            dashes = {"strokeDash": by_field("rest") | {"legend": grey | stroke}}
        factor, prefix = _prefix(max(rates))
        title = f"{prefix}{unit}"
        axis = {"labelExpr": f"format(datum.value / {factor:g}, '~g')"}
        y = {"field": name, "type": "quantitative", "title": title, "axis": axis}
        band = {"field": f"{name}_low", "type": "quantitative", "title": title, "axis": axis}
        band_to = {"field": f"{name}_high"}
        tooltip = {"tooltip": _tips(*tips)}
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
                    {
                        "mark": _dots(len(values)),
                        "encoding": {**along, **colour, "y": y, **tooltip},
                    },
                ],
            }
        )
    notes = "; ".join(filter(None, (words, bands)))
    return {"description": notes, "data": {"values": values}, "vconcat": panels}


def _medians(points: Values) -> Values:
    """The median rates of each backend at each x, and what 80 % of the problems are within."""
    found: dict[tuple[str, float], Values] = {}
    for point in points:
        found.setdefault((point["backend"], point["x"]), []).append(point)
    values: Values = []
    for (backend, x), own in found.items():
        value: dict[str, Any] = {"backend": backend, "x": x, "rest": "", "problems": len(own)}
        for name in ("flops", "bytes"):
            rates = [point[name] for point in own if name in point]
            if rates:
                one = len(rates) == 1  # which has no quantiles
                cuts = rates * 9 if one else statistics.quantiles(rates, n=10, method="inclusive")
                value |= {name: cuts[4], f"{name}_low": cuts[0], f"{name}_high": cuts[8]}
        values.append(value)
    return values


def heatmap(rows: Sequence[Row], x: str = "", y: str = "", base: str = "", head: str = "") -> Spec:
    """The speed of one backend over another's for two dims: above 1 `head` is faster."""
    some = _some(_timed(rows))
    timed, words = (some, "") if x and y else _of_main_op(some)
    times = _by_backend(timed)
    for name in filter(None, (base, head)):
        if name not in times:
            known = ", ".join(times)
            raise UsageError(f"{name!r} measured nothing here", hint=f"backends: {known}")
    if len(times) < 2:
        raise NothingToDo("a ratio needs two backends", hint="'kmark plot sweep' draws one")
    base = base or next(name for name in times if name != head)
    head = head or next(name for name in times if name != base)
    if not (x and y):
        x, y = _varying(timed, 2)
    cells: dict[tuple[int, int], list[float]] = {}
    for row in timed:
        key, dims = row.result.case.problem.key, row.result.case.problem.dims
        both = key in times[base] and key in times[head]
        if row.backend == head and both and x in dims and y in dims:
            ratio = times[base][key] / times[head][key]
            cells.setdefault((dims[x], dims[y]), []).append(ratio)
    values = [
        {"x": a, "y": b, "ratio": statistics.geometric_mean(found), "count": len(found)}
        for (a, b), found in cells.items()
    ]
    if not values:
        raise NothingToDo(
            f"{base} and {head} share no problem with {x} and {y}", hint=_dims_hint(timed)
        )
    most = max(max(value["ratio"], 1 / value["ratio"]) for value in values)
    most = min(_MOST_SHADED, max(_LEAST_SHADED, most))
    ticks = [most**power for power in (-1, -0.5, 0, 0.5, 1)]
    legend = {"format": ".2f", "titleLimit": 320, "values": ticks}
    title = ["above 1:", f"{head} is faster", f"than {base}"]
    colour = {"field": "ratio", "type": "quantitative", "title": title, "legend": legend}
    # purpleorange: readable with every colour blindness, and its middle is no difference
    scale: Spec = {"scheme": "purpleorange", "type": "log", "domainMid": 1, "clamp": True}
    scale["domain"] = [1 / most, most]
    place: Spec = {
        "x": {"field": "x", "type": "ordinal", "title": x, "axis": {"labelAngle": 0}},
        "y": {"field": "y", "type": "ordinal", "title": y, "sort": "descending"},
    }
    place["x"]["axis"]["labelOverlap"] = True
    place["y"]["axis"] = {"labelOverlap": True}
    pale = f"datum.ratio > {most**-0.6} && datum.ratio < {most**0.6}"
    # Of the cell, not of the page: names, as the page's own colours change with its theme.
    ink = {"condition": {"test": pale, "value": "black"}, "value": "white"}
    text = {"text": {"field": "ratio", "format": ".2f"}, "color": ink}
    tip = {"tooltip": _tips("x", "y", "ratio", "count")}
    layers: list[Spec] = [
        {"mark": "rect", "encoding": {**place, "color": {**colour, "scale": scale}, **tip}}
    ]
    counts = len({value["x"] for value in values}), len({value["y"] for value in values})
    wide, high = (min(_CELL[at], max(2, _MAP[at] // counts[at])) for at in (0, 1))
    if wide >= _LEAST_CELL[0] and high >= _LEAST_CELL[1]:
        layers.append({"mark": {"type": "text", "fontSize": 10}, "encoding": {**place, **text}})
    made: Spec = {"data": {"values": values}, "width": {"step": wide}, "height": {"step": high}}
    shared = any(value["count"] > 1 for value in values)
    notes = [words, f"time of {base} over that of {head}"]
    notes.append("geometric means where problems share a cell" if shared else "")
    made["description"] = "; ".join(filter(None, notes))
    return {**made, "layer": layers}


def samples(rows: Sequence[Row]) -> Spec:
    """Every sample of some results, block by block in the order taken; the clock beneath."""
    every = _timed(rows)
    timed = every[:_MOST_SAMPLES]
    if not timed:
        raise NothingToDo("no result has samples")
    words = "colours are blocks; the band is the 95 % interval of the median"
    if left := len(every) - len(timed):
        words += f"; {counted(left, 'more result')} not shown"
    panels = []
    for row in timed:
        values: Values = []
        unit, scale = _time_unit(_measurement(row).median_s)
        count = itertools.count()
        for number, block in enumerate(_measurement(row).blocks):
            clocks = itertools.chain(block.clocks_mhz, itertools.repeat(None))
            for sample, clock in zip(block.samples_s, clocks, strict=False):
                point = {"at": next(count), "time": sample * scale, "block": f"block {number}"}
                values.append(point if clock is None else point | {"MHz": clock})
        measured = _measurement(row)
        times = {"field": "time", "type": "quantitative", "scale": {"zero": False}}
        times["title"] = f"time, {unit}"
        along: Spec = {"field": "at", "type": "quantitative", "axis": {"tickMinStep": 1}}
        along["scale"] = {"padding": 8, "nice": False}
        along["title"] = "sample, in the order taken"
        low_s, high_s = _interval(measured)
        band = [{"low": low_s * scale, "high": high_s * scale}]
        layers: list[Spec] = [
            {
                "mark": _dots(len(values)),
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


def history(stories: Sequence[Story]) -> Spec:
    """Each series over its runs: the band where the newest point was expected, steps as lines, and
    where the environment changed."""
    if not stories:
        raise NothingToDo("no series to draw")
    panels = []
    for story in stories[:_MOST_SERIES]:
        newest = story.newest
        unit, scale = newest.unit, 1.0
        if not newest.metric:
            known = [point.median_s for point in story.points if point.median_s]
            unit, scale = _time_unit(statistics.median(known) if known else 0.0)
        values: Values = [
            {"at": point.started * 1000, "value": value * scale, "run": point.run_id}
            | {"shown": value_text(value, point.unit or "s")}
            | {"environment": point.fingerprint[:8]}
            for point in story.points
            if point.status is Status.OK and (value := judged_s(point))
        ]
        if not values:
            continue
        failed: Values = [
            {"at": point.started * 1000, "run": point.run_id, "state": point.status.value}
            for point in story.points
            if point.status.failed
        ]
        along = _over_time(story.points[0].started, newest.started)
        y: Spec = {"field": "value", "type": "quantitative", "title": unit}
        y["scale"] = {"zero": False, "domain": _domain(values, story.screen, scale)}
        tips = _tips("run", "shown", "environment")
        layers: list[Spec] = [
            {
                "mark": {"type": "line", "color": PALETTE[0], "opacity": 0.6},
                "encoding": {"x": along, "y": y},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 45, "color": PALETTE[0]},
                "encoding": {"x": along, "y": y, "tooltip": tips},
            },
        ]
        layers += _lanes(story.points, along)
        screen = story.screen
        if screen.low_s and screen.high_s and math.isfinite(screen.high_s):
            # From the last step on: before it another level was expected.
            since = max([step.started for step in story.steps], default=story.points[0].started)
            band = [{"low": screen.low_s * scale, "high": screen.high_s * scale}]
            band[0] |= {"since": since * 1000, "until": newest.started * 1000}
            box = {"type": "rect", "opacity": 0.12, "color": PALETTE[2]}
            ends = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
            ends |= {"x": along | {"field": "since"}, "x2": {"field": "until"}}
            layers.insert(0, {"data": {"values": band}, "mark": box, "encoding": ends})
        if story.steps:
            marks = [
                {"at": step.started * 1000, "text": f"{100 * (step.ratio - 1):+.1f} %"}
                for step in story.steps
            ]
            rule = {"type": "rule", "strokeDash": [4, 4]}
            where = {"x": along}
            label = {"type": "text", "align": "left", "dx": 4, "fontSize": 10}
            above = {"y": {"value": 8}, "text": {"field": "text"}}
            steps = {"data": {"values": marks}}
            layers.append({**steps, "mark": rule, "encoding": where})
            layers.append({**steps, "mark": label, "encoding": where | above})
        if failed:
            cross: Spec = {"type": "point", "shape": "cross", "angle": 45, "size": 70}
            cross |= {"filled": True, "color": PALETTE[5]}
            low = {"x": along, "y": {"value": HEIGHT // 3 - 18}, "tooltip": _tips("run", "state")}
            layers.append({"data": {"values": failed}, "mark": cross, "encoding": low})
        named = series_parts(story)
        title = f"{named['problem']}, {named['backend']}  {newest.metric}".rstrip()
        data = {"title": title, "data": {"values": values}}
        panels.append({**data, "width": WIDTH, "height": HEIGHT // 3, "layer": layers})
    if not panels:
        raise NothingToDo("no series has a time to draw")
    words = "band: where the newest point was expected; dashed lines: change points"
    if (left := len(stories) - _MOST_SERIES) > 0:
        words += f"; {left} more series not shown"
    return {"description": words, "vconcat": panels}


def _domain(values: Values, screen: Screen, scale: float) -> list[float]:
    """The range of a history's axis, never so narrow that noise looks like news."""
    found = [value["value"] for value in values]
    if screen.low_s and screen.high_s and math.isfinite(screen.high_s):
        found += [screen.low_s * scale, screen.high_s * scale]
    low, high = min(found), max(found)
    middle = (low + high) / 2
    half = max(0.6 * (high - low), _LEAST_RANGE * middle)
    return [middle - half, middle + half]


def _lanes(points: Sequence[Point], along: Spec) -> list[Spec]:
    """A strip beneath a history, one colour for each environment; none where it never changed."""
    lanes: Values = []
    for point in points:
        if not lanes or lanes[-1]["environment"] != point.fingerprint[:8]:
            lanes.append({"environment": point.fingerprint[:8], "since": point.started * 1000})
    if len(lanes) < 2:
        return []
    last = points[-1].started * 1000
    # The newest environment has a width too if it has one point only.
    ends = [*(lane["since"] for lane in lanes[1:]), last + (last - lanes[0]["since"]) / 50]
    for lane, until in zip(lanes, ends, strict=True):
        lane["until"] = until
    few = len({lane["environment"] for lane in lanes}) <= len(PALETTE)
    legend = {"orient": "top", "title": "environment", "symbolType": "square"} if few else None
    bottom = HEIGHT // 3
    drawn = {
        "x": along | {"field": "since"},
        "x2": {"field": "until"},
        "y": {"value": bottom - 7},
        "y2": {"value": bottom},
        "color": {"field": "environment", "type": "nominal", "legend": legend},
        "tooltip": _tips("environment"),
    }
    return [{"data": {"values": lanes}, "mark": {"type": "rect"}, "encoding": drawn}]


def _over_time(first_s: float, last_s: float) -> Spec:
    """The axis of times, in UTC as everywhere: dates, or hours too where it spans few days."""
    axis: Spec = {"format": "%m-%d %H:%M", "tickCount": 8, "labelOverlap": True}
    axis["tickMinStep"] = 60_000  # as fine as labels are
    if last_s - first_s > 4 * _DAY_S:
        axis |= {"format": "%Y-%m-%d", "tickMinStep": _DAY_S * 1000}
    scale = {"type": "utc", "padding": 8}
    return {"field": "at", "type": "temporal", "title": None, "axis": axis, "scale": scale}


def changes(found: Sequence[Change]) -> Spec:
    """Head over base of each compared kernel with its interval, the largest cost a call first."""
    moved = ranked(found)
    rest = sorted((c for c in found if c not in moved), key=lambda c: -c.impact)
    values = [
        {
            "kernel": f"{one.problem}, {one.backend}",
            "ratio": one.ratio,
            "low": low,
            "high": high,
            "verdict": f"{one.status.value}, suppressed" if one.held else one.status.value,
            "base": value_text(one.base, one.unit) if one.base else "",
            "head": value_text(one.head, one.unit) if one.head else "",
            "again": one.again,
        }
        for one in [*moved, *rest][:_MOST_BARS]
        if one.ratio
        for low, high in [_ends(one.ratio, one.low, one.high)]
    ]
    if not values:
        raise NothingToDo("no row has a ratio to draw")
    left = sum(bool(one.ratio) for one in found) - len(values)
    y: Spec = {"field": "kernel", "type": "nominal", "sort": None, "title": None}
    y |= {"axis": {"labelLimit": 360}}
    ratio = {"field": "ratio", "type": "quantitative", "scale": {"zero": False}}
    ratio["title"] = "time of head over base (1 is no change)"
    seen = [name for name in _VERDICTS if any(value["verdict"] == name for value in values)]
    colour = by_field("verdict")
    colour |= {"scale": {"domain": seen, "range": [_VERDICTS[name] for name in seen]}}
    tips = {"tooltip": _tips("kernel", "verdict", "base", "head", "ratio", "again")}
    ends = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}}
    return {
        "width": WIDTH,
        "height": {"step": 18},
        "data": {"values": values},
        **({"description": f"{left} more kernels are not shown"} if left else {}),
        "layer": [
            _NO_CHANGE,
            {"mark": "rule", "encoding": {"y": y, **ends, "color": colour}},
            {
                "mark": {"type": "point", "filled": True, "size": 60},
                "encoding": {"y": y, "x": ratio, "color": colour, **tips},
            },
        ],
    }


def ceilings(roofs: Sequence[Roof]) -> Spec:
    """The roofs of one device alone: FLOP/s that each could reach over FLOPs per byte."""
    known = [roof for roof in roofs if roof.value > 0]
    lines, labels = _roof_lines(known, _INTENSITIES)
    if not lines:
        raise NothingToDo("no memory roof is known to draw", hint="kmark roofs measures them")
    return {"width": WIDTH, "height": HEIGHT, "layer": _roof_layers(lines, labels, [])}


# -- parts


def _timed(rows: Sequence[Row]) -> list[Row]:
    """Rows with a time, without canaries, which nobody asked for, unless there is nothing else."""
    timed = [row for row in rows if row.timed]
    return [row for row in timed if not row.sentinel] or timed


def _some(rows: list[Row]) -> list[Row]:
    if not rows:
        raise NothingToDo("no result has a time to draw")
    return rows


def _time_unit(typical_s: float) -> tuple[str, float]:
    """The unit that a time of this size is read in, and how many of it a second has."""
    if typical_s >= 1:
        return "s", 1.0
    return ("ms", 1e3) if typical_s >= 1e-3 else ("µs", 1e6) if typical_s >= 1e-6 else ("ns", 1e9)


def _measurement(row: Row) -> Measurement:
    assert row.result.measurement is not None
    return row.result.measurement


def _point(row: Row) -> dict[str, Any]:
    return {
        "problem": row.problem,
        "op": row.result.case.problem.op,
        "backend": row.backend,
        "time": time_text(_measurement(row).median_s),
        "rate": rate(row.result, row.share.bound if row.share else None),
        "share": share_text(row.share),
        "again": rerun(row.result),
    }


def _interval(measured: Measurement) -> tuple[float, float]:
    return _ends(measured.median_s, measured.low_s, measured.high_s)


def _ends(middle: float, low: float | None, high: float | None) -> tuple[float, float]:
    """The ends of an interval to draw; `middle` twice if it is unknown or wider than a factor of 2:
    it would stretch the axis until nothing else can be seen."""
    if low and high and middle <= 2 * low and high <= 2 * middle:
        return low, high
    return middle, middle


def _by_backend(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in _timed(rows):
        key = row.result.case.problem.key
        found.setdefault(row.backend, {})[key] = _measurement(row).median_s
    return found


def _varying(rows: Sequence[Row], count: int) -> tuple[str, ...]:
    """The dims with the most values."""
    values: dict[str, set[int]] = {}
    for row in rows:
        for name, size in row.result.case.problem.dims.items():
            values.setdefault(name, set()).add(size)
    found = sorted((n for n in values if len(values[n]) > 1), key=lambda n: -len(values[n]))
    if len(found) < count:
        raise NothingToDo(
            f"{len(found)} of {count} dims vary", hint="measure several sizes: -a m=[256:4096:*2]"
        )
    return tuple(found[:count])


def _dims_hint(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(name for row in rows for name in row.result.case.problem.dims)
    return f"dims: {', '.join(names)}"


def _of_main_op(rows: list[Row]) -> tuple[list[Row], str]:
    """The rows of the op with the most results, and a note if there are other ops: a dim of two
    ops, such as n of gemm and copy, is not one axis."""
    ops = [row.result.case.problem.op for row in rows]
    if len(set(ops)) < 2:
        return rows, ""
    main = max(dict.fromkeys(ops), key=ops.count)
    return [row for row in rows if row.result.case.problem.op == main], f"only {main}"


def _rests(rows: Sequence[Row], without: str) -> list[str]:
    """The op, dims, dtypes and options that vary among rows, as the label of each row's line."""
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


def log_axis(field: str, title: str, form: str = "~g") -> Spec:
    scale = {"type": "log", "nice": False}
    axis = {"format": form, "tickCount": 6}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values of a logarithmic axis that spans less than two decades."""
    first = math.floor(math.log10(low))
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)
    ticks = [step * 10.0**power for power in (first, first + 1, first + 2) for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def by_field(field: str, *, legend: bool = True) -> Spec:
    made: Spec = {"field": field, "type": "nominal", "title": None}
    return made if legend else {**made, "legend": None}


def _tips(*names: str) -> list[Spec]:
    return [{"field": name, "type": "nominal", "title": _TIP.get(name, name)} for name in names]


def _dots(count: int) -> Spec:
    """Marks that stay readable at ten thousand."""
    size, opacity = (60, 0.9) if count <= 300 else (25, 0.6) if count <= 3000 else (8, 0.35)
    return {"type": "point", "filled": True, "size": size, "opacity": opacity}


def _prefix(value: float) -> tuple[float, str]:
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= limit:
            return limit, prefix
    return 1.0, ""


def _si(value: float) -> str:
    factor, prefix = _prefix(value)
    return f"{value / factor:.3g} {prefix}"


RESULT_KINDS: dict[str, Callable[..., Spec]] = {
    "roofline": roofline,
    "bars": bars,
    "ecdf": ecdf,
    "sweep": sweep,
    "heatmap": heatmap,
    "samples": samples,
}
# Parameters of each kind besides its rows.
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
    "tuning": "Tuning: progress, importance of parameters, candidates",
}
