"""One kernel under two names at the power cap: its ratio when measured by turns, and one by one.

    python benchmarks/gpu/interleaved.py [--pairs 60] [--timing quick] [-o results.json]

torch and cuBLASLt run the same kernel for a large bf16 GEMM, so every ratio but 1 is an error. Each
pair is measured anew by a worker that stays alive, with --interleave yes and no by turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark.core.result import Case, Result
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.events import CaseFinished
from kernelmark.runners.local import Interleave, LocalRunner
from kernelmark.stats.interval import paired_blocks
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_interleaved.json"
PROBLEM = parse("gemm m=4096 n=4096 k=4096 dtype=bf16")
BACKENDS = ("torch", "cublaslt")
BOUND = 0.01
MODES: tuple[Interleave, ...] = ("yes", "no")


def measured(count: int, timing: Timing, mode: Interleave) -> tuple[list[list[Result]], float]:
    """Results of both backends by pair, and the seconds a pair took. A first pair is dropped."""
    cases = [
        Case(
            problem=PROBLEM,
            backend=name,
            timing=dataclasses.replace(timing, seed=number),
            name=f"{name} {number}",  # a run measures a case once
        )
        for number in range(count + 1)
        for name in BACKENDS
    ]
    pairs: dict[int, list[Result]] = {}
    begun = 0.0
    for event in LocalRunner(["cuda:0"], timeout_s=120, interleave=mode).run(cases):
        if isinstance(event, CaseFinished):
            pairs.setdefault(event.result.case.timing.seed, []).append(event.result)
            if len(pairs.get(0, ())) == len(BACKENDS) and not begun:
                begun = time.perf_counter()
    spent_s = time.perf_counter() - begun
    return [sorted(pairs[n], key=lambda r: r.case.backend) for n in range(1, count + 1)], (
        spent_s / count
    )


def ratio(pair: list[Result]) -> float:
    """The ratio that `vs best` shows: of blocks in pairs if they were measured by turns."""
    one, other = (result.measurement for result in pair)
    if one is None or other is None:
        raise SystemExit(f"{pair[0].status} {pair[0].error} {pair[1].status} {pair[1].error}")
    if pair[0].started == pair[1].started and (paired := paired_blocks(one.blocks, other.blocks)):
        return paired[0]
    return one.median_s / other.median_s


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--timing", default="quick")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    info = gpu_info()
    timing = Timing.preset(options.timing)
    figures: dict[str, Any] = {"pairs": options.pairs, "timing": options.timing}
    for mode in MODES:
        pairs, pair_s = measured(options.pairs, timing, mode)
        errors = sorted(abs(ratio(pair) - 1) for pair in pairs)
        clocks = [
            block.clock_mhz
            for pair in pairs
            for result in pair
            for block in (result.measurement.blocks if result.measurement else ())
            if block.clock_mhz is not None
        ]
        figures[mode] = {
            "within": sum(error <= BOUND for error in errors),
            "median_error": statistics.median(errors),
            "largest_error": errors[-1],
            "median_ratio": statistics.median(map(ratio, pairs)),
            "by_turns": sum(a.started == b.started for a, b in pairs),
            "seconds_a_pair": pair_s,
            "clock_mhz": statistics.median(clocks),
        }
        print(mode, figures[mode], flush=True)
    yes, no = (figures[mode] for mode in MODES)
    bars = [
        (
            f"the same kernel under two names within {BOUND:.0%} in every pair",
            f"{yes['within']} of {options.pairs}; one by one {no['within']}",
            yes["within"] == options.pairs,
        ),
        (
            "without more wall time",
            f"{yes['seconds_a_pair']:.2f} s a pair; one by one {no['seconds_a_pair']:.2f} s",
            yes["seconds_a_pair"] <= 1.05 * no["seconds_a_pair"],
        ),
    ]
    evidence.write(
        options.output,
        title="One kernel under two names at the power cap",
        bars=bars,
        figures=figures,
        device=info,
        libraries=evidence.libraries("torch", "cublaslt"),
    )
    print(evidence.bars_text(bars))
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
