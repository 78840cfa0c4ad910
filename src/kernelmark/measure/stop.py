"""When to stop, and why."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.result import Block, StopReason
from kernelmark.core.timing import Timing
from kernelmark.stats.interval import (
    LEVEL,
    Interval,
    measured_interval,
    medians_interval,
    widened,
)

# Stopping as soon as the interval happens to be narrow makes it cover less than it says. With
# this level after the first look, simulation of up to 20 blocks gives 94.5 to 95.5 % for what is
# reported as 95 %.
LOOKED_LEVEL = 0.98
# Timed seconds a second of set-up: with warm-up, over 80 % of the time is spent launching. A
# device that enqueues has tighter samples and needs fewer of them, in shorter blocks.
SETUP_FACTOR = 6.0
ENQUEUED_FACTOR = 2.0
ENQUEUED_SHARE = 0.6
# Longer blocks are no more exact there: on an H200 blocks of 0.05 s and 0.12 s gave the same
# intervals, which come from what differs between blocks.
ENQUEUED_BLOCK_S = 0.05


def interval_of(blocks: Sequence[Block], timing: Timing, spread: float = 0.0) -> Interval:
    """The interval to report, which pays for having been looked at before and for a `spread`
    between processes that one process does not show."""
    return widened(measured_interval(blocks, _level(blocks, timing)), spread)


def _is_precise(blocks: Sequence[Block], timing: Timing, spread: float) -> bool:
    low_s, high_s = medians_interval(blocks, _level(blocks, timing))
    narrowest = widened(Interval(low_s=low_s, high_s=high_s), spread)
    # Looking for modes takes longer, and only widens an interval.
    return (
        narrowest.rel_half_width <= timing.target_rel_ci
        and interval_of(blocks, timing, spread).rel_half_width <= timing.target_rel_ci
    )


def _level(blocks: Sequence[Block], timing: Timing) -> float:
    return LEVEL if len(blocks) <= timing.allocations else LOOKED_LEVEL


def stop_reason(
    blocks: Sequence[Block],
    *,
    timing: Timing,
    timed_s: float,
    next_s: float,
    spread: float = 0.0,
) -> StopReason | None:
    """Why to stop after these blocks, or None to go on. `next_s` is what a further block takes."""
    count = len(blocks)
    enough = count >= timing.allocations
    if enough and count >= 2 and _is_precise(blocks, timing, spread):
        return StopReason.PRECISE
    if count >= timing.max_allocations:
        fixed = timing.allocations == timing.max_allocations
        return StopReason.FIXED if fixed else StopReason.BLOCKS
    over = timed_s + (next_s / 2 if enough else 0.0) >= timing.max_s
    return StopReason.TIME if over else None


def block_seconds(timing: Timing, setup_s: float, *, enqueued: bool = False) -> float:
    """How long a block is timed: several times what setting it up took, in reason."""
    factor, share = (ENQUEUED_FACTOR, ENQUEUED_SHARE) if enqueued else (SETUP_FACTOR, 1.0)
    shortest = share * timing.max_s / timing.max_allocations
    if enqueued:
        shortest = min(shortest, ENQUEUED_BLOCK_S)
    longest = timing.max_s / timing.allocations
    return min(max(factor * setup_s, shortest), longest)
