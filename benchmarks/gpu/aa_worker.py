"""The worker of aa.py: measures a kernel followed by a spin, one line in, one line out."""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
from typing import Any

import numpy as np
from _gpu import gpu_info

from kernelmark import backends, ops
from kernelmark.backends.base import Kernel
from kernelmark.core.timing import Cache, Strain, Timer, Timing
from kernelmark.devices.base import Device
from kernelmark.devices.fake import FakeDevice
from kernelmark.gpu.driver import pack
from kernelmark.measure.loop import Sampler, choose_pace
from kernelmark.measure.protocol import measure
from kernelmark.measure.sets import (
    MAX_RECORDED_SETS,
    MAX_SETS,
    Arena,
    fill_inputs,
    make_arena,
    plan_sets,
)
from kernelmark.runners.targets import find

SAMPLES = 4
SAMPLE_S = 0.001
BLOCK_S = 0.006
# Both sides spin at least so long: from here on a cycle more is a cycle later (results/gpu_truth),
# whereas a shorter kernel hides behind the launch of the next.
LEAST_CYCLES = 4000


class Spun(Kernel):
    """A kernel followed by a spin of LEAST_CYCLES and `cycles` more."""

    def __init__(self, inner: Kernel, device: Any, cycles: int) -> None:
        self.info = inner.info
        self._inner = inner
        self._device = device
        self._seconds = cycles * 1e-9
        self._fake = isinstance(device, FakeDevice)
        if not self._fake:
            self._function = device.function("spin")
            self._arguments = pack(ctypes.c_uint64(LEAST_CYCLES + cycles))

    def launch(self, stream: int, set_index: int) -> None:
        self._inner.launch(stream, set_index)
        if self._fake:
            self._device.advance(self._seconds)
            return
        self._device.driver.launch(self._function, (1, 1, 1), (32, 1, 1), self._arguments, stream)

    def collect(self, set_index: int) -> None:
        self._inner.collect(set_index)

    def close(self) -> None:
        self._inner.close()


class Bench:
    """One process's device."""

    def __init__(self, device: Device, backend: str, config: dict[str, Any], seed: int) -> None:
        self._device = device
        self._backend = backends.find(backend)
        self._config = config
        self._rng = np.random.default_rng(seed)

    def checked(self, key: str) -> dict[str, Any]:
        """The whole protocol once: is it right, how long does it take, at which clock."""
        problem = ops.parse(key)
        outcome = measure(
            problem=problem,
            op=ops.registry.get(problem.op),
            device=self._device,
            timing=Timing(allocations=1, max_allocations=1, max_s=0.05, warmup_s=0.05),
            prepare=lambda sets: Spun(
                self._backend.prepare(problem, self._config, self._device, sets), self._device, 0
            ),
        )
        clocks = [c for block in outcome.measurement.blocks for c in block.clocks_mhz]
        usual = int(self._device.info.attributes.get("clock_khz", "1000000")) / 1e3
        return {
            "seconds": outcome.measurement.median_s,
            "clock_mhz": statistics.median(clocks) if clocks else usual,
            "right": outcome.check.passed,
            "detail": outcome.check.detail,
        }

    def seconds(self, key: str, cycles: int, launch_s: float) -> float:
        """A short measurement in fresh memory: the median of a few samples."""
        device, problem = self._device, ops.parse(key)
        tensors = ops.registry.get(problem.op).tensors(problem)
        plan = plan_sets(
            tensors,
            cache=Cache.COLD,
            cache_bytes=device.info.cache_bytes,
            free_bytes=device.free_bytes(),
            most=MAX_RECORDED_SETS if device.enqueues else MAX_SETS,
        )
        buffer, sets = make_arena(device, tensors, plan.sets, self._rng)
        try:
            fill_inputs(device, Arena(buffer=buffer, sets=sets, numbers=[*range(len(sets))]), 1)
            device.synchronize()
            inner = self._backend.prepare(problem, self._config, device, sets)
            kernel = Spun(inner, device, cycles)
            try:
                return self._sampled(kernel, len(sets), launch_s, evict=plan.evict)
            finally:
                kernel.close()
        finally:
            device.free(buffer)

    def _sampled(self, kernel: Kernel, sets: int, launch_s: float, *, evict: bool) -> float:
        device = self._device
        sampler = Sampler(device, kernel.launch, sets=sets, timer=Timer.AUTO, strain=Strain.NONE)
        try:
            pace = choose_pace(
                launch_s=launch_s,
                sets=sets,
                evict=evict,
                block_s=BLOCK_S,
                timing=Timing(min_samples=SAMPLES, min_sample_s=SAMPLE_S),
                two_lengths=device.enqueues,
                method=Timer.GRAPH if device.real_time else Timer.LOOP,
            )
            _, *samples = sampler.samples(pace, SAMPLES + 1)  # the first one warms up
            return statistics.median(sample.launch_s for sample in samples)
        finally:
            sampler.close()


def main() -> None:
    """Serve requests on stdin until it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-d", "--device", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--config", default="{}")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    info = gpu_info(given.device)
    kind, _ = find(given.device)
    bench = Bench(kind.open(info.index), given.backend, json.loads(given.config), given.seed)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "check":
            answer: Any = bench.checked(asked["problem"])
        else:
            answer = bench.seconds(asked["problem"], asked["cycles"], asked["launch_s"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
