"""Devices that are slower than others of their kind, at a controlled rate of false alarms.

A value's distance from the median is compared with the spread of the fleet, the scaled median
absolute deviation (MAD): half of the devices may be slow without hiding the others. The MAD of few
devices is uncertain, and with many devices the slowest one is far away by chance; hence the
threshold is the quantile of the largest distance in simulated fleets of the same size without
outliers. A distance must also exceed a least effect, since a fleet may be uniform to 0.01 %.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.stats.interval import NORMAL_MAD

# Fewer devices have no spread to speak of: of four, the MAD is the distance of two.
LEAST_DEVICES = 6
# Simulated fleets beyond the quantile: the simulated probability is off by 7 % (one standard
# deviation), so the quantile of a smaller one is used.
_BEYOND, _CAUTION = 200, 0.85
_MOST_DRAWS = 6_000_000
# Larger fleets are simulated at this size, which is slightly too strict for the slowest device.
_MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRange:
    """What to expect of a device in a fleet, and the positions of slow ones. `low` and `high` are
    the limits of a usual value, and `z` are distances in standard deviations, positive if slow."""

    median: float
    low: float
    high: float
    threshold: float
    z: tuple[float, ...]
    slow: tuple[int, ...]


def find_slow(
    values: Sequence[float], *, higher_is_better: bool, alpha: float = 0.01, least: float = 0.01
) -> FleetRange | None:
    """Return the range of positive values, and which are slow by more than `least` (a fraction).
    In a fleet without slow devices, the probability of any alarm is `alpha`. None if there are too
    few values."""
    if len(values) < LEAST_DEVICES:
        return None
    logs = np.log(np.asarray(values, float))
    median = float(np.median(logs))
    scale = NORMAL_MAD * float(np.median(np.abs(logs - median)))
    threshold = slow_threshold(len(values), alpha)
    distance = (median - logs) if higher_is_better else (logs - median)
    limit = max(threshold * scale, math.log1p(least))
    # A uniform fleet has no spread: its unit is the one at which `least` is the threshold.
    z = distance / (limit / threshold)
    slow = tuple(int(i) for i in np.argsort(-distance) if distance[i] > limit)
    return FleetRange(
        median=math.exp(median),
        low=math.exp(median - limit),
        high=math.exp(median + limit),
        threshold=threshold,
        z=tuple(map(float, z)),
        slow=slow,
    )


@functools.cache
def slow_threshold(count: int, alpha: float) -> float:
    """Return the distance from the median, in scaled MADs, that the slowest of `count` normal
    values exceeds with probability `alpha`."""
    size = min(count, _MOST_DEVICES)
    fleets = min(math.ceil(_BEYOND / alpha), max(1000, _MOST_DRAWS // size))
    draw = np.random.default_rng(size)
    slowest: list[NDArray[np.float64]] = []
    for begin in range(0, fleets, 1000):
        values = draw.standard_normal((min(1000, fleets - begin), size))
        values -= np.median(values, axis=1, keepdims=True)
        mads = NORMAL_MAD * np.median(np.abs(values), axis=1)
        slowest.append(values.max(axis=1) / mads)
    return float(np.quantile(np.concatenate(slowest), 1 - _CAUTION * alpha))
