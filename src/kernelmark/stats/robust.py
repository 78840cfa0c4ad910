"""Estimators that outliers do not affect."""

from __future__ import annotations

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
