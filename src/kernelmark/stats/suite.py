"""Many pairs judged as one suite, with a bound on false alarms at any look.

A pair's p-value at a look is divided by the fraction of alpha that the look may spend; the smallest
such quotient over its looks is a valid p-value wherever the pair stops, since all looks together
spend alpha once. Benjamini–Hochberg over the pairs then bounds the false discovery rate. These
p-values only fall from look to look, so a discovery stays one, and its pair may stop early.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

from kernelmark.core.reason import Reason
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.corrections import adjusted
from kernelmark.stats.paired import DELTA, Looks, Paired, detectable, least_rounds, paired_verdict

Rounds = tuple[Sequence[float], Sequence[float]]  # times of base and head by round
_CHANGED = (VerdictStatus.SLOWER, VerdictStatus.FASTER)


def suite_verdicts(looks: Looks, pairs: Sequence[Rounds], *, delta: float = DELTA) -> list[Paired]:
    """Return the verdict of every pair at the look after its rounds.

    A pair is slower or faster if `Looks.verdict` finds it so and it is also a discovery among all
    pairs at a false discovery rate of `looks.alpha`. Swapping the sides mirrors every verdict.
    """
    alone = [looks.verdict(base, head, delta=delta) for base, head in pairs]
    q_values = adjusted([stopped_p_value(looks, *rounds) for rounds in pairs])
    count = sum(q_value <= looks.alpha for q_value in q_values)
    discovered = max(1, count) / max(1, len(pairs))
    return [
        _with_q_value(found, q_value, discovered, looks.alpha, delta)
        for found, q_value in zip(alone, q_values, strict=True)
    ]


def stopped_p_value(looks: Looks, base: Sequence[float], head: Sequence[float]) -> float:
    """Return a p-value that is valid although the pair could have stopped at any earlier look."""
    found = 1.0
    for rounds in looks.rounds:
        if rounds <= len(base):
            at_look = paired_verdict(base[:rounds], head[:rounds], alpha=looks.alpha)
            found = min(found, at_look.p_value * looks.alpha / looks.alpha_at(rounds))
    return found


def rounds_for_one(looks: Looks, pairs: int) -> int:
    """Return the rounds after which the last look can show a change of only one of `pairs`."""
    return least_rounds(looks.alpha_at(looks.last) / max(1, pairs))


def _with_q_value(
    paired: Paired, q_value: float, discovered: float, alpha: float, delta: float
) -> Paired:
    status, reason = paired.status, paired.reason
    if status in _CHANGED and q_value > alpha:
        status = VerdictStatus.UNSURE
        reason = Reason("perhaps-chance", cause=reason, rows="pairs")
    return dataclasses.replace(
        paired,
        status=status,
        reason=reason,
        q_value=q_value,
        detectable=_detectable(paired, discovered, delta),
    )


def _detectable(paired: Paired, discovered: float, delta: float) -> float:
    """Return the least slowdown of one more pair with this spread that would be a discovery."""
    bar = paired.alpha * discovered
    if not math.isfinite(paired.high) or paired.rounds < least_rounds(bar):
        return math.inf
    wide = NormalDist().inv_cdf(1 - paired.alpha / 2)
    half = (math.log(paired.high) - math.log(paired.low)) / 2
    scaled = half / wide * NormalDist().inv_cdf(1 - bar / 2)
    return detectable(scaled, math.log1p(delta), bar)
