"""Detectors on the same simulated noise: how often each cries wolf, and what each finds.

    python benchmarks/detectors.py            writes benchmarks/results/detectors.json
    python benchmarks/detectors.py --quick    fewer trials, writes nothing unless --json is given

A trial is one benchmark with 64 nights behind it. A process measures 40 samples; processes differ
from each other, and the machine from hour to hour, as the three kinds of noise say. Rules of other
tools are written here from their published descriptions, not taken from their code; where only a
part of a rule is modelled its name says so. Every rule sees the same kind of data; what a rule is
given per decision (processes) is in the table.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from kernelmark.compare.history import story
from kernelmark.core.result import Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.changepoint import change_points
from kernelmark.stats.fdr import adjusted
from kernelmark.stats.paired import Looks
from kernelmark.stats.shrink import Common, common
from kernelmark.testing import evidence

RESULTS = Path(__file__).parent / "results" / "detectors.json"
SAMPLES = 40
NIGHTS = 64
LOOKS = Looks()
EFFECTS = (0.01, 0.02, 0.05, 0.10)
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Logarithmic standard deviations. `drift` wanders with `memory` from one process to the next;
    `mode` of a share of processes is a second level; `wild` samples are far too long."""

    process: float
    sample: float
    drift: float = 0.0
    memory: float = 0.97
    mode: float = 0.0
    share: float = 0.25
    wild: float = 0.0


NOISES = {
    "quiet": Noise(process=0.002, sample=0.004),
    "drifting": Noise(process=0.004, sample=0.006, drift=0.012, wild=0.02),
    "bimodal": Noise(process=0.003, sample=0.005, mode=0.03),
}


class Machine:
    """Gives processes one after another; the time between them moves the drift."""

    def __init__(self, noise: Noise, random: np.random.Generator) -> None:
        self.noise = noise
        self.random = random
        self.level = random.normal(0, noise.drift)

    def processes(self, effects: Sequence[float]) -> Values:
        """Times of processes in a row, one line each, in units of the undisturbed one."""
        n, count = self.noise, len(effects)
        fresh = self.random.normal(0, n.drift * math.sqrt(1 - n.memory**2), count)
        drift = np.empty(count)
        for i in range(count):
            self.level = n.memory * self.level + fresh[i]
            drift[i] = self.level
        return self._times(drift + np.log1p(effects))

    def nights(self, effects: Sequence[float]) -> Values:
        """One process a night: the drift has forgotten the night before."""
        return self._times(
            self.random.normal(0, self.noise.drift, len(effects)) + np.log1p(effects)
        )

    def _times(self, centres: Values) -> Values:
        n, count = self.noise, len(centres)
        centres = centres + self.random.normal(0, n.process, count)
        centres = centres + n.mode * (self.random.random(count) < n.share)
        logs = centres[:, None] + self.random.normal(0, n.sample, (count, SAMPLES))
        if n.wild:
            logs += 0.1 * (self.random.random(logs.shape) < n.wild)
        times: Values = np.exp(logs)
        return times


