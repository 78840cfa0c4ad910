"""Where a time stepped: in a series, and, by noisy binary search, among candidates.

A segment is split where two medians describe it best (the sum of absolute deviations falls most),
but only if shuffled series rarely gain as much. Each part is then searched again, and, where a
level comes back so that no single split gains, windows of it. This is divisive segmentation as in
E-divisive, with medians and absolute deviations instead of means and squares, so that a few
outliers do no harm.

Shuffling destroys the autocorrelation of a series that drifts, so that every drift would be a step.
Where neighbours are correlated, a step must also be abrupt: larger than other changes of the series
within as few points.

`Search` is the noisy binary search.

Candidates are in a row, position 0 before the step and the last one after it. Each position from 1
on has a probability of being the first after the step, at first the same. Paired rounds of a
position against position 0 have log ratios around 0 before the step and around its size after it:
their likelihood ratio updates the probabilities, and the next position to measure is the median of
the probabilities (probabilistic bisection: Horstein 1963; Waeber, Frazier and Henderson 2013). A
misleading measurement costs some rounds; plain bisection would end at a wrong candidate.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.stats.interval import NORMAL_MAD

LEAST = 3  # points on each side of a step
ALPHA = 0.01
_ROWS_OF_PARTS = (167, 166, 166)  # shuffles by chunks: a part stops most series, which have no step
_SHUFFLES = sum(_ROWS_OF_PARTS)
_NEAR = 5  # points on each side of a jump
_ABRUPT = 4.0  # times the usual change
_DRIFTS = 0.1  # correlation of neighbours above which a series counts as drifting
_WINDOW = 8  # the fewest points in which a step can be significant
# Mean distance from the median over that of neighbours: 0.7 for independent points.
_STRAYS = 1.2
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
    p_values = _find_steps(data, 0, min_effect, 0.0)
    return _drop_small_steps(data, p_values, min_effect)


def _find_steps(
    data: _Values, start: int, min_effect: float, correlation: float
) -> dict[int, float]:
    """Return the p-values of steps by index. `correlation` is that of the enclosing part: a short
    part has too few points to show a drift."""
    if len(data) < 2 * LEAST:
        return {}
    split, gain = _best_split(data)
    correlation = max(correlation, _autocorrelation(data[:split], data[split:]))
    p_value = _tested(data, split, gain, min_effect)
    if p_value is None or (correlation > _DRIFTS and not _is_abrupt(data, split)):
        hidden = _find_hidden(data, min_effect, correlation)
        if hidden is None:
            return {}
        split, p_value = hidden
    left, right = data[:split], data[split:]
    return {
        **_find_steps(left, start, min_effect, correlation),
        start + split: p_value,
        **_find_steps(right, start + split, min_effect, correlation),
    }


def _tested(data: _Values, split: int, gain: float, min_effect: float) -> float | None:
    """Return the p-value of a split; None if it is no step."""
    left, right = data[:split], data[split:]
    if abs(_middle(right) - _middle(left)) < min_effect:
        return None
    if not _has_enough_points(left, right):
        return None
    p_value = _p_value(data, gain)
    return p_value if p_value <= ALPHA else None


def _find_hidden(data: _Values, min_effect: float, correlation: float) -> tuple[int, float] | None:
    """Return the most significant step within windows of the data, and its p-value.

    One split gains little where a level comes back, as after a repair. Such a series strays further
    from its median than its neighbours from each other; only then are windows searched.
    """
    moves = np.abs(np.diff(data))
    if np.mean(np.abs(data - _middle(data))) <= _STRAYS * np.mean(moves):
        return None
    length = len(data) // 2
    while length >= _WINDOW:
        hidden = []
        begins = {*range(0, len(data) - length, max(length // 2, 1)), len(data) - length}
        for begin in sorted(begins):
            window = data[begin : begin + length]
            split, gain = _best_split(window)
            p_value = _tested(window, split, gain, min_effect)
            is_step = correlation <= _DRIFTS or _is_abrupt(data, begin + split)
            if p_value is not None and is_step:
                hidden.append((p_value, begin + split))
        if hidden:
            p_value, split = min(hidden)
            return split, p_value
        length //= 2
    return None


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
        if ordered:
            # A further value adds its distance from the median, or from both if there are two.
            low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
            costs.append(costs[-1] + max(low - value, value - high, 0.0))
        else:
            costs.append(0.0)
        bisect.insort(ordered, value)
    return costs


def _p_value(data: _Values, gain: float) -> float:
    """Return the fraction of shuffled series that gain as much. Exact up to ALPHA, a lower bound
    above it: a part of the shuffles suffices for most series, which have no step."""
    count = 1
    for order in _shuffles(len(data)):
        shuffled = data[order]
        limit = _distance(shuffled) - (gain - _TINY)
        gains = np.zeros(len(shuffled), dtype=bool)
        for split in _scattered(len(data)):
            left, right = shuffled[:, :split], shuffled[:, split:]
            gains |= _distance(left) + _distance(right) <= limit
            # Most series have no step: a few splits of the first shuffles show it.
            if (count + np.count_nonzero(gains)) / (1 + _SHUFFLES) > ALPHA:
                return float(count + np.count_nonzero(gains)) / (1 + _SHUFFLES)
        count += int(np.count_nonzero(gains))
    return count / (1 + _SHUFFLES)


@functools.lru_cache(maxsize=64)
def _shuffles(points: int) -> tuple[NDArray[np.intp], ...]:
    """Return the orders of shuffled series, by chunks. They are the same for all series of so many
    points: the series of a store mostly have as many."""
    source = np.random.default_rng(points)
    row = np.arange(points, dtype=np.intp)
    return tuple(source.permuted(np.tile(row, (rows, 1)), axis=1) for rows in _ROWS_OF_PARTS)


@functools.lru_cache(maxsize=256)
def _scattered(points: int) -> tuple[int, ...]:
    """Return all splits of so many points, each far from those before it. Neighbouring splits gain
    about as much, so that few of these show whether a shuffled series gains enough: in order, half
    of them had to be tried."""
    splits = range(LEAST, points - LEAST + 1)
    golden = (math.sqrt(5) - 1) / 2
    return tuple(sorted(splits, key=lambda split: split * golden % 1))


def _distance(rows: _Values) -> _Values:
    """Return the sum of absolute deviations from the median of each row of at least two values."""
    # As in _prefix_costs. One sort takes a third of the time of np.median, and this is called for
    # every split of every shuffled series.
    ordered, half = np.sort(rows, axis=1), rows.shape[1] // 2
    signs = np.zeros(rows.shape[1])
    signs[:half], signs[-half:] = -1.0, 1.0
    total: _Values = ordered @ signs
    return total


def _middle(values: _Values) -> float:
    """Return the median. For so few values `np.median` takes five times as long."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _has_enough_points(left: _Values, right: _Values) -> bool:
    """Return whether LEAST points of each side are nearer to their own level than to the other."""
    middle = (_middle(left) + _middle(right)) / 2
    rises = _middle(right) > _middle(left)
    counts = (np.sum((left < middle) == rises), np.sum((right > middle) == rises))
    return bool(min(counts) >= LEAST)


