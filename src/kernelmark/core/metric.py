"""Metric: a named number with a unit that a result carries, with the limits it must keep."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernelmark.core.optional import OPTIONAL

Value = str | int | float | bool | None
Better = Literal["higher", "lower", ""]

# A clock read in a kernel and one read by the driver differ by about a percent.
MARGIN = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class PointColumn:
    """A column of a result's points. No number in it may be above `limit`, for the reason `why`."""

    name: str
    unit: str = ""
    limit: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure. `headline` ones are shown and followed over history; `limit` and `least` are what
    physics allows, for the reason `why`.

    `spread` is how far launches of the point that it is the figure of were apart, as a share of
    their median; None where it is the figure of several.

    `roof` names the roof that the metric measures, as `flops f32 vector` or `bytes dram`; `steady`
    is false where repetitions did not agree, `stand_in` true where a library call that may be
    slower than the hardware was timed. `host_paced` marks metrics that the host sets as much as the
    device, which repeat badly.
    """

    name: str
    value: float
    unit: str
    better: Better = "higher"
    headline: bool = True
    limit: float | None = None
    least: float | None = None
    why: str = ""
    spread: float | None = field(default=None, metadata={OPTIONAL: True})
    roof: str = field(default="", metadata={OPTIONAL: True})
    steady: bool = field(default=True, metadata={OPTIONAL: True})
    stand_in: bool = field(default=False, metadata={OPTIONAL: True})
    host_paced: bool = field(default=False, metadata={OPTIONAL: True})


def with_spreads(
    metrics: Sequence[Metric], columns: Sequence[PointColumn], rows: Sequence[Mapping[str, Value]]
) -> tuple[Metric, ...]:
    """Metrics with the spread of the point that each is the figure of: the row that has its value
    in a column of its unit."""
    made = []
    for metric in metrics:
        same_unit = [column.name for column in columns if column.unit == metric.unit]
        found = [
            float(spread)
            for row in rows
            if isinstance(spread := row.get("spread"), int | float)
            and any(row.get(name) == metric.value for name in same_unit)
        ]
        made.append(dataclasses.replace(metric, spread=max(found, default=None)))
    return tuple(made)


def impossible(
    columns: Sequence[PointColumn], rows: Sequence[Mapping[str, Value]], metrics: Sequence[Metric]
) -> list[str]:
    """A sentence for each metric and each column with a number that cannot be."""
    found = [text for metric in metrics if (text := _impossible_metric(metric))]
    for column in columns:
        values = [row.get(column.name) for row in rows]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        odd = [v for v in numbers if not 0 <= v <= sys.float_info.max]
        if odd:
            shown = str(odd[0])[:24]
            found.append(f"{column.name} is {shown} {column.unit}, which is no measurement")
        elif column.limit is not None and numbers and max(numbers) > column.limit * MARGIN:
            found.append(_above(column.name, max(numbers), column.limit, column.unit, column.why))
    return found


def _impossible_metric(metric: Metric) -> str:
    value = metric.value
    if not math.isfinite(value) or value < 0:
        return f"{metric.name} is {value} {metric.unit}, which is no measurement"
    if metric.limit is not None and value > metric.limit * MARGIN:
        return _above(metric.name, value, metric.limit, metric.unit, metric.why)
    if metric.least is not None and value * MARGIN < metric.least:
        why = f" ({metric.why})" if metric.why else ""
        return (
            f"{metric.name} is {value:.6g} {metric.unit}, below the least that is possible, "
            f"{metric.least:.6g}{why}"
        )
    return ""


def _above(name: str, value: float, limit: float, unit: str, why: str) -> str:
    reason = f" ({why})" if why else ""
    return f"{name} is {value:.6g} {unit}, above the physical limit of {limit:.6g}{reason}"
