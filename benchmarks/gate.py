"""Gate, nightly and bisect on simulated histories: false alarms, what is found, which commit.

    python benchmarks/gate.py            writes benchmarks/results/gate.json
    python benchmarks/gate.py --quick    fewer trials, writes nothing unless --json is given

No time is real: a simulated machine (benchmarks/simulated.py) answers in place of workers, and all
the rest is the code that the commands run: rounds, looks, false discovery rate and exit code of
`kmark gate`; store, history, suspects, confirmation and exit code of `kmark nightly`; ends, search
and confirmation of `kmark bisect`. A commit without an effect that alarms is a false alarm.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from kernelmark import ops
from kernelmark.api.ab import AbPlan, compare_sides, outcome
from kernelmark.api.bisect import Question, bisect
from kernelmark.api.suspects import (
    Doubt,
    Judged,
    Key,
    Rules,
    judge,
    paired_changes,
    plan_pairs,
    verdict_again,
)
from kernelmark.compare.history import MIN_EFFECT
from kernelmark.core.environment import Environment
from kernelmark.core.errors import NothingToDo
from kernelmark.core.result import Block, Case, Result, ResultSet, Run, RunState
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.changes import Change
from kernelmark.runners.ab import ROUND, Opener, Pair, Rule, Side
from kernelmark.stores import open_store
from kernelmark.stores.store import Store
from kernelmark_dev import evidence
from kernelmark_dev.results import make_result
from simulated import NOISES, Machine, Noise

RESULTS = Path(__file__).parent / "results" / "gate.json"
EFFECT = 0.03
KERNELS = 20  # in a gate
SERIES = 8  # in a night
NIGHTS = 40  # behind a planted night, and before the first one that counts
COMMITS = 40
REPEATS = 5
SIDES = Side(name="base"), Side(name="head")
ENVIRONMENTS = Environment(), Environment()
Effects = Mapping[int, float]  # by m, which names a kernel


def cases(count: int) -> list[Case]:
    problems = (ops.parse(f"gemm m={m} n=8 k=8 dtype=f32") for m in range(1, count + 1))
    return [Case(problem=one, backend="fake", timing=ROUND) for one in problems]


def result(case: Case, seconds: Sequence[float]) -> Result:
    blocks = [Block(process=i, allocation=0, samples_s=(s,)) for i, s in enumerate(seconds)]
    return make_result(case, *blocks, device="fake", arch="fake")


class SimulatedPlace:
    """A side whose workers are a machine's processes."""

    def __init__(self, machine: Machine, effects: Effects) -> None:
        self._machine, self._effects = machine, effects

    def ready(self) -> None: ...
    def close(self) -> None: ...
    def measure(self, case: Case, process: int = 0) -> Result:
        m = case.problem.dims["m"]
        times = self._machine.processes([self._effects.get(m, 0.0)])
        # Kernels take other times, as in a real suite: 11 µs to 30 µs.
        return result(case, [float(np.median(times)) * 1e-5 * (1 + m / 10)])


def opener(machine: Machine, base: Effects, head: Effects) -> Opener:
    return lambda side: SimulatedPlace(machine, (base, head)[side])


# Gate


def gate_code(noise: Noise, effects: Effects, seed: Sequence[int]) -> int:
    """The exit code of one gate."""
    machine = Machine(noise, np.random.default_rng([*seed]))
    pairs = tuple(Pair(base=case, head=case) for case in cases(KERNELS))
    plan = AbPlan(sides=SIDES, pairs=pairs, device="fake", rule=Rule(seed=seed[0] + 1))
    return outcome(compare_sides(plan, ENVIRONMENTS, opener=opener(machine, {}, effects)))


def of_gate(noise: Noise, commits: int, planted: int) -> dict[str, float]:
    alarms = sum(gate_code(noise, {}, (i, 1)) == 1 for i in range(commits))
    found = sum(gate_code(noise, {1 + i % KERNELS: EFFECT}, (i, 2)) == 1 for i in range(planted))
    return {"false_alarms": percent(alarms, commits), "found": percent(found, planted)}


# Nightly


class Nights:
    """A store that nights are added to, on a machine that drifts from night to night."""

    def __init__(self, noise: Noise, store: Store, seed: int, *, paired: bool) -> None:
        self.machine = Machine(noise, np.random.default_rng([seed, 3]))
        self._store, self._paired = store, paired
        self._count = 0
        self._rules = Rules(label="night", canaries="", paired=paired)

    def add(self, effects: Effects) -> str:
        """Measure one more night; the id of its run."""
        self._count += 1
        # Tonight's drift has forgotten last night's.
        self.machine.level = self.machine.random.normal(0, self.machine.noise.drift)
        run = Run(
            id=f"night-{self._count}",
            started=1e9 + 86400.0 * self._count,
            environment=Environment(),
            label="night",
            state=RunState.DONE,
        )
        place = SimulatedPlace(self.machine, effects)
        found = tuple(place.measure(case) for case in cases(SERIES))
        self._store.add_result_set(ResultSet(run=run, results=found))
        return run.id

    def judged(self, run_id: str, effects: Effects) -> Judged:
        confirm = self._pairs if self._paired else self._repeats
        return judge(self._store, [run_id], self._rules, partial(confirm, effects))

    def _pairs(self, effects: Effects, doubts: Sequence[Doubt]) -> Mapping[Key, Change]:
        plan = partial(plan_pairs, sides=SIDES, device="fake", label="", budget_s=1e9)
        return paired_changes(
            doubts,
            plan,
            ("ab",),
            None,
            environments=ENVIRONMENTS,
            opener=opener(self.machine, {}, effects),
        )

    def _repeats(self, effects: Effects, doubts: Sequence[Doubt]) -> Mapping[Key, Change]:
        place = SimulatedPlace(self.machine, effects)
        found = {}
        for one in doubts:
            parts = [place.measure(one.result.case).measurement for _ in range(REPEATS)]
            again = result(one.result.case, [part.median_s for part in parts if part])
            found[one.key] = verdict_again(one, again, MIN_EFFECT)
        return found


