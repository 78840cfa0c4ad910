"""Samples: how many launches each holds, over which argument sets, and how they are timed."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.timing import Cache, Duty, Strain, Timer, Timing
from kernelmark.devices.base import Device, Launch, Reading, Replay, Stream, own_queue

# A block is cut into about this many samples: enough for a median, few enough to be stored.
SAMPLES_PER_BLOCK = 30
# A device that enqueues has tighter samples, and rests while the host reads each of them.
ENQUEUED_PER_BLOCK = 16
# Samples that are enqueued at once.
BATCH = 32
# Recorded launches cost memory and, behind a gate, room in the device's queue: it holds about a
# thousand kernels, and a launch may be three.
RECORDED_LIMIT = {Timer.GRAPH: 4096, Timer.GATE: 256}
# Burst: launches run a tenth of the time at most, but no rest is longer than this.
REST_FACTOR = 9.0
MAX_REST_S = 0.5
# Replays that are recorded before they are needed, at most.
_MOST_PREPARED = 8
# A kernel of 1 µs between evictions of 50 µs: their jitter alone makes some samples negative.
_MOST_ATTEMPTS = 10
# No launch is shorter: keeps counts sane where a clock says nothing passed.
SHORTEST_S = 1e-7

Order = tuple[int, ...]  # the argument sets of a replay's launches


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
    sets, else a divisor of them so that passes continue from sample to sample. A sample of two
    lengths is three times its launches; `launch_s` is with all that is around a launch."""
    burst = timing.duty is Duty.BURST
    if timing.cache is Cache.FLUSH and not two_lengths:
        return Pace(launches=1, two_lengths=False, evict=True, rest=burst)
    weight, samples = (3, ENQUEUED_PER_BLOCK) if two_lengths else (1, SAMPLES_PER_BLOCK)
    sample_s = max(timing.min_sample_s, block_s / samples) / weight
    around = timing.strain is not Strain.NONE or timing.cache is Cache.FLUSH
    limit = recorded_limit(method, two_lengths=two_lengths, around=around)
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


def recorded_limit(method: Timer, *, two_lengths: bool = False, around: bool = False) -> int:
    """Launches one replay may hold; half as many with as many others around them."""
    return RECORDED_LIMIT.get(method, 1 << 30) // ((1 + two_lengths) * (1 + around))


def samples_in(seconds: float, pace: Pace, launch_s: float) -> int:
    """How many samples of a pace take about `seconds`; one at least, and no more than a batch."""
    one_s = pace.launches * (3 if pace.two_lengths else 1) * max(launch_s, SHORTEST_S)
    return max(1, min(BATCH, round(seconds / one_s)))


