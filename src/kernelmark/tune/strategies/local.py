"""First-improvement local search with restarts: it moves to the first better neighbour."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kernelmark.tune.strategies.base import Evaluated, Points, Search, Strategy

PERTURBED = 0.5  # probability that a restart is a perturbation of the best point, not random
CHANGES = 3  # parameters that a perturbation changes


class Local(Strategy):
    name = "local"
    summary = "first-improvement local search with restarts"

    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        return LocalSearch(points, seed, starts)


class LocalSearch(Search):
    """A local search. `_around` are the neighbours of `_current` that are still to be tried."""

    def __init__(self, points: Points, seed: int, starts: Sequence[int]) -> None:
        self._points = points
        self._random = np.random.default_rng(seed)
        self._evaluated = Evaluated(len(points), starts)
        self._current: int | None = None
        self._around: list[int] = []
        self._pending: set[int] = set()

    def ask(self, n: int) -> list[int]:
        chosen = list(self._evaluated.starts(n))
        while len(chosen) < n and self._evaluated.left:
            chosen.append(self._evaluated.take(self._next()))
        self._pending.update(chosen)
        return chosen

    def _next(self) -> int:
        while self._around:
            point = self._around.pop()
            if not self._evaluated.seen[point]:
                return point
        if not self._pending:
            self._current = None  # a local optimum: continue from the next point, whatever its time
        return self._restart()

    def _restart(self) -> int:
        best = min(self._evaluated.seconds, key=self._evaluated.seconds.__getitem__, default=None)
        if best is not None and self._random.random() < PERTURBED:
            start = best
            for _ in range(CHANGES):
                start = int(self._random.choice([*self._points.neighbours(start).tolist(), start]))
            if not self._evaluated.seen[start]:
                return start
        point = self._evaluated.random(self._random)
        assert point is not None  # `ask` checked that points are left
        return point

    def tell(self, point: int, seconds: float | None) -> None:
        self._pending.discard(point)
        time = self._evaluated.tell(point, seconds)
        here = math.inf if self._current is None else self._evaluated.seconds[self._current]
        if time < here:
            self._current = point
            around = self._points.neighbours(point)
            self._around = self._random.permutation(around).tolist()


strategy = Local()
