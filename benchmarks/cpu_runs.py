"""Equal runs on a CPU: how often `kmark compare` calls their rows changed, and what it finds.

    python benchmarks/cpu_runs.py --folder build/cpu_runs --runs 10 [--timing quick] [--where …]

The same cases, and the canaries, are run again and again, and every pair of runs in the folder is
compared. The code is the same, so each row that is slower or faster is a false alarm. Then rows of
one side are made longer by 8 %: one row of each run, or every row but the canaries. Runs of several
timings may lie in a folder; `--runs 0` judges what is there, to compare rules on the same runs.

The block medians of ten runs on a Neoverse N1, measured before blocks of cases alternated, are in
the recorded result, and are judged too.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kernelmark as km
from kernelmark.api.compare import compare
from kernelmark.core.result import Block, Result, ResultSet
from kernelmark.core.timing import PRESETS
from kernelmark.runners.targets import find
from kernelmark.stats.interval import quantile
from kernelmark.workloads.suites import CANARIES, canary_keys
from kernelmark_dev import evidence
from kernelmark_dev.results import make_case, make_result, make_set

RESULTS = Path(__file__).parent / "results" / "cpu_runs.json"
PROBLEMS = (
    *(f"gemm m={m} n=256 k=384 dtype=f32" for m in (8, 96, 256)),
    "batched_gemm batch=4 m=64 n=64 k=128 dtype=f32",
    "attention heads=4 seq=128 dim=64 dtype=f32",
    "gemm m=64 n=64 k=64 dtype=f64",
)
BACKENDS = ("numpy", "torch", "iree")
SLOWER = 0.08
# More pairs of runs are a sample, so that a rule is judged within a minute.
MOST_PAIRS = 100
LEAST_RUNS = 5
PARTS = (0.5, 0.9, 0.99)
EARLIER = "neoverse_n1_block_medians_us"
# Attention by NumPy takes one of two times by process on that machine (docs/measuring-gpu.md).
TWO_TIMES = "numpy attention"


def slowed(run: ResultSet, ids: set[str]) -> ResultSet:
    """The run with these cases longer by 8 % in every sample."""

    def longer(result: Result) -> Result:
        one = result.measurement
        if one is None or result.case.id not in ids:
            return result
        factor = 1 + SLOWER
        blocks = tuple(
            dataclasses.replace(block, samples_s=tuple(s * factor for s in block.samples_s))
            for block in one.blocks
        )
        low_s, high_s = one.low_s * factor, one.high_s * factor
        whole = dataclasses.replace(one, blocks=blocks, low_s=low_s, high_s=high_s)
        return dataclasses.replace(result, measurement=whole)

    return dataclasses.replace(run, results=tuple(map(longer, run.results)))


def verdicts(base: ResultSet, head: ResultSet) -> dict[str, str]:
    """The verdict of each row; of one that is suppressed, because a canary moved, "held"."""
    return {
        row.pair.shown.case.id: "held" if row.held else row.status.value
        for row in compare(base, head).rows
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The verdicts on pairs of equal runs, on the row that is slowed, and on all rows if all are;
    `alarmed`: the pairs of equal runs with any alarm; `differences`: how far the medians of equal
    rows differ, beyond what all rows have in common."""

    pairs: int
    equal: collections.Counter[str]
    one: collections.Counter[str]
    every: collections.Counter[str]
    alarmed: int
    differences: Sequence[float]

    @property
    def alarms(self) -> float:
        return (self.equal["slower"] + self.equal["faster"]) / self.equal.total()

    def figures(self) -> dict[str, Any]:
        counts = {"equal": self.equal, "one": self.one, "every": self.every}
        parts = {f"{100 * part:g} %": quantile(self.differences, part) for part in PARTS}
        return {
            "pairs": self.pairs,
            "alarmed": self.alarmed,
            **{n: dict(c) for n, c in counts.items()},
            "equal rows differ by less than": parts,
        }


def found(counts: collections.Counter[str]) -> float:
    return counts["slower"] / counts.total()


