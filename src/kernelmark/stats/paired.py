"""Paired rounds: two sides measured alternately, many times.

In a round both sides run under the same conditions, in random order. If nothing changed, swapping
the two labels of any round changes nothing, so the log ratios are symmetric around zero whatever
their distribution. Wilcoxon's signed-rank interval needs no other assumption, in particular no
normal noise.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.reason import Reason
from kernelmark.core.units import change_span, change_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.corrections import adjusted
from kernelmark.stats.interval import exp

DELTA = 0.01  # smaller effects are not worth an alarm (0.01 is 1 %)
ALPHA = 0.01  # chance of an alarm where nothing changed
POWER = 0.9  # probability to find the `detectable` effect


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRank:
    """The Hodges–Lehmann estimate of the centre of symmetric values, its interval, and the p-value
    of the centre being zero.

    The interval is infinite where there are too few values for its level.
    """

    centre: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """The verdict of paired rounds. `ratio` is head over base: above 1 is slower; `low` and `high`
    bound it with confidence 1 - `alpha`. `detectable` is the least slowdown (0.02 is 2 %) that this
    many rounds with this spread would find in nine of ten comparisons. `q_value` is the false
    discovery rate at which this pair would still be a discovery in its suite; None where it was
    judged alone."""

    status: VerdictStatus
    reason: Reason
    ratio: float
    low: float
    high: float
    p_value: float
    rounds: int
    alpha: float
    detectable: float
    q_value: float | None = None

    @property
    def decided(self) -> bool:
        """Whether no more rounds are needed."""
        return self.status is not VerdictStatus.UNSURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """The numbers of rounds after which the data may be tested, and the spending of alpha over
    these looks.

    Stopping at the first interval that excludes 1 would give each look its own chance of a false
    alarm. Here each look spends a part of `alpha`, in proportion to the rounds since the last one;
    the parts add up to `alpha`, whatever the dependence between looks.
    """

    rounds: tuple[int, ...] = (10, 16, 24, 32)
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        if not self.rounds or self.rounds[0] < 1 or list(self.rounds) != sorted(set(self.rounds)):
            raise ValueError("looks must be at least one, and increase")
        if not 0 < self.alpha < 1:
            raise ValueError("alpha must be between 0 and 1")

    @property
    def last(self) -> int:
        return self.rounds[-1]

    def alpha_at(self, rounds: int) -> float:
        """Return the alpha of the look after `rounds`; raise ValueError if there is none."""
        if rounds not in self.rounds:
            raise ValueError(f"there is no look after {rounds} rounds, only after {self.rounds}")
        place = self.rounds.index(rounds)
        before = self.rounds[place - 1] if place else 0
        return self.alpha * (rounds - before) / self.last

    def after(self, rounds: int) -> int | None:
        """Return the next look after `rounds`; None after the last."""
        return next((look for look in self.rounds if look > rounds), None)

    def verdict(
        self, base: Sequence[float], head: Sequence[float], *, delta: float = DELTA
    ) -> Paired:
        """Return the verdict at the look after as many rounds as there are times."""
        return paired_verdict(base, head, delta=delta, alpha=self.alpha_at(len(base)))


def paired_verdict(
    base: Sequence[float], head: Sequence[float], *, delta: float = DELTA, alpha: float = ALPHA
) -> Paired:
    """Return the verdict: slower or faster where the interval of the ratio excludes 1 and its
    centre is further than `delta` from 1; same where the interval lies within `delta`; unsure
    otherwise.

    `base[i]` and `head[i]` are the times of round i. Swapping the sides mirrors the verdict.
    """
    logs = _log_ratios(base, head)
    found = signed_rank(logs, alpha)
    floor = math.log1p(delta)
    status, reason = _decide(found, floor, len(logs), alpha)
    return Paired(
        status=status,
        reason=reason,
        ratio=math.exp(found.centre),
        low=exp(found.low),
        high=exp(found.high),
        p_value=found.p_value,
        rounds=len(logs),
        alpha=alpha,
        detectable=detectable(_half_width(found), floor, alpha),
    )


def signed_rank(values: Sequence[float] | NDArray[np.float64], alpha: float) -> SignedRank:
    """Return centre, interval and p-value of values that are symmetric around their centre, exact
    for any such distribution; ties and zeros make the interval wider, never narrower."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("no rounds")
    first, second = np.triu_indices(len(data))
    means = np.sort((data[first] + data[second]) / 2)
    tail = _signed_rank_tail(len(data))
    # The c-th smallest mean is a bound when P(W ≤ c - 1) ≤ alpha/2.
    bound = int(np.searchsorted(tail, alpha / 2, side="right"))
    low, high = (-math.inf, math.inf) if bound == 0 else (means[bound - 1], means[-bound])
    outside = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
    return SignedRank(
        centre=float(np.median(means)),
        low=float(low),
        high=float(high),
        p_value=min(1.0, 2 * float(tail[min(outside, len(tail) - 1)])),
    )


