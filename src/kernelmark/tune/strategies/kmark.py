"""The default: Bayesian optimisation of the enumerated space with a Gaussian process.

The first points are spread over the space. Then the next point is the one with the largest expected
improvement times probability of success. Times are modelled by their logarithm, and compressed
above the median: how slow a slow point is does not help to find a fast one. When no better point
was found for a while, every other point is chosen among the neighbours of the best ones, because
the model does not predict isolated optima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernelmark.tune.points import Points
from kernelmark.tune.strategies._surrogate import Surrogate, features
from kernelmark.tune.strategies.base import Known, Search, Strategy

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

SPREAD = 6  # points before the model is used
DRAWN = 200  # random points of which the one farthest from all known ones is taken
NEEDED = 3  # successful points that a model needs
REFIT = 1.3  # growth of the number of known points after which the model is refitted
REFIT_LEAST = 3
MODELLED = 400  # most points of the model; beyond, the best and a sample of the others
LISTED = 20_000  # most candidates; a larger space is sampled
NEAR = 30  # best points whose neighbours are always candidates
STUCK = 30  # points without improvement after which neighbours of the elite are tried
ELITE = 8
FAILED_LIKE = 0.5  # quantile of the successful points that a failed one is modelled as
CERTAIN = 0.95  # largest probability of failure that is used


class Kmark(Strategy):
    name = "kmark"
    summary = "Gaussian process on log time over all points, expected improvement (default)"

    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        return KmarkSearch(points, budget, seed, starts)


class KmarkSearch(Search):
    def __init__(self, points: Points, budget: int, seed: int, starts: Sequence[int]) -> None:
        self._points = points
        self._random = np.random.default_rng(seed)
        self._known = Known(len(points), starts)
        self._features = features(points)
        self._surrogate = Surrogate(self._features)
        self._spread = min(SPREAD, max(NEEDED, budget // 3))
        table = self._features.table
        self._scale = (table.std(axis=0) if len(table) else table.sum(axis=0)) + np.float32(1e-9)
        self._modelled: list[int] = []
        self._in_model: set[int] = set()
        self._next_fit = 0
        self._pending: dict[int, None] = {}
        self._best = math.inf
        self._since = 0  # reported points since the best one

    def ask(self, n: int) -> list[int]:
        chosen = list(self._known.starts(n))
        self._pending |= dict.fromkeys(chosen)
        if len(chosen) < n and self._ready():
            chosen += self._by_model(n - len(chosen))
        while len(chosen) < n and self._known.left:
            chosen.append(self._known.take(self._farthest()))
            self._pending[chosen[-1]] = None
        return chosen

    def tell(self, point: int, seconds: float | None) -> None:
        self._pending.pop(point, None)
        self._since += 1
        time = self._known.tell(point, seconds)
        if time < self._best:
            self._best, self._since = time, 0
            if len(self._points) > LISTED:
                self._next_fit = 0  # refit, so that its neighbours become candidates

    def _farthest(self) -> int:
        """Return that of some random points which is farthest from all proposed points."""
        drawn = self._random.integers(0, len(self._points), DRAWN)
        drawn = drawn[~self._known.seen[drawn]]
        if not len(drawn):
            drawn = np.flatnonzero(~self._known.seen)
        seen = np.flatnonzero(self._known.seen)
        if not len(seen):
            return int(drawn[0])
        table = self._features.table
        here, there = table[drawn] / self._scale, table[seen] / self._scale
        square = np.square(there).sum(axis=1) - 2 * here @ there.T
        nearest = np.square(here).sum(axis=1) + square.min(axis=1)
        return int(drawn[np.argmax(nearest)])

    def _ready(self) -> bool:
        """Return whether there are enough successful points, with different times, for a model."""
        asked = len(self._points) - self._known.left
        if asked < self._spread or not self._known.left or not self._features.count:
            return False
        working = [s for s in self._known.seconds.values() if s < math.inf]
        return len(working) >= NEEDED and min(working) < max(working)

    def _by_model(self, n: int) -> list[int]:
        observed, failed = self._observed()
        chosen: list[int] = []
        model = self._surrogate
        means = model.predict(np.stack([observed, failed], axis=1))
        works = np.log(1 - np.clip(means[1].astype(float), 0, CERTAIN)) if failed.any() else 0.0
        best = float(observed[failed == 0].min())
        for point in self._pending:
            model.believe(point)
        while len(chosen) < n and self._known.left:
            deviation = model.deviation().astype(float)
            score = _log_improvement((best - means[0]) / deviation) + np.log(deviation) + works
            score[self._known.seen[model.candidates]] = -np.inf
            at = self._highest(score)
            if score[at] == -np.inf:
                break
            chosen.append(self._known.take(int(model.candidates[at])))
            model.believe(chosen[-1])
        model.forget()
        self._pending |= dict.fromkeys(chosen)
        return chosen

    def _highest(self, score: Floats) -> int:
        """Return the index of the highest score; when stuck, every other time only among
        neighbours of the best points."""
        if self._since >= STUCK and self._known.left % 2:
            near = np.isin(self._surrogate.candidates, self._neighbours(ELITE))
            at = int(np.argmax(np.where(near, score, -np.inf)))
            if near[at] and score[at] > -np.inf:
                return at
        return int(np.argmax(score))

    def _neighbours(self, count: int) -> Numbers:
        """Return the neighbours of the `count` best points."""
        known = self._known.seconds
        best = sorted(known, key=lambda p: (known[p], p))[:count]
        return np.concatenate([self._points.neighbours(p) for p in best])

    def _observed(self) -> tuple[Floats, Floats]:
        """Update the model; return its observations as scores, and which of them failed."""
        known = self._known.seconds
        fresh = [p for p in known if p not in self._in_model]
        if len(known) >= self._next_fit:
            self._modelled = self._choice()
            scores, failed = self._scores()
            self._surrogate.fit(self._modelled, scores, self._candidates())
            self._next_fit = max(len(known) + REFIT_LEAST, int(len(known) * REFIT))
            self._in_model = set(known)
            return scores, failed
        for point in fresh:
            self._surrogate.add(point)
            self._modelled.append(point)
            self._in_model.add(point)
        return self._scores()

    def _choice(self) -> list[int]:
        """Return the points of the model: all known ones, or the best and a sample of the rest."""
        known = self._known.seconds
        if len(known) <= MODELLED:
            return list(known)
        order = sorted(known, key=lambda p: (known[p], p))
        rest = np.array(order[MODELLED // 2 :])
        drawn = self._random.choice(rest, MODELLED - MODELLED // 2, replace=False)
        return [*order[: MODELLED // 2], *sorted(drawn.tolist())]

    def _scores(self) -> tuple[Floats, Floats]:
        seconds = np.array([self._known.seconds[p] for p in self._modelled])
        failed = np.isinf(seconds)
        working = _compress(np.log(seconds[~failed]))
        scores = np.empty(len(seconds))
        scores[~failed] = working
        scores[failed] = np.quantile(working, FAILED_LIKE)
        return scores, failed.astype(float)

    def _candidates(self) -> Numbers:
        """Return all points; in a large space, the neighbours of the best and a random sample."""
        count = len(self._points)
        if count <= LISTED:
            return np.arange(count)
        near = self._neighbours(NEAR)
        drawn = self._random.choice(count, LISTED, replace=False)
        numbers: Numbers = np.unique(np.concatenate([near[: LISTED // 2], drawn]))
        return numbers


def _compress(logs: Floats) -> Floats:
    """Return standardised logarithms of times, compressed logarithmically above the median."""
    least = logs.min()
    scale = max(float(np.median(logs) - least), 1e-9)
    excess = (logs - least) / scale
    compressed = np.where(excess < 1, excess, 1 + np.log(np.maximum(excess, 1)))
    scores: Floats = (compressed - compressed.mean()) / (compressed.std() + 1e-9)
    return scores


def _log_improvement(z: Floats) -> Floats:
    """Return the log of the expected improvement of a standard normal over −z, interpolated."""
    logs: Floats = np.interp(z, _GRID, _LOG_IMPROVEMENT)
    return logs


def _exact_log_improvement(z: float) -> float:
    if z < -10:  # the sum below cancels; its asymptote does not
        return -z * z / 2 - math.log(2 * math.pi) / 2 - 2 * math.log(-z)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return math.log(density + z * math.erfc(-z / math.sqrt(2)) / 2)


_GRID = np.linspace(-40, 10, 5001)
_LOG_IMPROVEMENT = np.array([_exact_log_improvement(z) for z in _GRID.tolist()])

strategy = Kmark()
