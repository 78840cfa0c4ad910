"""Whether the winner of a final is kept: surely faster, by enough, large enough to judge."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.compare.rules.golden_tot import GoldenTot
from kernelmark.core.units import counted, time_text
from kernelmark.measure.advice import LOAD_SHARE
from kernelmark.stats.paired import least_rounds, signed_rank
from kernelmark.tune.journal import Trial
from kernelmark.tune.outcome import Choice
from kernelmark.tune.plan import Acceptance

ALPHA = 0.05  # of the interval of the ratio
# An interval whose ends differ by more says that the machine was busy, not how fast a kernel is.
_WIDEST = 2.0
# How much longer the final may take than the search. Both time alike: of 143 winners on an H200
# none took more than 1.05 times as long, and what others do to a CPU is a factor of many.
_LONGEST = 1.5
_US = 1e-6
_RULE = GoldenTot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Reference over finalist, over the rounds that both ended well."""

    ratio: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, log_ratios: Sequence[float]) -> Score | None:
        """From the logarithm of the ratio in each round; None without a round."""
        if not log_ratios:
            return None
        found = signed_rank(log_ratios, ALPHA)
        return cls(
            ratio=math.exp(found.centre),
            low=0.0 if found.low == -math.inf else math.exp(found.low),
            high=math.exp(found.high),
            rounds=len(log_ratios),
        )


def disturbance(trials: Sequence[Trial], cores: int, *, searched_s: float, final_s: float) -> str:
    """What says that the machine did other work during the `trials` of a final, "" if nothing.

    Other work only makes times longer: a search that was slower than the final is no sign of it.
    """
    loads = [trial.load for trial in trials if trial.load is not None]
    load = statistics.fmean(loads) if loads else 0.0
    if load > LOAD_SHARE * cores:
        return f"other work used {load:.1f} of {counted(cores, 'core')} during the final"
    if final_s > _LONGEST * searched_s:
        final, searched = time_text(final_s), time_text(searched_s)
        return f"it takes {final} in the final, and took {searched} in the search"
    return ""


def decide(
    asked: Acceptance,
    *,
    reference: Choice,
    tuned: Choice,
    score: Score | None,
    fault: str | None,
    reference_fault: str | None,
    disturbed: str = "",
) -> tuple[bool, str]:
    """Whether the tuned config is kept, and why, in one sentence."""
    if fault is not None:
        return False, f"not verified: {fault}"
    if score is None:
        return False, f"the reference has no time: {reference_fault or 'nothing was measured'}"
    if disturbed:
        return False, f"too noisy to judge: {disturbed}; time it again on a quiet machine"
    beside = f"; the reference itself: {reference_fault}" if reference_fault else ""
    gain_s = reference.median_s - tuned.median_s
    gain = f"{'-' if gain_s < 0 else ''}{time_text(abs(gain_s))} a call"
    shown = f"{score.ratio:.3f} × ({score.low:.3f} to {score.high:.3f})"
    smallest = _RULE.ignore_below_us
    if reference.median_s < smallest * _US:
        told = time_text(reference.median_s)
        return False, f"too small to judge: the reference takes {told}, under {smallest:g} µs"
    if score.low <= 1.0:
        few = least_rounds(ALPHA)
        short = f"; it takes {few} rounds to tell" if score.rounds < few else ""
        verdict = "slower" if score.high < 1.0 else "not surely faster"
        return False, f"{verdict}: {shown} over {score.rounds} rounds{short}{beside}"
    if score.high > _WIDEST * score.low:
        told = f"{shown} over {score.rounds} rounds; more rounds in its plan may tell"
        return False, f"too noisy to judge: {told}{beside}"
    if score.ratio < asked.min_ratio:
        return False, f"gains too little: {shown}, {asked.min_ratio:g} × is asked for{beside}"
    if gain_s < asked.min_gain_us * _US:
        floor = f"{time_text(asked.min_gain_us * _US)} is asked for"
        return False, f"gains too little: {gain}, {floor}{beside}"
    return True, f"faster: {shown}, {gain}{beside}"
