"""Warnings about a measurement: what disturbed it and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.result import Block
from kernelmark.core.timing import Duty, Timing
from kernelmark.core.units import counted
from kernelmark.measure.warmup import Warmup
from kernelmark.stats.interval import Interval

# Below these shares a disturbance is lost in the spread anyway.
LOAD_SHARE = 0.1
CLOCK_SHARE = 0.03
# An interval that is wider is told to be so: its figure means nothing.
WIDEST = 9.99

# Warnings that speak of the interval begin so; joining processes makes them anew.
INTERVAL_WARNING = "interval: "


def interval_warnings(interval: Interval, target: float | None) -> list[str]:
    """What the interval lacks."""
    if interval.note:
        return [INTERVAL_WARNING + interval.note]
    width = interval.rel_half_width
    if target is None or width <= target:
        return []
    shown = f"±{width:.1%}" if width <= WIDEST else f"more than ±{WIDEST:.0%}"
    return [
        f"{INTERVAL_WARNING}{shown} is above the target of ±{target:.1%}: allow more time"
        " (max_s) or more blocks (max_allocations)"
    ]


def block_warnings(blocks: Sequence[Block], cores: int, duty: Duty) -> list[str]:
    """What the device said that disturbs."""
    rest = "" if duty is Duty.BURST else ", or rest between samples (duty=burst)"
    return [
        *_load(blocks, cores),
        *_clock(blocks, rest),
        *_throttle(blocks, rest),
    ]


def warmup_warnings(warmup: Warmup, timing: Timing) -> list[str]:
    """Whether timing began before things had settled."""
    if warmup.settled or len(warmup.trace_s) < 2 or timing.warmup_s == 0:
        return []
    return [
        f"times had not settled after {warmup.seconds:.2g} s of warm-up: raise warmup_s"
        f" (now {timing.warmup_s:g})"
    ]


def sample_warnings(blocks: Sequence[Block], timing: Timing, fallbacks: int) -> list[str]:
    """Where samples are fewer or cruder than asked for."""
    warnings = []
    fewest = min(len(block.samples_s) for block in blocks)
    if fewest < timing.min_samples:
        warnings.append(
            f"max_s={timing.max_s:g} allowed only {fewest} of {timing.min_samples} samples in a"
            " block: raise max_s"
        )
    if fallbacks:
        warnings.append(
            f"{counted(fallbacks, 'sample')} held a replay's fixed cost, because twice the"
            " launches took no longer: allow more time (max_s), which makes samples longer"
        )
    return warnings


def _load(blocks: Sequence[Block], cores: int) -> list[str]:
    loads = [b.telemetry.load for b in blocks if b.telemetry.load is not None]
    if not loads or max(loads) <= LOAD_SHARE * cores:
        return []
    way_out = "close it, or measure with fewer threads" if cores > 1 else "close it"
    return [
        f"other work used up to {max(loads):.1f} of {counted(cores, 'core')} timed: {way_out}",
    ]


def _clock(blocks: Sequence[Block], rest: str) -> list[str]:
    clocks = [clock for block in blocks for clock in block.clocks_mhz]
    if not clocks:
        clocks = [b.telemetry.clock_mhz for b in blocks if b.telemetry.clock_mhz is not None]
    if not clocks or max(clocks) - min(clocks) <= CLOCK_SHARE * max(clocks):
        return []
    return [
        f"the clock moved between {min(clocks):.0f} and {max(clocks):.0f} MHz while timing: lock"
        f" it, warm up longer (warmup_s){rest}"
    ]


def _throttle(blocks: Sequence[Block], rest: str) -> list[str]:
    reasons = sorted({reason for block in blocks for reason in block.telemetry.throttle})
    if not reasons:
        return []
    count = sum(bool(block.telemetry.throttle) for block in blocks)
    return [
        f"throttled in {count} of {len(blocks)} blocks by {', '.join(reasons)}: cool the device"
        f"{rest}"
    ]
