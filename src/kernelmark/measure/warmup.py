"""Warm-up: launches until time and clock have settled, with a cap."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kernelmark.core.timing import Timer
from kernelmark.measure.loop import (
    SHORTEST_S,
    Pace,
    Sample,
    Sampler,
    even_launches,
    recorded_limit,
    samples_in,
)
from kernelmark.stats.interval import mad, median

# Number of last points of which the later half is compared with the earlier half.
WINDOW = 6
SETTLED = 0.01
CLOCK_SETTLED = 0.01
# A slowly rising clock looks settled at first: warm up for at least this fraction of the cap.
LEAST_SHARE = 0.2
_STEPS = 50
_BATCHES = 12
# Launches per replay for a first estimate of a launch's time.
FIRST_LAUNCHES = 4
_FIRST_REPLAYS = 3
# The host then records the samples' replays for about this long. The device is kept busy meanwhile,
# as its clock would drop otherwise.
_RECORDING_S = 0.004
_MAX_BUSY_REPLAYS = 200

ChoosePace = Callable[[float, Timer], Pace]  # (seconds per launch, method)
Meanwhile = Callable[[Pace], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """A finished warm-up: device and host seconds, the time of a launch at its end, and whether it
    had settled. `pace` is the pace of its samples, None if it took none."""

    seconds: float
    wall_s: float
    launch_s: float
    settled: bool
    method: Timer
    trace_s: tuple[float, ...]
    pace: Pace | None = None


def warm_up(sampler: Sampler, *, cap_s: float, min_sample_s: float) -> Warmup:
    """Launch until time and clock have settled, or for `cap_s` device seconds; at least once."""
    seconds = wall_s = 0.0
    trace: list[float] = []
    clocks: list[float] = []
    launches = 1
    while True:
        reading, wall, method = sampler.replay(launches)
        seconds += reading.spent_s
        wall_s += wall
        trace.append(reading.elapsed_s / launches)
        if reading.clock_mhz is not None:
            clocks.append(reading.clock_mhz)
        settled = is_settled(trace, clocks)
        if seconds >= cap_s or (settled and seconds >= LEAST_SHARE * cap_s):
            break
        step_s = max(min_sample_s, cap_s / _STEPS)
        wanted = max(1, math.ceil(step_s / max(median(trace[-3:]), SHORTEST_S)))
        # At most 16 times as many, because a reading may be far too short; powers of two, because
        # every new length has to be recorded.
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


def warm_up_by_samples(
    sampler: Sampler,
    *,
    cap_s: float,
    choose: ChoosePace,
    meanwhile: Meanwhile,
    launches: int = FIRST_LAUNCHES,
) -> Warmup:
    """Warm up by samples at the pace that will be timed: the recorded replays are reused, and the
    device does not idle. The host calls `meanwhile` while the first samples run. The first replays
    have up to `launches`; long ones end at the cap."""
    launches = min(launches, sampler.sets)
    first: list[tuple[float, float]] = []
    while len(first) < _FIRST_REPLAYS and (not first or sum(s for s, _ in first) < cap_s):
        sampler.restart()
        reading, wall_s, method = sampler.replay(launches)
        first.append((reading.elapsed_s, wall_s))
    seconds, spent_wall_s = sum(s for s, _ in first), sum(w for _, w in first)
    # The first replay is slower: code and addresses are new to the device.
    replay_s = min(s for s, _ in first)
    launch_s = replay_s / launches
    sampler.restart()
    pace = choose(launch_s, method)
    busy: Callable[[], float] | None = None
    if sampler.takes_batches(pace) and seconds + _RECORDING_S < cap_s:
        count = math.ceil(_RECORDING_S / max(replay_s, _RECORDING_S / _MAX_BUSY_REPLAYS))
        busy = sampler.keep_busy(launches, count)
    trace = _Trace(cap_s / _STEPS)
    settled = False
    while seconds < cap_s and not (settled and seconds >= LEAST_SHARE * cap_s):
        wanted_s = max(LEAST_SHARE * cap_s - seconds, cap_s / _BATCHES)
        count = samples_in(wanted_s, pace, sampler.gross_s(launch_s))
        taken = sampler.samples(pace, count, None if trace.samples else partial(meanwhile, pace))
        for sample in taken:
            trace.add(sample)
        if busy is not None:
            seconds, busy = seconds + busy(), None
        seconds += sum(s.timed_s for s in taken)
        spent_wall_s += sum(s.run_wall_s for s in taken)
        launch_s = median(trace.points_s[-3:] or [taken[-1].launch_s])
        settled = is_settled(trace.points_s, trace.clocks_mhz)
    return Warmup(
        seconds=seconds,
        wall_s=spent_wall_s,
        launch_s=launch_s,
        settled=settled,
        method=method,
        trace_s=tuple(trace.points_s) or (launch_s,),
        pace=pace,
    )


class _Trace:
    """Times and clocks averaged over stretches of about `step_s`, which show a drift better than
    single short samples."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._stretch: list[Sample] = []
        self._timed_s = 0.0
        self.samples = 0
        self.points_s: list[float] = []
        self.clocks_mhz: list[float] = []

    def add(self, sample: Sample) -> None:
        self.samples += 1
        self._stretch.append(sample)
        self._timed_s += sample.timed_s
        if self._timed_s < self._step_s:
            return
        self.points_s.append(median([s.launch_s for s in self._stretch]))
        clocks = [s.clock_mhz for s in self._stretch if s.clock_mhz is not None]
        if clocks:
            self.clocks_mhz.append(statistics.fmean(clocks))
        self._stretch, self._timed_s = [], 0.0


def rewarm(
    sampler: Sampler, *, launch_s: float, seconds: float, method: Timer
) -> tuple[float, float]:
    """Launch for about `seconds` before a further block. Return the device and host seconds."""
    launches = max(1, round(seconds / max(launch_s, SHORTEST_S)))
    limit = recorded_limit(method)
    count = even_launches(min(launches, limit), sampler.sets, limit)
    spent_s = wall_s = 0.0
    while launches > 0:
        reading, wall, _ = sampler.replay(count)
        spent_s, wall_s = spent_s + reading.spent_s, wall_s + wall
        launches -= count
    return spent_s, wall_s


def is_settled(trace_s: Sequence[float], clocks_mhz: Sequence[float] = ()) -> bool:
    """Return whether the last points show no drift beyond 1 % or their own scatter.

    A steady drift moves the later half by more than the scatter of the whole; noise does not.
    """
    if len(trace_s) < WINDOW:
        return False
    if _drifts(trace_s[-WINDOW:], SETTLED):
        return False
    return len(clocks_mhz) < WINDOW or not _drifts(clocks_mhz[-WINDOW:], CLOCK_SETTLED)


def _drifts(values: Sequence[float], allowed: float) -> bool:
    """Return whether the medians of the two halves differ by more than the fraction `allowed` and
    by more than the scatter of all values, which more warm-up does not reduce."""
    recent = list(values)
    half = len(recent) // 2
    moved = abs(median(recent[half:]) - median(recent[:half]))
    return moved > max(allowed * median(recent), mad(recent))
