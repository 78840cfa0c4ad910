"""Merge the measurements of several processes of one case."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Measurement, StopReason
from kernelmark.measure.advice import INTERVAL_WARNINGS, interval_warnings, reliability_warnings
from kernelmark.stats.interval import measured_interval

T = TypeVar("T")


def merge(measurements: Sequence[Measurement], target: float | None) -> Measurement:
    """Return one measurement with the blocks of all processes and an interval over them. Warn if
    its relative half-width exceeds `target`."""
    if not measurements:
        raise UsageError(Reason("nothing-to-merge"))
    if len(measurements) == 1:
        return measurements[0]
    first = measurements[0]
    blocks = tuple(block for m in measurements for block in m.blocks)
    interval = measured_interval(blocks)
    originals = [w for m in measurements for w in m.warnings]
    warnings = [w for w in originals if w.code not in INTERVAL_WARNINGS]
    wanted = max((w.fields["wanted"] for w in originals if w.code == "few-blocks"), default=0)
    warnings += reliability_warnings(blocks, interval, wanted)
    names = sorted({name for m in measurements for name in m.also})
    return Measurement(
        blocks=blocks,
        low_s=interval.low_s,
        high_s=interval.high_s,
        method="+".join(_distinct(m.method for m in measurements)),
        launches=first.launches,
        sets=first.sets,
        footprint_bytes=first.footprint_bytes,
        stop=_stop([m.stop for m in measurements]),
        warmup_s=sum(m.warmup_s for m in measurements),
        timed_s=sum(m.timed_s for m in measurements),
        warnings=tuple(_distinct([*warnings, *interval_warnings(interval, target)])),
        also={
            name: statistics.median(m.also[name] for m in measurements if name in m.also)
            for name in names
        },
        modes=interval.modes,
    )


def _stop(reasons: Sequence[StopReason]) -> StopReason:
    """Return PRECISE if every process was, else the first other reason."""
    return next((r for r in reasons if r is not StopReason.PRECISE), StopReason.PRECISE)


def _distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
