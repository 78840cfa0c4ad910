"""Metrics, points and roofs of microbenchmarks as tables and figures."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Container, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from kernelmark.compare.match import is_cpu
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.files import Cell
from kernelmark.core.metric import Metric, PointColumn, Roof, Value
from kernelmark.core.micro import benchmark_name, is_micro, mode_of
from kernelmark.core.result import Result, ResultSet
from kernelmark.core.units import (
    bytes_text,
    duration_text,
    join_commas,
    rate_text,
    value_text,
    width_text,
)
from kernelmark.micro.hardware import find_sheet, sheet_value
from kernelmark.report.names import short
from kernelmark.report.results import ResultRow, results_table, status_text
from kernelmark.report.tables import NONE, Column, Table
from kernelmark.report.vega import SCHEMA, Spec

if TYPE_CHECKING:
    from kernelmark.micro.base import Figure, Panel

# Columns of every CSV of points, before those of the microbenchmarks.
POINT_COLUMNS = ("benchmark", "device", "model", "arch", "mode", "started", "status")


def metrics_table(results: Iterable[Result], *, every: bool = False) -> Table:
    """Return a table with one row per metric: value, half the spread over launches, and percentage
    of the physical limit."""
    rows = [
        {
            "benchmark": short(result.case.problem),
            "device": result.device,
            "metric": metric.name if metric else NONE,
            "value": value_text(metric.value, metric.unit) if metric else NONE,
            "±": _half_spread(metric) if metric else NONE,
            "of limit": _share(metric, result) if metric else NONE,
            "status": status_text(result, [metric] if metric else []),
            "reason": result.error.splitlines()[0] if result.error else "",
        }
        for result in results
        for metric in (result.metrics if every else result.headlines) or (None,)
    ]
    hidden = {
        "device": len({row["device"] for row in rows}) < 2,
        **{
            name: all(row[name] in ("", NONE) for row in rows)
            for name in ("of limit", "±", "reason")
        },
    }
    right = ("value", "±", "of limit")
    names = [name for name in rows[0] if not hidden.get(name)] if rows else []
    return Table(
        columns=_columns(names, right), rows=tuple(tuple(row[n] for n in names) for row in rows)
    )


def _columns(names: Iterable[str], right: Container[str]) -> tuple[Column, ...]:
    return tuple(Column(name=n, align="right" if n in right else "left") for n in names)


def _half_spread(metric: Metric) -> str:
    return NONE if metric.spread is None else width_text(metric.spread / 2)


def result_tables(timed: Sequence[ResultRow], results: Iterable[Result]) -> list[Table]:
    """Return a table of times and one of metrics; a table without rows is left out, except for an
    empty table of times if there are no metrics either."""
    micro = [result for result in results if is_micro(result.case)]
    tables = [results_table(timed)] if timed or not micro else []
    return [*tables, metrics_table(micro)] if micro else tables


def points_table(result: Result, model: str = "") -> Table:
    """Return a table of all measured points, with the benchmark's columns."""
    # Leave out columns without values, such as the power of a CPU.
    shown = [
        column
        for column in result.columns
        if column.name != "series"
        and (not result.rows or any(row.get(column.name) is not None for row in result.rows))
    ]
    numbers = {
        column.name
        for column in shown
        if all(not isinstance(row.get(column.name), str) for row in result.rows)
    }
    rows = tuple(tuple(_point(row.get(c.name), c) for c in shown) for row in result.rows)
    problem = result.case.problem
    title = f"{benchmark_name(problem)} on {model or result.device} ({mode_of(problem)})"
    return Table(columns=_columns([c.name for c in shown], numbers), rows=rows, title=title)


def roofs_table(roofs: Sequence[Roof], info: DeviceInfo | None = None) -> Table:
    """Return a table of measured roofs, next to the vendor's figures if known."""
    sheet = find_sheet(info) if info else None
    rows: list[tuple[str, ...]] = []
    for roof in roofs:
        unit = {"flops": "FLOP/s", "bytes": "B/s", "launches": "1/s"}[roof.kind]
        vendor = sheet_value(roof, sheet)
        rows.append(
            (
                roof.device,
                roof.name if roof.kind != "launches" else f"{roof.name} launch",
                roof.unit or roof.kind,
                str(roof.threads or NONE),
                f"{1e9 / roof.value:.0f} ns"
                if roof.kind == "launches"
                else rate_text(roof.value, unit),
                rate_text(vendor, unit) if vendor else NONE,
                f"{100 * roof.value / vendor:.0f} %" if vendor else NONE,
                duration_text(max(0.0, time.time() - roof.measured)) + " ago",
                roof.how_text,
            )
        )
    names = ["device", "roof", "of", "threads", "measured", "data sheet", "share", "when", "how"]
    if not any(roof.threads for roof in roofs):
        names.remove("threads")
        rows = [(*row[:3], *row[4:]) for row in rows]
    right = ("threads", "measured", "data sheet", "share")
    title = f"data sheet: {sheet.name}, {sheet.source}" if sheet else ""
    return Table(columns=_columns(names, right), rows=tuple(rows), title=title)


