"""Suites of simulated rows: how often `kmark compare` and `kmark ab` alarm in a whole suite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.paired import Common, Looks, adjusted, common, suite_verdicts
from simulated import NOISES, Machine, Noise, Trial, Values

PAIRS = 60
CHANGED = 3
AB_EFFECTS = (0.0, 0.02, 0.05)
ALARMS = (VerdictStatus.SLOWER, VerdictStatus.FASTER)


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
    mixed, dof = known.mixed(variances, blocks - 1)  # type: ignore[arg-type]
    parts = np.asarray(mixed) / blocks
    total = parts.sum(axis=1)
    free = total**2 / (parts**2 / dof).sum(axis=1)
    gap = logs[:, 1].mean(axis=1) - logs[:, 0].mean(axis=1)
    p = 2 * stats.t.sf(np.abs(gap) / np.sqrt(total), free)
    hits: NDArray[np.bool_] = (np.array(adjusted(list(p))) <= 0.01) & (
        np.abs(gap) > math.log1p(0.01)
    )
    return hits


def of_ab_suites(trials: int) -> dict[str, dict[str, float]]:
    """`kmark ab`: 60 pairs, 3 of them slower; percent of unchanged pairs and of suites without a
    change that alarm, of slow pairs that are found, of alarms that are false, and the rounds that a
    pair takes where nothing changed."""
    made = {}
    for name, noise in NOISES.items():
        figures: dict[str, float] = {}
        for effect in AB_EFFECTS:
            found = [ab_suite(noise, effect, number) for number in range(trials)]
            slow = CHANGED if effect else 0
            false = [sum(v in ALARMS for v in verdicts[slow:]) for verdicts, _ in found]
            if effect == 0:
                figures["false_pairs"] = _percent(sum(false), trials * PAIRS)
                figures["false_suites"] = _percent(sum(map(bool, false)), trials)
                figures["rounds_a_pair"] = round(sum(used for _, used in found) / trials, 1)
                continue
            hits = sum(v is VerdictStatus.SLOWER for verdicts, _ in found for v in verdicts[:slow])
            figures[f"+{100 * effect:g} %"] = _percent(hits, trials * slow)
            share = _percent(sum(false), max(1, sum(false) + hits))
            figures[f"false_of_alarms_at_+{100 * effect:g} %"] = share
        made[name] = figures
    return made


def ab_suite(noise: Noise, effect: float, number: int) -> tuple[list[VerdictStatus], float]:
    """The verdicts of one suite, whose first pairs are slower, and the rounds it took a pair."""
    looks = Looks()
    pairs: list[tuple[Values, Values]] = []
    for place in range(PAIRS):
        random = np.random.default_rng([number, place, round(1e4 * effect)])
        slower = effect if place < CHANGED else 0.0
        pairs.append(Trial(machine=Machine(noise, random), effect=slower).rounds(looks.last))
    used = dict.fromkeys(range(PAIRS), 0)
    verdicts = [VerdictStatus.UNSURE] * PAIRS
    for look in looks.rounds:
        still = [place for place, v in enumerate(verdicts) if v is VerdictStatus.UNSURE]
        used |= dict.fromkeys(still, look)
        seen = [(base[: used[i]], head[: used[i]]) for i, (base, head) in enumerate(pairs)]
        found = suite_verdicts(looks, seen)
        for place in still:
            verdicts[place] = found[place].status
    return verdicts, sum(used.values()) / PAIRS


def _percent(count: int, of: int) -> float:
    return round(100 * count / of, 3)
