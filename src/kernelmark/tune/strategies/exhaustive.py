"""Exhaustive search: all points, in the space's order."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.tune.strategies.base import Points, Queue, Search, Strategy


class Exhaustive(Strategy):
    name = "exhaustive"
    summary = "every point in order; for small spaces"

    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        return Queue([*starts, *range(len(points))], len(points))


strategy = Exhaustive()
