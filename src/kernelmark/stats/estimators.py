"""Robust location and scale, and the t distribution."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Scales the median absolute deviation of normal data to its standard deviation.
NORMAL_MAD = 1.482602218505602

Samples = Sequence[float] | NDArray[np.float64]


def median(samples: Samples) -> float:
    """Return the middle value, or the mean of the two middle ones."""
    # np.median imports numpy.ma at its first call, which takes 50 ms.
    return statistics.median(_sorted(samples))


def mad(samples: Samples, *, scaled: bool = False) -> float:
    """Return the median absolute deviation; `scaled` to a normal standard deviation."""
    values = _sorted(samples)
    middle = _interpolated(values, 0.5)
    deviation = _interpolated(sorted(abs(value - middle) for value in values), 0.5)
    return deviation * NORMAL_MAD if scaled else deviation


def quantile(samples: Samples, fraction: float) -> float:
    """Return the value below which `fraction` of the samples lie, interpolated linearly."""
    return _interpolated(_sorted(samples), fraction)


def _sorted(samples: Samples) -> list[float]:
    # NumPy is a hundred times slower for the few dozen values of a series.
    values = sorted(map(float, samples))
    if not values:
        raise ValueError("no samples")
    return values


def _interpolated(values: Sequence[float], fraction: float) -> float:
    position = fraction * (len(values) - 1)
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (position - below) * (values[above] - values[below])


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
