"""The default: Bayesian optimisation of the enumerated space with a Gaussian process.

The first points are spread over the space. Then the next point is the one with the largest expected
improvement times probability of success. Times are modelled by their logarithm, and compressed
above the median: how slow a slow point is does not help to find a fast one. When no better point
was found for a while, every other point is chosen among the neighbours of the best ones, because
the model does not predict isolated optima.

The surrogate keeps L⁻¹k(X, candidate) for every candidate of a fixed list, so that one more
observation costs one product with that table and no refit. Length scales, signal and noise are
maximum a posteriori estimates under broad priors, found by a few steps along the sign of the
gradient (Rprop)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.result import ConfigValue
from kernelmark.tune.strategies.base import Evaluated, Points, Search, Strategy

UNORDERED = 8  # longer lists of names are solutions of a library, where neighbours are similar
GROUP = 16  # larger values count threads or elements, which hardware processes in groups
DOUBTFUL = 3.0  # expected length scale of the power-of-two feature of values below GROUP

Columns = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Features:
    """`table[i]` are the coordinates of point i, each in 0…1. Columns with the same number in
    `groups` are one property and share a length scale, whose prior is around `lengths[group]`."""

    table: Columns
    groups: NDArray[np.int64]
    lengths: NDArray[np.float64]

    @property
    def count(self) -> int:
        """The number of properties."""
        return len(self.lengths)


def features(points: Points) -> Features:
    """Compute the features of all points."""
    columns: list[Columns] = [np.zeros((len(points), 0), np.float32)]
    groups: list[int] = []
    lengths: list[float] = []
    for parameter, values in enumerate(points.values):
        codes = points.codes[:, parameter]
        describe = points.traits.get(points.names[parameter])
        for column, length in (
            _properties(values) if describe is None else _traits(values, describe)
        ):
            columns.append(column.astype(np.float32)[codes])
            groups += [len(lengths)] * column.shape[1]
            lengths.append(length)
    return Features(
        table=np.concatenate(columns, axis=1),
        groups=np.array(groups, np.int64),
        lengths=np.array(lengths, float),
    )


def _traits(
    values: Sequence[ConfigValue], describe: Callable[[ConfigValue], tuple[float, ...]]
) -> list[tuple[NDArray[np.float64], float]]:
    """Return the properties of described values: the rank of each number among those that occur."""
    numbers = np.array([describe(value) for value in values], float)
    ranks = [np.unique(column, return_inverse=True)[1] for column in numbers.T]
    return [((rank / rank.max())[:, None], 1.0) for rank in ranks if rank.max()]


def _properties(values: Sequence[ConfigValue]) -> list[tuple[NDArray[np.float64], float]]:
    """Return for each property the columns over `values`, and its expected length scale."""
    count = len(values)
    if count < 2:
        return []
    if 2 < count <= UNORDERED and any(isinstance(v, str) for v in values):
        return [(np.eye(count) / math.sqrt(2), 1.0)]
    properties = [(np.linspace(0, 1, count)[:, None], 1.0)]
    whole = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    if len(whole) == count and any(v & (v - 1) for v in whole) and any(v % 2 == 0 for v in whole):
        fractions = np.array([_fraction_of_twos(v) for v in whole])
        properties.append((fractions[:, None], 1.0 if max(whole) >= GROUP else DOUBTFUL))
    return properties


def _fraction_of_twos(value: int) -> float:
    return math.log2(value & -value) / math.log2(value) if value > 1 else 1.0


Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Numbers = NDArray[np.int64]

LENGTH_SPREAD = 1.0  # prior standard deviation of the logarithm of a length scale
NOISE, NOISE_SPREAD = 1e-3, 1.0  # prior of noise variance / observed variance
LEAST_NOISE = 1e-5
STEPS = 20
FIRST_STEP, LEAST_STEP, LARGEST_STEP = 0.3, 1e-3, 1.0
BOUND = 4.0  # largest distance of a parameter from its prior mean, in prior spreads


class Surrogate:
    """A Gaussian process with observations at points of the list; predicts at `candidates`."""

    def __init__(self, features: Features) -> None:
        self._table = features.table
        self._groups = features.groups
        lengths = -2 * np.log(features.lengths)
        self._prior = np.concatenate([lengths, [0.0, math.log(NOISE)]])
        self._spread = np.array([2 * LENGTH_SPREAD] * features.count + [1.0, 2 * NOISE_SPREAD])
        self._theta = self._prior.copy()
        self._points: list[int] = []
        self._believed: tuple[int, Singles] | None = None
        self.candidates: Numbers = np.zeros(0, np.int64)

    def fit(self, points: Sequence[int], observed: Floats, candidates: Numbers) -> None:
        """Replace all observations, and fit the parameters to the new ones."""
        self._theta = self._fit_parameters(self._table[list(points)].astype(float), observed)
        self._build(list(points), candidates)

    def _fit_parameters(self, rows: Floats, observed: Floats) -> Floats:
        """Return the maximum a posteriori parameters, by Rprop."""
        count = len(self._prior) - 2
        squared = np.zeros((len(rows) ** 2, count))
        for column, group in enumerate(self._groups.tolist()):
            values = rows[:, column]
            squared[:, group] += ((values[:, None] - values) ** 2).ravel()
        theta = best = self._theta
        least = math.inf
        step = np.full(len(theta), FIRST_STEP)
        before = np.zeros(len(theta))
        low, high = (self._prior + side * BOUND * self._spread for side in (-1, 1))
        for _ in range(STEPS):
            value, gradient = self._neg_log_posterior(theta, squared, observed)
            if value < least:
                least, best = value, theta
            same_sign = gradient * before
            step = np.where(same_sign > 0, 1.3 * step, np.where(same_sign < 0, 0.5 * step, step))
            step = np.clip(step, LEAST_STEP, LARGEST_STEP)
            before = np.where(same_sign < 0, 0.0, gradient)
            theta = np.clip(theta - np.sign(before) * step, low, high)
        return best

    def _neg_log_posterior(
        self, theta: Floats, squared: Floats, observed: Floats
    ) -> tuple[float, Floats]:
        """Return the negative log posterior, up to a constant, and its gradient."""
        size, count = len(observed), len(theta) - 2
        weights, signal, noise = np.exp(theta[:count]), math.exp(theta[-2]), math.exp(theta[-1])
        square = (squared @ weights).reshape(size, size)
        correlation, derivative = _matern(square)
        covariance = signal * correlation + (noise + LEAST_NOISE) * np.eye(size)
        lower = np.linalg.cholesky(covariance)
        inv_lower = np.linalg.inv(lower)
        inverse = inv_lower.T @ inv_lower
        alpha = inverse @ observed
        off = (theta - self._prior) / self._spread
        value = observed @ alpha / 2 + np.log(np.diag(lower)).sum() + off @ off / 2
        by_covariance = (inverse - np.outer(alpha, alpha)) / 2
        trace = np.trace(by_covariance)
        gradient = off / self._spread
        gradient[:count] += signal * weights * ((by_covariance * derivative).ravel() @ squared)
        gradient[-2] += signal * (by_covariance * correlation).sum()
        gradient[-1] += noise * trace
        return float(value), gradient

    def _build(self, points: list[int], candidates: Numbers) -> None:
        weights = np.exp(self._theta[:-2] / 2)[self._groups]
        self._scaled: Singles = self._table * weights.astype(np.float32)
        self._signal = math.exp(self._theta[-2])
        self._noise = math.exp(self._theta[-1]) + LEAST_NOISE
        self.candidates = candidates
        self._candidate_rows: Singles = self._scaled[candidates]
        self._candidate_squares = np.square(self._candidate_rows).sum(axis=1)
        size = len(points)
        self._points = points
        self._believed = None
        square = _squared_distances(
            self._scaled[points].astype(float), self._scaled[points].astype(float)
        )
        covariance = self._signal * _matern(square)[0] + self._noise * np.eye(size)
        room = max(64, 2 * size)
        self._inv_lower = np.zeros((room, room))
        self._inv_lower[:size, :size] = np.linalg.inv(np.linalg.cholesky(covariance))
        self._rows = np.empty((room, len(candidates)), np.float32)
        self._rows[:size] = self._inv_lower[:size, :size].astype(np.float32) @ self._covariance(
            points
        )
        self._variance = self._signal - np.square(self._rows[:size]).sum(axis=0)

    def _covariance(self, points: Sequence[int]) -> Singles:
        """Return the covariance between points and all candidates."""
        here = self._scaled[list(points)]
        square = (
            np.square(here).sum(axis=1)[:, None]
            + self._candidate_squares
            - 2 * here @ self._candidate_rows.T
        )
        singles: Singles = np.float32(self._signal) * _matern_only(np.maximum(square, 0))
        return singles

    def add(self, point: int) -> None:
        """Add one observed point, without refitting the parameters."""
        self.forget()
        self._extend(point)

    def _extend(self, point: int) -> None:
        size = len(self._points)
        if size == len(self._inv_lower):
            self._inv_lower = np.pad(self._inv_lower, (0, size))
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._variance = self._variance - self._append(point, size)
        self._points.append(point)

    def _append(self, point: int, size: int) -> Singles:
        """Write row `size` of the tables; return the decrease in variance of each candidate."""
        observed = self._scaled[self._points].astype(float)
        square = _squared_distances(observed, self._scaled[[point]].astype(float))[:, 0]
        shared = self._inv_lower[:size, :size] @ (self._signal * _matern(square)[0])
        rest = math.sqrt(max(self._signal + self._noise - float(shared @ shared), self._noise / 2))
        self._inv_lower[size, :size] = -(shared @ self._inv_lower[:size, :size]) / rest
        self._inv_lower[size, size] = 1 / rest
        row = self._covariance([point])[0] - shared.astype(np.float32) @ self._rows[:size]
        self._rows[size] = row / np.float32(rest)
        gain: Singles = np.square(self._rows[size])
        return gain

    def predict(self, observed: Floats) -> Singles:
        """Return the means at all candidates, one row for each column of `observed`, whose rows
        are the points in the order they were added."""
        size = len(observed)
        whitened = (self._inv_lower[:size, :size] @ observed).astype(np.float32)
        means: Singles = whitened.T @ self._rows[:size]
        return means

    def believe(self, point: int) -> None:
        """Condition on a pending point as if it returned its predicted mean (kriging believer):
        means stay, variances shrink."""
        if self._believed is None:
            self._believed = len(self._points), self._variance
        self._extend(point)

    def forget(self) -> None:
        """Undo every `believe`."""
        if self._believed is not None:
            size, self._variance = self._believed
            del self._points[size:]
            self._believed = None

    def deviation(self) -> Singles:
        """Return the standard deviation at every candidate."""
        least = np.float32(1e-6 * self._signal)
        deviation: Singles = np.sqrt(np.maximum(self._variance, least))
        return deviation


def _squared_distances(a: Floats, b: Floats) -> Floats:
    """Return the squared distances between the rows of `a` and `b`."""
    square = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2 * a @ b.T
    distances: Floats = np.maximum(square, 0)
    return distances


def _matern(square: Floats) -> tuple[Floats, Floats]:
    """Return Matérn 5/2 of a squared distance, and the derivative with respect to the latter."""
    scaled = np.sqrt(5 * square)
    decay = np.exp(-scaled)
    return (1 + scaled + scaled * scaled / 3) * decay, (-5 / 6) * (1 + scaled) * decay


def _matern_only(square: Singles) -> Singles:
    scaled = np.sqrt(np.float32(5) * square)
    correlation: Singles = (1 + scaled + scaled * scaled / np.float32(3)) * np.exp(-scaled)
    return correlation


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Predictions of the model, by candidate: the means, and the log of the probability of
    success. `best` is the score of the best point so far."""

    best: float
    means: Singles
    works: Floats | float


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
        self._evaluated = Evaluated(len(points), starts)
        self._features = features(points)
        self._surrogate = Surrogate(self._features)
        # Beside the starts: six winners of similar problems would leave no exploration.
        self._spread_left = min(SPREAD, max(NEEDED, budget // 3))
        table = self._features.table
        self._scale = (table.std(axis=0) if len(table) else table.sum(axis=0)) + np.float32(1e-9)
        self._modelled: list[int] = []
        self._in_model: set[int] = set()
        self._next_fit = 0
        self._pending: dict[int, None] = {}
        self._best = math.inf
        self._since = 0  # reported points since the best one

    def ask(self, n: int) -> list[int]:
        chosen = list(self._evaluated.starts(n))
        self._pending |= dict.fromkeys(chosen)
        if len(chosen) < n and self._spread_left <= 0 and self._evaluated.left and self._ready():
            chosen += self._by_model(n - len(chosen))
        while len(chosen) < n and self._evaluated.left:
            chosen.append(self._evaluated.take(self._farthest()))
            self._pending[chosen[-1]] = None
            self._spread_left -= 1
        return chosen

    def choose(self, pending: Sequence[int]) -> int:
        if not self._ready():
            return pending[0]
        score = self._score(self._expect())
        candidates = self._surrogate.candidates
        score[~np.isin(candidates, pending)] = -np.inf
        at = self._highest(score)
        # After a refit in a large space an earlier proposal need not be a candidate any more.
        return int(candidates[at]) if score[at] > -np.inf else pending[0]

    def tell(self, point: int, seconds: float | None) -> None:
        self._pending.pop(point, None)
        self._since += 1
        time = self._evaluated.tell(point, seconds)
        if time < self._best:
            self._best, self._since = time, 0
            if len(self._points) > LISTED:
                self._next_fit = 0  # refit, so that its neighbours become candidates

    def _farthest(self) -> int:
        """Return that of some random points which is farthest from all proposed points."""
        drawn = self._random.integers(0, len(self._points), DRAWN)
        drawn = drawn[~self._evaluated.seen[drawn]]
        if not len(drawn):
            drawn = np.flatnonzero(~self._evaluated.seen)
        seen = np.flatnonzero(self._evaluated.seen)
        if not len(seen):
            return int(drawn[0])
        table = self._features.table
        here, there = table[drawn] / self._scale, table[seen] / self._scale
        square = np.square(there).sum(axis=1) - 2 * here @ there.T
        nearest = np.square(here).sum(axis=1) + square.min(axis=1)
        return int(drawn[np.argmax(nearest)])

    def _ready(self) -> bool:
        """Return whether there are enough successful points, with different times, for a model."""
        working = [s for s in self._evaluated.seconds.values() if s < math.inf]
        return self._features.count > 0 and len(working) >= NEEDED and min(working) < max(working)

    def _by_model(self, n: int) -> list[int]:
        expected = self._expect()
        chosen: list[int] = []
        model = self._surrogate
        for point in self._pending:
            model.believe(point)
        while len(chosen) < n and self._evaluated.left:
            score = self._score(expected)
            score[self._evaluated.seen[model.candidates]] = -np.inf
            at = self._highest(score)
            if score[at] == -np.inf:
                break
            chosen.append(self._evaluated.take(int(model.candidates[at])))
            model.believe(chosen[-1])
        model.forget()
        self._pending |= dict.fromkeys(chosen)
        return chosen

    def _expect(self) -> Expectation:
        """Update the model by the reported times, and return what it predicts."""
        observed, failed = self._observed()
        means = self._surrogate.predict(np.stack([observed, failed], axis=1))
        works = np.log(1 - np.clip(means[1].astype(float), 0, CERTAIN)) if failed.any() else 0.0
        return Expectation(best=float(observed[failed == 0].min()), means=means[0], works=works)

    def _score(self, expected: Expectation) -> Floats:
        """Return the log of expected improvement times probability of success, by candidate."""
        deviation = self._surrogate.deviation().astype(float)
        improvement = _log_improvement((expected.best - expected.means) / deviation)
        scores: Floats = improvement + np.log(deviation) + expected.works
        return scores

    def _highest(self, score: Floats) -> int:
        """Return the index of the highest score; when stuck, every other time only among
        neighbours of the best points."""
        if self._since >= STUCK and self._evaluated.left % 2:
            near = np.isin(self._surrogate.candidates, self._neighbours(ELITE))
            at = int(np.argmax(np.where(near, score, -np.inf)))
            if near[at] and score[at] > -np.inf:
                return at
        return int(np.argmax(score))

    def _neighbours(self, count: int) -> Numbers:
        """Return the neighbours of the `count` best points."""
        seconds = self._evaluated.seconds
        best = sorted(seconds, key=lambda p: (seconds[p], p))[:count]
        return np.concatenate([self._points.neighbours(p) for p in best])

    def _observed(self) -> tuple[Floats, Floats]:
        """Update the model; return its observations as scores, and which of them failed."""
        seconds = self._evaluated.seconds
        fresh = [p for p in seconds if p not in self._in_model]
        if len(seconds) >= self._next_fit:
            self._modelled = self._choice()
            scores, failed = self._scores()
            self._surrogate.fit(self._modelled, scores, self._candidates())
            self._next_fit = max(len(seconds) + REFIT_LEAST, int(len(seconds) * REFIT))
            self._in_model = set(seconds)
            return scores, failed
        for point in fresh:
            self._surrogate.add(point)
            self._modelled.append(point)
            self._in_model.add(point)
        return self._scores()

    def _choice(self) -> list[int]:
        """Return the points of the model: all known ones, or the best and a sample of the rest."""
        seconds = self._evaluated.seconds
        if len(seconds) <= MODELLED:
            return list(seconds)
        order = sorted(seconds, key=lambda p: (seconds[p], p))
        rest = np.array(order[MODELLED // 2 :])
        drawn = self._random.choice(rest, MODELLED - MODELLED // 2, replace=False)
        return [*order[: MODELLED // 2], *sorted(drawn.tolist())]

    def _scores(self) -> tuple[Floats, Floats]:
        seconds = np.array([self._evaluated.seconds[p] for p in self._modelled])
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
