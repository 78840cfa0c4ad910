"""Families of GEMMs on a GPU: one search for many m, beside a search for each.

    python benchmarks/gpu/families.py --folder F                 36 GEMMs of one layer, six minutes
    python benchmarks/gpu/families.py --folder F --whole         180 GEMMs of five layers

Both tune the same problems with the same budget for a search, into folders of their own. Device
time is what all trials cost, finals included. `slow` is a GEMM of about 10 ms on an H200, of which
only the candidates a minute count.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import ops
from kernelmark.runners.local import LocalRunner
from kernelmark.tune import journal
from kernelmark.tune.driver import Driver
from kernelmark.tune.families import joined
from kernelmark.tune.plans import Acceptance, Budget, TunePlan
from kernelmark_dev import evidence

WEIGHTS = ((6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (7168, 2048))
FOLLOWING = 8  # candidates of a problem that follows another one
A_MINUTE = 300
RESULTS = Path(__file__).parent.parent / "results" / "gpu_families.json"
SLOW = "gemm m=16384 n=16384 k=11264 a=bf16 b=bf16 tb=t"
_HARDLY = Acceptance(finalists=1, rounds=6, seeds=1, neighbours=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the journals are kept")
    parser.add_argument("--whole", action="store_true", help="180 GEMMs; takes an hour or more")
    parser.add_argument("--evaluations", type=int, default=60, help="candidates of a search")
    parser.add_argument("--jobs", type=int, help="host cores to compile on")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write to")
    options = parser.parse_args()
    info = gpu_info()
    plans = gemm_plans(options.evaluations, whole=options.whole)
    slow = dataclasses.replace(plans[0], name="SLOW", problem=ops.parse(SLOW), acceptance=_HARDLY)
    sides = {"slow": [slow], "family": joined(plans, FOLLOWING), "separate": plans}
    figures: dict[str, Any] = {"problems": len(plans), "evaluations": options.evaluations}
    tuned: dict[str, dict[str, float]] = {}
    for name, side in sides.items():
        found, tuned[name] = tune(options.folder / name, side, options.jobs)
        figures |= {f"{name}_{key}": value for key, value in found.items()}
        print(name, found, flush=True)
    shared = tuned["family"].keys() & tuned["separate"].keys()
    ratios = [tuned["family"][key] / tuned["separate"][key] for key in shared]
    figures |= {
        "searched_in_full": sum(not plan.follows for plan in sides["family"]),
        "compared": len(ratios),
        "time_ratio": statistics.geometric_mean(ratios),
        "slowest_ratio": max(ratios),
        "device_share": figures["family_device_s"] / figures["separate_device_s"],
    }
    bars = [
        (
            "families: at most 1/4 of the device time of separate searches",
            f"{figures['device_share']:.2f} ({len(plans)} GEMMs)",
            figures["device_share"] <= 0.25,
        ),
        (
            "families: the final times of separate searches, geomean within 1 %",
            f"{figures['time_ratio']:.3f}, at most {figures['slowest_ratio']:.3f}",
            figures["time_ratio"] <= 1.01 and len(ratios) == len(plans),
        ),
        (
            f"at least {A_MINUTE} candidates a minute on a GEMM of 10 ms",
            f"{figures['slow_candidates_a_minute']:.0f} a minute,"
            f" best {1e3 * min(tuned['slow'].values()):.1f} ms",
            figures["slow_candidates_a_minute"] >= A_MINUTE,
        ),
    ]
    evidence.write(
        options.json,
        title=f"Families of {len(plans)} GEMMs on a GPU",
        bars=bars,
        figures=figures,
        device=info,
        libraries=evidence.libraries("triton", "cublaslt"),
    )
    print(evidence.bars_text(bars))
    return 0 if all(holds for _, _, holds in bars) else 1


def gemm_plans(evaluations: int, *, whole: bool) -> list[TunePlan]:
    """GEMMs of language models, the longest first: of each weight, m as prompts and batches have
    it."""
    count = 42
    weights = WEIGHTS if whole else WEIGHTS[:1]
    tokens = sorted({8 * round(1024 ** (i / (count - 1))) for i in range(count)}, reverse=True)
    problems = [
        ops.parse(f"gemm m={m} n={n} k={k} a=bf16 b=bf16 tb=t") for n, k in weights for m in tokens
    ]
    return [
        TunePlan(
            name=f"GEMM_{number}",
            problem=problem,
            backend="triton",
            reference_backend="cublaslt",
            budget=Budget(evaluations=evaluations),
        )
        for number, problem in enumerate(problems)
    ]


def tune(
    folder: Path, plans: Sequence[TunePlan], jobs: int | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Tune the plans; return figures of the run, and the final time of each problem."""
    began = time.monotonic()
    runner = LocalRunner(["cuda:0"], timeout_s=20, compile_timeout_s=60, jobs=jobs)
    driver = Driver(plans, runner, folder / "trials")
    driver.run()
    wall_s = time.monotonic() - began
    searched = device_s = search_s = 0.0
    for plan in plans:
        _, trials, _ = journal.load_journal(folder / "trials" / f"{plan.name}.jsonl")
        searched += journal.candidates(trials)
        device_s += sum(trial.cost_s for trial in trials)
        search_s += sum(trial.cost_s for trial in trials if trial.of_search)
    figures = {
        "wall_s": wall_s,
        "device_s": device_s,
        "finals_s": device_s - search_s,
        "candidates": searched,
        "candidates_a_minute": 60 * searched / search_s,
    }
    times = {
        outcome.problem.key: outcome.tuned.median_s
        for outcome in driver.outcomes.values()
        if outcome.tuned.config
    }
    return figures, times


if __name__ == "__main__":
    sys.exit(main())
