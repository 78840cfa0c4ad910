"""Vega-Lite figures of microbenchmark rows; vega.py renders them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from kernelmark.compare.metrics import is_cpu
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.metric import Value
from kernelmark.core.micro import benchmark_name, mode_of
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result
from kernelmark.core.units import bytes_text
from kernelmark.micro.base import Figure, Panel
from kernelmark.micro.session import named
from kernelmark.report.vega import SCHEMA, Spec

WIDTH, _HEIGHT = 560, 260
_BOUND = "#888888"
_PALETTE = ["#2f6db3", "#d9772b", "#3a9159", "#b0413e", "#7d5ba6", "#8c6d46", "#c75d9b", "#5f7a8a"]
_PALETTE += ["#a3a635", "#2aa0a4"]


def figure(results: Result | Sequence[Result], models: Sequence[str] = ()) -> Spec:
    """Return the figure of one result, or of one benchmark on devices of these `models`."""
    every = [results] if isinstance(results, Result) else list(results)
    if not every or not any(result.rows for result in every):
        name = _name(every[0]) if every else "this benchmark"
        raise NothingToDo(Reason("figure-no-points", name=name))
    names = set(map(_name, every))
    if len(names) > 1:
        raise UsageError(Reason("figure-not-shared", names=tuple(sorted(names))))
    devices = [model or one.device for one, model in zip_longest(every, models[: len(every)])]
    design = fitted(named(_name(every[0])).figure, every)
    values = data(every, design, devices)
    panels = [panel for panel in design.panels if any(panel.y in value for value in values)]
    drawn = [spec for panel in panels for spec in _facets(design, panel, every, values)]
    return {
        "$schema": SCHEMA,
        "title": {"text": _title(every, devices), "subtitle": _subtitle(every), "anchor": "start"},
        "data": {"values": values},
        "config": {
            "font": "sans-serif",
            "axis": {"labelFontSize": 11, "titleFontSize": 12, "gridOpacity": 0.5},
            "legend": {
                "labelFontSize": 11,
                "titleFontSize": 12,
                "symbolLimit": 60,
                "labelLimit": 320,
            },
            "range": {"category": _PALETTE},
            "view": {"stroke": None},
        },
        "concat": drawn,
        "columns": 3 if design.facet else 1,
    }


def fitted(design: Figure, results: Sequence[Result]) -> Figure:
    """Return the figure with smaller units if all values would be below 1, as on a CPU."""
    panels = tuple(_fitted(panel, results) for panel in design.panels)
    return dataclasses.replace(design, panels=panels)


def _fitted(panel: Panel, results: Sequence[Result]) -> Panel:
    given = (_scaled(row.get(panel.y), panel.per) for result in results for row in result.rows)
    highest = max((y for y in given if isinstance(y, float)), default=1.0)
    for large, small in (("T", "G"), ("G", "M")):
        for rate in ("B/s", "FLOP/s"):
            if highest < 1 and large + rate in panel.title:
                title = panel.title.replace(large + rate, small + rate)
                smaller = dataclasses.replace(panel, title=title, per=panel.per / 1000)
                return _fitted(smaller, results)
    return panel


def data(results: Sequence[Result], design: Figure, devices: Sequence[str]) -> list[dict[str, Any]]:
    """Return the points to draw, in axis units."""
    found: list[dict[str, Any]] = []
    for result, who in zip(results, who_of(results, devices), strict=True):
        units = {column.name: column.unit for column in result.columns}
        for row in result.rows:
            if any(row.get(name) != value for name, value in design.where.items()):
                continue
            x = _scaled(row.get(design.x), design.per)
            if x is None or (design.scale == "log" and not _positive(x)):
                continue
            point: dict[str, Any] = {design.x: x}
            for panel in design.panels:
                y = _scaled(row.get(panel.y), panel.per)
                if y is not None and (panel.scale == "linear" or _positive(y)):
                    point[panel.y] = y
            for name in filter(None, (design.colour, design.facet)):
                point[name] = _label(row.get(name), in_bytes=units.get(name) == "B")
            point["who"] = who
            if len(point) > 2:
                found.append(point)
    return found


def who_of(results: Sequence[Result], devices: Sequence[str]) -> list[str]:
    """Return a unique name per result: the device's model, with the date if models repeat, and with
    an index if dates repeat too."""
    names = list(devices)
    if len(set(names)) == len(names):
        return names
    times = [time.localtime(result.started) for result in results]
    names = [
        f"{name}, {time.strftime('%Y-%m-%d %H:%M:%S', when)}"
        for name, when in zip(names, times, strict=True)
    ]
    if len(set(names)) == len(names):
        return names
    return [f"{name} ({index})" for index, name in enumerate(names, 1)]


def _facets(
    design: Figure, panel: Panel, results: Sequence[Result], values: list[dict[str, Any]]
) -> list[Spec]:
    """Return one spec, or one per value of the facet column."""
    if not design.facet:
        return [_panel(design, panel, results, values)]
    made = []
    for name in dict.fromkeys(value[design.facet] for value in values):
        mine = [value for value in values if value[design.facet] == name]
        one = _panel(design, panel, results, mine, (WIDTH // 2, _HEIGHT * 3 // 4))
        one |= {
            "title": name,
            "transform": [{"filter": {"field": design.facet, "equal": name}}],
        }
        made.append(one)
    return made


def _panel(
    design: Figure,
    panel: Panel,
    results: Sequence[Result],
    values: list[dict[str, Any]],
    size: tuple[int, int] = (WIDTH, _HEIGHT),
) -> Spec:
    x: Spec = {"field": design.x, "title": design.title}
    if design.scale == "band":
        x |= {"type": "nominal", "sort": None, "axis": {"labelAngle": -40}}
    else:
        x |= {"type": "quantitative", "scale": {"type": design.scale, "zero": False}}
        if design.scale == "log":
            x["scale"]["base"] = 2
            x["scale"]["nice"] = False
            ticks = _octaves([v[design.x] for v in values])
            text = ",~r" if ticks[-1] >= 1 else "~r"
            # With labelFlush, the last label would overlap the one before it and be dropped.
            x["axis"] = {"values": ticks, "format": text, "labelFlush": False}
    y: Spec = {
        "field": panel.y,
        "type": "quantitative",
        "title": panel.title,
        "scale": {"type": panel.scale, "zero": panel.zero or _from_zero(panel)},
    }
    if panel.scale == "log":
        y["scale"] |= {"nice": False, "padding": 8}
    several = len({v["who"] for v in values}) > 1
    encoding: Spec = {"x": x, "y": y}
    if design.colour:
        encoding["color"] = {"field": design.colour, "type": "nominal", "sort": None}
        if several:
            encoding["strokeDash"] = {"field": "who", "legend": None}
            encoding["shape"] = {"field": "who", "title": "device"}
    elif several:
        encoding["color"] = {"field": "who", "type": "nominal", "title": "device"}
    if panel.mark == "bar" and several:
        encoding["xOffset"] = {"field": "who"}
    encoding["tooltip"] = [
        {"field": name, "type": _kind(values, name)}
        for name in dict.fromkeys([design.colour, design.x, panel.y, "who"])
        if name
    ]
    layers: list[Spec] = [{"mark": _mark(panel), "encoding": encoding}]
    bound = _bound(panel, results, values)
    if bound is not None:
        layers += _limit_line(bound, size[0])
    return {"width": size[0], "height": size[1], "layer": layers}


def _from_zero(panel: Panel) -> bool:
    return panel.scale == "linear" and panel.mark == "bar"


def _kind(values: list[dict[str, Any]], name: str) -> str:
    return "nominal" if isinstance(values[0].get(name), str) else "quantitative"


def _mark(panel: Panel) -> Spec:
    if panel.mark == "line":
        return {"type": "line", "point": {"size": 28}, "strokeWidth": 1.8}
    if panel.mark == "point":
        return {"type": "point", "filled": True, "size": 60}
    return {"type": panel.mark}


def _bound(panel: Panel, results: Sequence[Result], values: list[dict[str, Any]]) -> float | None:
    """Return the physical limit if it is known, equal for all results and close enough to draw."""
    limits = {
        column.limit / panel.per
        for result in results
        for column in result.columns
        if column.name == panel.y and column.limit is not None and not is_cpu(result)
    }
    highest = max((v[panel.y] for v in values if panel.y in v), default=0.0)
    if len(limits) != 1 or not 0 < next(iter(limits)) <= 2.5 * highest:
        return None
    return next(iter(limits))


def _limit_line(bound: float, width: int) -> list[Spec]:
    # One datum: with the figure's data, Vega would draw the line once per point.
    once: Spec = {
        "data": {"values": [{}]},
        "encoding": {"y": {"datum": bound, "type": "quantitative"}},
    }
    return [
        {**once, "mark": {"type": "rule", "color": _BOUND, "strokeDash": [5, 4]}},
        {
            **once,
            "mark": {
                "type": "text",
                "text": f"limit {bound:.4g}",
                "color": _BOUND,
                "align": "right",
                "baseline": "bottom",
                "dy": -3,
                "x": width,
            },
        },
    ]


def _octaves(values: list[float]) -> list[float]:
    """Return at most twelve powers of two as axis ticks."""
    low, high = min(values), max(values)
    power = 1.0
    found: list[float] = []
    while power > low:
        power /= 2
    while power * 2 <= low:
        power *= 2
    while power <= high * 1.0001:
        found.append(power)
        power *= 2
    step = -(-len(found) // 12)
    return found[::step]


def _name(result: Result) -> str:
    return benchmark_name(result.case.problem)


def _title(results: Sequence[Result], devices: Sequence[str]) -> str:
    return f"{_name(results[0])}: {', '.join(dict.fromkeys(devices))}"


def _subtitle(results: Sequence[Result]) -> str:
    first = results[0]
    day = time.strftime("%Y-%m-%d", time.localtime(first.started))
    summary = named(_name(first)).summary
    return f"{summary} {first.arch}, {mode_of(first.case.problem)}, {day}"


def _label(value: Value, *, in_bytes: bool) -> str:
    return bytes_text(value) if in_bytes and isinstance(value, int) else str(value)


def _scaled(value: Value, per: float) -> float | str | None:
    if isinstance(value, bool) or value is None:
        return None
    return value if isinstance(value, str) else value / per


def _positive(value: float | str) -> bool:
    return not isinstance(value, str) and value > 0
