"""Rig: common interface of a device to microbenchmarks: kernels, memory and clocks."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.result import Telemetry
from kernelmark.core.units import bytes_text
from kernelmark.devices.base import Buffer, Device
from kernelmark.micro import _kernels
from kernelmark.micro.hardware import Hardware

CHUNK_BYTES = 4096  # read at a time by a warp of micro_window.cu: 32 lanes × 8 loads × 16 bytes
MOST_ROUNDS = 2**28  # a kernel's counter of rounds has 32 bits
MOST_LAUNCHES = 250  # in one timing: a full queue would block the host, which has to open the gate
_HOST_S = 0.02  # maximum host time of a launch beyond the kernel's own time
_LONGEST_S = 0.2  # maximum host time of a trial launch
_TRIALS = 6  # by a factor of up to 64 each: from a microsecond to hours
_BATCH_S = 0.02  # launches without a pause in `sustain`: longer than a telemetry reading takes
_SETTLED = 1 / 3  # fraction of a sustained call after which power and clock are nearly constant
_READ_S = 0.1  # between two readings: NVML itself updates its figures about that often
_MANY = 11  # durations, above which the spread of a median is that of the middle half
_ENERGY_S = 0.2  # the driver's energy counter is updated in steps of up to 0.1 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds per launch, and the core clock during it; None if it cannot be read. `waited` is the
    fraction of the time in which a thread of a CPU waited for its core."""

    elapsed_s: float
    clock_mhz: float | None = None
    waited: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """The typical value of repeated readings, and their spread; None for a single reading."""

    value: float
    spread: float | None

    def over(self, count: float) -> Typical:
        """Return the same for one of `count` equal parts."""
        return Typical(value=self.value / count, spread=self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Several timings of one call, and the core cycles of a block in each, if they were counted;
    `waited` is that of each `Timed`; `steady` if two more rounds confirmed the best one."""

    seconds: tuple[float, ...]
    clocks_mhz: tuple[float, ...] = ()
    exclusive: bool = True
    waited: tuple[float, ...] = ()
    block_cycles: tuple[float, ...] = ()
    steady: bool | None = None  # None: not in rounds

    @property
    def typical_s(self) -> float:
        return typical_of(self.seconds, exclusive=self.exclusive).value

    @property
    def spread(self) -> float | None:
        """Return the spread of `typical_s`."""
        return typical_of(self.seconds, exclusive=self.exclusive, waited=self.waited).spread

    @property
    def cycles(self) -> Typical | None:
        """Return the typical cycles of a block; None if the device cannot count them."""
        if not self.block_cycles:
            return None
        return typical_of(self.block_cycles, exclusive=self.exclusive, waited=self.waited)

    def cycles_over(self, count: float) -> Typical:
        """Return the cycles of one of `count` equal parts, on a device that can count them."""
        assert self.cycles is not None
        return self.cycles.over(count)

    @property
    def best(self) -> Timed:
        """Return the shortest timing."""
        shortest = min(self.seconds)
        at = self.seconds.index(shortest)
        return Timed(elapsed_s=shortest, waited=self.waited[at] if self.waited else 0.0)

    @property
    def clock_mhz(self) -> float | None:
        return statistics.median(self.clocks_mhz) if self.clocks_mhz else None


def typical_of(
    durations: Iterable[float], *, exclusive: bool = True, waited: Iterable[float] = ()
) -> Typical:
    """Return the median of durations with its spread. On a device that is not `exclusive`, other
    work lengthens launches and nothing shortens them, so the shortest counts. `waited` is that of
    each `Timed`."""
    every = tuple(durations)
    return Typical(
        value=statistics.median(every) if exclusive else min(every),
        spread=spread_of(every, shortest=not exclusive, waited=tuple(waited)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """Timings of a call that ran for a while, and the telemetry during it; None if the call was too
    short for a reading."""

    samples: Samples
    seen: Telemetry | None

    @property
    def power_w(self) -> float | None:
        return self.seen.power_w if self.seen else None

    @property
    def throttle(self) -> str | None:
        """Return the reasons for throttling; empty if there was none."""
        return ", ".join(self.seen.throttle) if self.seen else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundKernel:
    """A kernel with its arguments, ready to be launched repeatedly."""

    file: str
    kernel: str
    function: Any
    arguments: Any
    grid: int = 1
    block: int = 1
    shared_bytes: int = 0


@dataclass(slots=True)
class _Ledger:
    buffers: list[Buffer] = field(default_factory=list)
    compile_s: float = 0.0
    compilations: int = 0
    trace: list[Telemetry] = field(default_factory=list)


class Rig(ABC):
    """The device interface of a microbenchmark. `release` frees everything that it allocated."""

    device: Device
    info: DeviceInfo
    hardware: Hardware
    grid: int  # full-size blocks that fill the device once: SMs/CUs, or threads of a CPU
    block: int = 1  # threads of a full-size block
    lanes: int = 1  # threads per warp or wavefront
    vector_bytes: int = 16  # bytes of the widest load
    threads: int = 0  # of a CPU
    exclusive: bool = True  # no other process uses it

    def __init__(self) -> None:
        self.ledger = _Ledger()
        self.notes: list[str] = []  # about how the kernels were built, for every result
        # Called by `time` while the launches run; on a CPU, after them.
        self._during_launches: Callable[[], None] | None = None

    # -- kernels

    def call(
        self,
        file: Any,
        kernel: Any,
        *values: Any,
        grid: int = 1,
        block: int = 1,
        shared_bytes: int = 0,
        types: dict[str, str] | None = None,
    ) -> BoundKernel:
        """Return a call of `kernel` in `file`, with arguments packed by its declaration."""
        function, arguments = self._bind(
            file, kernel, _kernels.pack(file, kernel, values, types or {}), shared_bytes
        )
        return BoundKernel(
            file=file,
            kernel=kernel,
            function=function,
            arguments=arguments,
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
        )

    @abstractmethod
    def _bind(
        self, file: str, kernel: str, arguments: list[Any], shared_bytes: int
    ) -> tuple[Any, Any]:
        """Return the function of a kernel, and its arguments as the device takes them."""

    @abstractmethod
    def time(self, call: BoundKernel, launches: int = 1) -> Timed:
        """Run a call `launches` times in a row and wait."""

    def run(self, call: BoundKernel) -> Timed:
        """Run a call once and wait."""
        return self.time(call)

    def prefer_cache(self, call: BoundKernel) -> None:
        """Give L1 all of the memory that it shares with shared memory, if they share any."""

    @abstractmethod
    def kernels(self, file: str) -> frozenset[str]:
        """Return the kernels that `file` has for this device."""

    @property
    def warps(self) -> int:
        """Return the warps of a full-size block."""
        return self.block // self.lanes

    # -- memory

    def memory(self, nbytes: int) -> Buffer:
        """Allocate device memory until `release`, at most three quarters of the free memory."""
        self.check_free(nbytes)
        buffer = self.device.allocate(nbytes)
        self.ledger.buffers.append(buffer)
        return buffer

    def check_free(self, nbytes: int) -> None:
        # The driver needs memory too, and on a CPU the rest of the machine does.
        most = 0.75 * self.device.free_bytes()
        if nbytes > most:
            share = "three quarters of the free memory"
            raise Unsupported(
                f"{bytes_text(nbytes)} does not fit: {bytes_text(most)} can be used, {share}"
            )

    def untouched(self, nbytes: int) -> Buffer:
        """Allocate memory that was not written to yet, if that makes a difference."""
        return self.memory(nbytes)

    def upload(self, array: NDArray[Any]) -> Buffer:
        """Return a copy of `array` in the device's memory."""
        buffer = self.memory(max(16, array.nbytes))
        self.device.write(buffer, 0, np.ascontiguousarray(array).view(np.uint8).ravel())
        return buffer

    def read(self, buffer: Buffer, kind: DTypeLike, count: int, offset: int = 0) -> NDArray[Any]:
        """Read `count` numbers from the device's memory."""
        nbytes = np.dtype(kind).itemsize * count
        return self.device.read(buffer, offset, nbytes).view(kind)

    def zero(self, buffer: Buffer, nbytes: int | None = None) -> None:
        """Fill a buffer with zeros."""
        count = buffer.nbytes if nbytes is None else nbytes
        self.device.write(buffer, 0, np.zeros(count, np.uint8))

    def release(self, buffers: Iterable[Buffer] | None = None) -> None:
        """Free `buffers`, or all."""
        for buffer in list(self.ledger.buffers if buffers is None else buffers):
            self.ledger.buffers.remove(buffer)
            self.device.free(buffer)

    # -- clocks

    @property
    @abstractmethod
    def clock_mhz(self) -> float:
        """Return the core clock that converts time to cycles if a timing has no clock."""

    def clock_during(self, samples: Samples) -> float | None:
        """Return the core clock during `samples`; None if it was not read then."""
        return samples.clock_mhz or self.clock_mhz

    @abstractmethod
    def warm_up(self) -> None:
        """Run work until the core clock has ramped up."""

    def sample(
        self,
        call: BoundKernel,
        *,
        samples: int,
        seconds: float = 2e-3,
        launches: int | None = None,
        clocks: Buffer | None = None,
    ) -> Samples:
        """Time `call` repeatedly, each time with as many launches as take `seconds`, after one
        untimed launch. With `clocks`, the buffer of the kernel's clock stamps, core cycles are
        read after each timing, if the device can count them."""
        if launches is None:
            first = self.time(call)
            launches = max(1, math.ceil(seconds / max(first.elapsed_s, 1e-7)))
        timed, cycles = [], []
        for _ in range(samples):
            timed.append(self.time(call, min(launches, MOST_LAUNCHES)))
            if clocks is not None and self.no_cycles is None:
                # The median block: one that an interrupt or a page fault held up does not count.
                cycles.append(float(np.median(self.cycles(clocks, call.grid))))
        return self.samples(timed, cycles)

    def calibrated(
        self, make: Callable[[int], BoundKernel], first: int, seconds: float
    ) -> tuple[int, BoundKernel]:
        """Return a number of rounds, at least `first`, and a call of that many, so that a launch
        takes about `seconds`. The trial launches also warm the caches."""
        rounds = first
        for _ in range(_TRIALS):
            call = make(rounds)
            taken, waited = self._trial_s(call)
            if taken > 0.6 * seconds or rounds >= MOST_ROUNDS:
                break
            # A short launch is mostly start-up, so limit the growth per step.
            most = min(64.0, max(2.0, _LONGEST_S / max(waited, 1e-6)))
            rounds = min(MOST_ROUNDS, math.ceil(rounds * min(seconds / max(taken, 1e-7), most)))
        return rounds, make(rounds)

    def _trial_s(self, call: BoundKernel) -> tuple[float, float]:
        """Return (seconds of a launch, seconds the host waited for it). If the host waited much
        longer, twice, use its clock: a wrong device clock must lead to a wrong result, not to a
        launch that takes hours."""
        begin = time.monotonic()
        taken = self.time(call).elapsed_s
        waited = time.monotonic() - begin
        if waited - taken > _HOST_S:
            begin = time.monotonic()
            self.run(call)
            waited = min(waited, time.monotonic() - begin)
        return max(taken, waited - _HOST_S), waited

    def samples(self, timed: Sequence[Timed], cycles: Sequence[float] = ()) -> Samples:
        """Combine timings, and the cycles of a block in each, into `Samples`."""
        return Samples(
            seconds=tuple(t.elapsed_s for t in timed),
            clocks_mhz=tuple(t.clock_mhz for t in timed if t.clock_mhz is not None),
            exclusive=self.exclusive,
            waited=tuple(t.waited for t in timed),
            block_cycles=tuple(cycles),
        )

    def typical(self, durations: Iterable[float], waited: Iterable[float] = ()) -> Typical:
        """Return the typical one of durations that a kernel measured itself."""
        return typical_of(durations, exclusive=self.exclusive, waited=waited)

    @property
    def no_cycles(self) -> str | None:
        """Return None, or one sentence on why kernels cannot count core cycles on this device."""
        return None

    def cycles(self, clocks: Buffer, blocks: int) -> NDArray[np.float64]:
        """Return the cycles of each block, from the pairs of clock stamps."""
        if self.no_cycles is not None:
            raise Unsupported(self.no_cycles)
        pairs = self.read(clocks, np.uint64, 2 * blocks).reshape(blocks, 2)
        ticks: NDArray[np.float64] = (pairs[:, 1] - pairs[:, 0]).astype(np.float64)
        return ticks * self.ticks_to_cycles

    @property
    def ticks_to_cycles(self) -> float:
        """Return the core cycles per tick of the kernels' core clock."""
        return 1.0

    @property
    @abstractmethod
    def wall_tick_s(self) -> float:
        """Return the seconds per tick of the kernels' wall clock."""

    def look(self) -> Telemetry:
        """Read the device's telemetry now and keep it for the result."""
        self.device.watch()
        telemetry = self.device.telemetry()
        self.ledger.trace.append(telemetry)
        return telemetry

    def sustain(self, call: BoundKernel, seconds: float) -> Sustained:
        """Time `call` over at least `seconds`. Telemetry is read while launches run: directly after
        them the device would already be idle."""
        launches = 1
        if self.exclusive:
            each = max(self.time(call).elapsed_s, 1e-7)
            launches = min(math.ceil(_BATCH_S / each), MOST_LAUNCHES)
        timed: list[Timed] = []
        readings: list[tuple[float, Telemetry]] = []
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < seconds or len(timed) < 3:
            if passed >= _SETTLED * seconds:
                self._during_launches = lambda: self._append_reading(readings)
            try:
                timed.append(self.time(call, launches))
            finally:
                self._during_launches = None
        return Sustained(samples=self.samples(timed), seen=together(readings))

    def _append_reading(self, readings: list[tuple[float, Telemetry]]) -> None:
        """Append a telemetry reading with its time, unless the last one is too recent or
        unchanged."""
        if readings and time.monotonic() - readings[-1][0] < _READ_S:
            return
        self.device.watch()
        now, seen = time.monotonic(), self.device.telemetry()
        if not self.ledger.trace or seen is not self.ledger.trace[-1]:
            readings.append((now, seen))
            self.ledger.trace.append(seen)

    def close(self) -> None:
        """Free everything and close the device."""
        self.release()
        self.device.close()


def spread_of(
    durations: Sequence[float], *, shortest: bool = False, waited: Sequence[float] = ()
) -> float | None:
    """Return how far repeated durations differ, as a fraction; None for a single one.

    For a median it is (longest − shortest) / median, over the middle half if there are many
    durations: the extremes of many say nothing about their median.

    With `shortest`, the shortest counts as the result, and other work that lengthens some of the
    others does not change it: the spread is (second shortest − shortest) / shortest. If all
    launches are longer than a time slice, other work lengthens all of them, maybe by the same
    factor. So the spread is at least the fraction of the result in which a thread `waited` for its
    core.
    """
    if len(durations) < 2:
        return None
    ordered = sorted(durations)
    middle = ordered[0] if shortest else statistics.median(ordered)
    if middle <= 0:  # clocks of an emulated device may stand still
        return None
    if shortest:
        spread = (ordered[1] - middle) / middle
        return max(spread, waited_in_shortest(durations, waited))
    outer = len(ordered) // 4 if len(ordered) > _MANY else 0
    spread = (ordered[-1 - outer] - ordered[outer]) / middle
    return max(spread, statistics.median(waited) if waited else 0.0)


def waited_in_shortest(durations: Sequence[float], waited: Sequence[float]) -> float:
    """Return the `waited` of the shortest duration; 0 if it was not measured."""
    return min(zip(durations, waited, strict=False), default=(0.0, 0.0))[1]


def widest(spreads: Iterable[float | None]) -> float | None:
    """Return the largest spread; None if there is none."""
    return max((spread for spread in spreads if spread is not None), default=None)


def together(readings: Sequence[tuple[float, Telemetry]]) -> Telemetry | None:
    """Merge readings over an interval: the last one, with all throttle reasons seen, and with the
    mean power from the energy counter, if there is one."""
    if not readings:
        return None
    (begin, first), (end, last) = readings[0], readings[-1]
    power = last.power_w
    if first.energy_j is not None and last.energy_j is not None and end - begin >= _ENERGY_S:
        used = last.energy_j - first.energy_j
        power = used / (end - begin) if used > 0 else power
    reasons = tuple(dict.fromkeys(why for _, seen in readings for why in seen.throttle))
    return dataclasses.replace(last, power_w=power, throttle=reasons)
