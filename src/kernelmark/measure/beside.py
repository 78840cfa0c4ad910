"""What is told beside the headline: eager and hot times, and the names of what really ran."""

from __future__ import annotations

import dataclasses
import statistics
import time

from kernelmark.core.result import KernelInfo
from kernelmark.core.timing import Cache, Strain, Timer, Timing
from kernelmark.devices.base import Device, own_queue
from kernelmark.measure.check import Launchable
from kernelmark.measure.loop import Sampler, choose_pace
from kernelmark.measure.warmup import Warmup

_ROUNDS = 3
_LAUNCHES = 50
_MOST_S = 0.006


def other_times(
    device: Device, kernel: Launchable, sets: int, warmup: Warmup, timing: Timing
) -> dict[str, float]:
    """`host_s`, a launch by a user without graphs; `hot_s`, with its inputs still in the cache.

    Nothing where the host's own loop is what is timed: there both are the headline's business."""
    if warmup.method is Timer.LOOP and own_queue(kernel.launch) is None:
        return {}
    found = {"host_s": _eager_seconds(device, kernel, sets, warmup)}
    if timing.cache is Cache.COLD:
        found["hot_s"] = _hot_seconds(device, kernel, warmup, timing)
    return found


def named(info: KernelInfo, names: tuple[str, ...]) -> KernelInfo:
    """`info` with the device's own names for what a launch starts."""
    really = "+".join(names)
    if not really or really == info.name:
        return info
    return dataclasses.replace(info, name=f"{info.name}: {really}" if info.name else really)


def _eager_seconds(device: Device, kernel: Launchable, sets: int, warmup: Warmup) -> float:
    launches = max(1, min(_LAUNCHES, int(_MOST_S / _ROUNDS / max(warmup.launch_s, 1e-9))))
    rounds = []
    for _ in range(_ROUNDS):
        device.synchronize()
        start = time.perf_counter()
        for index in range(launches):
            kernel.launch(device.stream, index % sets)
        device.synchronize()
        rounds.append((time.perf_counter() - start) / launches)
    return statistics.median(rounds)


def _hot_seconds(device: Device, kernel: Launchable, warmup: Warmup, timing: Timing) -> float:
    sampler = Sampler(device, kernel.launch, sets=1, timer=timing.timer, strain=Strain.NONE)
    pace = choose_pace(
        launch_s=warmup.launch_s,
        sets=1,
        evict=False,
        block_s=_MOST_S,
        timing=dataclasses.replace(timing, cache=Cache.HOT),
        two_lengths=device.two_lengths,
        method=warmup.method,
    )
    try:
        pace = sampler.fit(pace)
        return statistics.median(sampler.sample(pace).launch_s for _ in range(_ROUNDS))
    finally:
        sampler.close()
