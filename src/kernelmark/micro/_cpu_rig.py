"""CpuRig: one block per core, on pinned threads that start together."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmark.core.errors import Unsupported
from kernelmark.devices._host import HostBuffer
from kernelmark.devices.base import Buffer
from kernelmark.devices.cpu import CpuDevice
from kernelmark.micro import _kernels
from kernelmark.micro.hardware import Hardware
from kernelmark.micro.rig import Call, Rig, Samples, Timed

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

    def time(self, call: Call, launches: int = 1) -> Timed:
        passes = self.passes([call], 1, launches)
        if self._during_launches is not None:
            self._during_launches()
        return Timed(
            elapsed_s=max(passes.whole_s[0], 1e-9) / launches,
            waited=max(passes.waited, default=0.0),
        )

    def passes(self, calls: Sequence[Call], count: int, launches: int = 1) -> Passes:
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
