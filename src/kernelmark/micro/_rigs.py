"""CpuRig: one block per core, on pinned threads that start together. GpuRig: kernels compiled at
run time, events around launches, clock stamps in the stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmark.core.errors import CaseError, CompileError, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.devices._gpu import GpuDevice
from kernelmark.devices._host import HostBuffer
from kernelmark.devices.base import Buffer
from kernelmark.devices.cpu import CpuDevice
from kernelmark.gpu.driver import pack
from kernelmark.gpu.objects import resources
from kernelmark.gpu.rtc import Binary, compile_source
from kernelmark.kernels import rtc
from kernelmark.micro import _kernels
from kernelmark.micro.hardware import Hardware
from kernelmark.micro.rig import MOST_LAUNCHES, BoundKernel, Rig, Samples, Timed

_CHAIN_STEPS = 128  # of chain_add_i64_1, per iteration of the unrolled loop


# Passes are shorter than a scheduler's time slice, so that some are undisturbed by other processes.
# Rounds of passes are repeated until two more confirm the best one.
PASS_S = 0.0003
_ROUNDS = 10
_AGREE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds of each pass from the first start to the last end, and the shortest pass of each
    thread. `waited` is the fraction of each pass in which a thread waited for its core."""

    whole_s: tuple[float, ...]
    alone_s: tuple[float, ...]
    waited: tuple[float, ...] = ()


def confirmed(round_per_s: Callable[[], float]) -> tuple[float, bool]:
    """Return the best of repeated rounds, and whether it was confirmed: rounds stop when two more
    come close to the best. A limit is what the machine can do, without load by other processes."""
    best, close = 0.0, 0
    for _ in range(_ROUNDS):
        rate = round_per_s()
        if rate > best * (1 + _AGREE):
            close = 0
        elif rate >= best * (1 - _AGREE):
            close += 1
        best = max(best, rate)
        if close == 2:
            break
    return best, close == 2


class CpuRig(Rig):
    """All usable cores, or the first `threads` of them. Kernels use nanoseconds as their clock;
    cycles are derived from a clock calibrated with a dependent-add loop."""

    device: CpuDevice
    exclusive = False

    def __init__(self, device: CpuDevice) -> None:
        super().__init__()
        self.device = device
        self.info = device.info
        self.threads = self.grid = device.threads
        self.hardware = Hardware.of(dataclasses.replace(device.info, units=device.threads))
        self._seen: set[str] = set()

    @functools.cached_property
    def vector_bytes(self) -> int:  # type: ignore[override]
        """Return the bytes of the widest load, read from any library built so far: it is the same
        in every file."""
        return self._library(next(iter(self._seen), "micro_window.cu")).vector_bytes

    def _library(self, file: str) -> _kernels.HostLibrary:
        library = _kernels.library(file)
        if file not in self._seen:
            self._seen.add(file)
            self.ledger.compile_s += library.seconds
            self.ledger.compilations += library.seconds > 0
            if library.note and library.note not in self.notes:
                self.notes.append(library.note)
        return library

    def kernels(self, file: str) -> frozenset[str]:
        return self._library(file).kernels

    def _bind(
        self, file: str, kernel: str, arguments: list[Any], shared_bytes: int
    ) -> tuple[Any, Any]:
        array = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in arguments)
        )
        array._keep = arguments  # type: ignore[attr-defined]
        library = self._library(file).library
        return (library, library[f"host_{kernel}"]), array

    def time(self, call: BoundKernel, launches: int = 1) -> Timed:
        passes = self.passes([call], 1, launches)
        if self._during_launches is not None:
            self._during_launches()
        return Timed(
            elapsed_s=max(passes.whole_s[0], 1e-9) / launches,
            waited=max(passes.waited, default=0.0),
        )

    def passes(self, calls: Sequence[BoundKernel], count: int, launches: int = 1) -> Passes:
        """Time `count` passes, cycling through the calls; the threads start each pass together."""
        first, cores = calls[0], self.device.cores
        library, function = first.function
        cpus = (ctypes.c_int * first.grid)(*(cores[i % len(cores)] for i in range(first.grid)))
        sets = (ctypes.c_void_p * len(calls))(*(ctypes.addressof(c.arguments) for c in calls))
        times = np.zeros((first.grid, count, 3), np.uint64)
        own = library.host_run(
            ctypes.cast(function, ctypes.c_void_p),
            sets,
            *map(ctypes.c_int, (len(calls), first.grid)),
            cpus,
            *map(ctypes.c_int, (launches, count)),
            ctypes.c_void_p(times.ctypes.data),
        )
        if own < 0:
            raise Unsupported(f"{first.grid} threads could not be started")
        begin, end, on_core = times[:, :, 0], times[:, :, 1], times[:, :, 2]
        whole = (end.max(axis=0) - begin.min(axis=0)) * 1e-9
        waited = np.maximum((end - begin).astype(np.float64) - on_core, 0.0).max(axis=0) * 1e-9
        # Threads that share a core take turns, each as fast as if it had the core alone: their
        # individual rates must not be added up.
        alone = (end - begin).min(axis=1) * 1e-9
        shared = own < first.grid
        return Passes(
            whole_s=tuple(whole.tolist()),
            alone_s=(float(whole.min()),) * first.grid if shared else tuple(alone.tolist()),
            waited=tuple((waited / np.maximum(whole, 1e-9)).tolist()),
        )

    def untouched(self, nbytes: int) -> Buffer:
        """Return memory whose pages are placed by the threads that touch them first, as needed on
        machines with several sockets."""
        self.check_free(nbytes)
        buffer = HostBuffer(nbytes, populate=False)
        self.ledger.buffers.append(buffer)
        return buffer

    # -- clocks

    @functools.cached_property
    def clock_mhz(self) -> float:
        """Calibrate the clock: dependent additions take one cycle each on every supported core."""
        steps = 2000
        out, clocks = self.memory(64), self.memory(16)
        call = self.call(
            *("micro_ops.cu", "chain_add_i64_1", steps, 1, 3, 0, clocks, out), types={"T": "u64"}
        )
        best = math.inf
        for _ in range(50):
            self.run(call)
            begin, end = self.read(clocks, np.uint64, 2)
            best = min(best, float(end - begin))
        self.release([out, clocks])
        return steps * _CHAIN_STEPS / best * 1e3

    def clock_during(self, samples: Samples) -> float | None:
        return samples.clock_mhz  # the calibrated clock is older than the samples

    @property
    def ticks_to_cycles(self) -> float:
        return self.clock_mhz * 1e-3  # a tick is a nanosecond

    @property
    def wall_tick_s(self) -> float:
        return 1e-9

    def warm_up(self) -> None:
        """Do nothing: benchmarks that count cycles calibrate the clock first, and others do not
        need it."""


