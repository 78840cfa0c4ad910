"""Metric: a named number of a result, with its unit and physical limits; Roof: a measured limit."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernelmark.core.immutable import OPTIONAL
from kernelmark.core.reason import Reason

Value = str | int | float | bool | None
Better = Literal["higher", "lower", ""]

# The clock read in a kernel and the one read by the driver differ by about 1 %.
MARGIN = 1.02
# Undisturbed launches spread by up to 10 % on a GPU, and slightly more on a CPU core.
WIDE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PointColumn:
    """A column of a result's points. No number in it may be above `limit`, for the reason `why`."""

    name: str
    unit: str = ""
    limit: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number that a microbenchmark measures. `headline` metrics are shown and followed in
    history; `limit` and `least` are the physical upper and lower limits, for the reason `why`.

    `spread` is (longest − shortest) / median time of the launches that the metric comes from. If
    the shortest launch counts, as on a CPU, it is (second shortest − shortest) / shortest, or the
    fraction of the shortest in which a thread waited for its core. None if there was one launch.

    `roof` names the roof that the metric measures, such as `flops f32 vector` or `bytes dram`.
    `steady` is false if repetitions did not agree. `stand_in` is true if a library call was timed
    that may be slower than the hardware. `host_paced` marks metrics that depend on the host as much
    as on the device, and so vary between runs.
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

    @property
    def disturbed(self) -> bool:
        """Whether repetitions differed so much that other work must have run."""
        return not self.steady or (self.spread or 0.0) > WIDE


def with_spreads(
    metrics: Sequence[Metric], columns: Sequence[PointColumn], rows: Sequence[Mapping[str, Value]]
) -> tuple[Metric, ...]:
    """Return the metrics; one without a spread gets that of its point: the row that has the value
    of the metric in a column of the same unit."""
    completed = []
    for metric in metrics:
        if metric.spread is not None:
            completed.append(metric)
            continue
        same_unit = [column.name for column in columns if column.unit == metric.unit]
        unnamed = [
            float(spread)
            for row in rows
            if isinstance(spread := row.get("spread"), int | float)
            and any(row.get(name) == metric.value for name in same_unit)
        ]
        completed.append(dataclasses.replace(metric, spread=max(unnamed, default=None)))
    return tuple(completed)


def impossible(
    columns: Sequence[PointColumn], rows: Sequence[Mapping[str, Value]], metrics: Sequence[Metric]
) -> tuple[Reason, ...]:
    """Return a reason for each metric and each column with an impossible number."""
    reasons = [reason for metric in metrics if (reason := _impossible_metric(metric))]
    for column in columns:
        values = [row.get(column.name) for row in rows]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        odd = [v for v in numbers if not 0 <= v <= sys.float_info.max]
        if odd:
            shown = str(odd[0])[:24]
            reasons.append(
                Reason(
                    f"{column.name} is {shown} {column.unit}, which is no measurement",
                    "no-measurement",
                    name=column.name,
                    value=shown,
                    unit=column.unit,
                )
            )
        elif column.limit is not None and numbers and max(numbers) > column.limit * MARGIN:
            reasons.append(_beyond("above-physical", column, max(numbers), column.limit))
    return tuple(reasons)


def _impossible_metric(metric: Metric) -> Reason | None:
    value = metric.value
    if not math.isfinite(value) or value < 0:
        return Reason(
            f"{metric.name} is {value} {metric.unit}, which is no measurement",
            "no-measurement",
            name=metric.name,
            value=value,
            unit=metric.unit,
        )
    if metric.limit is not None and value > metric.limit * MARGIN:
        return _beyond("above-physical", metric, value, metric.limit)
    if metric.least is not None and value * MARGIN < metric.least:
        return _beyond("below-physical", metric, value, metric.least)
    return None


def _beyond(code: str, of: Metric | PointColumn, value: float, limit: float) -> Reason:
    above = code == "above-physical"
    bound = "above the physical limit of" if above else "below the least that is possible,"
    why = f" ({of.why})" if of.why else ""
    return Reason(
        f"{of.name} is {value:.6g} {of.unit}, {bound} {limit:.6g}{why}",
        code,
        name=of.name,
        value=value,
        unit=of.unit,
        limit=limit,
    )


Kind = Literal["flops", "bytes", "launches"]
# Suffixes of `how` in documents of versions without the fields `steady` and `limit`.
_WAS_UNSTEADY = ", not steady: other work ran"
_WAS_STAND_IN = " (no C compiler: the limit may be higher)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """A roofline ceiling: `flops` of a dtype on a unit (vector, matrix), `bytes` of a memory level,
    or `launches` of small kernels.

    `value` is per second; `how` describes how it was measured; `threads` are CPU threads. `steady`
    is false if repetitions did not agree, because other work ran. `limit` is false if a program
    that may be slower than the hardware was timed instead of the microbenchmark. `model` is the
    device's model; old documents do not have it.
    """

    device: str
    arch: str
    kind: Kind
    name: str  # f32, bf16, … or dram, l2, … or plain, graph
    value: float
    how: str
    measured: float  # seconds since the epoch, UTC
    unit: str = ""
    threads: int = 0
    model: str = field(default="", metadata={OPTIONAL: True})
    steady: bool = field(default=True, metadata={OPTIONAL: True})
    limit: bool = field(default=True, metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        for ending, name in ((_WAS_UNSTEADY, "steady"), (_WAS_STAND_IN, "limit")):
            if self.how.endswith(ending):
                object.__setattr__(self, "how", self.how.removesuffix(ending))
                object.__setattr__(self, name, False)

    @property
    def how_text(self) -> str:
        """`how`, followed by what makes the value doubtful."""
        doubts = [
            *([] if self.steady else ["not steady: other work ran"]),
            *([] if self.limit else ["the limit may be higher: there is no C++ compiler"]),
        ]
        return ", ".join([self.how, *doubts])
