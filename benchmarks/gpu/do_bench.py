"""km.do_bench against kmark run of the same GEMM and Triton's do_bench: values and wall time.

    python benchmarks/gpu/do_bench.py [-o results.json]

Calls alternate in one process. `km.do_bench` flushes the cache before each call, so `kmark run`
does the same here (cache = flush). Each turn has new tensors: a call has those that its function
holds, `kmark run` draws several placements. Bars: the interval of the turns' medians, all of them,
meets that of `kmark run`, and a call takes at most 1.2 times as long as Triton's with the same
arguments.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _gpu import gpu_info

import kernelmark as km
from kernelmark.core.timing import Cache
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_do_bench.json"
SIZES = ((16, 4096, 4096), (256, 2048, 7168), (1024, 1024, 1024), (2048, 4096, 4096))
TURNS = 5
LIMIT = 1.2


def timed(call: Callable[[], float]) -> tuple[float, float]:
    """Milliseconds that a call returns, and the seconds that it takes."""
    began = time.perf_counter()
    return call(), time.perf_counter() - began


def compare(m: int, n: int, k: int) -> dict[str, Any]:
    import torch
    from triton.testing import do_bench

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    calls = {"km": km.do_bench, "triton": do_bench}
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    kept = []  # so that the next turn gets other memory
    for _ in range(TURNS + 1):  # the first call of each also compiles and allocates
        # Rounded from f32, as kernelmark's own inputs are: other bits draw other power.
        a, b = ((torch.rand(*s, device="cuda") * 2 - 1).bfloat16() for s in ((m, k), (k, n)))
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        kept += [a, b, out]
        call = partial(torch.mm, a, b, out=out)
        for name, bench in calls.items():
            turns[name].append(timed(partial(bench, call, return_mode="median")))
    timing = km.Timing.preset("default", cache=Cache.FLUSH)
    (ran,) = km.run(
        "gemm",
        backend="torch",
        device="cuda:0",
        dtype="bf16",
        m=m,
        n=n,
        k=k,
        timing=timing,
        roofs="none",
    )
    assert ran.measurement is not None, ran.error
    low, high = ran.measurement.low_s * 1e6, ran.measurement.high_s * 1e6
    us = {name: [ms * 1e3 for ms, _ in sorted(of[1:])] for name, of in turns.items()}
    wall = {name: statistics.median(s for _, s in of[1:]) for name, of in turns.items()}
    return {
        "problem": f"gemm m={m} n={n} k={k} bf16",
        "us": us,
        "run_us": [ran.measurement.median_s * 1e6, low, high],
        "meet": low <= us["km"][-1] and us["km"][0] <= high,
        "wall_s": wall,
        "wall_ratio": wall["km"] / wall["triton"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    info = gpu_info()
    rows = [compare(*size) for size in SIZES]
    for row in rows:
        print(row, flush=True)
    meeting = sum(row["meet"] for row in rows)
    ratio = statistics.geometric_mean(row["wall_ratio"] for row in rows)
    bars = [
        (
            "the intervals of km.do_bench and kmark run meet",
            f"{meeting} of {len(rows)}",
            meeting == len(rows),
        ),
        (f"at most {LIMIT} times as long as Triton's", f"{ratio:.2f}", ratio <= LIMIT),
    ]
    evidence.write(
        given.output,
        title="km.do_bench against kmark run and triton.testing.do_bench",
        bars=bars,
        figures={"rows": rows},
        device=info,
        libraries=evidence.libraries("torch", "triton"),
    )
    print(evidence.bars_text(bars))
    return 0 if all(holds for _, _, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