class _Lost(CaseError):
    """What is around the launches took longer alone than with them."""


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
        self._orders: dict[tuple[int, int], Order] = {}
        self._cursor = 0
        self._turn = 0
        self._gross_s = 0.0  # of a launch of the last sample, with what is around it
        self.touched: set[int] = set()
        self.fallbacks = 0
        self.record_s = 0.0  # host seconds spent on recording

    def restart(self) -> None:
        """Begin at the first set again and forget which were touched."""
        self._cursor = 0
        self.touched.clear()

    def fit(self, pace: Pace) -> Pace:
        """The pace in numbers that a kernel with a queue of its own takes evenly."""
        if self._queue is None:
            return pace
        launches = self._queue.even_launches(pace.launches)
        if pace.evict and launches * (2 if pace.two_lengths else 1) > self.sets:
            return pace  # a second visit to a set would not be cold
        return dataclasses.replace(pace, launches=launches)

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
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            self._precede(pace)
            if pace.evict:
                self._device.synchronize()
            try:
                found = self._two_lengths(pace) if pace.two_lengths else self._one_length(pace)
                break
            except _Lost:
                if attempt == _MOST_ATTEMPTS:
                    raise
        if pace.rest:
            time.sleep(min(REST_FACTOR * found.run_wall_s, MAX_REST_S))
        return dataclasses.replace(found, wall_s=time.perf_counter() - start)

    def samples(
        self, pace: Pace, count: int, meanwhile: Callable[[], None] | None = None
    ) -> list[Sample]:
        """`count` samples: one after the other without a pause, where nothing comes between. The
        host does `meanwhile` while the device has them in its queue."""
        if not self.takes_batches(pace):
            if meanwhile is not None:
                meanwhile()
            return [self.sample(pace) for _ in range(count)]
        pairs = [self._pair(pace) for _ in range(count)]
        replays = [self._recorded(order, strained_only=False) for pair in pairs for order in pair]
        start = time.perf_counter()
        readings = self._device.run_all(
            replays,
            before=lambda at: self._precede(pace, second=at % 2 == 1),
            meanwhile=meanwhile,
        )
        wall_s = (time.perf_counter() - start) / count
        return [
            self._difference(pair, readings[2 * at : 2 * at + 2], wall_s=wall_s)
            for at, pair in enumerate(pairs)
        ]

    def again(self, launches: int, count: int) -> Callable[[], float]:
        """The first `launches` sets, `count` times for nothing, as `touch` does."""
        self.restart()
        replay = self._recorded(self._next_order(launches), strained_only=False)
        self.restart()
        return self._device.run_ahead([replay] * count)

    def touch(self, pace: Pace, count: int) -> Callable[[], float]:
        """Run `count` samples for nothing, without waiting where the device need not; what comes
        back waits and tells the seconds they took on the device's clock."""
        orders = [order for _ in range(count) for order in self._pair(pace)]
        replays = [self._recorded(order, strained_only=False) for order in orders]
        return self._device.run_ahead(replays)

    def takes_batches(self, pace: Pace) -> bool:
        """Whether several samples at once are quicker than one by one."""
        return pace.two_lengths and not pace.rest and self._idle is None and self._queue is None

    def prepare(self, pace: Pace) -> None:
        """Record what the first samples of a pace replay."""
        recorded = -1
        while pace.two_lengths and recorded < len(self._replays) <= _MOST_PREPARED:
            recorded = len(self._replays)
            for order in self._pair(pace):
                self._recorded(order, strained_only=False)
        self.restart()
        self._turn = 0

    def gross_s(self, launch_s: float) -> float:
        """What a launch of `launch_s` costs in a sample: with strain or evictions around it, and
        with the replays of those alone."""
        return max(launch_s, self._gross_s)

    def close(self) -> None:
        """Give back the recorded replays."""
        for replay in self._replays.values():
            replay.close()
        self._replays.clear()

    def _one_length(self, pace: Pace) -> Sample:
        reading, spent_s, wall_s = self._timed(self._next_order(pace.launches))
        if reading.elapsed_s <= 0:
            raise CaseError("the clock did not move during a sample", hint="raise min_sample_s")
        return Sample(
            launch_s=reading.elapsed_s / pace.launches,
            clock_mhz=reading.clock_mhz,
            timed_s=spent_s,
            wall_s=wall_s,
            run_wall_s=wall_s,
        )

    def _precede(self, pace: Pace, *, second: bool = False) -> None:
        """Enqueue what comes before a replay. Both lengths of a sample have to find the block
        scheduler in the same state, or their difference mixes two modes: the second follows the
        first at once, which preserves the state. An eviction between them does not."""
        if pace.evict:
            self._device.evict_cache()
        if pace.evict or not second:
            self._device.disturb_scheduler()

    def _two_lengths(self, pace: Pace) -> Sample:
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
        if self._idle is not None:
            self._gross_s = spent_s / (3 * pace.launches)
        found = self._difference(pair, readings, wall_s=wall_s)
        return dataclasses.replace(found, timed_s=spent_s)

    def _pair(self, pace: Pace) -> tuple[Order, Order]:
        """What the two replays of a sample launch, in the order they run. The two lengths take
        turns in coming first, so that a drift cancels."""
        self._turn ^= 1
        first = self._half(pace, 1 if self._turn else 2)
        return first, self._half(pace, 2 if self._turn else 1)

    def _half(self, pace: Pace, times: int) -> Order:
        if pace.evict:
            self._cursor = 0  # both lengths begin alike, after an eviction each
        return self._next_order(times * pace.launches)

    def _difference(
        self, pair: tuple[Order, Order], readings: Sequence[Reading], *, wall_s: float
    ) -> Sample:
        """(T₂ₙ − Tₙ) / N: what a replay costs however long it is cancels."""
        count = min(len(order) for order in pair)
        short, long = readings if len(pair[0]) == count else reversed(readings)
        launch_s = (long.elapsed_s - short.elapsed_s) / count
        if launch_s <= 0:
            self.fallbacks += 1
            launch_s = long.elapsed_s / (2 * count)
        if launch_s <= 0:
            raise _Lost(
                "the kernel is lost in the strain around it: their difference is not positive",
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
        """A reading less the strain around it, device seconds and host seconds it took."""
        strained = self._recorded(order, strained_only=False)
        alone = None if self._idle is None else self._recorded(order, strained_only=True)
        start = time.perf_counter()
        reading = strained.run()
        spent_s = reading.elapsed_s
        if alone is not None:
            idle = alone.run()
            spent_s += idle.elapsed_s
            reading = dataclasses.replace(reading, elapsed_s=reading.elapsed_s - idle.elapsed_s)
        return reading, spent_s, time.perf_counter() - start

    def _recorded(self, order: Order, *, strained_only: bool) -> Replay:
        key = (order[0], len(order), strained_only)
        if key not in self._replays:
            start = time.perf_counter()
            launch = self._launch_with_strain(strained_only=strained_only)
            self._replays[key] = self._device.record(launch, order, self._timer)
            self.record_s += time.perf_counter() - start
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

    def _next_order(self, launches: int) -> Order:
        start, sets = self._cursor, self.sets
        self._cursor = (start + launches) % sets
        order = self._orders.get((start, launches))
        if order is None:
            order = tuple((start + i) % sets for i in range(launches))
            self._orders[start, launches] = order
        if len(self.touched) < sets:
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
