"""The stop rule: after which block a measurement ends, and how long a block is.

A measurement ends at the first of:

1. its interval is within the target, looked at after each block from `first_look` on;
2. it has `max_allocations` blocks;
3. its timed seconds reach `max_s`, or would with half of another block.

`runners/forecast.py` assumes the same.
"""

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


def first_look(timing: Timing) -> int:
    """Return the number of blocks after which the interval is looked at first: differences between
    blocks need two. A block is never so long that fewer fit into the time cap."""
    return max(2, timing.allocations)


def _level(blocks: Sequence[Block], timing: Timing) -> float:
    return LEVEL if len(blocks) <= first_look(timing) else LOOKED_LEVEL


def stop_reason(
    blocks: Sequence[Block], *, timing: Timing, timed_s: float, next_s: float
) -> StopReason | None:
    """Return why to stop after these blocks, or None. `next_s` is the next block's length."""
    count = len(blocks)
    enough = count >= timing.allocations
    if count >= first_look(timing) and _is_precise(blocks, timing):
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
    longest = timing.max_s / min(first_look(timing), timing.max_allocations)
    return min(max(factor * setup_s, shortest), longest)
