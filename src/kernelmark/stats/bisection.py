"""Noisy binary search: at which of many candidates a time stepped, from rounds that may mislead.

Candidates are in a row, place 0 before the step and the last one after it. Each place from 1 on has
a probability of being the first after the step, at first the same. Paired rounds of a place against
place 0 have log ratios around 0 before the step and around its size after it: their likelihood
ratio updates the probabilities, and the next place to measure is where half of the probability lies
on either side (probabilistic bisection: Horstein 1963; Waeber, Frazier and Henderson 2013). A
wrong answer costs some rounds instead of the result, which plain bisection loses for good.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95  # of one place, at which the search ends
MOST_ROUNDS = 32  # at one place
# What one place may say at most, as log odds: 200 to 1. Rounds of one build share what differs
# between builds for no reason, such as where its code lies, which more rounds cannot average out.
_MOST_ODDS = math.log(200.0)
_MOST_ROUND_ODDS = 2.0  # of one round: an outlier is no proof
_REFUTED = math.log(100.0)
_LEAST_SPREAD = 1e-3  # of a log ratio
_LEAST_SPREAD_OF_STEP = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is searched for: the log ratio of after to before, and the standard deviation of a
    round's. `broken`: after the step the kernel fails, and its time does not matter."""

    size: float = 0.0
    spread: float = 1.0
    broken: bool = False

    @classmethod
    def of_rounds(cls, logs: Sequence[float], size: float) -> Step:
        """Return the step of this size, with the scatter of these rounds of its two ends."""
        # Not the median deviation: where processes fall on two values, that sees one of them.
        spread = statistics.stdev(logs) if len(logs) > 1 else 0.0
        return cls(size=size, spread=max(spread, _LEAST_SPREAD, abs(size) * _LEAST_SPREAD_OF_STEP))

    def odds(self, logs: Sequence[float]) -> float:
        """Return the log odds that rounds are from after the step, for normal noise."""
        if not self.size:
            return 0.0
        parts = (self.size * (log - self.size / 2) / self.spread**2 for log in logs)
        total = sum(max(-_MOST_ROUND_ODDS, min(_MOST_ROUND_ODDS, part)) for part in parts)
        return max(-_MOST_ODDS, min(_MOST_ODDS, total))

    def is_settled(self, logs: Sequence[float]) -> bool:
        """Return whether further rounds at this place add nothing."""
        return abs(self.odds(logs)) >= _MOST_ODDS or len(logs) >= MOST_ROUNDS


class Search:
    """The state of a search over places 1 to `last`; `add` what was measured, ask for `next`."""

    def __init__(self, last: int, step: Step, confidence: float = CONFIDENCE) -> None:
        if last < 1:
            raise ValueError("there is no candidate between the ends")
        if not 0.5 < confidence < 1:
            raise ValueError("the confidence must be between 0.5 and 1")
        self.last, self.step, self.confidence = last, step, confidence
        self.rounds: dict[int, list[float]] = {}
        self.failed: dict[int, bool] = {}  # at places that ran, whether the kernel failed
        self.untestable: set[int] = set()
        self.refuted: set[int] = set()

    def add(self, place: int, logs: Sequence[float] = (), *, failed: bool = False) -> None:
        """Take in rounds of a place. `failed`: the kernel did not work there."""
        if self.step.broken:
            self.failed[place] = failed
        elif failed:
            self.untestable.add(place)  # its time is not known
        else:
            self.rounds.setdefault(place, []).extend(logs)

    def skip(self, place: int) -> None:
        """Leave out a place that cannot be built or measured."""
        self.untestable.add(place)

    def refute(self, place: int) -> None:
        """Take in that a direct comparison found no step between a place and the one before. What
        was measured at either is forgotten: one of them misled."""
        self.refuted.add(place)
        for one in (place - 1, place):
            self.rounds.pop(one, None)
            self.failed.pop(one, None)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """That the step is with place 1, 2, … `last`."""
        logs = np.zeros(self.last)
        for place in range(1, self.last):
            odds = self._odds(place)
            logs[:place] += odds / 2  # the step is with this place or before: it is after the step
            logs[place:] -= odds / 2
        for place in self.refuted:
            logs[place - 1] -= _REFUTED
        weights = np.exp(logs - logs.max())
        found: NDArray[np.float64] = weights / weights.sum()
        return found

    @property
    def candidates(self) -> int:
        """How many places it takes to have the step with the asked confidence."""
        falling = np.cumsum(np.sort(self.probabilities)[::-1])
        return int(np.searchsorted(falling, self.confidence)) + 1

    @property
    def best(self) -> tuple[int, int, float]:
        """The narrowest range (first, last) of places that holds the step, and its probability: one
        place, and those after it that only a place that cannot be measured keeps apart."""
        chances = self.probabilities
        found = []
        places = [*(q for q in range(1, self.last) if q not in self.untestable), self.last]
        for low, high in itertools.pairwise([0, *places]):
            found.append((low + 1, high, float(chances[low:high].sum())))
        return max(found, key=lambda one: one[2])

    @property
    def next(self) -> int | None:
        """The place whose answer says most; None when the search has ended."""
        if self.best[2] >= self.confidence:
            return None
        below = np.cumsum(self.probabilities)
        open_places = [q for q in range(1, self.last) if self._is_open(q)]
        return min(open_places, key=lambda q: abs(float(below[q - 1]) - 0.5), default=None)

    def _is_open(self, place: int) -> bool:
        if place in self.untestable or place in self.failed:
            return False
        return not self.step.is_settled(self.rounds.get(place, ()))

    def _odds(self, place: int) -> float:
        if place in self.failed:
            return _MOST_ODDS if self.failed[place] else -_MOST_ODDS
        return self.step.odds(self.rounds.get(place, ()))

    # To and from JSON

    def document(self) -> dict[str, object]:
        """Return what was measured so far."""
        return {
            "rounds": {str(place): logs for place, logs in self.rounds.items()},
            "failed": {str(place): failed for place, failed in self.failed.items()},
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
        """Take in what a document holds."""
        self.rounds = {int(place): [float(x) for x in logs] for place, logs in rounds.items()}
        self.failed = {int(place): bool(one) for place, one in failed.items()}
        self.untestable, self.refuted = {*untestable}, {*refuted}
