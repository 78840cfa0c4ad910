"""Student's t distribution in the standard library: workers run without scipy."""

from __future__ import annotations

import functools
import math

_TINY = 1e-300
_TERMS = 300


@functools.lru_cache(maxsize=512)
def t_quantile(probability: float, dof: float) -> float:
    """Return the quantile of Student's t with `dof` degrees of freedom."""
    if not 0.0 < probability < 1.0 or dof <= 0:
        raise ValueError(f"no t quantile at {probability} with {dof} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, dof)
    low, high = 0.0, 1.0
    while t_distribution(high, dof) < probability:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_distribution(middle, dof) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_distribution(value: float, dof: float) -> float:
    """Return P(T ≤ `value`) of Student's t with `dof` degrees of freedom."""
    square = value * value
    tail = _betainc(dof / 2, 0.5, dof / (dof + square)) / 2
    return 1.0 - tail if value >= 0 else tail


def _betainc(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    front = math.exp(log_front)
    # The continued fraction converges fast only below the mean; above it, use the complement.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (Lentz's method)."""
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    fraction = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return fraction


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
