"""Microbenchmarks as tables: headlines and points; and roofs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.micro import MicroMetric, MicroResult, Value
from kernelmark.core.roof import Roof
from kernelmark.core.units import bytes_text, duration_text, rate_text
from kernelmark.micro.gpu_roofs import sheet_value
from kernelmark.micro.hardware import find_sheet
from kernelmark.report.tables import NONE, Column, Table

# Units that grow by decimal prefixes.
_RATES = ("B/s", "FLOP/s", "1/s")


def value_text(value: float, unit: str) -> str:
    """A figure as people read it."""
    if unit in _RATES:
        return rate_text(value, unit)
    if unit == "B":
        return bytes_text(value)
    digits = f"{value:.0f}" if value >= 10_000 else f"{value:.4g}"
    return f"{digits} {unit}".strip()


def headline_table(results: Iterable[MicroResult], *, every: bool = False) -> Table:
    """One row a metric: its value, and its share of what physics allows."""
    rows: list[tuple[str, ...]] = []
    for result in results:
        shown = result.metrics if every else result.headlines or result.metrics
        if not shown:
            reason = result.error.splitlines()[0] if result.error else ""
            rows.append((result.benchmark, NONE, NONE, NONE, result.status.value, reason))
        for metric in shown:
            reason = result.error.splitlines()[0] if result.error else ""
            rows.append(
                (
                    result.benchmark,
                    metric.name,
                    value_text(metric.value, metric.unit),
                    _share(metric, result),
                    result.status.value,
                    reason,
                )
            )
    names = ("benchmark", "metric", "value", "of limit", "status", "reason")
    right = ("value", "of limit")
    empty = {"of limit": NONE, "reason": ""}
    shown_at = [
        i for i, n in enumerate(names) if n not in empty or any(row[i] != empty[n] for row in rows)
    ]
    columns = tuple(
        Column(name=names[i], align="right" if names[i] in right else "left") for i in shown_at
    )
    return Table(columns=columns, rows=tuple(tuple(row[i] for i in shown_at) for row in rows))


def points_table(result: MicroResult) -> Table:
    """Every point that was measured, under the benchmark's own columns."""
    # What a device does not tell, as the power of a CPU, is no column.
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
    rows = tuple(
        tuple(_cell(row.get(column.name), column.unit) for column in shown) for row in result.rows
    )
    columns = tuple(
        Column(name=c.name, align="right" if c.name in numbers else "left") for c in shown
    )
    title = f"{result.benchmark} on {result.model or result.device} ({result.mode})"
    return Table(columns=columns, rows=rows, title=title)


def roofs_table(roofs: Sequence[Roof], info: DeviceInfo | None = None) -> Table:
    """Measured roofs, with the vendor's figures beside them where there are any."""
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
                _roof_text(roof, unit),
                rate_text(vendor, unit) if vendor else NONE,
                f"{roof.value / vendor:.0%}" if vendor else NONE,
                duration_text(max(0.0, time.time() - roof.measured)) + " ago",
                roof.how_text,
            )
        )
    names = ["device", "roof", "of", "threads", "measured", "data sheet", "share", "when", "how"]
    if not any(roof.threads for roof in roofs):
        names.remove("threads")
        rows = [(*row[:3], *row[4:]) for row in rows]
    right = ("threads", "measured", "data sheet", "share")
    columns = tuple(Column(name=n, align="right" if n in right else "left") for n in names)
    title = f"data sheet: {sheet.name}, {sheet.source}" if sheet else ""
    return Table(columns=columns, rows=tuple(rows), title=title)


def records(results: Iterable[MicroResult]) -> list[dict[str, str | int | float | None]]:
    """One flat record a point, in SI units, for CSV."""
    found: list[dict[str, str | int | float | None]] = []
    names: dict[str, None] = {}
    every = list(results)
    for result in every:
        names |= dict.fromkeys(column.name for column in result.columns)
    for result in every:
        for row in result.rows:
            found.append(
                {
                    "benchmark": result.benchmark,
                    "device": result.device,
                    "model": result.model,
                    "arch": result.arch,
                    "mode": result.mode,
                    "started": result.started,
                    "status": result.status.value,
                    **{name: _plain(row.get(name)) for name in names},
                }
            )
    return found


def is_cpu(result: MicroResult) -> bool:
    """A CPU's limits are more than any core can do: they tell mistakes, nothing comes near them."""
    return result.device.partition(":")[0] == "cpu"


def _share(metric: MicroMetric, result: MicroResult) -> str:
    return f"{metric.value / metric.limit:.1%}" if metric.limit and not is_cpu(result) else NONE


def _cell(value: Value, unit: str) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return value_text(float(value), unit)


def _plain(value: Value) -> str | int | float | None:
    return str(value).lower() if isinstance(value, bool) else value


def _roof_text(roof: Roof, unit: str) -> str:
    if roof.kind == "launches":
        return f"{1e9 / roof.value:.0f} ns"
    return rate_text(roof.value, unit)
