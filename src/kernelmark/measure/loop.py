"""Samples: the launches that each one times, over which argument sets, and by which timer."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.timing import Cache, Duty, Strain, Timer, Timing
from kernelmark.devices.base import Device, Launch, Reading, Replay, Stream, own_queue

# Samples per block: enough for a median, few enough to be stored.
SAMPLES_PER_BLOCK = 30
# A device that enqueues has less scatter between samples, and idles while the host reads each.
ENQUEUED_PER_BLOCK = 16
# Limit of the samples enqueued at once.
BATCH = 32
# Recorded launches cost memory and, behind a gate, space in the device's queue: it holds about a
# thousand kernels, and a launch may be three.
RECORDED_LIMIT = {Timer.GRAPH: 4096, Timer.GATE: 256}
# Burst: an idle gap is 9 times as long as the sample before it, so that launches run a tenth of the
# time, but at most MAX_IDLE_S.
IDLE_FACTOR = 9.0
MAX_IDLE_S = 0.5
# Limit of the replays recorded in advance.
_MOST_PREPARED = 8
# The jitter of 50 µs evictions makes some samples of a 1 µs kernel negative.
_MOST_ATTEMPTS = 10
# Lower bound of a launch's time: keeps launch counts finite where a clock did not advance.
SHORTEST_S = 1e-7

Order = tuple[int, ...]  # the argument set of each launch of a replay


@runtime_checkable
class Straining(Protocol):
    """A device that can enqueue background load."""

    def strain(self, kind: Strain) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a sample is taken: by a replay of `launches`, or with `two_lengths` by one of `launches`
    and one of twice as many. `evict`: evict the cache before each replay; `idle`: idle after the
    sample."""

    launches: int
    two_lengths: bool
    evict: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds per launch. `timed_s` is the device time of all replays, `run_wall_s` their host
    time, and `wall_s` the host time with evictions and the idle gap."""

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
    """Choose the launches per sample: enough for the clock's resolution and, where time allows,
    whole passes over the sets, else a divisor of their number, so that passes continue from sample
    to sample. A sample of two lengths runs three times its launches. `launch_s` includes background
    load or evictions."""
    burst = timing.duty is Duty.BURST
    if timing.cache is Cache.FLUSH and not two_lengths:
        return Pace(launches=1, two_lengths=False, evict=True, idle=burst)
    weight, samples = (3, ENQUEUED_PER_BLOCK) if two_lengths else (1, SAMPLES_PER_BLOCK)
    sample_s = max(timing.min_sample_s, block_s / samples) / weight
    background = timing.strain is not Strain.NONE or timing.cache is Cache.FLUSH
    limit = recorded_limit(method, two_lengths=two_lengths, background=background)
    wanted = max(1, min(math.ceil(sample_s / max(launch_s, SHORTEST_S)), limit))
    affordable_s = block_s / timing.min_samples / weight
    if evict:
        # Only the first visit to a set after an eviction is cold.
        two = two_lengths and sets >= 2
        longest = min(sets // 2 if two else sets, limit)
        launches = longest if longest * launch_s <= affordable_s else min(wanted, longest)
        return Pace(launches=launches, two_lengths=two, evict=True, idle=burst)
    if sets * launch_s <= affordable_s and sets <= limit and not burst:
        wanted = max(wanted, sets)
    launches = even_launches(wanted, sets, limit)
    return Pace(launches=launches, two_lengths=two_lengths, idle=burst)


def even_launches(wanted: int, sets: int, limit: int) -> int:
    """Round `wanted` launches up to whole passes over the sets, or to a divisor of them, so that
    few different orders need recording; never above `limit`."""
    if wanted >= sets:
        launches = -(-wanted // sets) * sets
        return launches if launches <= limit else max(1, limit // sets) * sets
    launches = next(n for n in range(wanted, sets + 1) if sets % n == 0)
    return launches if launches <= min(4 * wanted, limit) else wanted


def recorded_limit(method: Timer, *, two_lengths: bool = False, background: bool = False) -> int:
    """Return the limit of the launches in a sample's shorter replay; with `background` each launch
    takes the space of two."""
    return RECORDED_LIMIT.get(method, 1 << 30) // ((1 + two_lengths) * (1 + background))


def samples_in(seconds: float, pace: Pace, launch_s: float) -> int:
    """Return how many samples take about `seconds`: 1 to BATCH."""
    sample_s = pace.launches * (3 if pace.two_lengths else 1) * max(launch_s, SHORTEST_S)
    return max(1, min(BATCH, round(seconds / sample_s)))


class _BelowNoise(CaseError):
    """An error: the background load took longer alone than together with the launches."""


class Sampler:
    """Takes samples of one kernel over its argument sets, and keeps the recorded replays."""

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
        self._background = _flush_launch(device) if flush else _strain_launch(device, strain)
        self._queue = own_queue(launch)
        if self._background is not None and self._queue is not None:
            setting = "cache=flush" if flush else f"strain={strain}"
            raise Unsupported(
                f"{setting} needs launches on the device's stream, and this backend's"
                " runtime has a queue of its own",
                hint="use cache=cold or cache=hot, and strain=none",
            )
        self._replays: dict[tuple[int, int, bool], Replay] = {}
        self._orders: dict[tuple[int, int], Order] = {}
        self._cursor = 0
        self._short_first = False
        self._gross_s = 0.0  # seconds per launch of the last sample, with background load
        self.launched: set[int] = set()  # sets launched since `restart`
        self.fallbacks = 0  # samples whose longer replay was not the slower one
        self.record_s = 0.0  # host seconds spent on recording

    def restart(self) -> None:
        """Start at the first set again and clear `launched`."""
        self._cursor = 0
        self.launched.clear()

    def fit(self, pace: Pace) -> Pace:
        """Round the launches to a number that a kernel with its own queue can enqueue evenly."""
        if self._queue is None:
            return pace
        launches = self._queue.even_launches(pace.launches)
        if pace.evict and launches * (2 if pace.two_lengths else 1) > self.sets:
            return pace  # a second visit to a set would not be cold
        return dataclasses.replace(pace, launches=launches)

    def replay(self, launches: int) -> tuple[Reading, float, Timer]:
        """Run one replay of the next sets. Return its reading, host seconds and timer."""
        order = self._next_order(launches)
        recorded = self._recorded(order)
        start = time.perf_counter()
        reading = recorded.run()
        return reading, time.perf_counter() - start, recorded.method

    def sample(self, pace: Pace) -> Sample:
        """Take one sample."""
        start = time.perf_counter()
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            self._precede(pace)
            if pace.evict:
                self._device.synchronize()
            try:
                take = self._sample_two_lengths if pace.two_lengths else self._sample_one_length
                sample = take(pace)
                break
            except _BelowNoise:
                if attempt == _MOST_ATTEMPTS:
                    raise
        if pace.idle:
            time.sleep(min(IDLE_FACTOR * sample.run_wall_s, MAX_IDLE_S))
        return dataclasses.replace(sample, wall_s=time.perf_counter() - start)

    def samples(
        self, pace: Pace, count: int, meanwhile: Callable[[], None] | None = None
    ) -> list[Sample]:
        """Take `count` samples, enqueued as one batch where possible. The host runs `meanwhile`
        while the device works through its queue."""
        if not self.takes_batches(pace):
            if meanwhile is not None:
                meanwhile()
            return [self.sample(pace) for _ in range(count)]
        pairs = [self._pair(pace) for _ in range(count)]
        replays = [self._recorded(order) for pair in pairs for order in pair]
        start = time.perf_counter()
        readings = self._device.run_all(
            replays, before=lambda at: self._precede(pace, second=at % 2 == 1), meanwhile=meanwhile
        )
        wall_s = (time.perf_counter() - start) / count
        return [
            self._difference(pair, readings[2 * at : 2 * at + 2], wall_s=wall_s)
            for at, pair in enumerate(pairs)
        ]

    def keep_busy(self, launches: int, count: int) -> Callable[[], float]:
        """Enqueue `count` replays of the first `launches` sets whose readings are not needed.
        Calling the result waits and returns their device seconds."""
        self.restart()
        replay = self._recorded(self._next_order(launches))
        self.restart()
        return self._device.run_ahead([replay] * count)

    def enqueue_warmup(self, pace: Pace, count: int) -> Callable[[], float]:
        """Enqueue `count` samples whose readings are not needed. Calling the result waits and
        returns their device seconds."""
        orders = [order for _ in range(count) for order in self._pair(pace)]
        replays = [self._recorded(order) for order in orders]
        return self._device.run_ahead(replays)

    def takes_batches(self, pace: Pace) -> bool:
        """Return whether samples can be enqueued back to back."""
        return (
            pace.two_lengths and not pace.idle and self._background is None and self._queue is None
        )

    def prepare(self, pace: Pace) -> None:
        """Record the replays of the first samples in advance."""
        recorded = -1
        while pace.two_lengths and recorded < len(self._replays) <= _MOST_PREPARED:
            recorded = len(self._replays)
            for order in self._pair(pace):
                self._recorded(order)
        self.restart()
        self._short_first = False

    def gross_s(self, launch_s: float) -> float:
        """Return the device seconds that a sample spends per launch of `launch_s`, including
        background load and the replays of that load alone."""
        return max(launch_s, self._gross_s)

    def close(self) -> None:
        """Free the recorded replays."""
        for replay in self._replays.values():
            replay.close()
        self._replays.clear()

    def _sample_one_length(self, pace: Pace) -> Sample:
        reading, spent_s, wall_s = self._timed(self._next_order(pace.launches))
        if reading.elapsed_s <= 0:
            raise CaseError(
                Reason("the clock did not advance during a sample", "clock-stalled"),
                hint="raise min_sample_s",
            )
        return Sample(
            launch_s=reading.elapsed_s / pace.launches,
            clock_mhz=reading.clock_mhz,
            timed_s=spent_s,
            wall_s=wall_s,
            run_wall_s=wall_s,
        )

    def _precede(self, pace: Pace, *, second: bool = False) -> None:
        """Enqueue the untimed work before a replay. Both lengths of a sample must find the block
        scheduler in the same state, or their difference mixes two modes. The second follows the
        first directly, which preserves the state, unless an eviction comes between them."""
        if pace.evict:
            self._device.evict_cache()
        if pace.evict or not second:
            self._device.disturb_scheduler()

    def _sample_two_lengths(self, pace: Pace) -> Sample:
        readings = []
        spent_s = wall_s = 0.0
        pair = self._pair(pace)
        for nth, order in enumerate(pair):
            if nth and pace.evict:
                self._precede(pace, second=True)
                self._device.synchronize()
            reading, spent, wall = self._timed(order)
            readings.append(reading)
            spent_s, wall_s = spent_s + spent, wall_s + wall
        if self._background is not None:
            self._gross_s = spent_s / (3 * pace.launches)
        sample = self._difference(pair, readings, wall_s=wall_s)
        return dataclasses.replace(sample, timed_s=spent_s)

    def _pair(self, pace: Pace) -> tuple[Order, Order]:
        """Return the orders of a sample's two replays as they run. The shorter length alternates
        between first and second, so that a drift cancels."""
        self._short_first = not self._short_first
        first, second = (1, 2) if self._short_first else (2, 1)
        return self._order_of(pace, first), self._order_of(pace, second)

    def _order_of(self, pace: Pace, times: int) -> Order:
        if pace.evict:
            self._cursor = 0  # both lengths start with the same set, each after an eviction
        return self._next_order(times * pace.launches)

    def _difference(
        self, pair: tuple[Order, Order], readings: Sequence[Reading], *, wall_s: float
    ) -> Sample:
        """Return (T₂ₙ − Tₙ) / N, in which the fixed cost of a replay cancels."""
        count = min(len(order) for order in pair)
        short, long = readings if len(pair[0]) == count else reversed(readings)
        launch_s = (long.elapsed_s - short.elapsed_s) / count
        if launch_s <= 0:
            self.fallbacks += 1
            launch_s = long.elapsed_s / (2 * count)
        if launch_s <= 0:
            raise _BelowNoise(
                Reason("kernel time is below the noise of the background load", "below-noise"),
                hint="measure with strain=none",
            )
        return Sample(
            launch_s=launch_s,
            clock_mhz=long.clock_mhz,
            timed_s=short.elapsed_s + long.elapsed_s,
            wall_s=wall_s,
            run_wall_s=wall_s,
        )

    def _timed(self, order: Order) -> tuple[Reading, float, float]:
        """Return a reading without the background load, and the device and host seconds spent."""
        with_load = self._recorded(order)
        alone = None if self._background is None else self._recorded(order, background_only=True)
        start = time.perf_counter()
        reading = with_load.run()
        spent_s = reading.spent_s
        if alone is not None:
            load = alone.run()
            spent_s += load.elapsed_s
            reading = dataclasses.replace(reading, elapsed_s=reading.elapsed_s - load.elapsed_s)
        return reading, spent_s, time.perf_counter() - start

    def _recorded(self, order: Order, *, background_only: bool = False) -> Replay:
        key = (order[0], len(order), background_only)
        if key not in self._replays:
            start = time.perf_counter()
            launch = self._launch_to_record(background_only=background_only)
            self._replays[key] = self._device.record(launch, order, self._timer)
            self.record_s += time.perf_counter() - start
        return self._replays[key]

    def _launch_to_record(self, *, background_only: bool) -> Launch:
        background, launch = self._background, self._launch
        if background is None:
            return launch
        if background_only:
            return background

        def launch_both(stream: Stream, index: int) -> None:
            background(stream, index)
            launch(stream, index)

        return launch_both

    def _next_order(self, launches: int) -> Order:
        start, sets = self._cursor, self.sets
        self._cursor = (start + launches) % sets
        order = self._orders.get((start, launches))
        if order is None:
            order = tuple((start + i) % sets for i in range(launches))
            self._orders[start, launches] = order
        if len(self.launched) < sets:
            self.launched.update(order[:sets])
        return order


def _flush_launch(device: Device) -> Launch:
    """Return a launch that evicts the cache; timed and subtracted like background load."""

    def evict(stream: Stream, index: int) -> None:
        device.evict_cache()

    return evict


def _strain_launch(device: Device, strain: Strain) -> Launch | None:
    if strain is Strain.NONE:
        return None
    if not isinstance(device, Straining):
        raise Unsupported(
            f"strain={strain} needs a GPU: on a CPU, a launch ends before the next begins",
            hint="use strain=none",
        )

    def load(stream: Stream, index: int) -> None:
        device.strain(strain)

    return load
