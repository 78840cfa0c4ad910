"""Truth: kernels of known duration, timed by kernelmark and by Triton's two timers.

    python benchmarks/gpu/truth.py [-o results.json]

A kernel spins for a given number of core cycles; its true duration is cycles / the clock read in
the stream. Each timer's readings are fitted as offset + slope × truth.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import triton
from _gpu import gpu_info

from kernelmark.core.timing import Strain, Timer, Timing
from kernelmark.devices import registry
from kernelmark.devices._gpu import GpuDevice
from kernelmark.gpu.driver import pack
from kernelmark.measure.loop import Sampler, choose_pace
from kernelmark.testing import evidence

DURATIONS_US = (1, 2, 3, 5, 8, 10, 20, 30, 50, 80, 100, 200, 300, 500)
RESULTS = Path(__file__).parent.parent / "results" / "gpu_truth.json"


def ours(
    device: GpuDevice, launch: Callable[[int, int], None], seconds: float
) -> tuple[float, float]:
    """(seconds a launch, MHz) by the protocol's own sampler."""
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
    sampler.samples(pace, 3)
    samples = sampler.samples(pace, 11)
    sampler.close()
    clock = statistics.median(s.clock_mhz or 0.0 for s in samples)
    return statistics.median(s.launch_s for s in samples), clock


def fit(truth: list[float], read: list[float]) -> dict[str, float]:
    slope, offset = np.polyfit(truth, read, 1)
    residual = float(np.abs(np.array(read) - slope * np.array(truth) - offset).max())
    return {"slope": float(slope), "offset_us": float(offset), "residual_us": residual}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    gpu_info()
    device = registry.get("cuda").open(0)
    assert isinstance(device, GpuDevice)
    function = device.function("spin")
    nominal_hz = int(device.info.attributes["clock_khz"]) * 1e3
    rows = []
    for duration in DURATIONS_US:
        cycles = int(duration * 1e-6 * nominal_hz)
        arguments = pack(ctypes.c_uint64(cycles))

        def launch(stream: int, index: int, arguments: object = arguments) -> None:
            device.driver.launch(function, (1, 1, 1), (32, 1, 1), arguments, stream)

        def on_torch_stream(launch: Callable[[int, int], None] = launch) -> None:
            launch(torch.cuda.current_stream().cuda_stream, 0)

        read_s, clock = ours(device, launch, duration * 1e-6)
        rows.append(
            {
                "cycles": cycles,
                "clock_mhz": clock,
                "true_us": cycles / clock,
                "kernelmark_us": read_s * 1e6,
                "do_bench_us": triton.testing.do_bench(on_torch_stream, return_mode="median") * 1e3,
                "do_bench_cudagraph_us": triton.testing.do_bench_cudagraph(on_torch_stream) * 1e3,
            }
        )
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
        libraries={"torch": torch.__version__, "triton": triton.__version__},
    )
    for name, one in fits.items():
        print(
            f"{name:20} slope {one['slope']:.5f}  offset {one['offset_us']:7.3f} µs  "
            f"residual {one['residual_us']:.3f} µs"
        )
    print(evidence.told(bars))


if __name__ == "__main__":
    main()
