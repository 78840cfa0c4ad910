"""A genetic search with the parameters of the GEMM workflow that hipBLASLt's tuners use.

Tournaments of two, uniform crossover with probability 0.9, mutation of each gene with probability
1 / parameters, half of the time to an adjacent value if its values are ordered, survival by
fitness, an elite of 5%, and a new population when best and mean fitness have not risen over five
generations. The population size is budget / 30 generations, between 10 and 512. An illegal child
returns to its first parent in some of the genes in which they differ. Children are bred one at a
time from measured individuals, so a batch need not wait for the end of a generation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernelmark.tune.strategies.base import Evaluated, Points, Search, Strategy

GENERATIONS = 30
SMALLEST, LARGEST = 10, 512
CROSSOVER = 0.9
ELITE = 0.05
PATIENCE = 5  # generations over which the rise is averaged
RISE = 0.0008
DIVERSITY = 0.5  # relative diversity below which the population is halved
TRIES = 20  # most children bred until one is legal and new
ADJACENT = 0.5  # of the mutations of ordered genes
KEPT = (1.0, 0.5, 0.25)  # of the genes of a child, in the order in which its forms are tried


class Genetic(Strategy):
    name = "genetic"
    summary = "genetic algorithm: tournaments, uniform crossover, elitism, restarts"

    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        size = min(LARGEST, max(SMALLEST, math.ceil(budget / GENERATIONS)))
        return GeneticSearch(points, size, seed, starts)


class GeneticSearch(Search):
    """A genetic search. `_people` are the measured individuals of the population, fittest first."""

    def __init__(self, points: Points, size: int, seed: int, starts: Sequence[int]) -> None:
        self._points = points
        self._dims = np.array([len(v) for v in points.values])
        self._size = self._full = size
        self._random = np.random.default_rng(seed)
        self._evaluated = Evaluated(len(points), starts)
        self._people: list[int] = []
        self._founders = size  # random individuals not proposed yet
        self._reported = 0
        self._bests: list[float] = []
        self._means: list[float] = []

    def ask(self, n: int) -> list[int]:
        chosen = list(self._evaluated.starts(n))
        while len(chosen) < n:
            point = self._founder() if self._founders > 0 else self._child()
            if point is None:
                break
            chosen.append(self._evaluated.take(point))
        return chosen

    def _founder(self) -> int | None:
        self._founders -= 1
        return self._evaluated.random(self._random)

    def _child(self) -> int | None:
        """Return a legal child that was not proposed yet; if breeding fails, a neighbour of a
        parent or a random point."""
        if len(self._people) > 1:
            for _ in range(TRIES):
                parent, other = self._parent(), self._parent()
                points = self._points.adopt(self._bred(parent, other))
                self._evaluated.grow(len(self._points))
                fresh = points[(points >= 0) & ~self._evaluated.seen[points]]
                if len(fresh):
                    return int(fresh[0])
            around = self._points.neighbours(self._parent())
            fresh = around[~self._evaluated.seen[around]]
            if len(fresh):
                return int(self._random.choice(fresh))
        return self._evaluated.random(self._random)

    def _parent(self) -> int:
        """Return the winner of a tournament of two: `_people` are in order of fitness."""
        return self._people[int(self._random.integers(0, len(self._people), 2).min())]

    def _bred(self, parent: int, other: int) -> NDArray[np.int64]:
        """Return a child of two points, and after it children that are closer to the first."""
        own = self._points.codes[parent].astype(np.int64)
        child = own
        if self._random.random() < CROSSOVER:
            partner = self._points.codes[other]
            child = np.where(self._random.random(len(child)) < 0.5, child, partner)
        mutated = self._random.random(len(child)) < 1 / len(child)
        near = self._points.ordered & (self._random.random(len(child)) < ADJACENT)
        step = child + self._random.choice((-1, 1), len(child))
        anew = np.where(near, step.clip(0, self._dims - 1), self._random.integers(0, self._dims))
        child = np.where(mutated, anew, child)
        kept = self._random.random((len(KEPT), len(child))) < np.array(KEPT)[:, None]
        return np.where(kept, child, own)

    def tell(self, point: int, seconds: float | None) -> None:
        self._evaluated.tell(point, seconds)
        if point not in self._people:
            self._people.append(point)
        self._people.sort(key=lambda p: (self._evaluated.seconds[p], p))
        del self._people[self._size :]
        self._reported += 1
        if self._reported % self._size == 0:
            self._generation()

    def _generation(self) -> None:
        fitness = [1 / self._evaluated.seconds[p] for p in self._people]  # a failure has fitness 0
        self._bests.append(max(fitness))
        self._means.append(sum(fitness) / len(fitness))
        if self._stuck(self._bests) and self._stuck(self._means):
            # Restart with a new population and the elite; known times are kept.
            del self._people[max(1, round(ELITE * self._size)) :]
            self._founders = self._size = self._full
            self._bests.clear()
            self._means.clear()
        elif self._diversity() < DIVERSITY:
            self._size = max(SMALLEST, self._size // 2)

    def _stuck(self, history: Sequence[float]) -> bool:
        """Return whether the moving average over `PATIENCE` generations has stopped rising."""
        if len(history) <= PATIENCE:
            return False
        newer, older = history[-PATIENCE:], history[-PATIENCE - 1 : -1]
        return sum(newer) <= sum(older) * (1 + RISE)

    def _diversity(self) -> float:
        """Return the mean fraction of genes in which two individuals differ, relative to random
        individuals."""
        rows = self._points.codes[self._people]
        differ = [1 - float(np.square(_frequencies(column)).sum()) for column in rows.T]
        expected = [1 - 1 / len(values) for values in self._points.values]
        return sum(differ) / max(1e-9, sum(expected))


def _frequencies(column: NDArray[np.integer]) -> NDArray[np.float64]:
    _, counts = np.unique(column, return_counts=True)
    frequencies: NDArray[np.float64] = counts / len(column)
    return frequencies


strategy = Genetic()
