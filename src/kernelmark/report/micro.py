"""Microbenchmarks as tables: headlines, points, two devices side by side, history."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.micro import MicroMetric, MicroResult, Value
from kernelmark.core.result import Status
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
                    _share(metric),
                    result.status.value,
                    reason,
                )
            )
    names: tuple[str, ...] = ("benchmark", "metric", "value", "of limit", "status", "reason")
    right = ("value", "of limit")
    if not any(row[-1] for row in rows):
        names, rows = names[:-1], [row[:-1] for row in rows]
    columns = tuple(Column(name=n, align="right" if n in right else "left") for n in names)
    return Table(columns=columns, rows=tuple(rows))


def points_table(result: MicroResult) -> Table:
    """Every point that was measured, under the benchmark's own columns."""
    shown = [column for column in result.columns if column.name != "series"]
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


def comparison_table(base: Sequence[MicroResult], head: Sequence[MicroResult]) -> Table:
    """The metrics that both sides have, side by side, with head over base."""
    left, right = _metrics(base), _metrics(head)
    rows = []
    for key in left:
        if key not in right:
            continue
        one, other = left[key], right[key]
        ratio = _ratio(one, other)
        rows.append(
            (
                key[0],
                key[1],
                value_text(one.value, one.unit),
                value_text(other.value, other.unit),
                NONE if ratio is None else f"{ratio:.3f} ×",
                "" if ratio is None else _verdict(one, ratio),
            )
        )
    names = ("benchmark", "metric", *_sides(base, head), "ratio", "verdict")
    columns = tuple(
        Column(name=n, align="left" if i in (0, 1, 5) else "right") for i, n in enumerate(names)
    )
    return Table(columns=columns, rows=tuple(rows))


def comparison_records(
    base: Sequence[MicroResult], head: Sequence[MicroResult]
) -> list[dict[str, str | int | float | None]]:
    """One flat record a metric that both sides have, in SI units."""
    left, right = _metrics(base), _metrics(head)
    sides = _sides(base, head)
    return [
        {
            "benchmark": key[0],
            "metric": key[1],
            "unit": one.unit,
            "base": sides[0],
            "head": sides[1],
            "base_value": one.value,
            "head_value": right[key].value,
            "ratio": _ratio(one, right[key]),
            "verdict": "" if (ratio := _ratio(one, right[key])) is None else _verdict(one, ratio),
        }
        for key, one in left.items()
        if key in right
    ]


def history_table(points: Sequence[tuple[str, MicroResult]]) -> Table:
    """The headline metrics of one benchmark, run by run."""
    names = list(dict.fromkeys(m.name for _, result in points for m in result.headlines))
    rows = []
    for run_id, result in points:
        values = {m.name: value_text(m.value, m.unit) for m in result.metrics}
        rows.append(
            (
                run_id,
                time.strftime("%Y-%m-%d %H:%M", time.localtime(result.started)),
                result.device,
                result.arch,
                result.mode,
                *(values.get(name, NONE) for name in names),
                result.status.value,
            )
        )
    titles = ("run", "started", "device", "arch", "mode", *names, "status")
    columns = tuple(Column(name=n, align="right" if n in names else "left") for n in titles)
    return Table(columns=columns, rows=tuple(rows))


def roofs_table(roofs: Sequence[Roof], info: DeviceInfo | None = None) -> Table:
    """Measured roofs, with the vendor's figures beside them where there are any."""
    sheet = find_sheet(info) if info else None
    rows = []
    for roof in roofs:
        unit = {"flops": "FLOP/s", "bytes": "B/s", "launches": "1/s"}[roof.kind]
        vendor = sheet_value(roof, sheet)
        rows.append(
            (
                roof.device,
                roof.name if roof.kind != "launches" else f"{roof.name} launch",
                roof.unit or roof.kind,
                _roof_text(roof, unit),
                rate_text(vendor, unit) if vendor else NONE,
                f"{roof.value / vendor:.0%}" if vendor else NONE,
                duration_text(max(0.0, time.time() - roof.measured)) + " ago",
                roof.how,
            )
        )
    names = ("device", "roof", "of", "measured", "data sheet", "share", "when", "how")
    right = ("measured", "data sheet", "share")
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


def metric_records(
    points: Sequence[tuple[str, MicroResult]],
) -> list[dict[str, str | int | float | None]]:
    """One flat record a metric of a run, for CSV."""
    return [
        {
            "run": run_id,
            "started": result.started,
            "benchmark": result.benchmark,
            "device": result.device,
            "arch": result.arch,
            "mode": result.mode,
            "status": result.status.value,
            "metric": metric.name,
            "value": metric.value,
            "unit": metric.unit,
        }
        for run_id, result in points
        for metric in result.metrics
    ]


def _share(metric: MicroMetric) -> str:
    return f"{metric.value / metric.limit:.1%}" if metric.limit else NONE


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


def _metrics(results: Iterable[MicroResult]) -> dict[tuple[str, str], MicroMetric]:
    return {
        (result.benchmark, metric.name): metric
        for result in results
        if result.status is Status.OK
        for metric in result.metrics
    }


def _ratio(base: MicroMetric, head: MicroMetric) -> float | None:
    return head.value / base.value if base.value else None


def _sides(base: Sequence[MicroResult], head: Sequence[MicroResult]) -> tuple[str, str]:
    """What the two are called: by their devices, else by when they were taken."""
    names = _who(base), _who(head)
    if names[0] != names[1] or not base or not head:
        return names
    first, second = (_moment(min(result.started for result in side)) for side in (base, head))
    return ("base", "head") if first == second else (first, second)


def _moment(started: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))


def _who(results: Sequence[MicroResult]) -> str:
    names = dict.fromkeys(result.model or result.device for result in results)
    return ", ".join(names) or NONE


def _verdict(metric: MicroMetric, ratio: float) -> str:
    if not metric.better or abs(ratio - 1) < 0.02:
        return "same" if abs(ratio - 1) < 0.02 else ""
    return "better" if (ratio > 1) == (metric.better == "higher") else "worse"


def _roof_text(roof: Roof, unit: str) -> str:
    if roof.kind == "launches":
        return f"{1e9 / roof.value:.0f} ns"
    return rate_text(roof.value, unit)