def judged(runs: Sequence[ResultSet]) -> Found:
    rng = random.Random(1)
    canaries = set(canary_keys(CANARIES))
    pairs = list(itertools.combinations(runs, 2))
    pairs = rng.sample(pairs, min(len(pairs), MOST_PAIRS))
    equal, one, every = (collections.Counter[str]() for _ in range(3))
    alarmed = 0
    differences: list[float] = []
    for base, head in pairs:
        changes = [row.judgement for row in compare(base, head).rows if row.judgement.ratio]
        differences += [abs(math.log(j.ratio / (j.common or 1.0))) for j in changes if j.ratio]
        on_equal = verdicts(base, head)
        equal.update(on_equal.values())
        alarmed += bool({"slower", "faster"} & set(on_equal.values()))
        ids = sorted(r.case.id for r in head.results if r.case.problem.key not in canaries)
        ids = [case_id for case_id in ids if case_id in on_equal]
        for case_id in rng.sample(ids, min(len(ids), 5)):
            one[verdicts(base, slowed(head, {case_id}))[case_id]] += 1
        on_all = verdicts(base, slowed(head, set(ids)))
        every.update(on_all[case_id] for case_id in ids)
    return Found(
        pairs=len(pairs),
        equal=equal,
        one=one,
        every=every,
        alarmed=alarmed,
        differences=differences,
    )


def earlier_runs(medians_us: dict[str, list[list[float]]]) -> Iterator[ResultSet]:
    """The runs of which only block medians are recorded."""
    for number in range(len(next(iter(medians_us.values())))):
        results = []
        for row, (name, by_run) in enumerate(medians_us.items()):
            backend, _, _ = name.partition(" ")
            blocks = [
                Block(process=0, allocation=n, samples_s=(time_us * 1e-6,))
                for n, time_us in enumerate(by_run[number])
            ]
            case = make_case(f"gemm m={row + 1} n=1 k=1 dtype=f32", backend)
            results.append(make_result(case, *blocks, device="cpu"))
        yield make_set(*results, id=f"run{number}")


def bars_of(where: str, one: Found) -> list[tuple[str, str, bool]]:
    return [
        (
            f"{where}: at most 1 % of the rows of equal runs are called changed",
            f"{one.alarms:.1%} of {one.equal.total()} rows, in {one.alarmed} of {one.pairs} pairs",
            one.alarms <= 0.01,
        ),
        (
            f"{where}: at least 90 % of slowdowns of {SLOWER:.0%} are found, of one row",
            f"{found(one.one):.0%} of {one.one.total()}; {found(one.every):.0%} if all rows but "
            "the canaries are slower",
            found(one.one) >= 0.9,
        ),
    ]


def measure(folder: Path, runs: int, timing: str, threads: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(runs):
        start, load = time.time(), os.getloadavg()[0]
        made = km.run(
            problem=[*PROBLEMS, *canary_keys(CANARIES)],
            backend=BACKENDS,
            timing=timing,
            threads=threads,
            roofs="none",
        )
        path = folder / f"{timing}-{start:.0f}.json"
        path.write_text(made.to_json())
        print(f"{path}: {time.time() - start:.0f} s, load {load:.0f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--timing", default="quick", choices=list(PRESETS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--where", default="here", help="the machine, and what else ran on it")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    measure(given.folder, given.runs, given.timing, given.threads)
    medians_us = json.loads(RESULTS.read_text())["figures"][EARLIER]
    steady = {name: rows for name, rows in medians_us.items() if not name.startswith(TWO_TIMES)}
    groups = {
        "Neoverse N1": list(earlier_runs(medians_us)),
        f"Neoverse N1 without {TWO_TIMES}": list(earlier_runs(steady)),
    }
    for timing in PRESETS:
        paths = sorted(given.folder.glob(f"{timing}-*.json"))
        if len(paths) >= LEAST_RUNS:
            groups[f"{given.where}, {timing}"] = [km.load(str(path)).result_set for path in paths]
    by_group = {name: judged(runs) for name, runs in groups.items()}
    bars = [bar for name, one in by_group.items() for bar in bars_of(name, one)]
    figures = {name: {"runs": len(groups[name]), **f.figures()} for name, f in by_group.items()}
    evidence.write(
        given.output,
        title="Equal runs on a CPU, compared",
        bars=bars,
        figures={**figures, EARLIER: medians_us},
        device=find("cpu")[1],
        libraries=evidence.libraries(*BACKENDS),
    )
    print(evidence.bars_text(bars))
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