def _autocorrelation(left: _Values, right: _Values) -> float:
    """Return the correlation of neighbours' deviations from their level: 0 for independent points,
    near 1 for a drift. Outliers are clipped."""
    rest = np.concatenate([left - _middle(left), right - _middle(right)])
    limit = 3 * max(_middle(np.abs(rest)) * NORMAL_MAD, _TINY)
    rest = np.clip(rest, -limit, limit)
    power = float(np.dot(rest, rest))
    return float(np.dot(rest[1:], rest[:-1])) / power if power else 0.0


def _is_abrupt(data: _Values, split: int) -> bool:
    """Return whether the change at `split` exceeds other changes within a few points."""
    jumps = np.array([_jump(data, i) for i in range(2, len(data) - 1)])
    elsewhere = [jump for i, jump in enumerate(jumps, 2) if abs(i - split) >= _NEAR]
    if len(elsewhere) < _NEAR:
        return True
    usual = _middle(np.abs(elsewhere)) * NORMAL_MAD
    return abs(_jump(data, split)) > _ABRUPT * usual


def _jump(data: _Values, split: int) -> float:
    """Return the change from the few points before `split` to the few after."""
    near = _middle(data[split : split + _NEAR])
    return near - _middle(data[max(0, split - _NEAR) : split])


def _drop_small_steps(data: _Values, p_values: dict[int, float], min_effect: float) -> list[Step]:
    """Return the steps between the final segments, without those that are now below `min_effect`.
    The smallest is dropped first, as that changes the levels of its neighbours."""
    indices = sorted(p_values)
    while indices:
        levels = [_middle(part) for part in np.split(data, indices)]
        sizes = [abs(after - before) for before, after in itertools.pairwise(levels)]
        least = int(np.argmin(sizes))
        if sizes[least] >= min_effect:
            return [
                Step(index=index, before=levels[i], after=levels[i + 1], p_value=p_values[index])
                for i, index in enumerate(indices)
            ]
        del indices[least]
    return []


CONFIDENCE = 0.95  # probability of one position at which the search ends
MOST_ROUNDS = 32  # per position
# Limit of the log odds of one position: 200 to 1. Builds also differ for unrelated reasons, such as
# code placement, which more rounds of the same build cannot average out.
_MOST_ODDS = math.log(200.0)
_MOST_ROUND_ODDS = 2.0  # limit of the log odds of one round, against outliers
_REFUTED = math.log(100.0)
_LEAST_SPREAD = 1e-3  # of a log ratio
_LEAST_SPREAD_OF_STEP = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SoughtStep:
    """The step that is searched for: the log ratio of after to before, and the standard deviation
    of a round's log ratio. `broken`: the kernel fails after the step, and times are not used."""

    size: float = 0.0
    spread: float = 1.0
    broken: bool = False

    @classmethod
    def of_rounds(cls, logs: Sequence[float], size: float) -> SoughtStep:
        """Return a step of this size with the spread of `logs`, rounds of last against first."""
        # Not the median deviation: where times are bimodal between processes, it covers one mode
        # only.
        spread = statistics.stdev(logs) if len(logs) > 1 else 0.0
        return cls(size=size, spread=max(spread, _LEAST_SPREAD, abs(size) * _LEAST_SPREAD_OF_STEP))

    def odds(self, logs: Sequence[float]) -> float:
        """Return the log odds that the rounds are from after the step, for normal noise."""
        if not self.size:
            return 0.0
        parts = (self.size * (log - self.size / 2) / self.spread**2 for log in logs)
        total = sum(max(-_MOST_ROUND_ODDS, min(_MOST_ROUND_ODDS, part)) for part in parts)
        return max(-_MOST_ODDS, min(_MOST_ODDS, total))

    def is_settled(self, logs: Sequence[float]) -> bool:
        """Return whether further rounds at this position cannot change its odds."""
        return abs(self.odds(logs)) >= _MOST_ODDS or len(logs) >= MOST_ROUNDS


