"""km.bench of a product against kmark run of the same one: do their 95 % intervals meet?

    taskset -c 1 python benchmarks/bench_agrees.py [-o results.json]
    python benchmarks/bench_agrees.py -d cuda:0

The function is the one that the backend calls (numpy on a CPU, torch on a GPU), with the output
given and torch's flags as that backend sets them. Both take turns, so that a drift of the machine
is in both, and each starts in a fresh process: on a Neoverse N1, OpenBLAS 0.3 computes f32 products
8 % faster once the process has computed one of f64, as the reference of a first km.bench is
(256 × 256 × 256: 995 and 917 µs in a plain loop).
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import kernelmark as km
from kernelmark.core.result import Result, Status
from kernelmark.runners.targets import find
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent / "results"
SIZES = {
    "cpu": ((64, 256, 256), (128, 512, 256), (256, 256, 256), (384, 384, 384), (512, 512, 512)),
    "gpu": ((16, 4096, 4096), (256, 2048, 7168), (1024, 1024, 1024), (2048, 4096, 4096)),
}
TURNS = 3


def arrays(m: int, n: int, k: int, device: str) -> tuple[Any, ...]:
    if device == "cpu":
        rng = np.random.default_rng(m)
        shapes = ((m, k), (k, n), (m, n))
        return tuple(rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    import torch

    # Rounded from f32 like kernelmark's own inputs: values made in bf16 are faster at a power cap
    # (gpu/values.py).
    made = [torch.rand(*shape, device="cuda") * 2 - 1 for shape in ((m, k), (k, n), (m, n))]
    return tuple(one.to(torch.bfloat16) for one in made)


def numpy_product(a: Any, b: Any, out: Any) -> Any:
    return np.matmul(a, b, out=out)


def torch_product(a: Any, b: Any, out: Any) -> Any:
    import torch

    return torch.mm(a, b, out=out)


def compared(m: int, n: int, k: int, device: str) -> dict[str, Any]:
    """Medians and intervals in µs, in turns, and whether those of each turn meet."""
    backend, dtype = ("numpy", "f32") if device == "cpu" else ("torch", "bf16")
    row: dict[str, Any] = {"problem": f"m={m} n={n} k={k} {dtype}", "turns": []}
    for _ in range(TURNS):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            benched = fresh.submit(bench, m, n, k, device).result()
        (ran,) = km.run(
            "gemm", backend=backend, device=device, dtype=dtype, m=m, n=n, k=k, roofs="none"
        )
        row["turns"].append([benched, figures(ran)])
    row["meet"] = [meet(*turn) for turn in row["turns"]]
    return row


def bench(m: int, n: int, k: int, device: str) -> list[float]:
    if device != "cpu":
        import torch

        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    product = numpy_product if device == "cpu" else torch_product
    (found,) = km.bench(product, *arrays(m, n, k, device), ref=lambda a, b: a @ b)
    return figures(found)


def figures(result: Result) -> list[float]:
    """Median and interval in µs."""
    one = result.measurement
    if one is None or result.status is not Status.OK:
        raise SystemExit(f"{result.status}: {result.error}")
    return [round(x * 1e6, 4) for x in (one.median_s, one.low_s, one.high_s)]


def meet(first: list[float], second: list[float]) -> bool:
    return first[1] <= second[2] and second[1] <= first[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-d", "--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    _, info = find(given.device)
    kind = "cpu" if given.device == "cpu" else "gpu"
    rows = [compared(*size, given.device) for size in SIZES[kind]]
    for row in rows:
        print(row["problem"], *row["turns"], "meet" if all(row["meet"]) else "apart")
    turns = [one for row in rows for one in row["meet"]]
    measured = f"{sum(turns)} of {len(turns)}"
    bars = [("the intervals of km.bench and kmark run meet in every turn", measured, all(turns))]
    evidence.write(
        given.output or RESULTS / f"{'' if kind == 'cpu' else 'gpu_'}bench_agrees.json",
        title=f"km.bench against kmark run, {kind.upper()}",
        bars=bars,
        figures={"rows": rows},
        device=info,
        libraries=evidence.libraries("numpy" if kind == "cpu" else "torch"),
    )
    print(evidence.bars_text(bars))
    return 0 if all(turns) else 1


if __name__ == "__main__":
    raise SystemExit(main())
