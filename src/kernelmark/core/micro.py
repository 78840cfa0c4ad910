"""MicroResult: what a microbenchmark found out about a device, with the limits it must keep."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelmark.core.errors import UsageError
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.result import Status, Telemetry

Value = str | int | float | bool | None
Better = Literal["higher", "lower", ""]

# A clock read in a kernel and one read by the driver differ by about a percent.
MARGIN = 1.02
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroColumn:
    """A column of the rows. No number in it may be above `limit`, for the reason `why`."""

    name: str
    unit: str = ""
    limit: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroMetric:
    """One figure. `headline` ones are compared between runs and devices; `limit` and `least` are
    what physics allows, for the reason `why`."""

    name: str
    value: float
    unit: str
    better: Better = "higher"
    headline: bool = True
    limit: float | None = None
    least: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroResult:
    """The outcome of one microbenchmark. `rows` are its points under `columns`, `metrics` what
    they come to, `trace` the device's own readings meanwhile, `cost` wall seconds by phase.

    One that is `ok` holds no number that its device cannot reach: such a value cannot be made.
    """

    benchmark: str
    device: str
    arch: str
    status: Status
    started: float
    mode: str = "quick"
    model: str = ""
    host: str = ""
    driver: str = ""
    threads: int = 0
    parameters: Mapping[str, Value] = field(default_factory=FrozenDict)
    columns: tuple[MicroColumn, ...] = ()
    rows: tuple[Mapping[str, Value], ...] = ()
    metrics: tuple[MicroMetric, ...] = ()
    trace: tuple[Telemetry, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    cost: Mapping[str, float] = field(default_factory=FrozenDict)
    compilations: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.benchmark):  # it becomes a part of files' names
            raise UsageError(f"{self.benchmark!r} is no name of a microbenchmark")
        for name in ("parameters", "cost"):
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))
        object.__setattr__(self, "rows", tuple(FrozenDict(row) for row in self.rows))
        for row in (self.parameters, *self.rows):
            for name, value in row.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise UsageError(f"{self.benchmark}: {name} is {value}; leave it out instead")
        if self.status is Status.OK:
            found = impossible(self.columns, self.rows, self.metrics)
            if found:
                raise UsageError(f"{self.benchmark}: {found[0]}")

    def metric(self, name: str) -> MicroMetric:
        """The metric called `name`; an unknown name lists the known ones."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        known = ", ".join(metric.name for metric in self.metrics)
        raise UsageError(f"{self.benchmark} has no metric {name!r}", hint=f"it has: {known}")

    @property
    def headlines(self) -> tuple[MicroMetric, ...]:
        return tuple(metric for metric in self.metrics if metric.headline)


def impossible(
    columns: tuple[MicroColumn, ...],
    rows: tuple[Mapping[str, Value], ...],
    metrics: tuple[MicroMetric, ...],
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


def _impossible_metric(metric: MicroMetric) -> str:
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
