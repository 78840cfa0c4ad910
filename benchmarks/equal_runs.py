"""`kmark aa` on commands with planted noise: do the rates come back that follow from it?

    python benchmarks/equal_runs.py [--runs 60]

Each command prints Google Benchmark JSON of ten repetitions, with a normal deviation between
processes and one inside. A rule that calls runs different if their own intervals do not meet is
wrong as often as the normal distribution says, up to 42 % and more where most noise is between
processes. Bars: every rate within 10 points of it, and the cause named.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

from kernelmark.api.commands import Command, Rounds
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent / "results" / "equal_runs.json"
REPEATS = 10
# Deviations between processes and of one repetition inside, and the main cause.
PLANTED = ((0.0, 0.02, "inside"), (0.01, 0.02, "start"), (0.03, 0.03, "start"))
PROGRAM = """
import json, os, random, sys
rng = random.Random(os.urandom(8))
between, inside, count = map(float, sys.argv[1:])
level = rng.gauss(0, between)
rows = [
    {"name": "BM", "run_name": "BM", "run_type": "iteration", "repetitions": int(count),
     "repetition_index": i, "iterations": 1, "real_time": us, "cpu_time": us, "time_unit": "us"}
    for i in range(int(count)) for us in [100 * 2.718281828 ** (level + rng.gauss(0, inside))]
]
print(json.dumps({"context": {"host_name": "x"}, "benchmarks": rows}))
"""


def planted(between: float, inside: float, cause: str, runs: int) -> dict[str, Any]:
    words = (sys.executable, "-S", "-c", PROGRAM, str(between), str(inside), str(REPEATS))
    rounds = Rounds([Command(words=words)])
    rounds.measure(runs)
    (row,) = rounds.equal_runs()
    half = sum(math.log(r.high_s / r.low_s) for r in row.readings) / (2 * runs)
    # The median of ten normal values deviates 1.18 times as much as their mean.
    error = math.hypot(between, 1.18 * inside / math.sqrt(REPEATS)) * math.sqrt(2)
    normal = NormalDist(0, error)
    rates = {
        "own rule": (row.own_alarms, 2 * (1 - normal.cdf(2 * half))),
        **{
            f"±{100 * t:.0f} %": (row.alarms(t), 2 * (1 - normal.cdf(math.log1p(t))))
            for t in (0.01, 0.02, 0.05)
        },
    }
    shares = {"inside": row.inside, "start": row.start, "drift": row.drift}
    return {
        "between": between,
        "inside": inside,
        "runs": runs,
        "rates": {name: {"measured": got, "expected": want} for name, (got, want) in rates.items()},
        "shares": shares,
        "cause": max(shares, key=lambda name: shares[name] or 0.0),
        "planted_cause": cause,
        "least_change": row.least_change,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = [planted(*noise, given.runs) for noise in PLANTED]
    for row in rows:
        print(row)
    off = [
        abs(rate["measured"] - rate["expected"]) for row in rows for rate in row["rates"].values()
    ]
    named = sum(row["cause"] == row["planted_cause"] for row in rows)
    own = ", ".join(f"{row['rates']['own rule']['measured']:.0%}" for row in rows)
    bars = [
        (
            "every false-alarm rate within 10 points of what the planted noise makes",
            f"largest difference {100 * max(off):.1f} points; own rule {own}",
            max(off) <= 0.10,
        ),
        ("the main cause is named", f"{named} of {len(rows)}", named == len(rows)),
    ]
    evidence.write(given.output, title="kmark aa: planted noise", bars=bars, figures={"rows": rows})
    print(evidence.bars_text(bars))
    return 0 if all(holds for _, _, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
