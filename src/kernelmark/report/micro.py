"""Metrics, points and roofs of microbenchmarks as tables."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence

from kernelmark.compare.match import is_cpu
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.files import Cell
from kernelmark.core.metric import Metric, PointColumn, Roof, Value
from kernelmark.core.micro import benchmark_name, is_micro, mode_of
from kernelmark.core.result import Result, ResultSet
from kernelmark.core.units import duration_text, rate_text, value_text, width_text
from kernelmark.micro.hardware import find_sheet, sheet_value
from kernelmark.report.names import short
from kernelmark.report.results import ResultRow, results_table, status_text
from kernelmark.report.tables import NONE, Column, Table

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
