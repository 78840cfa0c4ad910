"""GEMMs at the power cap, compared with themselves by `kmark ab`, without and with idle gaps.

    python benchmarks/gpu/ab_capped.py [-d cuda:0] [-o results.json] [--rounds 10]

Launched without a pause, such a product drops to a lower clock after some milliseconds, sooner in
one round than in the next, and its times vary. `--duty burst` adds idle gaps between samples. Both
sides are the same kernel, so every interval is one of noise alone: the narrower, the smaller the
change that can be found.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

from _gpu import gpu_info

from kernelmark import backends, ops
from kernelmark.api.ab import AbPlan, captured, compare_sides
from kernelmark.core.result import Case
from kernelmark.core.timing import Duty
from kernelmark.report.ab import AbReport, audit, clocks, restless, summary, to_json
from kernelmark.runners.ab import ROUND, Pair, Rule, Side
from kernelmark.stats.paired import Looks
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_ab_capped.json"
PROBLEMS = (
    "gemm m=4096 n=4096 k=4096 dtype=bf16",
    "gemm m=4096 n=14336 k=4096 dtype=bf16 tb=t",
    "gemm m=8192 n=8192 k=8192 dtype=bf16",
    "gemm m=8192 n=8192 k=8192 dtype=f8e4m3 tb=t",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("-d", "--device", default="cuda:0")
    parser.add_argument("--backend", default="cublaslt")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    info = gpu_info(given.device)
    reports, seconds = {}, {}
    for duty in Duty:
        begun = time.monotonic()
        reports[duty] = compared(given.backend, info.name, duty, given.rounds)
        seconds[duty] = round(time.monotonic() - begun, 1)
        print(f"{duty}, {seconds[duty]} s: {summary(reports[duty])}")
        print(audit(reports[duty]), restless(reports[duty]), sep="\n", flush=True)
    bars = judged(reports, seconds)
    evidence.write(
        given.output,
        title="GEMMs at the power cap against themselves, without and with idle gaps",
        bars=bars,
        figures={
            duty: {"seconds": seconds[duty], "rows": rows(report)}
            for duty, report in reports.items()
        },
        device=info,
        libraries=backends.find(given.backend).libraries(),
    )
    print(evidence.bars_text(bars))


def compared(backend: str, device: str, duty: Duty, rounds: int) -> AbReport:
    timing = dataclasses.replace(ROUND, duty=duty)
    cases = [Case(problem=ops.parse(key), backend=backend, timing=timing) for key in PROBLEMS]
    plan = AbPlan(
        sides=(Side(name="one"), Side(name="other")),
        pairs=tuple(Pair(base=case, head=case) for case in cases),
        device=device,
        rule=Rule(looks=Looks(rounds=(rounds,))),
        jobs=len(os.sched_getaffinity(0)),
    )
    return compare_sides(plan, captured(plan))


def rows(report: AbReport) -> list[dict[str, Any]]:
    """Each pair as `kmark ab --json` has it, with the core clock of every block."""
    told = json.loads(to_json(report))["rows"]
    return [one | {"clocks_mhz": clocks(row)} for one, row in zip(told, report.rows, strict=True)]


def half_widths(report: AbReport) -> list[float]:
    """Of the intervals of the ratios; a pair without one has not been compared."""
    found = [row.paired for row in report.rows]
    return [(one.high - one.low) / 2 if one else float("inf") for one in found]


def judged(
    reports: dict[Duty, AbReport], seconds: dict[Duty, float]
) -> list[tuple[str, str, bool]]:
    widths = {duty: half_widths(report) for duty, report in reports.items()}
    spans = {
        duty: max(max(seen) / min(seen) - 1 for seen in map(clocks, report.rows))
        for duty, report in reports.items()
    }
    changed = sum(r.status.value in ("slower", "faster") for d in reports.values() for r in d.rows)
    told = "; ".join(
        f"{duty}: ± {', '.join(f'{w:.2%}' for w in widths[duty])}, clocks within "
        f"{spans[duty]:.0%}, {seconds[duty]:.0f} s"
        for duty in reports
    )
    halved = [2 * b <= s for b, s in zip(widths[Duty.BURST], widths[Duty.SUSTAINED], strict=True)]
    return [
        ("with idle gaps every interval of the same kernel is at most half as wide as without",
         told, all(halved)),
        ("none is called changed", f"{changed} of {sum(map(len, widths.values()))}", not changed),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
