"""What searches share: the record of what was asked and told, and a fixed order of questions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from kernelmark.tune.strategies.base import Search


class Known:
    """What was asked and what was told. A failed point has time infinity."""

    def __init__(self, count: int, starts: Iterable[int] = ()) -> None:
        self.seen: NDArray[np.bool_] = np.zeros(count, bool)
        self.left = count
        self.seconds: dict[int, float] = {}
        self._starts = iter(starts)

    def take(self, point: int) -> int:
        """Note that the point is asked for."""
        if not self.seen[point]:
            self.seen[point] = True
            self.left -= 1
        return point

    def tell(self, point: int, seconds: float | None) -> float:
        """Note what the point gave, and give it back with infinity for a failure."""
        self.take(point)
        if seconds is None or not math.isfinite(seconds) or seconds <= 0:
            seconds = math.inf
        self.seconds[point] = seconds
        return self.seconds[point]

    def starts(self, n: int) -> Iterator[int]:
        """Up to `n` given starts that were not seen yet; they count as asked."""
        while n > 0 and (point := next(self._starts, None)) is not None:
            if not self.seen[point]:
                n -= 1
                yield self.take(point)

    def random(self, random: np.random.Generator) -> int | None:
        """Return a point that was never seen; None when all were."""
        if not self.left:
            return None
        for point in random.integers(0, len(self.seen), 32).tolist():
            if not self.seen[point]:
                return int(point)
        return int(random.choice(np.flatnonzero(~self.seen)))


class Queue(Search):
    """Asks in an order that was known at the start, whatever it is told."""

    def __init__(self, order: Iterable[int], count: int) -> None:
        self._known = Known(count, order)

    def ask(self, n: int) -> list[int]:
        return list(self._known.starts(n))

    def tell(self, point: int, seconds: float | None) -> None:
        self._known.tell(point, seconds)
