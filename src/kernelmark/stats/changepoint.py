"""Steps in a series: where the level changed, and where it only wandered.

A segment is split where two medians describe it best (the sum of distances falls most), but only
if shuffled series are rarely described as well by two. Each part is then searched again. That is
the plan of divisive segmentation (E-divisive and its kin); medians and distances instead of means
and squares make a few wild points harmless.

Shuffling destroys the memory of a series that drifts, which would make every drift a step. Where
points remember their neighbours, a step must also be abrupt: larger than what the series does
elsewhere within as few points.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.stats.robust import NORMAL_MAD

LEAST = 3  # points on each side of a step
ALPHA = 0.01
_SHUFFLES = 499
_PARTS = 10  # that shuffles are looked at in
_NEAR = 5  # points that count as few
_ABRUPT = 4.0  # times the usual change
_DRIFTS = 0.1  # correlation of neighbours from which a series is said to remember
_TINY = 1e-9
_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The level changes with the point `index`, from `before` to `after` (medians between the
    steps around it)."""

    index: int
    before: float
    after: float
    p_value: float

    @property
    def size(self) -> float:
        return self.after - self.before


def change_points(values: Sequence[float], *, min_effect: float) -> list[Step]:
    """Steps of at least `min_effect` (in the unit of the values), in order; on logarithms of
    times, 0.01 is 1 %. The same series gives the same steps."""
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise ValueError("values must be finite")
    found = _divided(data, 0, min_effect, 0.0)
    return _kept(data, found, min_effect)


def _divided(data: _Values, start: int, min_effect: float, memory: float) -> dict[int, float]:
    """Places of steps with their p-values. `memory` is that of the series around this part: too
    few points remain in a part to see that they drift."""
    if len(data) < 2 * LEAST:
        return {}
    split, gain = _best_split(data)
    left, right = data[:split], data[split:]
    memory = max(memory, _memory(left, right))
    if abs(np.median(right) - np.median(left)) < min_effect:
        return {}
    if not _settled(left, right):
        return {}
    if memory > _DRIFTS and not _abrupt(data, split):
        return {}
    p_value = _p_value(data, gain)
    if p_value > ALPHA:
        return {}
    return {
        **_divided(left, start, min_effect, memory),
        start + split: p_value,
        **_divided(right, start + split, min_effect, memory),
    }


def _best_split(data: _Values) -> tuple[int, float]:
    """Return the split that brings the points nearest to their medians, and by how much."""
    values = data.tolist()
    before = _prefix_costs(values)
    after = _prefix_costs(values[::-1])[::-1]
    splits = range(LEAST, len(values) - LEAST + 1)
    best = min(splits, key=lambda split: before[split] + after[split])
    return best, before[-1] - before[best] - after[best]


def _prefix_costs(values: Sequence[float]) -> list[float]:
    """Return the sum of distances from their median of the first 0, 1, 2, … values."""
    ordered: list[float] = []
    costs = [0.0]
    for value in values:
        bisect.insort(ordered, value)
        half = len(ordered) // 2
        costs.append(sum(ordered[-half:]) - sum(ordered[:half]) if half else 0.0)
    return costs


def _p_value(data: _Values, gain: float) -> float:
    """Return how often a shuffled series gains as much; exact up to ALPHA, a lower bound above it,
    as most series have no step and a few dozen shuffles show that."""
    source = np.random.default_rng(len(data))
    every = source.permuted(np.tile(data, (_SHUFFLES, 1)), axis=1)
    count = 1
    for shuffled in np.array_split(every, _PARTS):
        costs = np.full(len(shuffled), np.inf)
        for split in range(LEAST, len(data) - LEAST + 1):
            left, right = shuffled[:, :split], shuffled[:, split:]
            costs = np.minimum(costs, _distance(left) + _distance(right))
        count += int(np.sum(_distance(shuffled) - costs >= gain - _TINY))
        if count / (1 + _SHUFFLES) > ALPHA:
            break
    return count / (1 + _SHUFFLES)


def _distance(rows: _Values) -> _Values:
    """Return the sum of distances from the median, for each row of at least two values."""
    # As in _prefix_costs. One sort takes a third of the time of np.median, and this is called for
    # every split of every shuffled series.
    ordered, half = np.sort(rows, axis=1), rows.shape[1] // 2
    total: _Values = ordered[:, -half:].sum(axis=1) - ordered[:, :half].sum(axis=1)
    return total


def _settled(left: _Values, right: _Values) -> bool:
    """Return whether enough points of each side are nearer to their own level than to the other: a
    side of few points may owe its level to less of them."""
    middle = (np.median(left) + np.median(right)) / 2
    rises = np.median(right) > np.median(left)
    counts = (np.sum((left < middle) == rises), np.sum((right > middle) == rises))
    return bool(min(counts) >= LEAST)


def _memory(left: _Values, right: _Values) -> float:
    """Return how far neighbours deviate together from their level: 0 for independent points, near 1
    for a drift. Wild points count as far ones, not more."""
    rest = np.concatenate([left - np.median(left), right - np.median(right)])
    limit = 3 * max(float(np.median(np.abs(rest))) * NORMAL_MAD, _TINY)
    rest = np.clip(rest, -limit, limit)
    power = float(np.dot(rest, rest))
    return float(np.dot(rest[1:], rest[:-1])) / power if power else 0.0


def _abrupt(data: _Values, split: int) -> bool:
    """Return whether the change at `split` exceeds what happens elsewhere within a few points."""
    jumps = np.array([_jump(data, i) for i in range(2, len(data) - 1)])
    elsewhere = [jump for i, jump in enumerate(jumps, 2) if abs(i - split) >= _NEAR]
    if len(elsewhere) < _NEAR:
        return True
    usual = float(np.median(np.abs(elsewhere))) * NORMAL_MAD
    return abs(_jump(data, split)) > _ABRUPT * usual


def _jump(data: _Values, split: int) -> float:
    """From the few points before `split` to the few after."""
    near = float(np.median(data[split : split + _NEAR]))
    return near - float(np.median(data[max(0, split - _NEAR) : split]))


def _kept(data: _Values, found: dict[int, float], min_effect: float) -> list[Step]:
    """Steps between the final segments; one that has become too small is taken back, the smallest
    first, since its neighbours then have other levels."""
    places = sorted(found)
    while places:
        levels = [float(np.median(part)) for part in np.split(data, places)]
        sizes = [abs(after - before) for before, after in itertools.pairwise(levels)]
        least = int(np.argmin(sizes))
        if sizes[least] >= min_effect:
            return [
                Step(index=place, before=levels[i], after=levels[i + 1], p_value=found[place])
                for i, place in enumerate(places)
            ]
        del places[least]
    return []