def point_records(results: ResultSet) -> list[dict[str, Cell]]:
    """Return one flat record per point, in SI units, for CSV."""
    models = {info.name: info.model for info in results.run.environment.devices}
    names = _point_names(results)
    return [
        {
            "benchmark": benchmark_name(result.case.problem),
            "device": result.device,
            "model": models.get(result.device, ""),
            "arch": result.arch,
            "mode": mode_of(result.case.problem),
            "started": result.started,
            "status": result.status.value,
            **{name: _plain(row.get(name)) for name in names},
        }
        for result in results.results
        for row in result.rows
    ]


def point_columns(results: ResultSet) -> list[str]:
    """Return the names in `point_records`, which results without points have too."""
    return [*POINT_COLUMNS, *_point_names(results)]


def _point_names(results: ResultSet) -> list[str]:
    return list(dict.fromkeys(c.name for result in results.results for c in result.columns))


def _share(metric: Metric, result: Result) -> str:
    return (
        f"{100 * metric.value / metric.limit:.1f} %"
        if metric.limit and not is_cpu(result)
        else NONE
    )


def _point(value: Value, column: PointColumn) -> str:
    if column.name == "spread" and isinstance(value, float):
        return width_text(value)  # a fraction, printed in percent as the ± of metrics
    if value is None or isinstance(value, str):
        return NONE if value is None else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value_text(float(value), column.unit)


def _plain(value: Value) -> Cell:
    return str(value).lower() if isinstance(value, bool) else value


WIDTH, _HEIGHT = 560, 260
_BOUND = "#888888"
_PALETTE = ["#2f6db3", "#d9772b", "#3a9159", "#b0413e", "#7d5ba6", "#8c6d46", "#c75d9b", "#5f7a8a"]
_PALETTE += ["#a3a635", "#2aa0a4"]


