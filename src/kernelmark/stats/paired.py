"""Paired rounds: two sides measured alternately, many times; and corrections to the rows of a
comparison: one clock, shared noise, many tests.

In a round both sides run under the same conditions, in random order. If nothing changed, swapping
the two labels of any round changes nothing, so the log ratios are symmetric around zero whatever
their distribution. Wilcoxon's signed-rank interval needs no other assumption, in particular no
normal noise.

A GPU at its power cap changes its clock from block to block and from run to run, with temperature
and with the work before. On an H200 the block medians of GEMMs at the cap had spreads of 2 to 5 %,
and 0.2 to 1.4 % around a line in the logarithm of the clock, with slopes of -0.6 to -1.1
(benchmarks/gpu/clocks.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.reason import Reason
from kernelmark.core.units import change_span, change_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.interval import exp, mad

# Fewer blocks give no usable slope.
LEAST_BLOCKS = 8
# Slope of log time over log clock: -1 for a compute-bound kernel, 0 for a memory-bound one. Outside
# this range something else changed with the clock.
_STEEPEST, _FLATTEST = -1.3, -0.3
# Fraction of the blocks' variance that the clock has to explain.
_LEAST_EXPLAINED = 0.5

Groups = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLine:
    """Log time against log clock: `slope`, its standard `error`, and the clock (its logarithm) at
    which both runs are compared."""

    slope: float
    error: float
    at: float

    def moved(self, log_time: float, log_clock: float) -> float:
        """Return the log time of a block at the common clock."""
        return log_time - self.slope * (log_clock - self.at)


def clock_line(times: Groups, clocks: Groups) -> ClockLine | None:
    """Return the line that fits the blocks of several runs, fitted within runs: differences between
    runs do not affect the slope. None where times do not follow the clock.

    `times` and `clocks` are logarithms, one list per run.
    """
    count = sum(map(len, times))
    free = count - len(times) - 1
    if count < LEAST_BLOCKS or free < 1:
        return None
    # Plain floats: arrays of ten values take several times as long, for each row of a suite.
    t = [value for some in times for value in _centred(some)]
    c = [value for some in clocks for value in _centred(some)]
    total, spread = _product(t, t), _product(c, c)
    if total == 0 or spread == 0:
        return None
    slope = _product(c, t) / spread
    rest = [time - slope * clock for time, clock in zip(t, c, strict=True)]
    left = _product(rest, rest)
    if not _STEEPEST <= slope <= _FLATTEST or left > (1 - _LEAST_EXPLAINED) * total:
        return None
    middle = statistics.fmean(map(statistics.fmean, clocks))
    return ClockLine(slope=slope, error=(left / free / spread) ** 0.5, at=middle)


def _centred(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [value - mean for value in values]


def _product(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(map(operator.mul, a, b))


# Fewer rows do not give a usable common variance.
_LEAST_ROWS = 5
# Largest weight of the suite in a row, in degrees of freedom: that of one more block. With more
# weight, intervals are overconfident where spreads follow another distribution than the estimate
# assumes (benchmarks/detectors.py, suites).
_MOST = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The common variance of rows, worth `dof` degrees of freedom in each; 0 if unknown."""

    variance: float = 0.0
    dof: float = 0.0

    def mixed(self, variance: float, dof: float) -> tuple[float, float]:
        """Return a row's variance shrunk towards the common one, and its degrees of freedom."""
        total = self.dof + dof
        if total == 0:
            return math.nan, 0.0
        mean = (self.dof * self.variance + dof * variance) / total
        return mean, total


