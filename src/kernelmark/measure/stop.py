"""When to stop, and why."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.result import Block, StopReason
from kernelmark.core.timing import Timing
from kernelmark.stats.interval import LEVEL, Interval, measured_interval

# Stopping as soon as the interval happens to be narrow makes it cover less than it says. With
# this level after the first look, simulation gives 94 to 95 % for what is reported as 95 %.
LOOKED_LEVEL = 0.975
# Timed seconds a second of set-up: with warm-up, over 80 % of the time is spent launching. A
# device that enqueues has tighter samples and needs fewer of them, in shorter blocks.
SETUP_FACTOR = 6.0
ENQUEUED_FACTOR = 2.0
ENQUEUED_SHARE = 0.6


def interval_of(blocks: Sequence[Block], timing: Timing) -> Interval:
    """The interval to report, which pays for having been looked at before."""
    first_look = len(blocks) <= timing.allocations
    return measured_interval(blocks, LEVEL if first_look else LOOKED_LEVEL)


def stop_reason(
    blocks: Sequence[Block], *, timing: Timing, timed_s: float, next_s: float
) -> StopReason | None:
    """Why to stop after these blocks, or None to go on. `next_s` is what a further block takes."""
    count = len(blocks)
    enough = count >= timing.allocations
    if enough and count >= 2 and interval_of(blocks, timing).rel_half_width <= timing.target_rel_ci:
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
    longest = timing.max_s / timing.allocations
    return min(max(factor * setup_s, shortest), longest)
