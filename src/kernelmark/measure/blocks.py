"""Blocks: when there are enough of them, how long one is, and those of several processes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

from kernelmark.core.errors import UsageError
from kernelmark.core.result import Block, Measurement, StopReason
from kernelmark.core.timing import Timing
from kernelmark.measure.advice import INTERVAL_WARNINGS, interval_warnings, reliability_warnings
from kernelmark.stats.interval import (
    LEVEL,
    Interval,
    measured_interval,
    medians_interval,
    widened,
    with_samples,
)

# Stopping as soon as the interval happens to be narrow lowers its coverage. With this level after
# the first look, simulations of up to 20 blocks cover 94.5 to 95.5 % for a reported 95 %.
LOOKED_LEVEL = 0.98
# Timed seconds per second of set-up: with warm-up, over 80 % of the time is spent launching. A
# device that enqueues has less scatter between samples and gets shorter blocks.
SETUP_FACTOR = 6.0
ENQUEUED_FACTOR = 2.0
# Of max_s / max_allocations: 10 ms in `quick`, a tenth of a case's 110 ms on an H200. With shorter
# ones more cases fit into a minute, but less than 70 % of the time is spent launching.
ENQUEUED_FRACTION = 0.7
# Upper limit of a device that enqueues: on an H200 blocks of 0.05 s and 0.12 s gave the same
# intervals, whose width comes from the differences between blocks.
ENQUEUED_BLOCK_S = 0.05


def interval_of(blocks: Sequence[Block], timing: Timing, spread: float = 0.0) -> Interval:
    """Return the interval to report, widened for repeated looks and for the relative `spread`
    between processes, which one process cannot show."""
    return widened(measured_interval(blocks, _level(blocks, timing)), spread)


def _is_precise(blocks: Sequence[Block], timing: Timing) -> bool:
    """Return whether the blocks agree within the target. The spread between processes does not
    count: more blocks do not reduce it."""
    level, target = _level(blocks, timing), timing.target_rel_ci
    narrowest = medians_interval(blocks, level)
    if narrowest.rel_half_width > target:
        return False
    # Finding modes takes milliseconds, in which a GPU idles. It is needed only if they could widen
    # the interval beyond the target.
    if with_samples(narrowest, blocks, level).rel_half_width <= target:
        return True
    return interval_of(blocks, timing).rel_half_width <= target


def _level(blocks: Sequence[Block], timing: Timing) -> float:
    return LEVEL if len(blocks) <= timing.allocations else LOOKED_LEVEL


def stop_reason(
    blocks: Sequence[Block], *, timing: Timing, timed_s: float, next_s: float
) -> StopReason | None:
    """Return why to stop after these blocks, or None. `next_s` is the next block's length."""
    count = len(blocks)
    enough = count >= timing.allocations
    if enough and count >= 2 and _is_precise(blocks, timing):
        return StopReason.PRECISE
    if count >= timing.max_allocations:
        fixed = timing.allocations == timing.max_allocations
        return StopReason.FIXED if fixed else StopReason.BLOCKS
    used_s = timed_s + (next_s / 2 if enough else 0.0)
    return StopReason.TIME if used_s >= timing.max_s else None


def block_seconds(timing: Timing, setup_s: float, *, enqueued: bool = False) -> float:
    """Return the seconds to time a block: a multiple of its set-up, within the timing's limits."""
    factor, fraction = (ENQUEUED_FACTOR, ENQUEUED_FRACTION) if enqueued else (SETUP_FACTOR, 1.0)
    shortest = fraction * timing.max_s / timing.max_allocations
    if enqueued:
        shortest = min(shortest, ENQUEUED_BLOCK_S)
    longest = timing.max_s / timing.allocations
    return min(max(factor * setup_s, shortest), longest)


T = TypeVar("T")


def merge(measurements: Sequence[Measurement], target: float | None) -> Measurement:
    """Return one measurement with the blocks of all processes and an interval over them. Warn if
    its relative half-width exceeds `target`."""
    if not measurements:
        raise UsageError("there is no measurement to merge")
    if len(measurements) == 1:
        return measurements[0]
    blocks = tuple(block for m in measurements for block in m.blocks)
    interval = measured_interval(blocks)
    originals = [w for m in measurements for w in m.warnings]
    warnings = [w for w in originals if w.code not in INTERVAL_WARNINGS]
    wanted = max((w.fields["wanted"] for w in originals if w.code == "few-blocks"), default=0)
    warnings += reliability_warnings(blocks, interval, wanted)
    names = sorted({name for m in measurements for name in m.also})
    return dataclasses.replace(
        measurements[0],
        blocks=blocks,
        low_s=interval.low_s,
        high_s=interval.high_s,
        method="+".join(_distinct(m.method for m in measurements)),
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
