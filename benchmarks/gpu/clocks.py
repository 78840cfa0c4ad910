"""Clocks: how far the core clock explains why runs of a kernel at the power cap differ.

    python benchmarks/gpu/clocks.py [-d cuda:0] [-o results.json] [--processes 3]
    python benchmarks/gpu/clocks.py --save measured.json.gz      # on a host that cannot judge
    python benchmarks/gpu/clocks.py --judge measured.json.gz

Cases of replication.py that reach the power cap or have several modes, in fresh processes, with
forty blocks each. The spread of block medians is compared with the spread around a line in the
logarithm of the clock (`kernelmark.stats.paired`), by which `kmark compare` judges such runs.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _gpu import gpu_info
from replication import Process, make_cases, run_process

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Measurement
from kernelmark.core.timing import Timing
from kernelmark.stats.paired import clock_line
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent.parent / "results" / "gpu_clocks.json"
CHOSEN = ("m=2048 ", "m=512 ", "m=256 n=2048", "m=7 n", "m=24 n", "heads_q=32", "c=256 ")
BLOCKS = 40
# Blocks of a default run; the rest shows whether more would help.
DEFAULT_BLOCKS = 20


def row(backend: str, problem: str, runs: Sequence[Measurement]) -> dict[str, Any]:
    """Spreads and cycles of one case, over processes."""
    logs = [[math.log(block.median_s) for block in run.blocks[:DEFAULT_BLOCKS]] for run in runs]
    clocks = [
        [math.log(block.clock_mhz or math.nan) for block in run.blocks[:DEFAULT_BLOCKS]]
        for run in runs
    ]
    line = clock_line(logs, clocks)
    found: dict[str, Any] = {
        "backend": backend,
        "problem": problem,
        "mean_us": [round(1e6 * math.exp(statistics.fmean(some)), 3) for some in logs],
        "mhz": [round(math.exp(statistics.fmean(some)), 1) for some in clocks],
        "spread": [round(statistics.stdev(some), 5) for some in logs],
        "slope": None,
    }
    if line is not None:
        moved = [
            [line.moved(t, c) for t, c in zip(*both, strict=True)]
            for both in zip(logs, clocks, strict=True)
        ]
        centres = [statistics.fmean(some) for some in moved]
        found |= {
            "slope": round(line.slope, 3),
            "spread_at_one_clock": [round(statistics.stdev(some), 5) for some in moved],
            "apart": round(_apart([statistics.fmean(some) for some in logs]), 5),
            "apart_at_one_clock": round(_apart(centres), 5),
        }
    return found


def _apart(centres: Sequence[float]) -> float:
    """The largest difference between two processes, as a share."""
    return max(abs(a - b) for a, b in itertools.combinations(centres, 2))


def judge(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    capped = [one for one in rows if one["slope"] is not None]
    spreads = [s for one in capped for s in one["spread_at_one_clock"]]
    apart = max((one["apart_at_one_clock"] for one in capped), default=math.nan)
    before = max((one["apart"] for one in capped), default=math.nan)
    return [
        (
            "at the power cap, spread of block medians at one clock ≤ 1.5 %",
            f"{min(spreads):.2%} to {max(spreads):.2%} in {len(capped)} of {len(rows)} cases",
            bool(spreads) and max(spreads) <= 0.015,
        ),
        (
            "two processes differ by ≤ 1 % at one clock",
            f"{apart:.2%} at most; as measured {before:.2%}",
            apart <= 0.01,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("-d", "--device", default="cuda:0")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=235.0)
    parser.add_argument("--save", type=Path, help="keep what was measured and stop")
    parser.add_argument("--judge", type=Path, help="what --save wrote")
    given = parser.parse_args()
    info: DeviceInfo | None = None
    if given.judge:
        kept = json.loads(gzip.decompress(given.judge.read_bytes()))
        processes = [Process.of(one) for one in kept["processes"]]
        info = codec.read(kept["info"], DeviceInfo, "info")
    else:
        info = gpu_info(given.device)
        timing = Timing.preset("default", max_allocations=BLOCKS, max_s=4.0, target_rel_ci=0.003)
        cases = [c for c in make_cases(info, timing) if any(t in c.problem.key for t in CHOSEN)]
        begun, processes = time.monotonic(), []
        while len(processes) < given.processes:
            spent_s = time.monotonic() - begun
            if processes and spent_s + processes[-1].seconds > given.budget_s:
                break
            processes.append(run_process(info, cases, len(processes)))
        if given.save:
            kept = {"info": codec.plain(info), "processes": [p.document() for p in processes]}
            given.save.write_bytes(gzip.compress(json.dumps(kept).encode()))
            return
    by_case: dict[tuple[str, str], list[Measurement]] = {}
    for process in processes:
        for result in process.results:
            if result.measurement is not None:
                key = result.case.backend, result.case.problem.key
                by_case.setdefault(key, []).append(result.measurement)
    rows = [row(*key, runs) for key, runs in by_case.items() if len(runs) == len(processes)]
    for one in rows:
        print(one)
    bars = judge(rows)
    print(evidence.bars_text(bars))
    figures = {"processes": len(processes), "cases": rows}
    title = "Runs at the power cap, as measured and at one clock"
    evidence.write(given.output, title=title, bars=bars, figures=figures, device=info)


if __name__ == "__main__":
    main()