_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent
_WARM_UP_S = 0.4  # it takes about 0.3 s of work until the clock of an idle GPU is steady
FULL_BLOCK = 1024  # threads: the most of both vendors


def build(file: str, arch: str) -> Binary:
    """Return a compiled kernel file for `arch`, with architecture-specific instructions if it uses
    any."""
    special = rtc.target(file, arch)
    if special != arch:
        # A precompiled bundle may contain the file for the plain architecture only.
        with contextlib.suppress(CompileError):
            return compile_source(rtc.source(file), arch=special, name=file)
    return compile_source(rtc.source(file), arch=arch, name=file)


def no_cycles(arch: str) -> str | None:
    """Return None, or one sentence on why kernels cannot count core cycles on `arch`; see
    common.h."""
    if not arch.startswith("gfx11"):
        return None
    return Reason(f"{arch} counts core cycles in 20 bits, which pass within a millisecond")


def as_gpu(device: object) -> GpuDevice:
    assert isinstance(device, GpuDevice)
    return device


class GpuRig(Rig):
    """One GPU. Times come from events on its stream; the clock stamps are outside the events."""

    device: GpuDevice

    def __init__(self, device: GpuDevice) -> None:
        super().__init__()
        self.device = device
        self.info = device.info
        self.hardware = Hardware.of(device.info)
        self.grid, self.block = device.info.units, FULL_BLOCK
        self.lanes = int(device.info.attributes.get("warp_size", "32"))
        self._driver = device.driver
        self._binaries: dict[str, Binary] = {}
        self._modules: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._start, self._end = self._driver.event(), self._driver.event()
        if self.no_cycles is not None:
            self.notes.append(f"{self.no_cycles}: there are no figures in cycles, and no clocks")

    # -- kernels

    def binary(self, file: str) -> Binary:
        if file not in self._binaries:
            binary = build(file, self.info.arch)
            self._binaries[file] = binary
            self.ledger.compile_s += binary.seconds
            self.ledger.compilations += not binary.cached
        return self._binaries[file]

    def kernels(self, file: str) -> frozenset[str]:
        return frozenset(resources(self.binary(file).code))

    def function(self, file: str, kernel: str) -> int:
        if (file, kernel) not in self._functions:
            if file not in self._modules:
                self._modules[file] = self._driver.load(self.binary(file).code)
            self._functions[file, kernel] = self._driver.function(self._modules[file], kernel)
        return self._functions[file, kernel]

    def _bind(
        self, file: str, kernel: str, arguments: list[Any], shared_bytes: int
    ) -> tuple[Any, Any]:
        function = self.function(file, kernel)
        if shared_bytes:
            self._driver.allow_shared(function, shared_bytes)
        return function, pack(*arguments)

    def prefer_cache(self, call: BoundKernel) -> None:
        """Give L1 all of the memory that it shares with shared memory."""
        if self._driver.table.vendor == "cuda":
            self._driver.call(
                "function_set_attribute", ctypes.c_void_p(call.function), _CARVEOUT, 0
            )

    def resident(self, call: BoundKernel) -> int:
        """Return how many blocks of the call's size fit on an SM/CU at a time."""
        return self._driver.occupancy(call.function, call.block, 0)

    def spoiler(self, blocks: int) -> int:
        """Return the dynamic shared memory per block that limits an SM/CU to `blocks` resident
        blocks."""
        unit = int(self.info.attributes["shared_per_unit"])
        most = int(self.info.attributes["shared_per_block"])
        return min(unit // (blocks + 1) + 128, most) if blocks <= 8 else 0

    def enqueue(self, call: BoundKernel, stream: int | None = None) -> None:
        """Launch the call without waiting."""
        self._driver.launch(
            call.function,
            (call.grid, 1, 1),
            (call.block, 1, 1),
            call.arguments,
            self.device.stream if stream is None else stream,
            call.shared_bytes,
        )

    def time(self, call: BoundKernel, launches: int = 1) -> Timed:
        driver, stream, stamps = self._driver, self.device.stream, self.device._stamps
        # Everything is queued behind a gate, so that host launch overhead is not timed. A full
        # queue would block the host, which has to open the gate.
        launches = min(launches, MOST_LAUNCHES)
        self.device._gate.close_behind(stream)
        try:
            stamps.enqueue(stream, 0)
            driver.record(self._start, stream)
            for _ in range(launches):
                self.enqueue(call)
            driver.record(self._end, stream)
            stamps.enqueue(stream, 1)
        finally:
            self.device._gate.open()
        if self._during_launches is not None:
            self._during_launches()
        elapsed_s = driver.elapsed_s(self._start, self._end)
        self.device.synchronize()
        clock = stamps.clock_mhz()
        plausible = clock is not None and self.hardware.plausible_clock(clock)
        return Timed(elapsed_s=elapsed_s / launches, clock_mhz=clock if plausible else None)

    def zero(self, buffer: Buffer, nbytes: int | None = None) -> None:
        count = buffer.nbytes if nbytes is None else nbytes
        self._driver.fill(buffer.address, 0, count, self.device.stream)
        self.device.synchronize()

    # -- clocks

    @property
    def no_cycles(self) -> str | None:
        return no_cycles(self.info.arch)

    def clock_during(self, samples: Samples) -> float | None:
        return super().clock_during(samples) if self.no_cycles is None else samples.clock_mhz

    @functools.cached_property
    def clock_mhz(self) -> float:
        seen = self.device.telemetry().clock_mhz
        return seen if seen and self.hardware.plausible_clock(seen) else self.hardware.clock_mhz

    @property
    def wall_tick_s(self) -> float:
        if self._driver.table.vendor == "cuda":
            return 1e-9
        return 1e-3 / float(self._driver.attribute(self.info.index, "wall_clock_khz"))

    def warm_up(self) -> None:
        threads = self.grid * self.block
        out, clocks = self.memory(threads * 8 * 4), self.memory(self.grid * 16)
        call = self.call(
            *("micro_ops.cu", "chain_fma_f32_8", 200, 1.0, 0.5, 0, clocks, out),
            grid=self.grid,
            block=self.block,
            types={"T": "float"},
        )
        end = time.perf_counter() + _WARM_UP_S
        clock = None
        while time.perf_counter() < end:
            clock = self.time(call, 20).clock_mhz or clock
        if clock is not None:
            self.__dict__["clock_mhz"] = clock
        self.release([out, clocks])

    def close(self) -> None:
        with contextlib.suppress(CaseError):
            for event in (self._start, self._end):
                self._driver.destroy("event", event)
            for module in self._modules.values():
                self._driver.destroy("module", module)
        super().close()