@dataclass
class Trial:
    """What rules may look at: head is slower by `effect`."""

    machine: Machine
    effect: float

    def rounds(self, count: int) -> tuple[Values, Values]:
        """Medians of pairs of fresh processes; which side is first is drawn for every other round
        and turned in the next (ABBA)."""
        first = np.repeat(self.machine.random.random((count + 1) // 2) < 0.5, 2)[:count]
        first[1::2] = ~first[1::2]
        order = np.stack([first, ~first], axis=1)  # whether head runs at each place of a round
        medians = np.median(self.machine.processes(self.effect * order.ravel()), axis=1)
        pairs = medians.reshape(count, 2)
        return np.where(first, pairs[:, 1], pairs[:, 0]), np.where(first, pairs[:, 0], pairs[:, 1])

    def blocked(self, count: int) -> tuple[Values, Values]:
        """Medians: all of base, then all of head."""
        times = self.machine.processes([0.0] * count + [self.effect] * count)
        medians = np.median(times, axis=1)
        return medians[:count], medians[count:]

    def interleaved(self, count: int) -> tuple[Values, Values]:
        """Samples of `count` processes a side, one after the other in turn."""
        times = self.machine.processes([0.0, self.effect] * count)
        return times[::2].ravel(), times[1::2].ravel()

    def past_and_newest(self) -> tuple[Values, Values]:
        """The nights before, and one that head ran in."""
        times = self.machine.nights([0.0] * NIGHTS + [self.effect])
        return times[:-1], times[-1]


Says = Callable[[Trial], tuple[str, int]]  # slower, faster or none; processes used


def said(slower: bool, faster: bool) -> str:  # noqa: FBT001
    return "slower" if slower else ("faster" if faster else "none")


def kernelmark_ab(trial: Trial) -> tuple[str, int]:
    """Paired rounds, Wilcoxon interval, 1 % floor, three looks that share alpha = 1 %."""
    base, head = trial.rounds(LOOKS.last)
    done = 0
    while True:
        done = LOOKS.after(done) or LOOKS.last
        found = LOOKS.verdict(base[:done], head[:done])
        if found.decided or done == LOOKS.last:
            break
    return said(
        found.status is VerdictStatus.SLOWER, found.status is VerdictStatus.FASTER
    ), 2 * done


def blocked_welch(trial: Trial) -> tuple[str, int]:
    """As many processes without interleaving: Welch p < 0.01 and more than 1 %."""
    base, head = trial.blocked(LOOKS.last)
    gap = float(np.mean(np.log(head)) - np.mean(np.log(base)))
    p = float(stats.ttest_ind(np.log(head), np.log(base), equal_var=False).pvalue)
    sure = p < 0.01 and abs(gap) > math.log1p(0.01)
    return said(sure and gap > 0, sure and gap < 0), 2 * LOOKS.last


def asv_compare(trial: Trial) -> tuple[str, int]:
    """Two interleaved rounds: ratio of medians beyond 1.1 and Mann–Whitney p < 0.002."""
    base, head = trial.interleaved(2)
    ratio = float(np.median(head) / np.median(base))
    sure = stats.mannwhitneyu(base, head).pvalue < 0.002
    return said(sure and ratio > 1.1, sure and ratio < 1 / 1.1), 4


def mann_whitney(trial: Trial) -> tuple[str, int]:
    """Google Benchmark's compare: Mann–Whitney p < 0.05 on the samples of one process a side."""
    base, head = trial.interleaved(1)
    sure = stats.mannwhitneyu(base, head).pvalue < 0.05
    slower = bool(np.median(head) > np.median(base))
    return said(sure and slower, sure and not slower), 2


def nvbench_compare(trial: Trial) -> tuple[str, int]:
    """The difference of means exceeds the smaller relative standard deviation."""
    base, head = trial.interleaved(1)
    gap = float(np.mean(head) / np.mean(base) - 1)
    noise = min(float(np.std(s, ddof=1) / np.mean(s)) for s in (base, head))
    return said(gap > noise, gap < -noise), 2


def nvbench_robust(trial: Trial) -> tuple[str, int]:
    """Interval part only: [min, third quartile] of both sides are apart by at least 0.5 %."""
    base, head = trial.interleaved(1)
    (b_low, b_high), (h_low, h_high) = ((s.min(), np.quantile(s, 0.75)) for s in (base, head))
    return said(h_low > b_high * 1.005, b_low > h_high * 1.005), 2


def conbench_lookback(trial: Trial) -> tuple[str, int]:
    """The best sample of one run is more than 5 standard deviations from the mean of the past."""
    past, newest = trial.past_and_newest()
    best = past.min(axis=1)
    score = (newest.min() - best.mean()) / best.std(ddof=1)
    return said(score > 5, score < -5), 1


@dataclass(frozen=True)
class Point:
    """A night, as a store would give it."""

    median_s: float
    run_id: str
    series: str = "one"
    started: float = 0.0
    fingerprint: str = ""
    status: Status = Status.OK


def kernelmark_screen(trial: Trial) -> tuple[str, int]:
    """One more night against the level of the series, 2 % floor."""
    past, newest = trial.past_and_newest()
    times = [*map(float, np.median(past, axis=1)), float(np.median(newest))]
    found = story([Point(t, f"night{i}") for i, t in enumerate(times)]).screen.status
    return said(found is VerdictStatus.SLOWER, found is VerdictStatus.FASTER), 1


def kernelmark_two_stage(trial: Trial) -> tuple[str, int]:
    """The screen every night; paired rounds only for what it flags."""
    flagged, cost = kernelmark_screen(trial)
    if flagged == "none":
        return "none", cost
    found, more = kernelmark_ab(trial)
    return found, cost + more


RULES: dict[str, Says] = {
    "kernelmark ab (robust)": kernelmark_ab,
    "the same processes blocked, Welch": blocked_welch,
    "asv compare (from its description)": asv_compare,
    "conbench lookback (from its description)": conbench_lookback,
    "nvbench-compare (from its description)": nvbench_compare,
    "nvbench-compare-robust (interval part, from its description)": nvbench_robust,
    "Mann–Whitney on samples (from Google Benchmark's description)": mann_whitney,
    "kernelmark history screen": kernelmark_screen,
    "kernelmark screen, then ab": kernelmark_two_stage,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the trials")
    parser.add_argument("--json", type=Path, help="file to write to")
    options = parser.parse_args()
    trials = 300 if options.quick else 3000
    began = time.perf_counter()
    rules = {
        noise: {
            name: of_rule(says, kind, trials if says is kernelmark_ab else trials // 3)
            for name, says in RULES.items()
        }
        for noise, kind in NOISES.items()
    }
    suites = of_suites(20 if options.quick else 400)
    steps = of_steps(20 if options.quick else 200)
    show(rules, suites, steps)
    bars = bars_of(rules)
    print("\n" + evidence.told(bars))
    print(f"{time.perf_counter() - began:.0f} s")
    target = options.json or (None if options.quick else RESULTS)
    if target is not None:
        evidence.write(
            target,
            title="Verdicts on simulated noise beside the rules of other tools",
            bars=bars,
            figures={
                "trials_of_ab": trials,
                "trials_of_others": trials // 3,
                "share_of_trials_with_an_effect": 1 / 3,
                "rules": rules,
                "suites": suites,
                "steps": steps,
            },
        )
    return 0 if all(holds for _, _, holds in bars) else 1


def of_rule(says: Says, noise: Noise, trials: int) -> dict[str, float]:
    """Percent of trials with an alarm where nothing changed, and found slowdowns by size."""
    figures: dict[str, float] = {}
    for effect in (0.0, *EFFECTS):
        # Where nothing changed either alarm is false; a slowdown must be called slower.
        count = trials if effect == 0 else trials // 3
        hits = cost = 0
        for number in range(count):
            random = np.random.default_rng([number, round(1e4 * effect)])
            found, used = says(Trial(machine=Machine(noise, random), effect=effect))
            hits += found == "slower" or (effect == 0 and found == "faster")
            cost += used
        name = "same" if effect == 0 else f"+{100 * effect:g} %"
        figures[name] = round(100 * hits / count, 2)
        if effect == 0:
            figures["processes"] = round(cost / count, 1)
    return figures


def of_suites(trials: int) -> list[dict[str, Any]]:
    """`kmark compare`: 60 rows, 3 blocks a side, 3 rows slower by 5 %; spreads that differ from
    row to row; with and without what rows learn from each other."""
    made = []
    for spread in (0.0, 0.6):
        for shared in (False, True):
            false_rows = false_suites = found = 0
            for number in range(trials):
                random = np.random.default_rng([number, 7])
                for effect in (0.0, 0.05):
                    hits = suite(random, spread, effect, shared=shared)
                    if effect == 0:
                        false_rows += int(hits.sum())
                        false_suites += bool(hits.any())
                    else:
                        found += int(hits[:3].sum())
            made.append(
                {
                    "spread_of_spreads": spread,
                    "rows_learn_from_each_other": shared,
                    "false_rows_percent": round(100 * false_rows / trials / 60, 3),
                    "false_suites_percent": round(100 * false_suites / trials, 2),
                    "found_5_percent": round(100 * found / trials / 3, 1),
                }
            )
    return made


def suite(
    random: np.random.Generator, spread: float, effect: float, *, shared: bool
) -> NDArray[np.bool_]:
    """Which rows of one suite the robust rule alarms on (its arithmetic, without results)."""
    rows, blocks = 60, 3
    sigma = 0.005 * np.exp(random.normal(0, spread, rows))
    logs = random.normal(0, 1, (rows, 2, blocks)) * sigma[:, None, None]
    logs[:3, 1] += math.log1p(effect)
    variances = logs.var(axis=2, ddof=1)
    known = common(list(variances.ravel()), [blocks - 1] * 2 * rows) if shared else Common()
    mixed, freedom = known.mixed(variances, blocks - 1)  # type: ignore[arg-type]
    parts = np.asarray(mixed) / blocks
    total = parts.sum(axis=1)
    free = total**2 / (parts**2 / freedom).sum(axis=1)
    gap = logs[:, 1].mean(axis=1) - logs[:, 0].mean(axis=1)
    p = 2 * stats.t.sf(np.abs(gap) / np.sqrt(total), free)
    hits: NDArray[np.bool_] = (np.array(adjusted(list(p))) <= 0.01) & (
        np.abs(gap) > math.log1p(0.01)
    )
    return hits


def of_steps(trials: int) -> dict[str, dict[str, float]]:
    """Change points in 60 points: series with a false step, and steps found within two points of
    where they are, 8 points after they happened. Here the drift goes on from point to point."""
    made: dict[str, dict[str, float]] = {}
    for name, noise in NOISES.items():
        figures = {}
        for effect in (0.0, 0.02, 0.05, 0.10):
            hits = 0
            for number in range(trials):
                machine = Machine(noise, np.random.default_rng([number, 9]))
                times = machine.processes([0.0] * 52 + [effect] * 8)
                nights = np.log(np.median(times, axis=1))
                found = change_points(nights, min_effect=math.log1p(0.02 if not effect else 0.01))
                hits += (
                    any(abs(s.index - 52) <= 2 and s.size > 0 for s in found)
                    if effect
                    else bool(found)
                )
            figures["false" if not effect else f"+{100 * effect:g} %"] = round(
                100 * hits / trials, 1
            )
        made[name] = figures
    return made


def bars_of(rules: dict[str, dict[str, dict[str, float]]]) -> list[tuple[str, str, bool]]:
    ours = {noise: figures["kernelmark ab (robust)"] for noise, figures in rules.items()}
    bars = []
    for noise, figures in ours.items():
        bars.append(
            (
                f"ab, {noise} noise: at most 1 % alarms where nothing changed",
                f"{figures['same']} %",
                figures["same"] <= 1.0,
            )
        )
        bars.append(
            (
                f"ab, {noise} noise: at least 90 % of +2 % found",
                f"{figures['+2 %']} %",
                figures["+2 %"] >= 90.0,
            )
        )
    return bars


def show(
    rules: dict[str, dict[str, dict[str, float]]],
    suites: list[dict[str, Any]],
    steps: dict[str, dict[str, float]],
) -> None:
    names = ["same", *(f"+{100 * effect:g} %" for effect in EFFECTS), "processes"]
    for noise, table in rules.items():
        print(
            f"\n{noise}: percent of trials with an alarm; processes a decision when nothing changed"
        )
        print(f"{'':62}" + "".join(f"{name:>10}" for name in names))
        for rule, figures in table.items():
            print(f"{rule:62}" + "".join(f"{figures[name]:>10g}" for name in names))
    print("\nkmark compare, 60 rows of 3 blocks a side")
    for row in suites:
        print("  " + ", ".join(f"{name} {value}" for name, value in row.items()))
    print("\nsteps in 60 nights, percent of series")
    for noise, figures in steps.items():
        print(f"  {noise}: " + ", ".join(f"{name} {value:g}" for name, value in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
