"""Times from outside against times from inside: the same launches, timed by the judge and by the
process of the kernel, which is trusted here (events on a GPU, its CPU time on a CPU).

    nice -n -10 python benchmarks/judge_times.py --json benchmarks/results/judge_times.json
    python benchmarks/judge_times.py --device cuda:0

A row is one judgement of the reference against itself, in which each side's requests of N and 2N
launches give (T2N - TN) / N by either clock.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from kernelmark import ops
from kernelmark.judge import referee
from kernelmark.judge.processes import Templates
from kernelmark.judge.referee import Question, _Judgement, judge
from kernelmark.judge.side import Side
from kernelmark_dev import evidence

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
INSIDE = "_judge_inside"
SLOT = 1
SHORTEST_S = 5e-6
PROBLEMS = {
    "cpu": [f"gemm m={n} n={n} k={n} dtype=f32" for n in (32, 48, 64, 96, 128, 192, 256, 384, 512)],
    "gpu": [
        f"gemm m={m} n={n} k={k} dtype=bf16"
        for m, n, k in (
            *((256, 256, 256), (512, 512, 512), (1024, 1024, 1024)),
            *((2048, 2048, 2048), (4096, 4096, 4096)),
        )
    ],
}


class Watched(Side):
    """A side that keeps the seconds of its requests, outside and inside."""

    def __init__(self, **settings: Any) -> None:
        self.requests: list[tuple[float, float]] = []
        super().__init__(**settings)

    def go(self, at_ring: Callable[[], object] | None = None) -> float:
        seconds = super().go(at_ring)
        self.requests.append((seconds, float(self._progress_view[SLOT]) * 1e-9))
        return seconds


Lengths = dict[int, tuple[float, float]]  # launches: seconds outside and inside
_request_s = _Judgement._request_s


def _watch(timed: dict[int, list[Lengths]]) -> Callable[..., float]:
    """Return the referee's timing of a request, which also keeps both times of each pair of
    lengths in `timed`, by side."""

    def watched(self: _Judgement, side: Watched, checker: Any, length: int, **how: Any) -> float:
        before = len(side.requests)
        seconds = _request_s(self, side, checker, length, **how)
        both = tuple(map(statistics.median, zip(*side.requests[before:], strict=True)))
        pairs = timed.setdefault(id(side), [{}])
        if len(pairs[-1]) == 2:
            pairs.append({})
        pairs[-1][length] = both  # type: ignore[assignment]
        return seconds

    return watched


def measure(
    problem: str, device: str, backend: str, templates: Templates, rounds: int = 12
) -> dict[str, Any]:
    """Judge a backend against itself; return its seconds by both clocks."""
    timed: dict[int, list[Lengths]] = {}
    path = os.environ.get("PYTHONPATH", "")
    question = Question(
        kernel=backend,
        problem=ops.parse(problem),
        device=device,
        reference=backend,
        threads=1 if device == "cpu" else 0,
        rounds=rounds,
        neighbours=False,
    )
    modules = (INSIDE, *referee._modules_of((backend,)))
    with (
        mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (str(HERE), path)))),
        mock.patch.object(referee, "Side", Watched),
        mock.patch.object(_Judgement, "_request_s", _watch(timed)),
        mock.patch.object(referee, "_modules_of", return_value=modules),
    ):
        verdict = judge(question, templates)
    outside, inside = [], []
    for lengths in (pair for pairs in timed.values() for pair in pairs if len(pair) == 2):
        short, long = min(lengths), max(lengths)
        for which, samples in enumerate((outside, inside)):
            slope = (lengths[long][which] - lengths[short][which]) / (long - short)
            samples.append(slope)
    row = {
        "problem": problem,
        "verdict": verdict.code,
        "took_s": round(verdict.took_s, 2),
        "samples": len(outside),
    }
    if not outside:
        return row
    ratios = [o / i for o, i in zip(outside, inside, strict=True) if i > 0 and o > 0]
    spread = statistics.stdev(map(math.log, ratios)) if len(ratios) > 1 else math.inf
    return row | {
        "launches": min(min(pair) for pairs in timed.values() for pair in pairs),
        "outside_s": statistics.median(outside),
        "inside_s": statistics.median(inside),
        "ratio": statistics.median(outside) / statistics.median(inside),
        "scatter": spread,
        "same": verdict.ratio,
        "same_low": verdict.ratio_low,
        "same_high": verdict.ratio_high,
    }


def bars(rows: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """Return the bar of the times, for evidence."""
    long = [row for row in rows if row.get("inside_s", 0.0) >= SHORTEST_S]
    far = [abs(row["ratio"] - 1) for row in long]
    worst = max(far, default=math.inf)
    times = [row["inside_s"] * 1e6 for row in long]
    span = f" at {min(times):.1f} to {max(times):.0f} µs" if times else ""
    measured = f"{100 * worst:.2f} % at most in {len(long)} cases{span}"
    return [("times from outside within 1 % of inside from 5 µs up", measured, worst <= 0.01)]


def text(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    if row.get("same") is None:
        return f"{row['problem']:44s} {row['verdict']}"
    return (
        f"{row['problem']:44s} {row['outside_s'] * 1e6:9.2f} µs outside"
        f" {row['inside_s'] * 1e6:9.2f} µs inside  {100 * (row['ratio'] - 1):+6.2f} %"
        f"  scatter {100 * row['scatter']:5.1f} %  N {row['launches']:4d}"
        f"  itself {row['same']:.3f} [{row['same_low']:.3f}, {row['same_high']:.3f}]"
        f"  {row['took_s']:.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    kind = "cpu" if options.device == "cpu" else "gpu"
    backend = options.backend or {"cpu": "numpy", "gpu": "torch"}[kind]
    rows: list[dict[str, Any]] = []
    with Templates() as templates:
        for problem in PROBLEMS[kind]:
            rows.append(measure(problem, options.device, backend, templates, options.rounds))
            print(text(rows[-1]), flush=True)
    held = bars(rows)
    print(evidence.bars_text(held))
    if options.json:
        evidence.write(
            Path(options.json),
            title=f"kmark judge: times from outside against times from inside, {kind}",
            bars=held,
            figures={"rows": rows},
            libraries=evidence.libraries(backend),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
