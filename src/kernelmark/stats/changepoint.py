"""Steps in a series: where the level changed, as opposed to a drift.

A segment is split where two medians describe it best (the sum of absolute deviations falls most),
but only if shuffled series rarely gain as much. Each part is then searched again. This is divisive
segmentation as in E-divisive, with medians and absolute deviations instead of means and squares, so
that a few outliers do no harm.

Shuffling destroys the autocorrelation of a series that drifts, so that every drift would be a step.
Where neighbours are correlated, a step must also be abrupt: larger than other changes of the series
within as few points.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.stats.estimators import NORMAL_MAD

LEAST = 3  # points on each side of a step
ALPHA = 0.01
_SHUFFLES = 499
_PARTS = 10  # chunks of shuffles, to stop early
_NEAR = 5  # points on each side of a jump
_ABRUPT = 4.0  # times the usual change
_DRIFTS = 0.1  # correlation of neighbours above which a series counts as drifting
_TINY = 1e-9
_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of the level at point `index`, from median `before` to median `after`."""

    index: int
    before: float
    after: float
    p_value: float

    @property
    def size(self) -> float:
        return self.after - self.before


def change_points(values: Sequence[float], *, min_effect: float) -> list[Step]:
    """Return the steps of at least `min_effect` (in the unit of the values), in order; on
    logarithms of times, 0.01 is 1 %. The result is deterministic."""
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise ValueError("values must be finite")
    found = _find_steps(data, 0, min_effect, 0.0)
    return _drop_small_steps(data, found, min_effect)


def _find_steps(
    data: _Values, start: int, min_effect: float, correlation: float
) -> dict[int, float]:
    """Return the p-values of steps by index. `correlation` is that of the enclosing part: a short
    part has too few points to show a drift."""
    if len(data) < 2 * LEAST:
        return {}
    split, gain = _best_split(data)
    left, right = data[:split], data[split:]
    correlation = max(correlation, _autocorrelation(left, right))
    if abs(np.median(right) - np.median(left)) < min_effect:
        return {}
    if not _has_enough_points(left, right):
        return {}
    if correlation > _DRIFTS and not _is_abrupt(data, split):
        return {}
    p_value = _p_value(data, gain)
    if p_value > ALPHA:
        return {}
    return {
        **_find_steps(left, start, min_effect, correlation),
        start + split: p_value,
        **_find_steps(right, start + split, min_effect, correlation),
    }


def _best_split(data: _Values) -> tuple[int, float]:
    """Return the split that reduces the sum of absolute deviations most, and the reduction."""
    values = data.tolist()
    before = _prefix_costs(values)
    after = _prefix_costs(values[::-1])[::-1]
    splits = range(LEAST, len(values) - LEAST + 1)
    best = min(splits, key=lambda split: before[split] + after[split])
    return best, before[-1] - before[best] - after[best]


def _prefix_costs(values: Sequence[float]) -> list[float]:
    """Return the sums of absolute deviations from their median of the first 0, 1, 2, … values."""
    ordered: list[float] = []
    costs = [0.0]
    for value in values:
        bisect.insort(ordered, value)
        half = len(ordered) // 2
        costs.append(sum(ordered[-half:]) - sum(ordered[:half]) if half else 0.0)
    return costs


def _p_value(data: _Values, gain: float) -> float:
    """Return the fraction of shuffled series that gain as much. Exact up to ALPHA, a lower bound
    above it: a few dozen shuffles suffice for most series, which have no step."""
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
    """Return the sum of absolute deviations from the median of each row of at least two values."""
    # As in _prefix_costs. One sort takes a third of the time of np.median, and this is called for
    # every split of every shuffled series.
    ordered, half = np.sort(rows, axis=1), rows.shape[1] // 2
    total: _Values = ordered[:, -half:].sum(axis=1) - ordered[:, :half].sum(axis=1)
    return total


def _has_enough_points(left: _Values, right: _Values) -> bool:
    """Return whether LEAST points of each side are nearer to their own level than to the other."""
    middle = (np.median(left) + np.median(right)) / 2
    rises = np.median(right) > np.median(left)
    counts = (np.sum((left < middle) == rises), np.sum((right > middle) == rises))
    return bool(min(counts) >= LEAST)


def _autocorrelation(left: _Values, right: _Values) -> float:
    """Return the correlation of neighbours' deviations from their level: 0 for independent points,
    near 1 for a drift. Outliers are clipped."""
    rest = np.concatenate([left - np.median(left), right - np.median(right)])
    limit = 3 * max(float(np.median(np.abs(rest))) * NORMAL_MAD, _TINY)
    rest = np.clip(rest, -limit, limit)
    power = float(np.dot(rest, rest))
    return float(np.dot(rest[1:], rest[:-1])) / power if power else 0.0


def _is_abrupt(data: _Values, split: int) -> bool:
    """Return whether the change at `split` exceeds other changes within a few points."""
    jumps = np.array([_jump(data, i) for i in range(2, len(data) - 1)])
    elsewhere = [jump for i, jump in enumerate(jumps, 2) if abs(i - split) >= _NEAR]
    if len(elsewhere) < _NEAR:
        return True
    usual = float(np.median(np.abs(elsewhere))) * NORMAL_MAD
    return abs(_jump(data, split)) > _ABRUPT * usual


def _jump(data: _Values, split: int) -> float:
    """Return the change from the few points before `split` to the few after."""
    near = float(np.median(data[split : split + _NEAR]))
    return near - float(np.median(data[max(0, split - _NEAR) : split]))


def _drop_small_steps(data: _Values, found: dict[int, float], min_effect: float) -> list[Step]:
    """Return the steps between the final segments, without those that are now below `min_effect`.
    The smallest is dropped first, as that changes the levels of its neighbours."""
    indices = sorted(found)
    while indices:
        levels = [float(np.median(part)) for part in np.split(data, indices)]
        sizes = [abs(after - before) for before, after in itertools.pairwise(levels)]
        least = int(np.argmin(sizes))
        if sizes[least] >= min_effect:
            return [
                Step(index=place, before=levels[i], after=levels[i + 1], p_value=found[place])
                for i, place in enumerate(indices)
            ]
        del indices[least]
    return []
