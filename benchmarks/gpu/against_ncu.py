"""Against ncu: our time × our in-stream clock, and ncu's cycles, over 40 GEMM shapes.

    python benchmarks/gpu/against_ncu.py [-o results.json]

A lone launch under ncu runs at another clock than a sustained one, so cycles are compared.
Triton's do_bench is timed beside, in µs against ncu's time.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
import triton

from kernelmark import ops
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.runners.execute import execute
from kernelmark.runners.profiler import CYCLES, TIME, profile_all
from kernelmark.testing import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_against_ncu.json"
SIZES = [
    *((m, n, k) for m in (16, 128, 512, 2048) for n, k in ((1280, 8192), (4096, 4096))),
    *((m, n, k) for m in (64, 256, 1024, 4096) for n, k in ((8192, 1024), (14336, 4096))),
    *((m, n, k) for m in (32, 512, 1536, 3072) for n, k in ((2048, 2048), (8192, 8192))),
    *((m, n, k) for m in (1, 384, 768, 6144) for n, k in ((7168, 2048), (4096, 14336))),
    *((s, s, s) for s in (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)),
]


def do_bench_us(m: int, n: int, k: int) -> float:
    a = torch.rand(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.rand(n, k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    run = lambda: torch.mm(a, b.t(), out=out)  # noqa: E731
    return float(triton.testing.do_bench(run, return_mode="median")) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    device = registry.get("cuda").open(0)
    timing = Timing.preset("quick", max_s=0.2)
    rows = []
    problems = [ops.parse(f"gemm m={m} n={n} k={k} a=bf16 b=bf16 tb=t") for m, n, k in SIZES]
    cases = [Case(problem=problem, backend="cublaslt", timing=timing) for problem in problems]
    profiles = profile_all(cases, device.info.name, launches=5, metrics=(TIME, CYCLES))
    for (m, n, k), case, seen in zip(SIZES, cases, profiles, strict=True):
        result = execute(case, device, 0, lambda phase: None)
        assert result.measurement is not None, result.error
        clocks = [c for block in result.measurement.blocks for c in block.clocks_mhz]
        clock = statistics.median(clocks)
        ours_us = result.measurement.median_s * 1e6
        rows.append(
            {
                "m": m,
                "n": n,
                "k": k,
                "status": str(result.status),
                "ours_us": ours_us,
                "ours_clock_mhz": clock,
                "ours_cycles": ours_us * clock,
                "ncu_us": seen.seconds * 1e6,
                "ncu_cycles": seen.metrics[CYCLES],
                "do_bench_us": do_bench_us(m, n, k),
                "kernels": len(seen.kernels),
            }
        )
        row = rows[-1]
        print(
            f"{m:6}{n:6}{k:6} ours {row['ours_us']:9.2f} µs ncu {row['ncu_us']:9.2f} "
            f"do_bench {row['do_bench_us']:9.2f}  cycles ours/ncu "
            f"{row['ours_cycles'] / row['ncu_cycles']:.3f}",
            flush=True,
        )
    long = [r for r in rows if r["ncu_us"] >= 20]
    error = statistics.median(abs(r["ours_cycles"] / r["ncu_cycles"] - 1) for r in long)
    bench = statistics.median(abs(r["do_bench_us"] / r["ncu_us"] - 1) for r in long)
    short = [r for r in rows if r["ncu_us"] < 20]
    bars = [
        (
            "median |ours − ncu| ≤ 5 % in cycles, from 20 µs on",
            f"{error:.2%} over {len(long)} shapes (do_bench in µs: {bench:.2%})",
            error <= 0.05,
        ),
    ]
    figures = {
        "median_error_cycles_from_20us": error,
        "median_error_do_bench_from_20us": bench,
        "median_error_cycles_below_20us": statistics.median(
            abs(r["ours_cycles"] / r["ncu_cycles"] - 1) for r in short
        ),
        "median_error_do_bench_below_20us": statistics.median(
            abs(r["do_bench_us"] / r["ncu_us"] - 1) for r in short
        ),
        "rows": rows,
    }
    evidence.write(
        given.output,
        title="GEMM times against ncu, in core cycles",
        bars=bars,
        figures=figures,
        device=device.info,
        libraries={"torch": torch.__version__, "triton": triton.__version__},
    )
    print(evidence.told(bars))


if __name__ == "__main__":
    main()
