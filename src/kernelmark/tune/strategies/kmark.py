"""The default: a Gaussian process over the enumerated space, asked for expected improvement.

A few points spread over the space come first. Then every question is the point whose expected
improvement, times the chance that it works at all, is the largest of the whole list. Times are
modelled by their logarithm, with those slower than the median pressed together: how bad a bad point
is does not help to find a good one. When nothing better was found for a while, every other question
is the most promising one next to the best points: no model is right about a needle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernelmark.tune.points import Points
from kernelmark.tune.strategies._features import features
from kernelmark.tune.strategies._known import Known
from kernelmark.tune.strategies._surrogate import Surrogate
from kernelmark.tune.strategies.base import Search, Strategy

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

SPREAD = 6  # questions before the model is asked
DRAWN = 200  # random points of which the one farthest from all others is taken
NEEDED = 3  # working points without which there is nothing to model
REFIT = 1.3  # growth of what is known after which length scales are learned anew
REFIT_LEAST = 3
MODELLED = 400  # known points a model is made of; beyond, the best and a sample of the others
LISTED = 20_000  # candidates of a question; a longer list is sampled
NEAR = 30  # best points whose neighbours are always candidates
STUCK = 30  # answers without a better one after which the elite's neighbours are looked at
ELITE = 8
FAILED_LIKE = 0.5  # quantile of the working points that a failed one is taken for
CERTAIN = 0.95  # the largest chance of failing that is believed in


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
        self._since = 0  # answers since the best one

    def ask(self, n: int) -> list[int]:
        chosen = list(self._known.starts(n))
        self._pending |= dict.fromkeys(chosen)
        if len(chosen) < n and self._ready():
            chosen += self._by_model(n - len(chosen))
        while len(chosen) < n and self._known.left:
            chosen.append(self._known.take(self._far_away()))
            self._pending[chosen[-1]] = None
        return chosen

    def tell(self, point: int, seconds: float | None) -> None:
        self._pending.pop(point, None)
        self._since += 1
        time = self._known.tell(point, seconds)
        if time < self._best:
            self._best, self._since = time, 0
            if len(self._points) > LISTED:
                self._next_fit = 0  # its neighbours are no candidates yet

    def _far_away(self) -> int:
        """Of some random points never asked for, the one farthest from all that were."""
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
        """Return whether enough is known, and not all the same, for a model to say anything."""
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
        """Return where the score is highest; when stuck, in turn only next to the best points."""
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
        """Bring the model up to date; its observations as scores, and which of them failed."""
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
        """Return what the model is made of: all that is known, or the best and a sample of the
        rest."""
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
        working = _pressed(np.log(seconds[~failed]))
        scores = np.empty(len(seconds))
        scores[~failed] = working
        scores[failed] = np.quantile(working, FAILED_LIKE)
        return scores, failed.astype(float)

    def _candidates(self) -> Numbers:
        """Return all points, or the neighbours of the best and a random sample where there are
        many."""
        count = len(self._points)
        if count <= LISTED:
            return np.arange(count)
        near = self._neighbours(NEAR)
        drawn = self._random.choice(count, LISTED, replace=False)
        numbers: Numbers = np.unique(np.concatenate([near[: LISTED // 2], drawn]))
        return numbers


def _pressed(logs: Floats) -> Floats:
    """Standardised logarithms of times; above the median they grow as a logarithm only."""
    least = logs.min()
    scale = max(float(np.median(logs) - least), 1e-9)
    excess = (logs - least) / scale
    pressed = np.where(excess < 1, excess, 1 + np.log(np.maximum(excess, 1)))
    made: Floats = (pressed - pressed.mean()) / (pressed.std() + 1e-9)
    return made


def _log_improvement(z: Floats) -> Floats:
    """Logarithm of the expected improvement of a unit normal over −z, from a table."""
    made: Floats = np.interp(z, _GRID, _LOG_IMPROVEMENT)
    return made


def _exact_log_improvement(z: float) -> float:
    if z < -10:  # the difference below cancels; its asymptote does not
        return -z * z / 2 - math.log(2 * math.pi) / 2 - 2 * math.log(-z)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return math.log(density + z * math.erfc(-z / math.sqrt(2)) / 2)


_GRID = np.linspace(-40, 10, 5001)
_LOG_IMPROVEMENT = np.array([_exact_log_improvement(z) for z in _GRID.tolist()])

strategy = Kmark()
