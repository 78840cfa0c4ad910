"""Roofline plots: measured roofs, with or without results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kernelmark.core.errors import NothingToDo
from kernelmark.core.reason import Reason
from kernelmark.core.roof import Roof
from kernelmark.report.figures._parts import (
    HEIGHT,
    WIDTH,
    Values,
    by_field,
    dots,
    log_axis,
    point_of,
    si_prefix,
    timed_rows,
    tooltips,
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
            Reason("nothing-to-draw", what="result", needs="operations and bytes"),
            hint="'kmark plot bars' shows times",
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
        raise NothingToDo(
            Reason("nothing-to-draw", what="device", needs="a memory roof"),
            hint="kmark roofs measures them",
        )
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
