"""Throughput: problems a minute, cold and verified, beside a plain do_bench_cudagraph loop.

    python benchmarks/gpu/throughput.py [--problems 1000] [--loop 200] [-o results.json]

bf16 GEMMs of language models, half by torch and half by cuBLASLt, through the real runner and
worker, in the quick timing; then as many of them as --loop says in a loop of do_bench_cudagraph,
which is hot and unverified; then the default timing on fewer problems.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import triton

from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.measure.protocol import PHASES
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.testing import evidence
from kernelmark.workloads import axes, select, suites

RESULTS = Path(__file__).parent.parent / "results" / "gpu_throughput.json"
SUITES = ("llama3", "qwen3", "mixtral", "gpt-oss", "deepseek")
# A model's weights (n, k) with more batch sizes than the suites ask for, to reach a thousand.
TOKENS = (1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def problems(count: int) -> list[Problem]:
    """bf16 GEMMs of the model suites, spread over their sizes; never one twice."""
    found: dict[str, Problem] = {}
    weights: dict[tuple[int, int], None] = {}
    for name in SUITES:
        for problem in suites.load(name, dtypes=("bf16",), ops=("gemm",)).problems:
            found[problem.key] = problem
            weights[problem.dims["n"], problem.dims["k"]] = None
    for m in TOKENS:
        for n, k in weights:
            for problem in axes.expand("gemm", [f"m={m}", f"n={n}", f"k={k}", "tb=t"], ["bf16"]):
                found.setdefault(problem.key, problem)
    sized = [p for p in found.values() if p.dims["m"] * p.dims["n"] * p.dims["k"] < 2**40]
    return select.sample(sized, count, seed=1)


def measured(chosen: list[Problem], timing: Timing) -> tuple[list[Result], float]:
    """Results, every other problem by torch and the rest by cuBLASLt, and the run's seconds."""
    halves = {"torch": chosen[::2], "cublaslt": chosen[1::2]}
    cases = [
        Case(problem=problem, backend=backend, timing=timing)
        for backend, half in halves.items()
        for problem in half
    ]
    start = time.perf_counter()
    runner = LocalRunner(["cuda:0"], timeout_s=120)
    results = []
    for event in runner.run(cases):
        if isinstance(event, CaseFinished):
            results.append(event.result)
            if len(results) == 1 or len(results) % 50 == 0:
                print(f"{len(results)} cases, {time.perf_counter() - start:.0f} s", flush=True)
    return results, time.perf_counter() - start


def loop(chosen: list[Problem]) -> float:
    """Seconds of do_bench_cudagraph over the problems."""
    start = time.perf_counter()
    for problem in chosen:
        m, n, k = (problem.dims[x] for x in "mnk")
        a = torch.rand(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.rand(n, k, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        triton.testing.do_bench_cudagraph(lambda a=a, b=b, out=out: torch.mm(a, b.t(), out=out))
    return time.perf_counter() - start


def on_gpu_s(results: list[Result]) -> float:
    """Seconds in which the GPU ran what is measured, by its own clock: timed, warm-up, hot and
    eager launches. Generating inputs and checking outputs run on it too but are not counted."""
    return sum(r.cost.get("device", 0.0) for r in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--loop", type=int, default=200)
    parser.add_argument("--default", type=int, default=20, help="problems in the default timing")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    info = registry.get("cuda").infos()[0]
    chosen = problems(given.problems)
    results, wall_s = measured(chosen, Timing.preset("quick"))
    some = select.sample(chosen, given.loop, seed=2)
    loop_s = loop(some)
    # The first one loads the libraries: over a few cases that would be most of the time.
    full_results, _ = measured(select.sample(chosen, given.default + 1, seed=3), Timing())
    full = [r.cost["total"] for r in full_results[1:]]
    ours = 60 * len(results) / wall_s
    theirs = 60 * len(some) / loop_s
    share = on_gpu_s(results) / wall_s
    measured_ones = [r.measurement for r in results if r.measurement is not None]
    blocks = [len(m.blocks) for m in measured_ones]
    widths = [
        float(x) for x in np.quantile([m.rel_half_width for m in measured_ones], (0.5, 0.9, 1))
    ]
    statuses = Counter(str(r.status) for r in results)
    costs = {
        name: sum(r.cost.get(name, 0.0) for r in results) for name in (*PHASES, "total", "device")
    }
    bars = [
        (
            "at least the problems a minute of a do_bench_cudagraph loop",
            f"{ours:.0f} a minute against {theirs:.0f}",
            ours >= theirs,
        ),
        ("at least 70 % of the wall time on the GPU", f"{share:.1%}", share >= 0.7),
        ("every problem ok", str(dict(statuses)), set(statuses) == {"ok"}),
    ]
    evidence.write(
        given.output,
        title="Throughput: verified cold GEMM cases a minute",
        bars=bars,
        figures={
            "cases": len(results),
            "wall_s": wall_s,
            "cases_per_minute": ours,
            "do_bench_cudagraph_per_minute": theirs,
            "default_timing_cases_per_minute": 60 / statistics.fmean(full),
            "share_on_gpu": share,
            "blocks_a_case": statistics.fmean(blocks),
            "half_widths": dict(zip(("median", "p90", "max"), widths, strict=True)),
            "cost_s": costs,
            "statuses": dict(statuses),
        },
        device=info,
        libraries={"torch": torch.__version__, "triton": triton.__version__},
    )
    print({name: round(value, 1) for name, value in costs.items()}, f"wall {wall_s:.1f} s")
    for result in results:
        if result.status != "ok":
            print(result.status, result.case.backend, result.case.problem.key, result.error[:200])
    print(evidence.told(bars))


if __name__ == "__main__":
    main()
