"""Estimators that a few wild samples do not move."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Makes the median absolute deviation of normal data estimate its standard deviation.
NORMAL_MAD = 1.482602218505602

Samples = Sequence[float] | NDArray[np.float64]


def median(samples: Samples) -> float:
    """Return the middle value, or the mean of the two middle ones."""
    # np.median imports numpy.ma at its first call, 50 ms.
    return statistics.median(_sorted(samples))


def mad(samples: Samples, *, scaled: bool = False) -> float:
    """Median absolute deviation from the median; `scaled` to a normal standard deviation."""
    values = _sorted(samples)
    middle = _interpolated(values, 0.5)
    deviation = _interpolated(sorted(abs(value - middle) for value in values), 0.5)
    return deviation * NORMAL_MAD if scaled else deviation


def quantile(samples: Samples, share: float) -> float:
    """Return the value below which `share` of the samples lie, interpolated linearly."""
    return _interpolated(_sorted(samples), share)


def _sorted(samples: Samples) -> list[float]:
    # NumPy takes a hundred times as long for the few dozen values that a series has.
    values = sorted(map(float, samples))
    if not values:
        raise ValueError("no samples")
    return values


def _interpolated(values: Sequence[float], share: float) -> float:
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
