"""Quantiles of Student's t, with the standard library: a worker has no scipy."""

from __future__ import annotations

import functools
import math

_TINY = 1e-300
_TERMS = 300


@functools.lru_cache(maxsize=512)
def t_quantile(share: float, freedom: float) -> float:
    """The value that a t variable of `freedom` degrees stays below with probability `share`."""
    if not 0.0 < share < 1.0 or freedom <= 0:
        raise ValueError(f"no t quantile at {share} with {freedom} degrees of freedom")
    if share < 0.5:
        return -t_quantile(1.0 - share, freedom)
    low, high = 0.0, 1.0
    while t_distribution(high, freedom) < share:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_distribution(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_distribution(value: float, freedom: float) -> float:
    """The probability that a t variable of `freedom` degrees is at most `value`."""
    square = value * value
    tail = _beta_share(freedom / 2, 0.5, freedom / (freedom + square)) / 2
    return 1.0 - tail if value >= 0 else tail


def _beta_share(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    front = math.exp(log_front)
    # The fraction converges fast only on this side of the mean; the other is its complement.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, forwards (Lentz)."""
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
