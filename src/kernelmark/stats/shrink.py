"""Spreads of many rows, each known from a few values only, that learn from each other.

Three blocks say little about their own spread. The rows of a suite ran on one machine, so their
spreads have a common scale; how far each may be trusted alone follows from how much they differ.
This is the empirical Bayes estimate of variances by G. K. Smyth (2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma

# Fewer rows than this cannot tell what they have in common.
_LEAST_ROWS = 5
# What the suite may count for in a row, in degrees of freedom: as much as one block more. Spreads
# that follow another law than the estimate assumes make more of it overconfident
# (benchmarks/detectors.py, suites).
_MOST = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The variance that rows have in common, worth `dof` degrees of freedom in each; 0 where
    nothing is common or known."""

    variance: float = 0.0
    dof: float = 0.0

    def mixed(self, variance: float, dof: float) -> tuple[float, float]:
        """Return a row's variance with what the others add, and its degrees of freedom."""
        total = self.dof + dof
        if total == 0:
            return math.nan, 0.0
        mean = (self.dof * self.variance + dof * variance) / total
        return mean, total


def common(variances: Sequence[float], dofs: Sequence[float]) -> Common:
    """Return what sample variances with these degrees of freedom have in common. Zero variances
    (clocks that tick coarsely) say nothing of the scale and are left out."""
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
