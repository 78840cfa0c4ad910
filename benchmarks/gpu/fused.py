"""The Triton GEMM's sums of k slices in one launch: the same bits every time, and how fast.

    python benchmarks/gpu/fused.py [-o results.json] [--replays 1500]

The last program of a tile to arrive sums what the others stored. Every launch of thousands, in
graphs over two argument sets, must give the bits that a launch of its own for the sum gives: both
add in the same order. Then each form is timed as any case is, beside the library; and so are
large products whose warps load or multiply, a form that no search looks at so far.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _gpu import gpu_info
from numpy.typing import NDArray

from kernelmark import ops
from kernelmark.backends import registry as backends
from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Config, Status
from kernelmark.core.timing import Timer
from kernelmark.devices import registry
from kernelmark.devices.base import Device, Replay, Tensor
from kernelmark.measure.sets import Arena, fill_inputs, make_arena
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Pool
from kernelmark.tune.evaluate import final_timing
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_fused.json"
SMALL = {"block_m": 16, "block_n": 64, "block_k": 128, "num_stages": 5, "num_warps": 4}
SMALL |= {"persistent": False}
LARGE = {**SMALL, "block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 4}
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gemm m=16 n=4096 k=4096 a=bf16 b=bf16 tb=t", {**SMALL, "split_k": 4}),
    ("gemm m=16 n=4096 k=4096 a=bf16 b=bf16 tb=t", {**SMALL, "split_k": 16}),
    ("gemm m=16 n=4096 k=4096 a=bf16 b=bf16 tb=t", {**SMALL, "split_k": 4, "swap": True}),
    ("gemm m=16 n=8192 k=8192 a=f8e4m3 b=f8e4m3 c=bf16 tb=t", {**SMALL, "split_k": 4}),
    (
        "gemm m=16 n=8192 k=8192 a=f8e4m3 b=f8e4m3 c=bf16 tb=t",
        {**SMALL, "split_k": 4, "swap": True},
    ),
    (
        "gemm m=32 n=7168 k=2048 a=f8e4m3 b=f8e4m3 c=bf16 tb=t",
        {**SMALL, "block_m": 32, "split_k": 3, "swap": True},
    ),
    ("gemm m=33 n=2047 k=7161 a=f16 b=f16 tb=t", {**SMALL, "block_m": 32, "split_k": 12}),
    ("gemm m=64 n=5120 k=5120 a=bf16 b=bf16 tb=t", {**LARGE, "split_k": 6}),
    (
        "gemm m=128 n=4096 k=14336 a=f16 b=f16 tb=t",
        {**LARGE, "block_m": 128, "num_warps": 8, "split_k": 8},
    ),
    ("batched_gemm batch=3 m=17 n=1000 k=1000 a=f16 b=f16 tb=t", {**SMALL, "split_k": 3}),
)
# With warps that load and warps that multiply.
DESCRIBED = {**LARGE, "persistent": True, "group_m": 8}
SPECIAL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gemm m=2048 n=4096 k=4096 a=bf16 b=bf16 tb=t", DESCRIBED),
    ("gemm m=512 n=8192 k=8192 a=bf16 b=bf16 tb=t", DESCRIBED),
    ("gemm m=2048 n=4096 k=14336 a=f8e4m3 b=f8e4m3 c=bf16 tb=t", {**DESCRIBED, "block_k": 128}),
)
_POISON = 0x5A


def stress(device: Device, problem: Problem, config: Config, replays: int) -> int:
    """Launches, of 2 × `replays`, that gave other bits than the sum by a launch of its own."""
    op = ops.registry.get(problem.op)
    triton = backends.get("triton")
    buffer, sets = make_arena(device, op.tensors(problem), 2, np.random.default_rng(1))
    outs = [arguments[op.output(problem).name] for arguments in sets]
    wrong = 0
    try:
        fill_inputs(device, Arena(buffer=buffer, sets=sets, numbers=[*range(len(sets))]), 1)
        apart = triton.prepare(problem, {**config, "fused_sum": False}, device, sets)
        replay = device.record(apart.launch, (0, 1), Timer.AUTO)
        right = _launched(device, replay, outs)
        replay.close()
        apart.close()
        fused = triton.prepare(problem, {**config, "fused_sum": True}, device, sets)
        replay = device.record(fused.launch, (0, 1), Timer.AUTO)
        for _ in range(replays):
            found = _launched(device, replay, outs)
            wrong += sum(not np.array_equal(a, b) for a, b in zip(found, right, strict=True))
        replay.close()
        fused.close()
    finally:
        device.free(buffer)
    return wrong


def _launched(device: Device, replay: Replay, outs: Sequence[Tensor]) -> list[NDArray[np.uint8]]:
    """The bytes of each output after a replay; what is not written stays as it never is."""
    for out in outs:
        device.poison(out, _POISON)
    replay.run()
    return [device.read(out.buffer, out.offset, out.spec.nbytes) for out in outs]


def timed(pool: Pool, problem: Problem, forms: Mapping[str, tuple[str, Config]]) -> dict[str, Any]:
    """Microseconds of each form, or what became of it."""
    found: dict[str, Any] = {}
    for name, (backend, config) in forms.items():
        timing = final_timing(pool.devices[0].info, 1)
        case = Case(problem=problem, backend=backend, config=config, timing=timing)
        result = pool.call(MeasureCase(case=case))
        if result.status is Status.OK and result.measurement is not None:
            found[f"{name}_us"] = round(result.measurement.median_s * 1e6, 3)
        else:
            found[f"{name}_error"] = f"{result.status.value}: {result.error[:200]}"
    print(problem.key.split(" acc")[0], found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--replays", type=int, default=1500)
    given = parser.parse_args()
    gpu_info()
    device = registry.get("cuda").open(0)
    rows: list[dict[str, Any]] = []
    for key, config in CASES:
        wrong = stress(device, ops.parse(key), config, given.replays)
        rows.append({"problem": key, "config": config, "wrong_launches": wrong})
        print(f"{wrong} of {2 * given.replays} launches wrong: {key} {config}", flush=True)
    info = device.info
    device.close()
    pool = LocalRunner(["cuda:0"], timeout_s=20).pool()
    others: dict[str, tuple[str, Config]] = {
        "cublaslt": ("cublaslt", {}),
        "default": ("triton", {}),
    }
    special = []
    try:
        for row in rows:
            forms: dict[str, tuple[str, Config]] = {
                "apart": ("triton", {**row["config"], "fused_sum": False}),
                "fused": ("triton", {**row["config"], "fused_sum": True}),
            }
            row |= timed(pool, ops.parse(row["problem"]), {**others, **forms})
        for key, config in SPECIAL:
            forms = {"special": ("triton", {**config, "specialize": True})}
            special.append({"problem": key, **timed(pool, ops.parse(key), {**others, **forms})})
    finally:
        pool.close()
    wrong = sum(row["wrong_launches"] for row in rows)
    failed = [row["problem"] for row in rows if "fused_us" not in row]
    bars = [
        ("every launch has the bits of a sum apart", f"{wrong} have not", wrong == 0),
        ("every form is right by the op's tolerance", f"{len(failed)} are not", not failed),
    ]
    figures = {"rows": rows, "special": special, "launches": 2 * given.replays * len(rows)}
    title = "Split k summed in one launch"
    evidence.write(given.output, title=title, bars=bars, figures=figures, device=info)
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
