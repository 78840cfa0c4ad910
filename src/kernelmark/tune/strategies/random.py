"""Random search without repetition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelmark.tune.strategies.base import Points, Queue, Search, Strategy


class Random(Strategy):
    name = "random"
    summary = "random points without repetition"

    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        order = np.random.default_rng(seed).permutation(len(points))
        return Queue([*starts, *order.tolist()], len(points))


strategy = Random()
