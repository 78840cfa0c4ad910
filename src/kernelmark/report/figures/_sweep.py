"""Rates over a dim."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from kernelmark.core.errors import NothingToDo
from kernelmark.core.reason import Reason
from kernelmark.report.figures._parts import (
    HEIGHT,
    WIDTH,
    Values,
    by_field,
    dims_hint,
    dots,
    interval_of,
    measurement_of,
    point_of,
    require_rows,
    rows_of_main_op,
    si_prefix,
    timed_rows,
    tooltips,
    varying_dims,
)
from kernelmark.report.results import ResultRow
from kernelmark.report.vega import Spec

_MOST_LINES = 12  # per backend: more would overlap
_MOST_DASHES = 5  # dash patterns that remain distinguishable


def sweep(rows: Sequence[ResultRow], x: str = "") -> Spec:
    """Return rates over a dim, FLOP/s above bytes/s, with intervals."""
    some = require_rows(timed_rows(rows))
    timed, words = (some, "") if x else rows_of_main_op(some)
    x = x or varying_dims(timed, 1)[0]
    found = [row for row in timed if x in row.result.case.problem.dims]
    if not found:
        raise NothingToDo(Reason("figure-no-dim", name=x), hint=dims_hint(timed))
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
                    {
                        "mark": dots(len(values)),
                        "encoding": {**along, **colour, "y": y, **tooltip},
                    },
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