def of_nightly(
    noise: Noise, commits: int, planted: int, seed: int, *, paired: bool
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "s.sqlite") as store:
        nights = Nights(noise, store, seed, paired=paired)
        alarms = suspects = found = 0
        for night in range(NIGHTS + commits):
            run_id = nights.add({})
            if night >= NIGHTS:
                judged = nights.judged(run_id, {})
                alarms += judged.code == 1
                suspects += judged.doubts
        for number in range(planted):
            effects = {1 + number % SERIES: EFFECT}
            run_id = nights.add(effects)
            judged = nights.judged(run_id, effects)
            slow = [one for one in judged.changes if one.status is VerdictStatus.SLOWER]
            named = f"gemm m={1 + number % SERIES} "
            found += judged.code == 1 and any(one.problem.startswith(named) for one in slow)
            store.delete_run(run_id)
    return {
        "false_alarms": percent(alarms, commits),
        "found": percent(found, planted),
        "suspects_a_night": round(suspects / commits, 2),
    }


# Bisect


class SimulatedCommits:
    """Commits of which one made a kernel slower."""

    def __init__(self, machine: Machine, culprit: int, kernel: int) -> None:
        self.names = [f"commit {i}" for i in range(COMMITS + 1)]
        self._machine, self._culprit, self._kernel = machine, culprit, kernel
        self.measured = 0

    def case(self, case: Case, place: int) -> Case:
        return case

    def opener(self, base: int, head: int) -> Opener:
        self.measured += 1
        return opener(self._machine, self._effects(base), self._effects(head))

    def _effects(self, place: int) -> Effects:
        return {self._kernel: EFFECT} if place >= self._culprit else {}


def of_bisect(noise: Noise, trials: int) -> dict[str, float]:
    right = rounds = tests = 0
    for number in range(trials):
        random = np.random.default_rng([number, 5])
        culprit = int(random.integers(1, COMMITS + 1))
        source = SimulatedCommits(Machine(noise, random), culprit, 1 + number % SERIES)
        question = Question(
            cases=tuple(cases(SERIES)), rule=Rule(seed=number + 1), key=f"{noise} {number}"
        )
        try:
            found = bisect(source, question)
        except NothingToDo:  # the ends were not told apart
            continue
        right += found.culprits == (source.names[culprit],)
        rounds += found.rounds
        tests += found.tests
    return {
        "right": percent(right, trials),
        "candidates_measured": round(tests / trials, 1),
        "rounds": round(rounds / trials, 1),
    }


def percent(count: int, of: int) -> float:
    return round(100 * count / of, 2)


def bars_of(figures: Mapping[str, dict[str, dict[str, float]]]) -> list[tuple[str, str, bool]]:
    """What was asked, measured, and whether it holds."""
    bars = []
    for noise, found in figures.items():
        for name in ("gate", "nightly"):
            alarms, hits = found[name]["false_alarms"], found[name]["found"]
            asked = f"{name}, {noise} noise: at most 1 % of 300 commits without an effect alarm"
            bars.append((asked, f"{alarms} %", alarms <= 1.0))
            asked = f"{name}, {noise} noise: at least 90 % of +3 % in one kernel found"
            bars.append((asked, f"{hits} %", hits >= 90.0))
        alarms = found["nightly_repeats"]["false_alarms"]
        asked = f"nightly without a base, {noise} noise: at most 1 % of 300 nights alarm"
        bars.append((asked, f"{alarms} %", alarms <= 1.0))
        right = found["bisect"]["right"]
        asked = f"bisect, {noise} noise: the right one of {COMMITS} commits in at least 95 of 100"
        bars.append((asked, f"{right:g} of 100", right >= 95.0))
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the trials")
    parser.add_argument("--json", type=Path, help="file to write to")
    options = parser.parse_args()
    commits, trials = (30, 10) if options.quick else (300, 100)
    began = time.perf_counter()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KERNELMARK_CACHE"] = cache  # searches that go on belong to this run
        for name, noise in NOISES.items():
            works: dict[str, Callable[[], dict[str, float]]] = {
                "gate": partial(of_gate, noise, commits, trials),
                "nightly": partial(of_nightly, noise, commits, trials, 1, paired=True),
                "nightly_repeats": partial(of_nightly, noise, commits, trials, 2, paired=False),
                "bisect": partial(of_bisect, noise, trials),
            }
            figures[name] = {}
            for what, work in works.items():
                figures[name][what] = work()
                print(f"{name:10} {what:16} {figures[name][what]}", flush=True)
    bars = bars_of(figures)
    print("\n" + evidence.bars_text(bars))
    print(f"{time.perf_counter() - began:.0f} s")
    target = options.json or (None if options.quick else RESULTS)
    if target is not None:
        evidence.write(
            target,
            title="Gate, nightly and bisect on simulated histories",
            bars=bars,
            figures={
                "effect": EFFECT,
                "commits_without_effect": commits,
                "commits_with_effect": trials,
                "kernels_in_a_gate": KERNELS,
                "series_in_a_night": SERIES,
                "by_noise": figures,
            },
        )
    return 0 if all(holds for _, _, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
