"""Times reported alongside the headline (eager, hot), and the names of the kernels that ran."""

from __future__ import annotations

import dataclasses
import statistics
import time

from kernelmark.core.result import KernelInfo
from kernelmark.core.timing import Cache, Strain, Timer, Timing
from kernelmark.devices.base import Device, own_queue
from kernelmark.measure.loop import SHORTEST_S, Pace, Sampler, choose_pace
from kernelmark.measure.sets import Launchable

_ROUNDS = 3
_LAUNCHES = 50
_MOST_S = 0.002


class SecondaryTimes:
    """Measures `host_s`, an eager launch without a graph, and `hot_s`, with inputs in the cache.

    Neither is measured on a device that times its headline by a loop on the host.
    """

    def __init__(self, device: Device, kernel: Launchable, sets: int, timing: Timing) -> None:
        self._device = device
        self._kernel = kernel
        self._sets = sets
        self._timing = dataclasses.replace(timing, cache=Cache.HOT)
        self._wants_hot = timing.cache is Cache.COLD
        self._names: tuple[str, ...] | None = None
        self._sampler = Sampler(
            device, kernel.launch, sets=1, timer=timing.timer, strain=Strain.NONE
        )
        self._pace: Pace | None = None
        self.device_s = 0.0  # spent on these launches, by the device's clock

    def prepare(self, launch_s: float, method: Timer) -> None:
        """Record replays and look up names while the device is busy."""
        self._names = self._device.kernel_names(self._kernel.launch)
        if self._wants_hot and self._applies(method):
            self._pace = self._choose(launch_s, method)
            self._sampler.prepare(self._pace)

    def info(self) -> KernelInfo:
        """Return the kernel's info, with the device's names of the kernels a launch starts."""
        info = self._kernel.info
        if self._names is None:
            self._names = self._device.kernel_names(self._kernel.launch)
        names = "+".join(self._names)
        if not names or names == info.name:
            return info
        return dataclasses.replace(info, name=f"{info.name}: {names}" if info.name else names)

    def times(self, launch_s: float, method: Timer) -> dict[str, float]:
        """Return seconds per launch by name."""
        if not self._applies(method):
            return {}
        times = {"host_s": self._eager_s(launch_s)}
        if self._wants_hot:
            pace = self._pace or self._choose(launch_s, method)
            samples = self._sampler.samples(pace, _ROUNDS)
            self.device_s += sum(s.timed_s for s in samples)
            times["hot_s"] = statistics.median(s.launch_s for s in samples)
        return times

    def close(self) -> None:
        self._sampler.close()

    def _applies(self, method: Timer) -> bool:
        return method not in (Timer.LOOP, Timer.CPU) or own_queue(self._kernel.launch) is not None

    def _choose(self, launch_s: float, method: Timer) -> Pace:
        pace = choose_pace(
            launch_s=launch_s,
            sets=1,
            evict=False,
            block_s=_MOST_S,
            timing=self._timing,
            two_lengths=self._device.enqueues,
            method=method,
        )
        return self._sampler.fit(pace)

    def _eager_s(self, launch_s: float) -> float:
        device, kernel = self._device, self._kernel
        launches = max(1, min(_LAUNCHES, int(_MOST_S / _ROUNDS / max(launch_s, SHORTEST_S))))
        rounds = []
        for _ in range(_ROUNDS):
            device.synchronize()
            start = time.perf_counter()
            for index in range(launches):
                kernel.launch(device.stream, index % self._sets)
            device.synchronize()
            rounds.append((time.perf_counter() - start) / launches)
        self.device_s += sum(min(launch_s, host_s) * launches for host_s in rounds)
        return statistics.median(rounds)
