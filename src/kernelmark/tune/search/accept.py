"""Acceptance: whether the winner of a final is significantly and sufficiently faster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.compare.rules.golden_tot import GoldenTot
from kernelmark.core.reason import Reason
from kernelmark.measure.advice import LOAD_SHARE
from kernelmark.stats.paired import least_rounds, signed_rank
from kernelmark.tune.plans.plan import ALPHA, Acceptance
from kernelmark.tune.records.journal import Trial
from kernelmark.tune.records.outcome import Choice

# Largest high / low of an interval. Wider ones come from a busy machine, not from the kernel.
_WIDEST = 2.0
# Largest time of the final / time in the search. Both are timed in the same way: of 143 winners on
# an H200 none exceeded 1.05, while other processes slow a CPU down several times.
_LONGEST = 1.5
_US = 1e-6
_RULE = GoldenTot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The ratio reference time / finalist time, over the rounds in which both succeeded."""

    ratio: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, log_ratios: Sequence[float], looks: int = 1) -> Score | None:
        """Return the score from the logarithm of each round's ratio; None without rounds.

        `looks` is the number of times the rounds were judged, including this one. Repeated looks
        raise the chance of a false positive, so alpha is divided by it (Bonferroni)."""
        if not log_ratios:
            return None
        interval = signed_rank(log_ratios, ALPHA / looks)
        return cls(
            ratio=math.exp(interval.centre),
            low=0.0 if interval.low == -math.inf else math.exp(interval.low),
            high=math.exp(interval.high),
            rounds=len(log_ratios),
        )


def disturbance(
    trials: Sequence[Trial], cores: int, *, searched_s: float, final_s: float, cpu_time: bool
) -> Reason | None:
    """Return a reason if other work disturbed the `trials` of a final, else None.

    Other work only makes times longer, so a final that is faster than the search is not a sign.
    `cpu_time` excludes other processes on the core, so their load alone is not a disturbance.
    """
    loads = [trial.load for trial in trials if trial.load is not None]
    load = statistics.fmean(loads) if loads else 0.0
    if load > LOAD_SHARE * cores and not cpu_time:
        return Reason("load-in-final", load=load, cores=cores)
    if final_s > _LONGEST * searched_s:
        return Reason("slower-than-searched", final_s=final_s, searched_s=searched_s)
    return None


def decide(
    acceptance: Acceptance,
    *,
    reference: Choice,
    tuned: Choice,
    score: Score | None,
    fault: Reason | None,
    reference_fault: Reason | None,
    disturbed: Reason | None = None,
) -> tuple[bool, Reason]:
    """Return whether the tuned config is kept, and why."""
    if fault is not None:
        return False, Reason("not-verified", cause=fault)
    if score is None:
        cause = reference_fault or Reason("nothing-measured")
        return False, Reason("reference-without-time", cause=cause)
    if disturbed is not None:
        return False, Reason("disturbed", cause=disturbed)
    if reference.median_s < _RULE.ignore_below_us * _US:
        least_us = _RULE.ignore_below_us
        return False, Reason("too-small", reference_s=reference.median_s, least_us=least_us)
    gain_s, rounds = reference.median_s - tuned.median_s, score.rounds
    shown = {
        "ratio": score.ratio,
        "low": score.low,
        "high": score.high,
        "rounds": rounds,
        "gain_s": gain_s,
        "reference_fault": reference_fault,
    }
    if score.high < 1.0:
        return False, Reason("slower", **shown)
    if score.low <= 1.0:
        few = least_rounds(ALPHA)
        return False, Reason("not-faster", least=few if rounds < few else None, **shown)
    if score.high > _WIDEST * score.low:
        return False, Reason("too-noisy", **shown)
    if score.ratio < acceptance.min_ratio:
        return False, Reason("ratio-too-small", least=acceptance.min_ratio, **shown)
    if gain_s < acceptance.min_gain_us * _US:
        return False, Reason("gain-too-small", least_s=acceptance.min_gain_us * _US, **shown)
    return True, Reason("faster", **shown)
