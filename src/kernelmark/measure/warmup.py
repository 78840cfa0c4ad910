"""Warm-up: launches until time and clock have settled, with a cap."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.core.timing import Timer
from kernelmark.measure.loop import SHORTEST_S, Sampler, even_launches, recorded_limit
from kernelmark.stats.robust import mad, median

# The trace is judged by its last points, one half against the other.
WINDOW = 6
SETTLED = 0.01
CLOCK_SETTLED = 0.01
# A clock that ramps up slowly looks settled at once: warm up for this share of the cap anyway.
LEAST_SHARE = 0.2
_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Seconds it took on the device's clock and the host's, what a launch takes now, and whether
    that had settled."""

    seconds: float
    wall_s: float
    launch_s: float
    settled: bool
    method: Timer
    trace_s: tuple[float, ...]


def warm_up(sampler: Sampler, *, cap_s: float, min_sample_s: float) -> Warmup:
    """Launch until settled or until `cap_s`; at least once, so that a launch's time is known."""
    seconds = wall_s = 0.0
    trace: list[float] = []
    clocks: list[float] = []
    launches = 1
    while True:
        reading, wall, method = sampler.replay(launches)
        seconds += reading.elapsed_s
        wall_s += wall
        trace.append(reading.elapsed_s / launches)
        if reading.clock_mhz is not None:
            clocks.append(reading.clock_mhz)
        settled = is_settled(trace, clocks)
        if seconds >= cap_s or (settled and seconds >= LEAST_SHARE * cap_s):
            break
        step_s = max(min_sample_s, cap_s / _STEPS)
        wanted = max(1, math.ceil(step_s / max(median(trace[-3:]), SHORTEST_S)))
        # In steps, because one reading may be far too short; powers of two, because every new
        # length has to be recorded.
        wanted = min(1 << (wanted - 1).bit_length(), 16 * launches, recorded_limit(method))
        launches = even_launches(wanted, sampler.sets, recorded_limit(method))
    return Warmup(
        seconds=seconds,
        wall_s=wall_s,
        launch_s=median(trace[-3:]),
        settled=settled,
        method=method,
        trace_s=tuple(trace),
    )


def touch(
    sampler: Sampler, *, launch_s: float, seconds: float, method: Timer
) -> tuple[float, float]:
    """Launches before a further block: about `seconds`; device and host seconds it took."""
    launches = max(1, round(seconds / max(launch_s, SHORTEST_S)))
    limit = recorded_limit(method)
    count = even_launches(min(launches, limit), sampler.sets, limit)
    spent_s = wall_s = 0.0
    while launches > 0:
        reading, wall, _ = sampler.replay(count)
        spent_s, wall_s = spent_s + reading.elapsed_s, wall_s + wall
        launches -= count
    return spent_s, wall_s


def is_settled(trace_s: Sequence[float], clocks_mhz: Sequence[float] = ()) -> bool:
    """Whether the last points show no drift beyond 1 % or their own scatter.

    A steady drift moves the later half by more than the scatter of the whole; noise does not.
    """
    if len(trace_s) < WINDOW:
        return False
    recent = list(trace_s[-WINDOW:])
    middle = median(recent)
    moved = abs(median(recent[WINDOW // 2 :]) - median(recent[: WINDOW // 2]))
    if moved > max(SETTLED * middle, mad(recent)):
        return False
    if len(clocks_mhz) >= WINDOW:
        clocks = clocks_mhz[-WINDOW:]
        return (max(clocks) - min(clocks)) <= CLOCK_SETTLED * statistics.median(clocks)
    return True
