"""Truth: kernels of known duration, timed by kernelmark and by Triton's two timers.

    python benchmarks/gpu/truth.py [-o results.json]

A kernel spins for a given number of core cycles; its true duration is cycles / the clock of the
unit that it runs on, which it tells itself: parts of a GPU may run at slightly different clocks.
Each timer's readings are fitted as offset + slope × truth. Triton's timers run in a process of
their own: in one that has launched on a second stream every launch takes longer (streams.py).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from _gpu import gpu_info

from kernelmark.core.timing import Strain, Timer, Timing
from kernelmark.devices import registry
from kernelmark.devices._gpu import GpuDevice
from kernelmark.gpu.driver import pack
from kernelmark.gpu.rtc import compile_source
from kernelmark.measure.loop import Sampler, choose_pace
from kernelmark_dev import evidence

SPIN = r"""
extern "C" __global__ void spin(unsigned long long cycles, unsigned long long* begun,
                                unsigned units) {
  const unsigned long long start = clock64();
  if (threadIdx.x == 0) {
    unsigned long long nanoseconds;
    unsigned unit;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(unit));
    if (unit < units) {
      begun[2 * unit] = start;  // nobody waits for it: long written when the spinning ends
      begun[2 * unit + 1] = nanoseconds;
    }
  }
  while (clock64() - start < cycles) {
  }
}
"""
DURATIONS_US = (1, 2, 3, 5, 8, 10, 20, 30, 50, 80, 100, 200, 300, 500)
RESULTS = Path(__file__).parent.parent / "results" / "gpu_truth.json"


class Spin:
    """The kernel, and the last time it began on each unit."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        binary = compile_source(SPIN, arch=device.info.arch, name="spin.cu")
        self._function = device.driver.function(device.driver.load(binary.code), "spin")
        self._begun = device.allocate(device.info.units * 16)

    def forget(self) -> None:
        self._device.driver.fill(self._begun.address, 0, self._begun.nbytes, self._device.stream)
        self._device.synchronize()

    def launch(self, cycles: int) -> Callable[[int, int], None]:
        place, units = ctypes.c_void_p(self._begun.address), self._device.info.units
        arguments = pack(ctypes.c_uint64(cycles), place, ctypes.c_uint32(units))

        def start(stream: int, index: int) -> None:
            self._device.driver.launch(self._function, (1, 1, 1), (32, 1, 1), arguments, stream)

        return start

    def begun(self) -> np.ndarray:
        """(cycles, nanoseconds) of each unit."""
        found = np.zeros((self._device.info.units, 2), np.uint64)
        self._device.synchronize()
        self._device.driver.copy_to_host(found.ctypes.data, self._begun.address, found.nbytes)
        return found


def ours(
    device: GpuDevice, spin: Spin, launch: Callable[[int, int], None], seconds: float
) -> dict[str, float | list[int]]:
    """A launch by the protocol's own sampler, and the clocks meanwhile."""
    sampler = Sampler(device, launch, sets=1, timer=Timer.AUTO, strain=Strain.NONE)
    pace = choose_pace(
        launch_s=seconds,
        sets=1,
        evict=False,
        block_s=0.4,
        timing=Timing(),
        two_lengths=True,
        method=Timer.GRAPH,
    )
    spin.forget()
    sampler.samples(pace, 3)
    before = spin.begun()
    samples = sampler.samples(pace, 11)
    passed = (spin.begun() - before).astype(float)
    sampler.close()
    # One that began only now, or no more, says nothing of its clock meanwhile.
    units = np.flatnonzero((before[:, 1] > 0) & (passed[:, 1] > 0))
    return {
        "units": units.tolist(),
        "unit_clock_mhz": float(passed[units, 0].sum() / passed[units, 1].sum() * 1e3),
        "clock_mhz": statistics.median(s.clock_mhz or 0.0 for s in samples),
        "kernelmark_us": statistics.median(s.launch_s for s in samples) * 1e6,
    }


def fit(truth: list[float], read: list[float]) -> dict[str, float]:
    slope, offset = np.polyfit(truth, read, 1)
    residual = float(np.abs(np.array(read) - slope * np.array(truth) - offset).max())
    return {"slope": float(slope), "offset_us": float(offset), "residual_us": residual}


def by_triton(device: GpuDevice, spin: Spin, cycles: Sequence[int]) -> list[dict[str, float]]:
    """Each duration by Triton's timers, on torch's stream only."""
    import torch
    from triton.testing import do_bench, do_bench_cudagraph

    device.launch_on(torch.cuda.current_stream().cuda_stream, lambda _: contextlib.nullcontext())
    rows = []
    for count in cycles:
        start = spin.launch(count)

        def launch(start: Callable[[int, int], None] = start) -> None:
            start(torch.cuda.current_stream().cuda_stream, 0)

        rows.append(
            {
                "do_bench_us": do_bench(launch, return_mode="median") * 1e3,
                "do_bench_cudagraph_us": do_bench_cudagraph(launch) * 1e3,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--by-triton", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    gpu_info()
    device = registry.get("cuda").open(0)
    assert isinstance(device, GpuDevice)
    spin = Spin(device)
    nominal_hz = int(device.info.attributes["clock_khz"]) * 1e3
    cycles = [int(duration * 1e-6 * nominal_hz) for duration in DURATIONS_US]
    if given.by_triton:
        print(json.dumps(by_triton(device, spin, cycles)))
        return
    rows = []
    for count, duration in zip(cycles, DURATIONS_US, strict=True):
        read = ours(device, spin, spin.launch(count), duration * 1e-6)
        rows.append({"cycles": count, "true_us": count / read["unit_clock_mhz"], **read})
    command = [sys.executable, str(Path(__file__)), "--by-triton"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for row, beside in zip(rows, json.loads(done.stdout), strict=True):
        row |= beside
    truth = [row["true_us"] for row in rows]
    fits = {
        name: fit(truth, [row[f"{name}_us"] for row in rows])
        for name in ("kernelmark", "do_bench", "do_bench_cudagraph")
    }
    mine = fits["kernelmark"]
    bars = [
        ("slope 1 ± 0.3 %", f"{mine['slope']:.5f}", abs(mine["slope"] - 1) <= 0.003),
        ("offset ≤ 0.8 µs", f"{mine['offset_us']:.3f} µs", abs(mine["offset_us"]) <= 0.8),
        ("largest residual ≤ 0.2 µs", f"{mine['residual_us']:.3f} µs", mine["residual_us"] <= 0.2),
    ]
    evidence.write(
        given.output,
        title="Known durations: kernelmark and Triton's timers on spin kernels",
        bars=bars,
        figures={"fits": fits, "rows": rows},
        device=device.info,
        libraries=evidence.libraries("torch", "triton"),
    )
    for name, one in fits.items():
        print(
            f"{name:20} slope {one['slope']:.5f}  offset {one['offset_us']:7.3f} µs  "
            f"residual {one['residual_us']:.3f} µs"
        )
    for row in rows:
        print({name: row[name] for name in ("true_us", "units", "unit_clock_mhz", "clock_mhz")})
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