def least_rounds(alpha: float) -> int:
    """Return the fewest rounds whose interval can exclude 1 at this level."""
    return math.ceil(1 - math.log2(alpha))


def detectable(half_width: float, floor: float, alpha: float) -> float:
    """Return the slowdown (0.02 is 2 %) that an interval of this half-width, in logarithms, at
    level 1 - `alpha`, finds with probability `POWER`; `floor` is the least effect that counts, as a
    logarithm."""
    if not math.isfinite(half_width):
        return math.inf
    error = half_width / _normal_quantile(1 - alpha / 2)
    return exp(max(half_width, floor) + _normal_quantile(POWER) * error) - 1


@functools.lru_cache(maxsize=64)  # all rows of a suite use the same two
def _normal_quantile(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


def _decide(
    found: SignedRank, floor: float, rounds: int, alpha: float
) -> tuple[VerdictStatus, Reason]:
    span = {"low": exp(found.low), "high": exp(found.high), "rounds": rounds}
    limit = math.expm1(floor)
    interval = change_span(span["low"], span["high"])
    over = f"over {rounds} rounds"
    if not math.isfinite(found.low):
        least = least_rounds(alpha)
        return VerdictStatus.UNSURE, Reason(
            f"{rounds} rounds can show nothing at this level; it takes {least}"
        )
    if (found.low > 0 and found.centre > floor) or (found.high < 0 and found.centre < -floor):
        status = VerdictStatus.SLOWER if found.centre > 0 else VerdictStatus.FASTER
        ratio = exp(found.centre)
        return status, Reason(
            f"{change_text(ratio)} ({interval}) {over}", "changed", ratio=ratio, **span
        )
    if found.low >= -floor and found.high <= floor:
        return VerdictStatus.SAME, Reason(
            f"within {100 * limit:g} % ({interval}) {over}", "within", limit=limit, **span
        )
    if found.low > 0 or found.high < 0:
        return VerdictStatus.UNSURE, Reason(
            f"changed, but perhaps by less than {100 * limit:g} % ({interval})",
            "perhaps-within",
            limit=limit,
            **span,
        )
    return VerdictStatus.UNSURE, Reason(f"{rounds} rounds leave {interval} open", "open", **span)


def _half_width(found: SignedRank) -> float:
    return (found.high - found.low) / 2 if math.isfinite(found.low) else math.inf


def _log_ratios(base: Sequence[float], head: Sequence[float]) -> NDArray[np.float64]:
    if len(base) != len(head):
        raise ValueError(f"{len(base)} rounds of base, {len(head)} of head")
    times = np.asarray([base, head], dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("times must be positive and finite")
    logs: NDArray[np.float64] = np.log(times[1]) - np.log(times[0])
    return logs


@functools.lru_cache(maxsize=256)
def _signed_rank_tail(count: int) -> NDArray[np.float64]:
    """Return P(W ≤ w) of the signed-rank statistic of `count` values, for w = 0, 1, …"""
    chances = np.zeros(count * (count + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, count + 1):
        shifted = np.zeros_like(chances)
        shifted[rank:] = chances[:-rank]
        chances = (chances + shifted) / 2
    tail: NDArray[np.float64] = np.cumsum(chances)
    return tail


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
        reason = Reason(
            f"{reason}: significant alone, but may be chance among all pairs",
            "perhaps-chance",
            cause=reason,
            rows="pairs",
        )
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
