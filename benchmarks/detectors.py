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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from detector_suites import of_ab_suites, of_suites
from kernelmark.compare.history import story
from kernelmark.core.result import Mode, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.changepoint import change_points
from kernelmark.stats.paired import Looks
from kernelmark_dev import evidence
from simulated import NOISES, Machine, Noise, Trial

RESULTS = Path(__file__).parent / "results" / "detectors.json"
LOOKS = Looks()
EFFECTS = (0.01, 0.02, 0.05, 0.10)
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
    modes: tuple[Mode, ...] = ()


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
    ab_suites = of_ab_suites(5 if options.quick else 100)
    steps = of_steps(20 if options.quick else 200)
    show(rules, suites, ab_suites, steps)
    bars = bars_of(rules, ab_suites)
    print("\n" + evidence.bars_text(bars))
    print(f"{time.perf_counter() - began:.0f} s")
    target = options.json or (None if options.quick else RESULTS)
    if target is not None:
        evidence.write(
            target,
            title="Verdicts on simulated noise, compared with the rules of other tools",
            bars=bars,
            figures={
                "trials_of_ab": trials,
                "trials_of_others": trials // 3,
                "share_of_trials_with_an_effect": 1 / 3,
                "rules": rules,
                "suites": suites,
                "ab_suites": ab_suites,
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


def bars_of(
    rules: dict[str, dict[str, dict[str, float]]], ab_suites: dict[str, dict[str, float]]
) -> list[tuple[str, str, bool]]:
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
    for noise, figures in ab_suites.items():
        bars.append(
            (
                f"ab, {noise} noise, 60 pairs: at most 1 % of pairs alarm where nothing changed",
                f"{figures['false_pairs']} %",
                figures["false_pairs"] <= 1.0,
            )
        )
        bars.append(
            (
                f"ab, {noise} noise, 60 pairs: at least 90 % of +2 % found",
                f"{figures['+2 %']:.1f} %",
                figures["+2 %"] >= 90.0,
            )
        )
    return bars


def show(
    rules: dict[str, dict[str, dict[str, float]]],
    suites: list[dict[str, Any]],
    ab_suites: dict[str, dict[str, float]],
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
    print("\nkmark ab, 60 pairs of which 3 are slower, percent")
    for noise, figures in ab_suites.items():
        print(f"  {noise}: " + ", ".join(f"{name} {value:g}" for name, value in figures.items()))
    print("\nsteps in 60 nights, percent of series")
    for noise, figures in steps.items():
        print(f"  {noise}: " + ", ".join(f"{name} {value:g}" for name, value in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