def common(variances: Sequence[float], dofs: Sequence[float]) -> Common:
    """Return the common variance of sample variances with these degrees of freedom. Zero variances,
    which come from coarse clocks, are left out."""
    from scipy.special import digamma, polygamma  # workers have numpy only

    kept = [(v, f) for v, f in zip(variances, dofs, strict=True) if v > 0 and f > 0]
    if len(kept) < _LEAST_ROWS:
        return Common()
    spread, dof = np.asarray(kept, dtype=np.float64).T
    centred = np.log(spread) - digamma(dof / 2) + np.log(dof / 2)
    excess = float(np.var(centred, ddof=1) - np.mean(polygamma(1, dof / 2)))
    middle = float(np.mean(centred))
    if excess <= 0:
        return Common(variance=math.exp(middle), dof=_MOST)
    prior = 2 * _inverse_trigamma(excess)
    shift = float(digamma(prior / 2)) - math.log(prior / 2)
    return Common(variance=math.exp(middle + shift), dof=min(prior, _MOST))


def _inverse_trigamma(value: float) -> float:
    """Return the positive x with trigamma(x) = `value`, by Newton's method on 1/trigamma."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(50):
        slope = float(polygamma(1, x))
        step = slope * (1 - slope / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x


# Standard deviation of the log ratio of two equal runs of a row on a CPU, beyond what the blocks
# show and all rows have in common, before the rows of a comparison are seen: 0.010 on a shared
# Neoverse N1, 0.012 to 0.015 on a Xeon beside other work. Few rows do not show what they have in
# common either: ten equal runs on the N1 differed by 0.013 in all rows. The weight of both is in
# degrees of freedom.
PRIOR_SCATTER = 0.012
_FEW_SCATTER = 0.02
_PRIOR_DOF = 4.0
# More rows do not make the tails of the scatter lighter.
_MOST_SCATTER_DOF = 20.0
# Largest change that rows have in common because the machine changed: at most 0.03 in 45 pairs of
# equal runs on the N1. A larger one is a change of all rows only if it is this many standard errors
# from zero, so that it is no chance among few rows.
COMMON_LIMIT = 0.04
_COMMON_ERRORS = 4.0
# Expected fraction of changed rows, and the width of the range of their log ratios.
_CHANGED_FRACTION = 0.1
_CHANGED_RANGE = 0.5
_SCATTER_STEPS = 30
_MOST_DOUBT = 1.5  # of the median deviation over the standard deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """How equal rows differ between two runs: the log ratio that all rows have in `common`, whether
    that is `usual` for a machine between runs, and the `variance` of a row around it beyond the
    error of its own blocks, with its degrees of freedom."""

    common: float = 0.0
    usual: bool = True
    variance: float = _FEW_SCATTER**2
    dof: float = _PRIOR_DOF


def scatter_of(ratios: Sequence[float], variances: Sequence[float]) -> Scatter:
    """Return the scatter of rows with these log ratios, whose own errors have these variances.

    Rows are a mixture of unchanged ones, normal around what all have in common, and of changed
    ones, anywhere. More than half of the rows have to be unchanged, or changed alike. Fewer than
    five rows do not show any scatter: theirs is that of other machines.
    """
    if len(ratios) < _LEAST_ROWS:
        return Scatter()
    values, errors = np.asarray(ratios), np.asarray(variances)
    common = statistics.median(ratios)
    # A few rows may agree by chance. A third of the rows that changed by several standard errors
    # doubles the median deviation; rows that scatter widely must not look like that.
    least = (mad(ratios, scaled=True) / _MOST_DOUBT) ** 2 - statistics.median(variances)
    variance = max(PRIOR_SCATTER**2, least)
    weight, unchanged = 0.0, np.ones(len(values))
    changed = _CHANGED_FRACTION / _CHANGED_RANGE
    for _ in range(_SCATTER_STEPS):
        total = errors + variance
        squares = (values - common) ** 2
        density = np.exp(-squares / total / 2) / np.sqrt(2 * np.pi * total)
        density *= 1 - _CHANGED_FRACTION
        unchanged = density / (density + changed)
        weight = float(unchanged.sum())
        common = float((unchanged * values / total).sum() / (unchanged / total).sum())
        # The expected square of what a row's own error leaves of its difference.
        left = (variance / total) ** 2 * (values - common) ** 2 + variance * errors / total
        found = float((unchanged * left).sum())
        variance = max((_PRIOR_DOF * PRIOR_SCATTER**2 + found) / (_PRIOR_DOF + weight), least)
    error = math.sqrt(1 / float((unchanged / (errors + variance)).sum()))
    return Scatter(
        common=common,
        usual=abs(common) <= max(COMMON_LIMIT, _COMMON_ERRORS * error),
        variance=variance,
        dof=min(_PRIOR_DOF + max(weight - 1, 0.0), _MOST_SCATTER_DOF),
    )


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return the Benjamini–Hochberg q-value of each p-value: the smallest false discovery rate at
    which it would still be a discovery. Rows with a q-value of at most q are the discoveries at q,
    of which on average at most a fraction q is false. If nothing changed, q is the chance of any
    alarm."""
    values = np.asarray(p_values, dtype=np.float64)
    if values.size == 0:
        return []
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError("p-values must be between 0 and 1")
    order = np.argsort(values, kind="stable")[::-1]
    scaled = values[order] * len(values) / np.arange(len(values), 0, -1)
    lifted = np.minimum(np.minimum.accumulate(scaled), 1.0)
    q_values = np.empty_like(lifted)
    q_values[order] = lifted
    return [float(value) for value in q_values]


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
        look = self.rounds.index(rounds)
        before = self.rounds[look - 1] if look else 0
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
    test = signed_rank(logs, alpha)
    floor = math.log1p(delta)
    status, reason = _decide(test, floor, len(logs), alpha)
    return Paired(
        status=status,
        reason=reason,
        ratio=math.exp(test.centre),
        low=exp(test.low),
        high=exp(test.high),
        p_value=test.p_value,
        rounds=len(logs),
        alpha=alpha,
        detectable=detectable(_half_width(test), floor, alpha),
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
    test: SignedRank, floor: float, rounds: int, alpha: float
) -> tuple[VerdictStatus, Reason]:
    span = {"low": exp(test.low), "high": exp(test.high), "rounds": rounds}
    limit = math.expm1(floor)
    interval = change_span(span["low"], span["high"])
    over = f"over {rounds} rounds"
    if not math.isfinite(test.low):
        least = least_rounds(alpha)
        return VerdictStatus.UNSURE, Reason(
            f"{rounds} rounds can show nothing at this level; it takes {least}"
        )
    if (test.low > 0 and test.centre > floor) or (test.high < 0 and test.centre < -floor):
        status = VerdictStatus.SLOWER if test.centre > 0 else VerdictStatus.FASTER
        ratio = exp(test.centre)
        return status, Reason(
            f"{change_text(ratio)} ({interval}) {over}", "changed", ratio=ratio, **span
        )
    if test.low >= -floor and test.high <= floor:
        return VerdictStatus.SAME, Reason(
            f"within {100 * limit:g} % ({interval}) {over}", "within", limit=limit, **span
        )
    if test.low > 0 or test.high < 0:
        return VerdictStatus.UNSURE, Reason(
            f"changed, but perhaps by less than {100 * limit:g} % ({interval})",
            "perhaps-within",
            limit=limit,
            **span,
        )
    return VerdictStatus.UNSURE, Reason(f"{rounds} rounds leave {interval} open", "open", **span)


def _half_width(test: SignedRank) -> float:
    return (test.high - test.low) / 2 if math.isfinite(test.low) else math.inf


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
        _with_q_value(verdict, q_value, discovered, looks.alpha, delta)
        for verdict, q_value in zip(alone, q_values, strict=True)
    ]


def stopped_p_value(looks: Looks, base: Sequence[float], head: Sequence[float]) -> float:
    """Return a p-value that is valid although the pair could have stopped at any earlier look."""
    p_value = 1.0
    for rounds in looks.rounds:
        if rounds <= len(base):
            at_look = paired_verdict(base[:rounds], head[:rounds], alpha=looks.alpha)
            p_value = min(p_value, at_look.p_value * looks.alpha / looks.alpha_at(rounds))
    return p_value


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
