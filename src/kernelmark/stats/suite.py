"""Many pairs looked at together: alarms as discoveries of the whole suite, at any look.

A pair's p-value at a look is divided by the share of alpha that the look may spend; the smallest
such quotient over its looks is a p-value of its own wherever the pair stops, since all looks
together spend alpha once. Benjamini–Hochberg over the pairs then bounds the share of alarms that
are chance. These p-values only fall from look to look, so what was a discovery stays one, and a
pair may leave as soon as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

from kernelmark.core.reason import Reason
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.fdr import adjusted
from kernelmark.stats.paired import DELTA, Looks, Paired, detectable, least_rounds, paired_verdict

Rounds = tuple[Sequence[float], Sequence[float]]  # base's and head's times, round by round
_CHANGED = (VerdictStatus.SLOWER, VerdictStatus.FASTER)


def suite_verdicts(looks: Looks, pairs: Sequence[Rounds], *, delta: float = DELTA) -> list[Paired]:
    """Return the verdict of every pair at the look that its rounds are.

    Slower and faster are those of `Looks.verdict` that are also discoveries among all pairs when a
    share `looks.alpha` of them may be false. Swapping the sides mirrors every verdict.
    """
    alone = [looks.verdict(base, head, delta=delta) for base, head in pairs]
    shares = adjusted([stopped_p_value(looks, *rounds) for rounds in pairs])
    count = sum(share <= looks.alpha for share in shares)
    part = max(1, count) / max(1, len(pairs))
    return [
        _among(found, share, part, looks.alpha, delta)
        for found, share in zip(alone, shares, strict=True)
    ]


def stopped_p_value(looks: Looks, base: Sequence[float], head: Sequence[float]) -> float:
    """Return a p-value that holds although the pair could have stopped at any earlier look."""
    found = 1.0
    for rounds in looks.rounds:
        if rounds <= len(base):
            at_look = paired_verdict(base[:rounds], head[:rounds], alpha=looks.alpha)
            found = min(found, at_look.p_value * looks.alpha / looks.alpha_at(rounds))
    return found


def rounds_for_one(looks: Looks, pairs: int) -> int:
    """Rounds after which a last look could show a change that only one of `pairs` has."""
    return least_rounds(looks.alpha_at(looks.last) / max(1, pairs))


def _among(paired: Paired, share: float, part: float, alpha: float, delta: float) -> Paired:
    status, reason = paired.status, paired.reason
    if status in _CHANGED and share > alpha:
        status = VerdictStatus.UNSURE
        reason = Reason("perhaps-chance", cause=reason, rows="pairs")
    return dataclasses.replace(
        paired,
        status=status,
        reason=reason,
        q_value=share,
        detectable=_detectable(paired, part, delta),
    )


def _detectable(paired: Paired, part: float, delta: float) -> float:
    """Return what one more pair with this spread would have to be slower by to be a discovery."""
    bar = paired.alpha * part
    if not math.isfinite(paired.high) or paired.rounds < least_rounds(bar):
        return math.inf
    wide = NormalDist().inv_cdf(1 - paired.alpha / 2)
    half = (math.log(paired.high) - math.log(paired.low)) / 2
    scaled = half / wide * NormalDist().inv_cdf(1 - bar / 2)
    return detectable(scaled, math.log1p(delta), bar)
