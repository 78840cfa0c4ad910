"""Variances of many rows, each estimated from few values, shrunk towards a common one.

Three blocks give a poor estimate of their own spread. The rows of a suite ran on one machine, so
their spreads have a common scale; how much weight a row's own variance gets follows from how much
the rows differ. This is the empirical Bayes estimate of variances by G. K. Smyth (2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma

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
