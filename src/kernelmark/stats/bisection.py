"""Noisy binary search for the candidate at which a time stepped, from rounds that may mislead.

Candidates are in a row, position 0 before the step and the last one after it. Each position from 1
on has a probability of being the first after the step, at first the same. Paired rounds of a
position against position 0 have log ratios around 0 before the step and around its size after it:
their likelihood ratio updates the probabilities, and the next position to measure is the median of
the probabilities (probabilistic bisection: Horstein 1963; Waeber, Frazier and Henderson 2013). A
misleading measurement costs some rounds; plain bisection would end at a wrong candidate.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
class Step:
    """The step that is searched for: the log ratio of after to before, and the standard deviation
    of a round's log ratio. `broken`: the kernel fails after the step, and times are not used."""

    size: float = 0.0
    spread: float = 1.0
    broken: bool = False

    @classmethod
    def of_rounds(cls, logs: Sequence[float], size: float) -> Step:
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

    def __init__(self, last: int, step: Step, confidence: float = CONFIDENCE) -> None:
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
        found: NDArray[np.float64] = weights / weights.sum()
        return found

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
        found = []
        positions = [*(q for q in range(1, self.last) if q not in self.untestable), self.last]
        for low, high in itertools.pairwise([0, *positions]):
            found.append((low + 1, high, float(chances[low:high].sum())))
        return max(found, key=lambda item: item[2])

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
        self.failed = {int(position): bool(one) for position, one in failed.items()}
        self.untestable, self.refuted = {*untestable}, {*refuted}