def micro_figure(results: Result | Sequence[Result], models: Sequence[str] = ()) -> Spec:
    """Return the figure of one result, or of one benchmark on devices of these `models`."""
    from kernelmark.micro.session import named

    every = [results] if isinstance(results, Result) else list(results)
    names = sorted({benchmark_name(result.case.problem) for result in every})
    if not any(result.rows for result in every):
        name = names[0] if names else "this benchmark"
        raise NothingToDo(f"{name} has no points to draw")
    if len(names) > 1:
        raise UsageError(f"{join_commas(names)} cannot share one figure")
    devices = [model or r.device for r, model in zip_longest(every, models[: len(every)])]
    benchmark, first = named(names[0]), every[0]
    design = fitted(benchmark.figure, every)
    values = figure_data(every, design, devices)
    panels = [panel for panel in design.panels if any(panel.y in value for value in values)]
    drawn = [spec for panel in panels for spec in _facets(design, panel, every, values)]
    day = time.strftime("%Y-%m-%d", time.localtime(first.started))
    return {
        "$schema": SCHEMA,
        "title": {
            "text": f"{names[0]}: {', '.join(dict.fromkeys(devices))}",
            "subtitle": f"{benchmark.summary} {first.arch}, {mode_of(first.case.problem)}, {day}",
            "anchor": "start",
        },
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
    heights = (_scaled(row.get(panel.y), panel.per) for result in results for row in result.rows)
    highest = max((y for y in heights if isinstance(y, float)), default=1.0)
    for large, small in (("T", "G"), ("G", "M")):
        for rate in ("B/s", "FLOP/s"):
            if highest < 1 and large + rate in panel.title:
                title = panel.title.replace(large + rate, small + rate)
                smaller = dataclasses.replace(panel, title=title, per=panel.per / 1000)
                return _fitted(smaller, results)
    return panel


def figure_data(
    results: Sequence[Result], design: Figure, devices: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the points to draw, in axis units."""
    points: list[dict[str, Any]] = []
    for result, who in zip(results, who_of(results, devices), strict=True):
        units = {column.name: column.unit for column in result.columns}
        for row in result.rows:
            if any(row.get(name) != value for name, value in design.where.items()):
                continue
            axes = [(design.x, design.scale, design.per)]
            axes += [(panel.y, panel.scale, panel.per) for panel in design.panels]
            point: dict[str, Any] = {}
            for name, scale, per in axes:
                value = _scaled(row.get(name), per)
                if value is None or (scale == "log" and (isinstance(value, str) or value <= 0)):
                    continue  # a logarithm has no place for it
                point[name] = value
            if design.x not in point:
                continue
            for name in filter(None, (design.colour, design.facet)):
                label = row.get(name)
                if isinstance(label, int) and units.get(name) == "B":
                    label = bytes_text(label)
                point[name] = str(label)
            point["who"] = who
            if len(point) > 2:
                points.append(point)
    return points


def who_of(results: Sequence[Result], devices: Sequence[str]) -> list[str]:
    """Return a unique name per result: the device's model, with the date if models repeat, and with
    an index if dates repeat too."""
    times = [time.localtime(result.started) for result in results]
    dates = [time.strftime("%Y-%m-%d %H:%M:%S", when) for when in times]
    dated = [f"{name}, {date}" for name, date in zip(devices, dates, strict=True)]
    for names in (list(devices), dated):
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({index})" for index, name in enumerate(dated, 1)]


def _facets(
    design: Figure, panel: Panel, results: Sequence[Result], values: list[dict[str, Any]]
) -> list[Spec]:
    """Return one spec, or one per value of the facet column."""
    if not design.facet:
        return [_panel(design, panel, results, values)]
    specs = []
    for name in dict.fromkeys(value[design.facet] for value in values):
        points = [value for value in values if value[design.facet] == name]
        spec = _panel(design, panel, results, points, (WIDTH // 2, _HEIGHT * 3 // 4))
        spec |= {"title": name, "transform": [{"filter": {"field": design.facet, "equal": name}}]}
        specs.append(spec)
    return specs


def _panel(
    design: Figure,
    panel: Panel,
    results: Sequence[Result],
    values: list[dict[str, Any]],
    size: tuple[int, int] = (WIDTH, _HEIGHT),
) -> Spec:
    x: Spec = {"field": design.x, "title": design.title, "type": "quantitative"}
    if design.scale == "band":
        x |= {"type": "nominal", "sort": None, "axis": {"labelAngle": -40}}
    else:
        x["scale"] = {"type": design.scale, "zero": False}
    if design.scale == "log":
        x["scale"] |= {"base": 2, "nice": False}
        ticks = _octaves([v[design.x] for v in values])
        text = ",~r" if ticks[-1] >= 1 else "~r"
        # With labelFlush, the last label would overlap the one before it and be dropped.
        x["axis"] = {"values": ticks, "format": text, "labelFlush": False}
    from_zero = panel.zero or (panel.scale == "linear" and panel.mark == "bar")
    y: Spec = {
        "field": panel.y,
        "type": "quantitative",
        "title": panel.title,
        "scale": {"type": panel.scale, "zero": from_zero},
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
        {"field": n, "type": "nominal" if isinstance(values[0].get(n), str) else "quantitative"}
        for n in dict.fromkeys([design.colour, design.x, panel.y, "who"])
        if n
    ]
    marks: dict[str, Spec] = {
        "line": {"type": "line", "point": {"size": 28}, "strokeWidth": 1.8},
        "point": {"type": "point", "filled": True, "size": 60},
    }
    mark = marks.get(panel.mark, {"type": panel.mark})
    layers: list[Spec] = [{"mark": mark, "encoding": encoding}]
    bound = _bound(panel, results, values)
    if bound is not None:
        layers += _limit_line(bound, size[0])
    return {"width": size[0], "height": size[1], "layer": layers}


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
    text = {
        "type": "text",
        "text": f"limit {bound:.4g}",
        "color": _BOUND,
        "align": "right",
        "baseline": "bottom",
        "dy": -3,
        "x": width,
    }
    rule = {"type": "rule", "color": _BOUND, "strokeDash": [5, 4]}
    # One datum: with the figure's data, Vega would draw the line once per point.
    once: Spec = {
        "data": {"values": [{}]},
        "encoding": {"y": {"datum": bound, "type": "quantitative"}},
    }
    return [{**once, "mark": rule}, {**once, "mark": text}]


def _octaves(values: list[float]) -> list[float]:
    """Return at most twelve powers of two as axis ticks."""
    first = math.floor(math.log2(min(values)))
    last = math.floor(math.log2(max(values) * 1.0001))
    ticks = [2.0**n for n in range(first, last + 1)]
    return ticks[:: -(-len(ticks) // 12)]


def _scaled(value: Value, per: float) -> float | str | None:
    if isinstance(value, bool) or value is None:
        return None
    return value if isinstance(value, str) else value / per
