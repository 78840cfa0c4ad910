"""Equal runs on a CPU: how often `kmark compare` calls their rows changed, and what it finds.

    taskset -c 0,1 python benchmarks/cpu_runs.py [--runs 10] [-o results.json]

The same cases are run by fresh processes, and every pair of runs is compared. The code is the same,
so each row that is slower or faster is a false alarm. Then the times of one side are made longer by
5 and by 8 %: how many of these rows are found. The runs measure canaries, too, as those of suites
do: where the machine itself changed in between, changes are suppressed.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kernelmark as km
from kernelmark.api.compare import compare
from kernelmark.core.result import Result, ResultSet
from kernelmark.runners.targets import find
from kernelmark_dev import evidence

RESULTS = Path(__file__).parent / "results" / "cpu_runs.json"
PROBLEMS = (
    *(f"gemm m={m} n=256 k=384 dtype=f32" for m in (8, 32, 96, 256)),
    "batched_gemm batch=4 m=64 n=64 k=128 dtype=f32",
    "attention heads=4 seq=128 dim=64 dtype=f32",
)
BACKENDS = ("numpy", "torch")
MODES = ("attention", "numpy")
SLOWER = (0.05, 0.08)


def slowed(result: Result, share: float) -> Result:
    """The result of a kernel that takes longer by `share` in every sample."""
    one = result.measurement
    if one is None:
        return result
    blocks = tuple(
        dataclasses.replace(block, samples_s=tuple(s * (1 + share) for s in block.samples_s))
        for block in one.blocks
    )
    return dataclasses.replace(result, measurement=dataclasses.replace(one, blocks=blocks))


def verdicts(base: ResultSet, head: ResultSet) -> list[str]:
    """The verdict of each row; of one that is suppressed, because a canary moved, "held"."""
    return ["held" if row.held else row.status.value for row in compare(base, head).rows]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The verdicts on all pairs of equal runs, and with one side slowed, by its factor."""

    equal: collections.Counter[str]
    slowed: dict[float, collections.Counter[str]]

    @property
    def alarms(self) -> float:
        return (self.equal["slower"] + self.equal["faster"]) / self.equal.total()

    def found(self, share: float) -> float:
        return self.slowed[share]["slower"] / self.slowed[share].total()

    def figures(self) -> dict[str, Any]:
        slower = {f"slower by {share:.0%}": dict(one) for share, one in self.slowed.items()}
        return {"equal": dict(self.equal), **slower}


def compared(runs: Sequence[ResultSet]) -> Found:
    pairs = list(itertools.combinations(runs, 2))
    equal = collections.Counter(itertools.chain(*(verdicts(*pair) for pair in pairs)))
    slow: dict[float, collections.Counter[str]] = {}
    for share in SLOWER:
        slow[share] = collections.Counter()
        for base, head in pairs:
            results = tuple(slowed(result, share) for result in head.results)
            slow[share].update(verdicts(base, dataclasses.replace(head, results=results)))
    return Found(equal=equal, slowed=slow)


def without_modes(run: ResultSet) -> ResultSet:
    """The rows but for those that fall on two values by process (docs/measuring.md)."""
    kept = tuple(r for r in run.results if (r.case.problem.op, r.case.backend) != MODES)
    return dataclasses.replace(run, results=kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--timing", default="quick")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    runs = []
    times: dict[str, list[list[float]]] = {}
    for _ in range(given.runs):
        made = km.run(
            problem=PROBLEMS, backend=BACKENDS, timing=given.timing, roofs="none", sentinels=True
        )
        runs.append(made.result_set)
        for result in made.result_set.results:
            one, name = result.measurement, f"{result.case.backend} {result.case.problem.key}"
            if one is not None:
                by_block = [round(block.median_s * 1e6, 2) for block in one.blocks]
                times.setdefault(name, []).append(by_block)
    everything, steady = compared(runs), compared([without_modes(run) for run in runs])
    share = SLOWER[-1]
    bars = [
        (
            "at most 1 % of the rows of equal runs are called changed",
            f"{everything.alarms:.1%}; {steady.alarms:.1%} without {' by '.join(MODES)}, which "
            "takes one of two times by process",
            everything.alarms <= 0.01,
        ),
        (
            f"at least 90 % of slowdowns of {share:.0%} are found",
            f"{everything.found(share):.0%}; {steady.found(share):.0%} without it",
            everything.found(share) >= 0.9,
        ),
    ]
    evidence.write(
        given.output,
        title="Equal runs on a CPU, compared",
        bars=bars,
        figures={
            "runs": given.runs,
            "timing": given.timing,
            "all rows": everything.figures(),
            f"without {' by '.join(MODES)}": steady.figures(),
            "block_medians_us": times,
        },
        device=find("cpu")[1],
        libraries=evidence.libraries(*BACKENDS),
    )
    print(evidence.told(bars))
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
