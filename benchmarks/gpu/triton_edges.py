"""Triton kernels that wrap indices at the edge, against the same kernels that clamp them.

    python benchmarks/gpu/triton_edges.py [-o results.json] [--blocks 24] [--only TEXT ...]

The clamping form is made from today's sources; it also gets sizes of 1 as arguments, as it did
before they became constants. Attention and convolution have no such edge: only the constants
differ. Both forms of a problem have the same config and the same memory, and alternate: a block is
new, old, old, new. The ratio of a block is new over old, and its interval is that of the median.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _gpu import gpu_info

from kernelmark import ops
from kernelmark.backends.triton import _plan
from kernelmark.backends.triton.launch import Argument, Arguments, KernelPlan, TritonKernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.timing import Timer
from kernelmark.devices import registry
from kernelmark.gpu.architectures import absent
from kernelmark.measure.sets import Arena, fill_inputs, make_arena
from kernelmark.stats.interval import block_interval
from kernelmark_dev import evidence
from kernelmark_dev.edges import clamped

RESULTS = Path(__file__).parent.parent / "results" / "gpu_triton_edges.json"
# The default of large aligned GEMMs on Hopper reads by descriptors, which have no such edge.
TILES = {"persistent": False}
LARGE = "gemm m=4096 n=4096 k=4096 dtype=bf16 "
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    (LARGE + "tb=t", TILES),
    (LARGE, TILES),
    (LARGE + "ta=t", TILES),
    ("gemm m=16 n=8192 k=8192 dtype=bf16 tb=t", TILES),
    ("gemm m=16 n=8192 k=8192 dtype=bf16", TILES),
    ("gemm m=1 n=8192 k=8192 dtype=bf16 tb=t", TILES),
    ("gemm m=5407 n=3000 k=2056 dtype=bf16 tb=t", TILES),
    ("gemm m=1000 n=1001 k=1003 dtype=bf16", TILES),
    ("gemm m=333 n=1001 k=1000 dtype=bf16 ta=t", TILES),
    ("gemm m=4096 n=4096 k=4096 a=f8e4m3 b=f8e4m3 c=bf16 tb=t", TILES),
    ("gemm m=4096 n=4096 k=4096 a=f8e4m3 b=f8e4m3 c=bf16", {**TILES, "turn": False}),
    ("gemm m=1000 n=1001 k=1003 a=f8e4m3 b=f8e4m3 c=bf16 tb=t", TILES),
    ("batched_gemm batch=64 m=257 n=1024 k=128 dtype=bf16", TILES),
    ("batched_gemm_quant batch=8 m=100 n=4096 k=4096 scheme=a8w8", {}),
    ("moe m=64 n=768 k=2048 e=128 top_k=8 dtype=bf16", {}),
    ("attention batch=4 heads=16 seq=2048 dim=128 dtype=bf16 causal=yes", {}),
    ("attention batch=1 heads=16 seq=2047 dim=64 dtype=bf16", {"descriptors": False}),
    ("attention batch=1 heads_q=32 heads_kv=8 seq_q=1 seq_kv=8192 dim=128 dtype=bf16", {}),
    ("attention batch=1 heads=16 seq=4096 dim=128 dtype=f8e4m3", {}),
    ("conv n=32 c=256 h=28 w=28 k=256 r=3 s=3 pad=1 dtype=bf16 layout=nhwc", {}),
    ("conv n=1 c=250 h=29 w=29 k=250 r=3 s=3 pad=1 dtype=bf16 layout=nhwc", {}),
    ("conv n=32 c=256 h=28 w=28 k=256 r=1 s=1 dtype=bf16", {}),
)
MOST_SLOWER = 1.01
REPLAY_S = 1.5e-3


def unfolded(self: Arguments, **values: int) -> Arguments:
    """Add whole numbers as arguments, also those that are 1."""
    for name, value in values.items():
        kind = "i32" if abs(value) < 2**31 else "i64"
        argument = Argument(name=name, kind=kind, pointer=False, aligned=value % 16 == 0)
        self._add(argument, value)
    return self


def plans(
    key: str, config: dict[str, Any], info: DeviceInfo, folder: Path
) -> tuple[KernelPlan, KernelPlan]:
    """Return the plan of a case, and the same with clamped edges and sizes of 1 as arguments."""
    problem = ops.parse(key)
    new = _plan(problem, config, info)
    with mock.patch.object(Arguments, "integers", unfolded):
        old = _plan(problem, config, info)
    calls = []
    for call in old.calls:
        module = importlib.import_module(call.function.fn.__module__)
        try:
            function = getattr(clamped(module, folder), call.function.fn.__name__)
        except LookupError:  # attention and convolution wrap no index
            function = call.function
        calls.append(dataclasses.replace(call, function=function))
    return new, dataclasses.replace(old, calls=tuple(calls))


def compile_case(key: str, config: dict[str, Any], arch: str) -> None:
    """Put both forms into Triton's cache on disk."""
    with tempfile.TemporaryDirectory() as folder:
        for plan in plans(key, config, absent(arch), Path(folder)):
            for call in plan.calls:
                call.build(arch)


