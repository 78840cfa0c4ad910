"""Blocks of a measurement: warnings about them, and merging those of several processes."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import DISAGREEMENT, Block, Measurement, StopReason
from kernelmark.core.timing import Duty, Timing
from kernelmark.core.units import NOISY, WIDEST, counted, join_commas, spread_text, time_text
from kernelmark.measure.warmup import Warmup
from kernelmark.stats.interval import Interval, measured_interval

# A disturbance below these fractions is within the spread of the samples.
LOAD_SHARE = 0.1
# Threads that compute one result wait for the slowest of them. From half a core of other work on,
# in the median block, most samples include such a wait: on two cores that other work kept busy, a
# float32 GEMM of 384³ took 36 to 117 times as long with two threads in 14 of 18 windows and 1.4 to
# 1.7 times in four, and 1.0 to 1.9 times with one thread. Half a core is a guess between.
SHARED_CORES = 0.5
CLOCK_SHARE = 0.03
_IDLE_GAPS = ', or add idle gaps between samples (duty = "burst" in --timing FILE.toml)'
# Warnings about the interval, which merging several processes recomputes.
INTERVAL_WARNINGS = (
    "interval-above-target",
    "interval-one-sample",
    "interval-one-block",
    "few-blocks",
    "blocks-disagree",
)


def interval_warnings(interval: Interval, target: float | None) -> list[Reason]:
    """Warn about an interval that is wider than `target`, or that has too few blocks."""
    if interval.note:
        return [interval.note]
    width = interval.rel_half_width
    if target is None or width <= target:
        return []
    return [
        Reason(
            f"interval: {spread_text(width)}{', which' if width > WIDEST else ''} is above the"
            f" target of {spread_text(target)}: allow more time (--max-s) or more blocks"
            " (max_allocations in --timing FILE.toml)",
            "interval-above-target",
            width=width,
            target=target,
        )
    ]


def measurement_warnings(
    blocks: Sequence[Block],
    interval: Interval,
    timing: Timing,
    *,
    stop: StopReason,
    threads: int,
    fallbacks: int = 0,
) -> list[Reason]:
    """Return the warnings of a measurement about its samples, its blocks and its interval."""
    # If the blocks met the target, do not warn about the spread between processes.
    target = None if stop is StopReason.PRECISE else timing.target_rel_ci
    return [
        *sample_warnings(blocks, timing, fallbacks),
        *block_warnings(blocks, threads, timing.duty),
        *interval_warnings(interval, target),
        *reliability_warnings(blocks, interval, timing.allocations),
    ]


def reliability_warnings(blocks: Sequence[Block], interval: Interval, wanted: int) -> list[Reason]:
    """Warn about fewer than `wanted` blocks, and about blocks that disagree."""
    warnings = []
    if len(blocks) < wanted:
        warnings.append(
            Reason(
                f"unreliable: {len(blocks)} of {wanted} blocks were measured, so it is"
                " not ranked: allow more time (--max-s)",
                "few-blocks",
                blocks=len(blocks),
                wanted=wanted,
            )
        )
    if len(blocks) > 1 and interval.high_s > DISAGREEMENT * interval.low_s:
        medians = [block.median_s for block in blocks]
        low_s, high_s = min(medians), max(medians)
        # A few blocks that differ little still leave a wide interval.
        wider = interval.low_s < low_s or interval.high_s > high_s
        leaves = f", which leaves an interval {NOISY}" if wider else ""
        bounds = (
            {"interval_low_s": interval.low_s, "interval_high_s": interval.high_s}
            if wider and math.isfinite(interval.high_s)
            else {}
        )
        warnings.append(
            Reason(
                f"unreliable: blocks took from {time_text(low_s)} to {time_text(high_s)}{leaves},"
                " so it is not ranked: measure on a quiet machine, or"
                " allow more blocks (max_allocations in --timing FILE.toml)",
                "blocks-disagree",
                low_s=low_s,
                high_s=high_s,
                **bounds,
            )
        )
    return warnings


def audit_warnings(
    blocks: Sequence[Block], audited_s: Sequence[float], factor: float
) -> list[Reason]:
    """Warn if a launch took more than `factor` times the median block in every audit: a kernel may
    have skipped work in blocks that were not audited, or the machine was slower."""
    if not audited_s:
        return []
    median_s = statistics.median(block.median_s for block in blocks)
    fastest_s = min(audited_s)
    if fastest_s <= factor * median_s:
        return []
    return [
        Reason(
            f"unreliable: a launch took {time_text(fastest_s)} when its work was audited, and"
            f" {time_text(median_s)} in the median block, so it is not ranked: measure on a quiet"
            " machine",
            "audited-slower",
            audited_s=fastest_s,
            median_s=median_s,
        )
    ]


def data_warnings(scatters: Sequence[float]) -> list[Reason]:
    """Warn if launches on other values of the same kind took another time, by these fractions, and
    as long again on the same values."""
    if not scatters:
        return []
    scatter = max(scatters)
    return [
        Reason(
            f"data-dependent: launches on other random values differ by {spread_text(scatter)} and"
            " take as long again on the same values",
            "data-dependent",
            scatter=scatter,
        )
    ]


def block_warnings(blocks: Sequence[Block], cores: int, duty: Duty) -> list[Reason]:
    """Warn about load by other processes, a changing clock and throttling, from telemetry."""
    sustained = duty is not Duty.BURST
    return [
        *_load(blocks, cores),
        *_clock(blocks, sustained=sustained),
        *_throttle(blocks, sustained=sustained),
    ]


def warmup_warnings(warmup: Warmup, timing: Timing) -> list[Reason]:
    """Warn about a warm-up that ended before time and clock had settled."""
    if warmup.settled or len(warmup.trace_s) < 2 or timing.warmup_s == 0:
        return []
    return [
        Reason(
            f"times had not settled after {warmup.seconds:.2g} s of warm-up: raise"
            f" warmup_s in --timing FILE.toml (now {timing.warmup_s:g})",
            "not-settled",
            seconds=warmup.seconds,
            warmup_s=timing.warmup_s,
        )
    ]


def sample_warnings(blocks: Sequence[Block], timing: Timing, fallbacks: int) -> list[Reason]:
    """Warn about too few samples, and about samples that include the fixed cost of a replay."""
    warnings = []
    fewest = min(len(block.samples_s) for block in blocks)
    if fewest < timing.min_samples:
        wanted = timing.min_samples
        warnings.append(
            Reason(
                f"--max-s={timing.max_s:g} allowed only {fewest} of {wanted} samples"
                " in a block: raise --max-s",
                "few-samples",
                max_s=timing.max_s,
                samples=fewest,
                wanted=wanted,
            )
        )
    if fallbacks:
        warnings.append(
            Reason(
                f"{counted(fallbacks, 'sample')} included a replay's fixed cost,"
                " because 2N launches took no longer than N: allow more time (--max-s),"
                " which makes samples longer",
                "fixed-cost",
                samples=fallbacks,
            )
        )
    return warnings


def _load(blocks: Sequence[Block], cores: int) -> list[Reason]:
    loads = [b.telemetry.load for b in blocks if b.telemetry.load is not None]
    several = cores > 1
    shared = several and bool(loads) and statistics.median(loads) > SHARED_CORES
    if not shared and (not loads or max(loads) <= LOAD_SHARE * cores):
        return []
    text = f"other work used up to {max(loads):.1f} of {counted(cores, 'timed core')}: close it"
    if shared:
        text += ", or measure with --threads 1; threads wait for each other, so it is unreliable"
        text += " and not ranked"
    elif several:
        text += ", or measure with fewer threads"
    fields = {"load": max(loads), "cores": cores, "threads": several}
    return [Reason(text, "other-load", **fields, **({"unreliable": True} if shared else {}))]


def _clock(blocks: Sequence[Block], *, sustained: bool) -> list[Reason]:
    clocks = [clock for block in blocks for clock in block.clocks_mhz]
    if not clocks:
        clocks = [b.telemetry.clock_mhz for b in blocks if b.telemetry.clock_mhz is not None]
    if not clocks or max(clocks) - min(clocks) <= CLOCK_SHARE * max(clocks):
        return []
    return [
        Reason(
            f"the clock moved between {min(clocks):.0f} and {max(clocks):.0f} MHz"
            " while timing: lock it, warm up longer (warmup_s in --timing FILE.toml)"
            + (_IDLE_GAPS if sustained else ""),
            "clock-moved",
            low_mhz=min(clocks),
            high_mhz=max(clocks),
            sustained=sustained,
        )
    ]


def _throttle(blocks: Sequence[Block], *, sustained: bool) -> list[Reason]:
    reasons = sorted({reason for block in blocks for reason in block.telemetry.throttle})
    if not reasons:
        return []
    count = sum(bool(block.telemetry.throttle) for block in blocks)
    return [
        Reason(
            f"throttled in {count} of {len(blocks)} blocks by {join_commas(reasons)}:"
            " cool the device" + (_IDLE_GAPS if sustained else ""),
            "throttled",
            count=count,
            blocks=len(blocks),
            by=tuple(reasons),
            sustained=sustained,
        )
    ]


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
