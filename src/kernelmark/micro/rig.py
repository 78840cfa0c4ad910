"""Rig: a device set up for microbenchmarks; kernels, memory and clocks behind one face."""

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
from kernelmark.devices.base import Buffer, Device
from kernelmark.micro.hardware import Hardware

CHUNK_BYTES = 4096  # what a warp of micro_window.cu reads at a time
MOST_ROUNDS = 2**28
MOST_LAUNCHES = 250  # in one timing: a full queue would hold the host
_HOST_S = 0.02  # that a launch and the wait for it may take beside the launch itself
_LONGEST_S = 0.2  # of a launch that is tried, by the host's clock
_BATCH_S = 0.02  # launches without a pause while a call is sustained: longer than a reading takes
_SETTLED = 1 / 3  # of a sustained call, after which power and clock no longer rise or fall much
_READ_S = 0.1  # between two readings
_ENERGY_S = 0.2  # the driver's energy counter moves in steps of up to a tenth of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds a launch, and the core clock meanwhile; None where it cannot be read."""

    elapsed_s: float
    clock_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Several timings of one call."""

    seconds: tuple[float, ...]
    clocks_mhz: tuple[float, ...] = ()
    exclusive: bool = True

    @property
    def typical_s(self) -> float:
        """The median; the shortest on a device that others may be using as well."""
        return self.median_s if self.exclusive else self.best_s

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best_s(self) -> float:
        return min(self.seconds)

    @property
    def clock_mhz(self) -> float | None:
        return statistics.median(self.clocks_mhz) if self.clocks_mhz else None

    def spread(self) -> float:
        """Largest distance between two, as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """Timings of a call that went on for a while, and what the device said of itself meanwhile;
    None where that was too short to be read."""

    samples: Samples
    seen: Telemetry | None

    @property
    def power_w(self) -> float | None:
        return self.seen.power_w if self.seen else None

    @property
    def throttle(self) -> str | None:
        """Why the clock was held down; empty where it was not."""
        return ", ".join(self.seen.throttle) if self.seen else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A kernel with its arguments, ready to be launched as often as wanted."""

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
    """What a microbenchmark works with. Everything it allocates is given back by `release`."""

    device: Device
    info: DeviceInfo
    hardware: Hardware
    lanes: int = 1  # threads that run in step
    vector_bytes: int = 16  # one load of the widest kind
    threads: int = 0  # of a CPU
    exclusive: bool = True  # nobody else uses it meanwhile

    def __init__(self) -> None:
        self.ledger = _Ledger()
        self.notes: list[str] = []  # what every result says of how its kernels were made
        # Called by `time` while the launches run, or after them where the host is what runs them.
        self._beside: Callable[[], None] | None = None

    # -- kernels

    @abstractmethod
    def call(
        self,
        file: Any,
        kernel: Any,
        *values: Any,
        grid: int = 1,
        block: int = 1,
        shared_bytes: int = 0,
        types: dict[str, str] | None = None,
    ) -> Call:
        """`kernel` of `file` with arguments packed by its declaration."""

    @abstractmethod
    def time(self, call: Call, launches: int = 1) -> Timed:
        """Run it `launches` times in a row and wait."""

    def run(self, call: Call) -> None:
        """Run it once and wait."""
        self.time(call)

    def prefer_cache(self, call: Call) -> None:
        """Give the first cache all the memory that it shares with shared memory, where it does."""

    @abstractmethod
    def kernels(self, file: str) -> frozenset[str]:
        """Return the kernels that `file` has for this device."""

    @property
    @abstractmethod
    def grid(self) -> int:
        """Blocks of a full-size block that fill the device once: units, or threads of a CPU."""

    @property
    @abstractmethod
    def block(self) -> int:
        """Threads of a full-size block."""

    @property
    def warps(self) -> int:
        """Warps of a full-size block."""
        return self.block // self.lanes

    # -- memory

    def memory(self, nbytes: int) -> Buffer:
        """Memory of the device until `release`, never more than three quarters of what is free."""
        self.check_free(nbytes)
        made = self.device.allocate(nbytes)
        self.ledger.buffers.append(made)
        return made

    def check_free(self, nbytes: int) -> None:
        if nbytes > 0.75 * self.device.free_bytes():
            free = self.device.free_bytes() / 2**30
            raise Unsupported(f"{nbytes / 2**30:.1f} GiB are needed and {free:.1f} GiB are free")

    def untouched(self, nbytes: int) -> Buffer:
        """Memory that nobody has written to yet, where that makes a difference."""
        return self.memory(nbytes)

    def place(self, array: NDArray[Any]) -> Buffer:
        """Return a copy of `array` in the device's memory."""
        buffer = self.memory(max(16, array.nbytes))
        self.device.write(buffer, 0, np.ascontiguousarray(array).view(np.uint8).ravel())
        return buffer

    def read(self, buffer: Buffer, kind: DTypeLike, count: int, offset: int = 0) -> NDArray[Any]:
        """`count` numbers out of the device's memory."""
        nbytes = np.dtype(kind).itemsize * count
        return self.device.read(buffer, offset, nbytes).view(kind)

    def zero(self, buffer: Buffer, nbytes: int | None = None) -> None:
        """Set it to zeros."""
        count = buffer.nbytes if nbytes is None else nbytes
        self.device.write(buffer, 0, np.zeros(count, np.uint8))

    def release(self, buffers: Iterable[Buffer] | None = None) -> None:
        """Give back `buffers`, or everything."""
        for buffer in list(self.ledger.buffers if buffers is None else buffers):
            self.ledger.buffers.remove(buffer)
            self.device.free(buffer)

    # -- clocks

    @property
    @abstractmethod
    def clock_mhz(self) -> float:
        """The core clock that converts time to cycles if a timing has none of its own."""

    def clock_during(self, samples: Samples) -> float | None:
        """Return the core clock while `samples` were taken; None where nobody read it then."""
        return samples.clock_mhz or self.clock_mhz

    @abstractmethod
    def warm_up(self) -> None:
        """Work until the clock is up."""

    def sample(
        self,
        call: Call,
        *,
        samples: int,
        seconds: float = 2e-3,
        launches: int | None = None,
        after: Callable[[], None] | None = None,
    ) -> Samples:
        """Timings of `call`, each of as many launches as take `seconds`, after one untimed;
        `after` is called after each of them."""
        if launches is None:
            first = self.time(call)
            launches = max(1, math.ceil(seconds / max(first.elapsed_s, 1e-7)))
        timed = []
        for _ in range(samples):
            timed.append(self.time(call, min(launches, MOST_LAUNCHES)))
            if after is not None:
                after()
        return self.samples(timed)

    def calibrated(
        self, make: Callable[[int], Call], first: int, seconds: float
    ) -> tuple[int, Call]:
        """Return (rounds, call of that many) so that a launch takes about `seconds`, never fewer
        than `first`. What it ran for this has warmed the caches."""
        rounds = first
        for _ in range(6):
            call = make(rounds)
            taken, waited = self._taken(call)
            if taken > 0.6 * seconds or rounds >= MOST_ROUNDS:
                break
            # A short launch is mostly start-up: it must not decide alone.
            most = min(64.0, max(2.0, _LONGEST_S / max(waited, 1e-6)))
            rounds = min(MOST_ROUNDS, math.ceil(rounds * min(seconds / max(taken, 1e-7), most)))
        return rounds, make(rounds)

    def _taken(self, call: Call) -> tuple[float, float]:
        """Return (seconds of a launch, seconds the host waited for it). Where the host waited far
        longer, and did so twice, its clock is believed: a wrong one must end as a wrong result, not
        as a launch that goes on for hours."""
        begin = time.monotonic()
        taken = self.time(call).elapsed_s
        waited = time.monotonic() - begin
        if waited - taken > _HOST_S:
            begin = time.monotonic()
            self.run(call)
            waited = min(waited, time.monotonic() - begin)
        return max(taken, waited - _HOST_S), waited

    def samples(self, timed: Iterable[Timed]) -> Samples:
        """Timings put together."""
        every = tuple(timed)
        return Samples(
            seconds=tuple(t.elapsed_s for t in every),
            clocks_mhz=tuple(t.clock_mhz for t in every if t.clock_mhz is not None),
            exclusive=self.exclusive,
        )

    def typical(self, durations: Iterable[float]) -> float:
        """Return the median of durations; the shortest on a device that others may be using as
        well."""
        return statistics.median(durations) if self.exclusive else min(durations)

    @property
    def no_cycles(self) -> str | None:
        """None, or one sentence on why kernels cannot count core cycles here."""
        return None

    def cycles(self, clocks: Buffer, blocks: int) -> NDArray[np.float64]:
        """Cycles that each block took, from the pairs that kernels stamp."""
        if self.no_cycles is not None:
            raise Unsupported(self.no_cycles)
        pairs = self.read(clocks, np.uint64, 2 * blocks).reshape(blocks, 2)
        ticks: NDArray[np.float64] = (pairs[:, 1] - pairs[:, 0]).astype(np.float64)
        return ticks * self.ticks_to_cycles

    @property
    def ticks_to_cycles(self) -> float:
        """Core cycles for one tick of what kernels read as the core clock."""
        return 1.0

    @property
    @abstractmethod
    def wall_tick_s(self) -> float:
        """Seconds for one tick of what kernels read as the wall clock."""

    def look(self) -> Telemetry:
        """Return the device's own readings now, which are kept with the result."""
        self.device.watch()
        telemetry = self.device.telemetry()
        self.ledger.trace.append(telemetry)
        return telemetry

    def sustain(self, call: Call, seconds: float) -> Sustained:
        """Timings of `call` over at least `seconds`. The device is read while launches run: a
        moment later it would be at rest."""
        launches = 1
        if self.exclusive:
            each = max(self.time(call).elapsed_s, 1e-7)
            launches = min(math.ceil(_BATCH_S / each), MOST_LAUNCHES)
        timed: list[Timed] = []
        readings: list[tuple[float, Telemetry]] = []
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < seconds or len(timed) < 3:
            if passed >= _SETTLED * seconds:
                self._beside = lambda: self._note(readings)
            try:
                timed.append(self.time(call, launches))
            finally:
                self._beside = None
        return Sustained(samples=self.samples(timed), seen=together(readings))

    def _note(self, readings: list[tuple[float, Telemetry]]) -> None:
        """A reading with its time, unless it is still the last one."""
        if readings and time.monotonic() - readings[-1][0] < _READ_S:
            return
        self.device.watch()
        now, seen = time.monotonic(), self.device.telemetry()
        if not self.ledger.trace or seen is not self.ledger.trace[-1]:
            readings.append((now, seen))
            self.ledger.trace.append(seen)

    def close(self) -> None:
        """Give everything back."""
        self.release()
        self.device.close()


def together(readings: Sequence[tuple[float, Telemetry]]) -> Telemetry | None:
    """Return one reading for a stretch of time: the last, with every reason for a lower clock that
    was seen, and with the power by the energy counter, which misses nothing, where there is one."""
    if not readings:
        return None
    (begin, first), (end, last) = readings[0], readings[-1]
    power = last.power_w
    if first.energy_j is not None and last.energy_j is not None and end - begin >= _ENERGY_S:
        used = last.energy_j - first.energy_j
        power = used / (end - begin) if used > 0 else power
    reasons = tuple(dict.fromkeys(why for _, seen in readings for why in seen.throttle))
    return dataclasses.replace(last, power_w=power, throttle=reasons)
