"""GpuRig: kernels compiled at run time, events around launches, clock stamps in the stream."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from typing import Any

from kernelmark.core.errors import CaseError, CompileError
from kernelmark.core.reason import Reason
from kernelmark.devices._gpu import GpuDevice
from kernelmark.devices.base import Buffer
from kernelmark.gpu.driver import pack
from kernelmark.gpu.objects import resources
from kernelmark.gpu.rtc import Binary, compile_source
from kernelmark.kernels import rtc
from kernelmark.micro.hardware import Hardware
from kernelmark.micro.rig import MOST_LAUNCHES, Call, Rig, Samples, Timed

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

    def prefer_cache(self, call: Call) -> None:
        """Give L1 all of the memory that it shares with shared memory."""
        if self._driver.table.vendor == "cuda":
            self._driver.call(
                "function_set_attribute", ctypes.c_void_p(call.function), _CARVEOUT, 0
            )

    def resident(self, call: Call) -> int:
        """Return how many blocks of the call's size fit on an SM/CU at a time."""
        return self._driver.occupancy(call.function, call.block, 0)

    def spoiler(self, blocks: int) -> int:
        """Return the dynamic shared memory per block that limits an SM/CU to `blocks` resident
        blocks."""
        unit = int(self.info.attributes["shared_per_unit"])
        most = int(self.info.attributes["shared_per_block"])
        return min(unit // (blocks + 1) + 128, most) if blocks <= 8 else 0

    def enqueue(self, call: Call, stream: int | None = None) -> None:
        """Launch the call without waiting."""
        self._driver.launch(
            call.function,
            (call.grid, 1, 1),
            (call.block, 1, 1),
            call.arguments,
            self.device.stream if stream is None else stream,
            call.shared_bytes,
        )

    def time(self, call: Call, launches: int = 1) -> Timed:
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
