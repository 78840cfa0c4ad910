"""Strategy and Search: which point of a space to try next."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kernelmark.tune.points import Points


class Search(ABC):
    """One search over the points of one space, with an ask-tell interface. It is deterministic for
    a seed and a sequence of reported times, so that it can be replayed from its journal."""

    @abstractmethod
    def ask(self, n: int) -> list[int]:
        """Propose up to `n` distinct points that were not proposed yet; [] if none is left.

        Points without a reported time are pending, not failed."""

    @abstractmethod
    def tell(self, point: int, seconds: float | None) -> None:
        """Report the time of a point, None if it failed. The point need not come from `ask` (the
        default, winners of similar problems)."""


class Strategy(ABC):
    """A search algorithm over points and times, independent of problem and backend."""

    name: str
    summary: str  # one line for `kmark list strategies`

    @abstractmethod
    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        """Return a search planned for `budget` points. It proposes `starts` first, in order: the
        default, then winners of similar problems."""


class Known:
    """The proposed points, and their reported times. A failed point has an infinite time."""

    def __init__(self, count: int, starts: Iterable[int] = ()) -> None:
        self.seen: NDArray[np.bool_] = np.zeros(count, bool)
        self.left = count
        self.seconds: dict[int, float] = {}
        self._starts = iter(starts)

    def take(self, point: int) -> int:
        """Mark a point as proposed, and return it."""
        if not self.seen[point]:
            self.seen[point] = True
            self.left -= 1
        return point

    def tell(self, point: int, seconds: float | None) -> float:
        """Record the time of a point, and return it; infinity for a failure."""
        self.take(point)
        if seconds is None or not math.isfinite(seconds) or seconds <= 0:
            seconds = math.inf
        self.seconds[point] = seconds
        return self.seconds[point]

    def starts(self, n: int) -> Iterator[int]:
        """Yield up to `n` given starts that were not seen yet, and mark them as proposed."""
        while n > 0 and (point := next(self._starts, None)) is not None:
            if not self.seen[point]:
                n -= 1
                yield self.take(point)

    def random(self, random: np.random.Generator) -> int | None:
        """Return a random point that was not seen yet, None if all were."""
        if not self.left:
            return None
        for point in random.integers(0, len(self.seen), 32).tolist():
            if not self.seen[point]:
                return int(point)
        return int(random.choice(np.flatnonzero(~self.seen)))


class Queue(Search):
    """A search in a fixed order, independent of the reported times."""

    def __init__(self, order: Iterable[int], count: int) -> None:
        self._known = Known(count, order)

    def ask(self, n: int) -> list[int]:
        return list(self._known.starts(n))

    def tell(self, point: int, seconds: float | None) -> None:
        self._known.tell(point, seconds)
