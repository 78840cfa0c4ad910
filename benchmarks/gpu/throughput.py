"""Throughput: problems a minute, cold and verified, beside a plain do_bench_cudagraph loop.

    python benchmarks/gpu/throughput.py [--problems 1000] [--loop N] [-o results.json]

bf16 GEMMs of language models, half by torch and half by cuBLASLt, through the real runner and
worker, in the quick timing; then a few of them in the default timing and in the full one; then all
of them, or as many as --loop says, in a loop of do_bench_cudagraph, which is hot and unverified.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from _gpu import gpu_info

from kernelmark.core.problem import Problem
from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Timing
from kernelmark.measure.protocol import PHASES
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import LocalRunner
from kernelmark.workloads import select, suites
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_throughput.json"
SUITES = ("llama3", "qwen3", "mixtral", "gpt-oss", "deepseek")
BACKENDS = ("torch", "cublaslt")
# A model's weights (n, k) with more batch sizes than the suites ask for, to reach a thousand.
TOKENS = (1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def of_suites() -> dict[str, Problem]:
    """The bf16 GEMMs of the model suites, by key."""
    loaded = [suites.load(name, dtypes=("bf16",), ops=("gemm",)) for name in SUITES]
    return {problem.key: problem for suite in loaded for problem in suite.problems}


def problems(count: int) -> list[Problem]:
    """bf16 GEMMs of the model suites, spread over their sizes; never one twice."""
    found = of_suites()
    weights = dict.fromkeys((p.dims["n"], p.dims["k"]) for p in found.values())
    for m in TOKENS:
        for n, k in weights:
            for problem in select.expand("gemm", [f"m={m}", f"n={n}", f"k={k}", "tb=t"], ["bf16"]):
                found.setdefault(problem.key, problem)
    sized = [p for p in found.values() if p.dims["m"] * p.dims["n"] * p.dims["k"] < 2**40]
    return select.sample(sized, count, seed=1)


def in_turns(chosen: list[Problem], timing: Timing) -> list[Case]:
    """Every other problem by torch and the rest by cuBLASLt."""
    return [
        Case(problem=problem, backend=BACKENDS[at % 2], timing=timing)
        for at, problem in enumerate(chosen)
    ]


def measured(
    chosen: list[Problem], preset: str, most_s: float = math.inf
) -> tuple[list[Result], float]:
    """Results and their seconds, over all problems or as many as `most_s` has room for, but one at
    least. A quick case of each backend comes before the clock starts: what a process pays once, for
    its start, its context and the libraries, is no problem's, and not in the loop's time either."""
    first, rest = chosen[: len(BACKENDS)], chosen[len(BACKENDS) :]
    cases = in_turns(rest, Timing.preset(preset))
    if most_s == math.inf:
        cases.sort(key=lambda case: BACKENDS.index(case.backend))
    begun = wall_s = 0.0
    results: list[Result] = []
    with contextlib.closing(
        LocalRunner(["cuda:0"], timeout_s=120).run(in_turns(first, Timing.preset("quick")) + cases)
    ) as events:
        for event in events:
            if not isinstance(event, CaseFinished):
                continue
            results.append(event.result)
            done = len(results) - len(first)
            if done <= 0:
                begun = time.perf_counter()
                continue
            wall_s = time.perf_counter() - begun
            if done == 1 or done % 50 == 0:
                print(f"{preset}: {done} cases, {wall_s:.0f} s", flush=True)
            if wall_s * (done + 1) / done > most_s:
                break
    return results[len(first) :], wall_s


def rate(chosen: list[Problem], count: int, preset: str, most_s: float) -> dict[str, Any]:
    """Cases a minute in a preset, over `count` problems or as many as `most_s` has room for."""
    some = select.sample(chosen, count + len(BACKENDS), seed=3)
    random.Random(3).shuffle(some)  # a run that is cut short has all sizes too
    results, wall_s = measured(some, preset, most_s)
    return {
        "cases": len(results),
        "ok": sum(result.status == "ok" for result in results),
        "wall_s": wall_s,
        "cases_per_minute": 60 * len(results) / wall_s if results else None,
    }


def product(m: int, n: int, k: int) -> Callable[[], object]:
    """A product into an output that is there already, as a function without arguments."""
    a = torch.rand(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.rand(n, k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.mm(a, b.t(), out=out)


def loop(chosen: list[Problem]) -> float:
    """Seconds of do_bench_cudagraph over the problems."""
    # What a process pays once is no problem's: see `measured`.
    triton.testing.do_bench_cudagraph(product(256, 256, 256))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for problem in chosen:
        triton.testing.do_bench_cudagraph(product(*(problem.dims[x] for x in "mnk")))
    return time.perf_counter() - start


def on_gpu_s(results: list[Result]) -> float:
    """Seconds in which the GPU ran what is measured, by its own clock: timed, warm-up, re-timed,
    hot and eager launches. Generating inputs and comparing outputs run on it too but are not
    counted."""
    return sum(r.cost.get("device", 0.0) for r in results)


def told(chosen: list[Problem], results: list[Result], wall_s: float) -> dict[str, Any]:
    """The figures of the run in the quick timing."""
    measurements = [r.measurement for r in results if r.measurement is not None]
    widths = np.quantile([m.rel_half_width for m in measurements], (0.5, 0.9, 1))
    named = of_suites()
    of_them = sum(problem.key in named for problem in chosen)
    return {
        "cases": len(results),
        "problems_of_suites": of_them,
        "problems_of_their_weights_with_further_m": len(chosen) - of_them,
        "wall_s": wall_s,
        "cases_per_minute": 60 * len(results) / wall_s,
        "share_on_gpu": on_gpu_s(results) / wall_s,
        "blocks_a_case": statistics.fmean(len(m.blocks) for m in measurements),
        "half_widths": dict(zip(("median", "p90", "max"), map(float, widths), strict=True)),
        "cost_s": {
            name: sum(r.cost.get(name, 0.0) for r in results)
            for name in (*PHASES, "total", "device")
        },
        "statuses": dict(Counter(str(r.status) for r in results)),
    }


def bars_of(figures: dict[str, Any]) -> list[tuple[str, str, bool]]:
    ours, share, statuses = (figures[x] for x in ("cases_per_minute", "share_on_gpu", "statuses"))
    theirs, count = (figures["do_bench_cudagraph"][x] for x in ("problems_per_minute", "problems"))
    return [
        (
            "at least the problems a minute of a do_bench_cudagraph loop",
            f"{ours:.0f} a minute over {figures['cases']} against {theirs:.0f} over {count}",
            ours >= theirs,
        ),
        ("at least 70 % of the wall time on the GPU", f"{share:.1%}", share >= 0.7),
        ("every problem ok", str(statuses), set(statuses) == {"ok"}),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--loop", type=int, help="problems in the loop; all of them unless told")
    parser.add_argument("--default", type=int, default=20, help="problems in the default timing")
    parser.add_argument("--full", type=int, default=20, help="problems in the full timing at most")
    parser.add_argument(
        "--full-s", type=float, default=30.0, help="seconds for them: one may take 20"
    )
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    info = gpu_info()
    extra = len(BACKENDS)  # measured before the clock starts
    chosen = problems(given.problems + extra)
    results, wall_s = measured(chosen, "quick")
    figures = told(chosen[extra:], results, wall_s)
    print(f"{figures['cases_per_minute']:.0f} a minute, {figures['share_on_gpu']:.1%} on the GPU")
    figures["default_timing"] = rate(chosen, given.default, "default", 60.0)
    figures["full_timing"] = rate(chosen, given.full, "full", given.full_s)
    # The loop comes last: its process keeps a context, and memory, on the device.
    some = chosen[extra:]
    if given.loop is not None:
        some = select.sample(some, given.loop, seed=2)
    loop_s = loop(some)
    figures["do_bench_cudagraph"] = {
        "problems": len(some),
        "wall_s": loop_s,
        "problems_per_minute": 60 * len(some) / loop_s,
    }
    bars = bars_of(figures)
    evidence.write(
        given.output,
        title="Throughput: verified cold GEMM cases a minute",
        bars=bars,
        figures=figures,
        device=info,
        libraries=evidence.libraries("torch", "triton", "cublaslt"),
    )
    costs = {name: round(value, 1) for name, value in figures["cost_s"].items()}
    print(costs, f"wall {wall_s:.1f} s")
    for result in results:
        if result.status != "ok":
            print(result.status, result.case.backend, result.case.problem.key, result.error[:200])
    print(evidence.bars_text(bars))


if __name__ == "__main__":
    main()
