"""The rig of a CPU: one block a core, on pinned threads that start together."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import numpy as np

from kernelmark.core.errors import Unsupported
from kernelmark.devices.cpu import CpuDevice
from kernelmark.micro import _host, _signatures
from kernelmark.micro.hardware import Hardware
from kernelmark.micro.rig import Call, Rig, Samples, Timed

_CHAIN_STEPS = 128  # of chain_add_i64_1, in its unrolled loop


class CpuRig(Rig):
    """All usable cores, or the first `threads` of them. Kernels read nanoseconds as their clock;
    cycles are told by the clock that dependent additions run at."""

    device: CpuDevice
    exclusive = False

    def __init__(self, device: CpuDevice) -> None:
        super().__init__()
        self.device = device
        self.info = device.info
        self.threads = device.threads
        self.hardware = Hardware.of(device.info)
        self._seen: set[str] = set()
        self.vector_bytes = self._library("micro_window.cu").vector_bytes

    def _library(self, file: str) -> _host.HostLibrary:
        made = _host.library(file)
        if file not in self._seen:
            self._seen.add(file)
            self.ledger.compile_s += made.seconds
            self.ledger.compilations += made.seconds > 0
            if made.note and made.note not in self.notes:
                self.notes.append(made.note)
        return made

    def kernels(self, file: str) -> frozenset[str]:
        return self._library(file).kernels

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
        given = _signatures.pack(file, kernel, values, types or {})
        array = (ctypes.c_void_p * max(1, len(given)))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in given)
        )
        array._keep = given  # type: ignore[attr-defined]
        library = self._library(file).library
        function = (library, library[f"host_{kernel}"])
        return Call(file=file, kernel=kernel, function=function, arguments=array, grid=grid)

    def time(self, call: Call, launches: int = 1) -> Timed:
        library, function = call.function
        cores = self.device.cores
        cpus = (ctypes.c_int * call.grid)(*(cores[i % len(cores)] for i in range(call.grid)))
        taken = ctypes.c_uint64()
        failed = library.host_run(
            ctypes.cast(function, ctypes.c_void_p),
            call.arguments,
            ctypes.c_int(call.grid),
            cpus,
            ctypes.c_int(launches),
            ctypes.byref(taken),
        )
        if failed:
            raise Unsupported(f"{call.grid} threads could not be started")
        if self._beside is not None:
            self._beside()
        return Timed(elapsed_s=max(taken.value, 1) * 1e-9 / launches)

    @property
    def grid(self) -> int:
        return self.threads

    @property
    def block(self) -> int:
        return 1

    # -- clocks

    @property
    def clock_mhz(self) -> float:
        return self._clock_mhz

    @functools.cached_property
    def _clock_mhz(self) -> float:
        """Dependent additions take a cycle each on every core that this can run on."""
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
        return samples.clock_mhz  # the one that is known was measured before, not meanwhile

    @property
    def ticks_to_cycles(self) -> float:
        return self._clock_mhz * 1e-3  # a tick is a nanosecond

    @property
    def wall_tick_s(self) -> float:
        return 1e-9

    def warm_up(self) -> None:
        _ = self._clock_mhz
