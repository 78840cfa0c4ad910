"""All backends in one plan, on shapes that nobody chose: what the best of cuBLASLt, Triton and
torch gains over cuBLASLt's default, and what each of them reached.

    python benchmarks/gpu/several.py --folder F --seed 20261119 --problems 60 --minutes 6

The seed draws the shapes. A run that was cut off goes on with the same folder. Winners are those of
the product: timed in turns with the reference in fresh memory, correct on fresh inputs and on
neighbouring sizes.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.tune.plans import Budget, TunePlan
from kernelmark_dev import evidence
from tune import DTYPES, geomean, outcome_of, row_of, tune

RESULTS = Path(__file__).parent.parent / "results" / "gpu_several.json"
BACKENDS = "cublaslt,triton,torch"
MOST_FLOPS = 2 * 8192**3


def problems(seed: int, count: int) -> list[Problem]:
    """Draw GEMMs: sizes log-uniform, n and k multiples of 64 from 1024 on. Half of the m, and those
    of all 8-bit floats, are multiples of 16."""
    draw = random.Random(seed)
    chosen: dict[Problem, None] = {}
    while len(chosen) < count:
        m = round(math.exp(draw.uniform(0, math.log(8192))))
        kind = DTYPES[len(chosen) % len(DTYPES)]
        if draw.random() < 0.5 or "f8" in kind:
            m = max(16, m // 16 * 16)
        n, k = (64 * round(math.exp(draw.uniform(math.log(16), math.log(256)))) for _ in range(2))
        if 2 * m * n * k <= MOST_FLOPS:
            chosen[ops.parse(f"gemm m={m} n={n} k={k} {kind} tb=t")] = None
    return list(chosen)


def plans(seed: int, count: int, evaluations: int) -> list[TunePlan]:
    return [
        TunePlan(
            name=f"SEVERAL_{i}",
            problem=problem,
            backend=BACKENDS,
            reference_backend="cublaslt",
            budget=Budget(evaluations=evaluations),
        )
        for i, problem in enumerate(problems(seed, count))
    ]


def rows(folder: Path, every: Sequence[TunePlan]) -> list[dict[str, Any]]:
    result = []
    for plan in every:
        outcome = outcome_of(folder, plan.name)
        # A search that the end of the run cut off has no say.
        if outcome is not None and outcome.evaluations >= plan.budget.evaluations:
            reached = {name: round(1e6 * s, 3) for name, s in outcome.reached_s.items()}
            row = {**row_of(plan, outcome), "backend": outcome.tuned.backend, "reached_us": reached}
            result.append(row)
    return result


def bars_of(measured: Sequence[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    ratios = [row["ratio"] for row in measured if row["ratio"]]
    # A problem whose winner is not kept goes on with the library's default.
    used = [row["ratio"] if row["kept"] else 1.0 for row in measured]
    kept = sum(row["kept"] for row in measured)
    triton = [
        row["reference_us"] / row["reached_us"]["triton"]
        for row in measured
        if "triton" in row["reached_us"] and row["reference_us"]
    ]
    share = kept / len(measured) if measured else 0.0
    return [
        (
            "best of all ≥ 1.03 × cuBLASLt's default, geomean",
            f"{geomean(ratios):.3f}; {geomean(used):.3f} with what is not kept at 1 "
            f"({len(ratios)} problems)",
            geomean(ratios) >= 1.03,
        ),
        ("kept in ≥ 40 % of the problems", f"{kept} of {len(measured)}", share >= 0.4),
        (
            "Triton alone ≥ 0.97, geomean, by the times of the search",
            f"{geomean(triton):.3f} ({len(triton)} problems)",
            geomean(triton) >= 0.97,
        ),
        (
            "Triton alone nowhere below 0.85",
            f"{min(triton, default=math.nan):.3f}; {sum(t < 0.85 for t in triton)} below",
            min(triton, default=0.0) >= 0.85,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = gpu_info()
    options.folder.mkdir(parents=True, exist_ok=True)
    every = plans(options.seed, options.problems, options.evaluations)
    tune(options.folder, every, options.minutes, None)
    measured = rows(options.folder, every)
    for row in measured:
        print(row["problem"], row["ratio"], row["kept"], row["backend"], row["reached_us"])
    bars = bars_of(measured)
    winners = [row["backend"] for row in measured if row["kept"]]
    print(evidence.bars_text(bars))
    evidence.write(
        options.output,
        title="All backends in one plan, against cuBLASLt's default",
        bars=bars,
        figures={
            "seed": options.seed,
            "evaluations": options.evaluations,
            "winners": {name: winners.count(name) for name in sorted(set(winners))},
            "median_ratio": statistics.median([r["ratio"] for r in measured if r["ratio"]] or [0]),
            "problems": measured,
        },
        device=device,
    )


if __name__ == "__main__":
    main()
