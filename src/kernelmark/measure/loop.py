"""Samples: how many launches each holds, over which argument sets, and how they are timed."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.timing import Cache, Duty, Strain, Timer, Timing
from kernelmark.devices.base import Device, Launch, Reading, Replay, Stream, own_queue

# A block is cut into about this many samples: enough for a median, few enough to be stored.
SAMPLES_PER_BLOCK = 30
# Recorded launches cost memory and, behind a gate, room in the device's queue.
RECORDED_LIMIT = {Timer.GRAPH: 4096, Timer.GATE: 512}
# Burst: launches run a tenth of the time at most, but no rest is longer than this.
REST_FACTOR = 9.0
MAX_REST_S = 0.5
# No launch is shorter: keeps counts sane where a clock says nothing passed.
SHORTEST_S = 1e-7


@runtime_checkable
class Straining(Protocol):
    """A device that can enqueue work standing for the rest of a model."""

    def strain(self, kind: Strain) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One sample: `launches`, or that many and twice as many where two lengths are compared."""

    launches: int
    two_lengths: bool
    evict: bool = False
    rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds a launch; `timed_s` on the device's clock in all replays, `wall_s` on the host's
    with everything around them."""

    launch_s: float
    clock_mhz: float | None
    timed_s: float
    wall_s: float
    run_wall_s: float


def choose_pace(
    *,
    launch_s: float,
    sets: int,
    evict: bool,
    block_s: float,
    timing: Timing,
    two_lengths: bool,
    method: Timer,
) -> Pace:
    """Launches a sample: long enough for the clock and, where time allows, whole passes over the
    sets, else a divisor of them so that passes continue from sample to sample."""
    burst = timing.duty is Duty.BURST
    if timing.cache is Cache.FLUSH and not two_lengths:
        return Pace(launches=1, two_lengths=False, evict=True, rest=burst)
    weight = 3 if two_lengths else 1
    sample_s = max(timing.min_sample_s, block_s / SAMPLES_PER_BLOCK / weight)
    limit = recorded_limit(method, two_lengths=two_lengths)
    wanted = max(1, min(math.ceil(sample_s / max(launch_s, SHORTEST_S)), limit))
    affordable_s = block_s / timing.min_samples / weight
    if evict:
        # Only the first visit to a set after an eviction is cold.
        two = two_lengths and sets >= 2
        longest = min(sets // 2 if two else sets, limit)
        launches = longest if longest * launch_s <= affordable_s else min(wanted, longest)
        return Pace(launches=launches, two_lengths=two, evict=True, rest=burst)
    if sets * launch_s <= affordable_s and sets <= limit and not burst:
        wanted = max(wanted, sets)
    launches = even_launches(wanted, sets, limit)
    return Pace(launches=launches, two_lengths=two_lengths, rest=burst)


def even_launches(wanted: int, sets: int, limit: int) -> int:
    """`wanted` launches or some more: whole passes over the sets, or a divisor of them, so that
    few different orders need recording; never above `limit`."""
    if wanted >= sets:
        launches = -(-wanted // sets) * sets
        return launches if launches <= limit else max(1, limit // sets) * sets
    launches = next(n for n in range(wanted, sets + 1) if sets % n == 0)
    return launches if launches <= min(4 * wanted, limit) else wanted


def recorded_limit(method: Timer, *, two_lengths: bool = False) -> int:
    """Launches one replay may hold."""
    return RECORDED_LIMIT.get(method, 1 << 30) // (2 if two_lengths else 1)


class Sampler:
    """Takes samples from one kernel and its argument sets; remembers what it recorded."""

    def __init__(
        self,
        device: Device,
        launch: Launch,
        *,
        sets: int,
        timer: Timer,
        strain: Strain,
        flush: bool = False,
    ) -> None:
        self._device = device
        self._launch = launch
        self.sets = sets
        self._timer = timer
        self._idle = _flush_launch(device) if flush else _strain_launch(device, strain)
        self._queue = own_queue(launch)
        if self._idle is not None and self._queue is not None:
            raise Unsupported(
                f"{'cache=flush' if flush else f'strain={strain}'} needs launches on the device's "
                "stream, and this backend's runtime has a queue of its own",
                hint="use cache=cold or cache=hot, and strain=none",
            )
        self._replays: dict[tuple[int, int, bool], Replay] = {}
        self._cursor = 0
        self._turn = 0
        self.touched: set[int] = set()
        self.fallbacks = 0

    def restart(self) -> None:
        """Begin at the first set again and forget which were touched."""
        self._cursor = 0
        self.touched.clear()

    def fit(self, pace: Pace) -> Pace:
        """The pace in numbers that a kernel with a queue of its own takes evenly."""
        if self._queue is None or pace.evict:
            return pace
        return dataclasses.replace(pace, launches=self._queue.even_launches(pace.launches))

    def replay(self, launches: int) -> tuple[Reading, float, Timer]:
        """One plain replay from where the rotation stands: reading, host seconds, method."""
        order = self._next_order(launches)
        recorded = self._recorded(order, strained_only=False)
        start = time.perf_counter()
        reading = recorded.run()
        return reading, time.perf_counter() - start, recorded.method

    def sample(self, pace: Pace) -> Sample:
        """One sample, after evicting or resting where the pace says so."""
        start = time.perf_counter()
        if pace.evict:
            self._device.evict_cache()
            self._device.synchronize()
        found = self._two_lengths(pace) if pace.two_lengths else self._one_length(pace)
        launch_s, clock_mhz, timed_s, run_wall_s = found
        if pace.rest:
            time.sleep(min(REST_FACTOR * run_wall_s, MAX_REST_S))
        return Sample(
            launch_s=launch_s,
            clock_mhz=clock_mhz,
            timed_s=timed_s,
            wall_s=time.perf_counter() - start,
            run_wall_s=run_wall_s,
        )

    def close(self) -> None:
        """Give back the recorded replays."""
        for replay in self._replays.values():
            replay.close()
        self._replays.clear()

    def _one_length(self, pace: Pace) -> tuple[float, float | None, float, float]:
        reading, spent_s, wall_s = self._timed(self._next_order(pace.launches))
        if reading.elapsed_s <= 0:
            raise CaseError("the clock did not move during a sample", hint="raise min_sample_s")
        return reading.elapsed_s / pace.launches, reading.clock_mhz, spent_s, wall_s

    def _two_lengths(self, pace: Pace) -> tuple[float, float | None, float, float]:
        """(T₂ₙ − Tₙ) / N: what a replay costs however long it is cancels. The two lengths take
        turns in coming first, so that a drift cancels too."""
        count = pace.launches
        orders = []
        for launches in (count, 2 * count):
            if pace.evict:
                self._cursor = 0  # both lengths begin alike, after an eviction each
            orders.append(self._next_order(launches))
        self._turn ^= 1
        places = (0, 1) if self._turn else (1, 0)
        readings: dict[int, Reading] = {}
        spent_s = wall_s = 0.0
        for nth, place in enumerate(places):
            if nth and pace.evict:
                self._device.evict_cache()
                self._device.synchronize()
            readings[place], spent, wall = self._timed(orders[place])
            spent_s, wall_s = spent_s + spent, wall_s + wall
        short, long = readings[0], readings[1]
        launch_s = (long.elapsed_s - short.elapsed_s) / count
        if launch_s <= 0:
            self.fallbacks += 1
            launch_s = long.elapsed_s / (2 * count)
        if launch_s <= 0:
            raise CaseError(
                "the kernel is lost in the strain around it: their difference is not positive",
                hint="measure with strain=none",
            )
        return launch_s, long.clock_mhz, spent_s, wall_s

    def _timed(self, order: tuple[int, ...]) -> tuple[Reading, float, float]:
        """A reading less the strain around it, device seconds and host seconds it took."""
        start = time.perf_counter()
        reading = self._recorded(order, strained_only=False).run()
        spent_s = reading.elapsed_s
        if self._idle is not None:
            idle = self._recorded(order, strained_only=True).run()
            spent_s += idle.elapsed_s
            reading = Reading(
                elapsed_s=reading.elapsed_s - idle.elapsed_s, clock_mhz=reading.clock_mhz
            )
        return reading, spent_s, time.perf_counter() - start

    def _recorded(self, order: tuple[int, ...], *, strained_only: bool) -> Replay:
        key = (order[0], len(order), strained_only)
        if key not in self._replays:
            launch = self._launch_with_strain(strained_only=strained_only)
            self._replays[key] = self._device.record(launch, order, self._timer)
        return self._replays[key]

    def _launch_with_strain(self, *, strained_only: bool) -> Launch:
        idle, launch = self._idle, self._launch
        if idle is None:
            return launch
        if strained_only:
            return idle

        def strained(stream: Stream, index: int) -> None:
            idle(stream, index)
            launch(stream, index)

        return strained

    def _next_order(self, launches: int) -> tuple[int, ...]:
        start, sets = self._cursor, self.sets
        self._cursor = (start + launches) % sets
        order = tuple((start + i) % sets for i in range(launches))
        self.touched.update(order[:sets])
        return order


def _flush_launch(device: Device) -> Launch:
    """Evict in the stream before every launch; the evictions' own time is taken off like strain."""

    def evict(stream: Stream, index: int) -> None:
        device.evict_cache()

    return evict


def _strain_launch(device: Device, strain: Strain) -> Launch | None:
    if strain is Strain.NONE:
        return None
    if not isinstance(device, Straining):
        raise Unsupported(
            f"strain={strain} needs a GPU: a launch on {device.info.name} ends before the next"
            " begins",
            hint="use strain=none",
        )

    def idle(stream: Stream, index: int) -> None:
        device.strain(strain)

    return idle
