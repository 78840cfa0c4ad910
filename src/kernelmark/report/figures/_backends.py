"""Comparisons between backends: bars, ECDF and heat map."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.units import counted
from kernelmark.report.figures._parts import (
    HEIGHT,
    MOST_BARS,
    NO_CHANGE,
    PALETTE,
    WIDTH,
    Values,
    by_field,
    dims_hint,
    interval_of,
    log_axis,
    measurement_of,
    point_of,
    require_rows,
    rows_of_main_op,
    timed_rows,
    times_by_backend,
    tooltips,
    varying_dims,
)
from kernelmark.report.names import rerun
from kernelmark.report.results import ResultRow
from kernelmark.report.vega import Spec

_ONE_BACKEND = "'kmark plot sweep' draws one"
_BARS_WIDTH = 640  # not WIDTH, which a page stretches: the bar labels are long
_LOG_AXIS_RATIO = 10.0  # larger ratios need a logarithmic axis
_CELL, _MAP = (64, 36), (1280, 900)  # heat map in pixels: maximum of a cell, and of the map
_LEAST_CELL = (30, 14)  # smallest cell in which a ratio is legible
_MOST_SHADED = 4.0  # larger ratios get the colour of this one
_LEAST_SHADED = 1.25  # the darkest colour is at least this ratio: 3 % is not a large difference


def bars(rows: Sequence[ResultRow]) -> Spec:
    """Return bars of each backend's time over the fastest's, per problem, labelled with the time;
    failures are labelled in place of a bar."""
    tried: dict[str, set[str]] = {}
    best: dict[str, float] = {}
    for row in [*timed_rows(rows), *(row for row in rows if row.result.status.failed)]:
        key = row.result.case.problem.key
        tried.setdefault(key, set()).add(row.backend)
        if row.timed:
            best[key] = min(measurement_of(row).median_s, best.get(key, math.inf))
    compared = [key for key in best if len(tried[key]) > 1]
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
            named = {"problem": row.problem, "backend": row.backend, "again": rerun(row.result)}
            failed.append(named | {"failed": f"✕ {row.result.status.value.replace('_', ' ')}"})
    y: Spec = {"field": "problem", "type": "nominal", "sort": None, "title": None}
    y |= {"axis": {"labelLimit": 320}}
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
    words = "labels are medians, lines their 95 % intervals"
    if left:
        words += f"; {counted(left, 'more problem')} not shown"
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
        "description": words,
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
    """Return a heat map of `head`'s speed-up over `base` for two dims; above 1 `head` is faster."""
    some = require_rows(timed_rows(rows))
    timed, words = (some, "") if x and y else rows_of_main_op(some)
    times = times_by_backend(timed)
    for name in filter(None, (base, head)):
        if name not in times:
            known = ", ".join(times)
            raise UsageError(f"{name!r} measured nothing here", hint=f"backends: {known}")
    if len(times) < 2:
        raise NothingToDo("no problem was measured by two backends", hint=_ONE_BACKEND)
    base = base or next(name for name in times if name != head)
    head = head or next(name for name in times if name != base)
    if not (x and y):
        x, y = varying_dims(timed, 2)
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
    tip = {"tooltip": tooltips("x", "y", "ratio", "count")}
    layers: list[Spec] = [
        {"mark": "rect", "encoding": {**position, "color": {**colour, "scale": scale}, **tip}}
    ]
    counts = len({value["x"] for value in values}), len({value["y"] for value in values})
    wide, high = (min(_CELL[at], max(2, _MAP[at] // counts[at])) for at in (0, 1))
    if wide >= _LEAST_CELL[0] and high >= _LEAST_CELL[1]:
        layers.append({"mark": {"type": "text", "fontSize": 10}, "encoding": {**position, **text}})
    made: Spec = {"data": {"values": values}, "width": {"step": wide}, "height": {"step": high}}
    shared = any(value["count"] > 1 for value in values)
    notes = [words, f"time of {base} over that of {head}"]
    notes.append("geometric means where problems share a cell" if shared else "")
    made["description"] = "; ".join(filter(None, notes))
    return {**made, "layer": layers}