def compare(device: Any, key: str, config: dict[str, Any], blocks: int) -> dict[str, Any]:
    """Return the times of both forms, and the ratio with its interval."""
    problem = ops.parse(key)
    op = ops.registry.get(problem.op)
    buffer, sets = make_arena(device, op.tensors(problem), 2, np.random.default_rng(1))
    kernels: list[TritonKernel] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            fill_inputs(device, Arena(buffer=buffer, sets=sets, numbers=[*range(len(sets))]), 1)
            for plan in plans(key, config, device.info, Path(folder)):
                kernels.append(TritonKernel(plan, device, sets))
            return {
                "problem": key,
                "config": config,
                **timed(device, kernels, op, problem, sets, blocks),
            }
        finally:
            for kernel in kernels:
                kernel.close()
            device.free(buffer)


def timed(
    device: Any, kernels: list[TritonKernel], op: Any, problem: Any, sets: Any, blocks: int
) -> dict[str, Any]:
    out = sets[0][op.output(problem).name]
    bits, seconds = [], []
    for kernel in kernels:
        replay = device.record(kernel.launch, (0, 1) * 8, Timer.AUTO)
        device.poison(out, 0x5A)
        replay.run()
        bits.append(device.read(out.buffer, out.offset, out.spec.nbytes))
        seconds.append(min(replay.run().elapsed_s for _ in range(3)) / 16)
        replay.close()
    pairs = max(1, math.ceil(REPLAY_S / max(seconds) / 2))
    new, old = (device.record(kernel.launch, (0, 1) * pairs, Timer.AUTO) for kernel in kernels)
    readings = device.run_all([new, old, old, new] * (blocks + 2))[8:]  # two blocks to warm up
    times = [reading.elapsed_s / (2 * pairs) for reading in readings]
    new.close()
    old.close()
    ratios = [
        math.sqrt(times[at] * times[at + 3] / (times[at + 1] * times[at + 2]))
        for at in range(0, len(times), 4)
    ]
    low, high = block_interval(ratios)
    return {
        "new_us": round(statistics.median(times[0::4] + times[3::4]) * 1e6, 3),
        "old_us": round(statistics.median(times[1::4] + times[2::4]) * 1e6, 3),
        "ratio": round(statistics.median(ratios), 4),
        "interval": [round(low, 4), round(high, 4)],
        "same_bits": bool(np.array_equal(*bits)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT")
    arguments = parser.parse_args()
    info = gpu_info()
    cases = [c for c in CASES if not arguments.only or any(text in c[0] for text in arguments.only)]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        for job in [pool.submit(compile_case, *case, info.arch) for case in cases]:
            job.result()
    device = registry.get("cuda").open(0)
    rows = []
    for key, config in cases:
        rows.append(compare(device, key, config, arguments.blocks))
        print(rows[-1], flush=True)
    device.close()
    # Slower beyond doubt: the whole interval.
    slower = [row["problem"] for row in rows if row["interval"][0] > MOST_SLOWER]
    worst = max(rows, key=lambda row: row["ratio"])
    measured = f"{len(slower)} of {len(rows)}; largest ratio {worst['ratio']} ({worst['problem']})"
    other = [row["problem"] for row in rows if not row["same_bits"]]
    bars = [
        ("no kernel is slower by more than 1 %", measured, worst["ratio"] <= MOST_SLOWER),
        ("both forms compute the same bits", f"{len(other)} do not", not other),
    ]
    title = "Triton kernels that wrap at the edge against kernels that clamp"
    evidence.write(
        arguments.output,
        title=title,
        bars=bars,
        figures={"rows": rows},
        device=info,
        libraries=evidence.libraries("triton"),
    )
    print(evidence.bars_text(bars))
    sys.exit(0 if all(holds for _, _, holds in bars) else 1)


if __name__ == "__main__":
    main()