class Search:
    """The state of a search over positions 1 to `last`: `add` rounds, then measure at `next`."""

    def __init__(self, last: int, step: SoughtStep, confidence: float = CONFIDENCE) -> None:
        if last < 1:
            raise ValueError("there is no candidate between the ends")
        if not 0.5 < confidence < 1:
            raise ValueError("the confidence must be between 0.5 and 1")
        self.last, self.step, self.confidence = last, step, confidence
        self.rounds: dict[int, list[float]] = {}
        self.failed: dict[int, bool] = {}  # position -> whether the kernel failed
        self.untestable: set[int] = set()
        self.refuted: set[int] = set()

    def add(self, position: int, logs: Sequence[float] = (), *, failed: bool = False) -> None:
        """Add rounds of a position. `failed`: the kernel did not work there."""
        if self.step.broken:
            self.failed[position] = failed
        elif failed:
            self.untestable.add(position)
        else:
            self.rounds.setdefault(position, []).extend(logs)

    def skip(self, position: int) -> None:
        """Exclude a position that cannot be built or measured."""
        self.untestable.add(position)

    def refute(self, position: int) -> None:
        """Record that a direct comparison found no step between a position and the one before.
        Rounds of both are dropped: those of one must have misled."""
        self.refuted.add(position)
        for item in (position - 1, position):
            self.rounds.pop(item, None)
            self.failed.pop(item, None)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """The probability of each position 1, 2, … `last` that it is the first after the step."""
        logs = np.zeros(self.last)
        for position in range(1, self.last):
            odds = self._odds(position)
            logs[:position] += odds / 2  # the step is at this position or before it
            logs[position:] -= odds / 2
        for position in self.refuted:
            logs[position - 1] -= _REFUTED
        weights = np.exp(logs - logs.max())
        probabilities: NDArray[np.float64] = weights / weights.sum()
        return probabilities

    @property
    def candidates(self) -> int:
        """The number of most probable positions that together reach `confidence`."""
        falling = np.cumsum(np.sort(self.probabilities)[::-1])
        return int(np.searchsorted(falling, self.confidence)) + 1

    @property
    def best(self) -> tuple[int, int, float]:
        """The most probable range (first, last) of positions, and its probability. A range is one
        position, or several that cannot be separated as those between them cannot be measured."""
        chances = self.probabilities
        candidates = []
        positions = [*(q for q in range(1, self.last) if q not in self.untestable), self.last]
        for low, high in itertools.pairwise([0, *positions]):
            candidates.append((low + 1, high, float(chances[low:high].sum())))
        return max(candidates, key=lambda item: item[2])

    @property
    def next(self) -> int | None:
        """The next position to measure, nearest to the median; None when the search has ended."""
        if self.best[2] >= self.confidence:
            return None
        below = np.cumsum(self.probabilities)
        open_positions = [q for q in range(1, self.last) if self._is_open(q)]
        return min(open_positions, key=lambda q: abs(float(below[q - 1]) - 0.5), default=None)

    def _is_open(self, position: int) -> bool:
        if position in self.untestable or position in self.failed:
            return False
        return not self.step.is_settled(self.rounds.get(position, ()))

    def _odds(self, position: int) -> float:
        if position in self.failed:
            return _MOST_ODDS if self.failed[position] else -_MOST_ODDS
        return self.step.odds(self.rounds.get(position, ()))

    # To and from JSON

    def document(self) -> dict[str, object]:
        """Return the measured rounds and results as a JSON document."""
        return {
            "rounds": {str(position): logs for position, logs in self.rounds.items()},
            "failed": {str(position): failed for position, failed in self.failed.items()},
            "untestable": sorted(self.untestable),
            "refuted": sorted(self.refuted),
        }

    def restore(
        self,
        rounds: Mapping[str, Sequence[float]],
        failed: Mapping[str, bool],
        untestable: Collection[int],
        refuted: Collection[int],
    ) -> None:
        """Restore the state from a document's fields."""
        self.rounds = {int(position): [float(x) for x in logs] for position, logs in rounds.items()}
        self.failed = {int(position): bool(has_failed) for position, has_failed in failed.items()}
        self.untestable, self.refuted = {*untestable}, {*refuted}
