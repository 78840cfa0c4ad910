"""Corrections to the rows of a comparison: one clock, shared noise, many tests.

A GPU at its power cap changes its clock from block to block and from run to run, with temperature
and with the work before. On an H200 the block medians of GEMMs at the cap had spreads of 2 to 5 %,
and 0.2 to 1.4 % around a line in the logarithm of the clock, with slopes of -0.6 to -1.1
(benchmarks/gpu/clocks.py).
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma

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
    x = 0.5 + 1 / value
    for _ in range(50):
        slope = float(polygamma(1, x))
        step = slope * (1 - slope / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x


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
    found = np.empty_like(lifted)
    found[order] = lifted
    return [float(value) for value in found]
