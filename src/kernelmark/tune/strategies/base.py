"""Strategy and Search: which point of a space to try next; Points: the legal configurations of a
space as one numbered list.

Strategies work on the numbers. As the whole list is in memory, every proposal is legal and
distinct, and neighbours are exact. Only the list of a space with a `check` is a sample, which grows
with the legal points that a search adopts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Config, ConfigValue, Space, join_config, split_config

Codes = NDArray[np.integer]
Numbers = NDArray[np.int64]

TRIES = 5  # combinations checked per point of the limit
_LEAST_DRAWN = 2000  # combinations at once, so that a space of few legal ones is not called empty
# Points of a space whose legality another program decides, some milliseconds each. A search can add
# more.
CHECKED = 256
_DRAWN_ANEW = (
    0.12  # of the parameters of a legal point, so that about a third of the copies are legal
)


class Points:
    """Numbered configurations: point i has `values[p][codes[i, p]]` for parameter `names[p]`."""

    def __init__(
        self,
        names: Sequence[str],
        values: Sequence[Sequence[ConfigValue]],
        codes: NDArray[np.integer],
    ) -> None:
        self.names = tuple(names)
        self.values = tuple(tuple(v) for v in values)
        longest = max((len(v) for v in self.values), default=0)
        self.codes: Codes = np.ascontiguousarray(
            codes, np.int16 if longest <= np.iinfo(np.int16).max else np.int32
        )
        self.traits: Mapping[str, Callable[[ConfigValue], tuple[float, ...]]] = {}  # see Space
        self._space: Space | None = None  # only if legal points can be adopted

    @classmethod
    def of(cls, space: Space, *, limit: int = 200_000, seed: int = 1) -> Points:
        """Return all legal points of `space`, in the space's order. If there are more than `limit`,
        return a random sample that includes the default, its neighbours and the seeds; of a space
        with a `check`, one around the default and the seeds."""
        if space.alternatives:
            # A backend without parameters has a single point.
            return UnionPoints(
                {
                    name: cls.of(own, limit=limit, seed=seed)
                    if own.parameters
                    else cls((), (), np.zeros((1, 0), np.int16))
                    for name, own in space.alternatives.items()
                }
            )
        points = cls._listed(space, limit, seed)
        points.traits = space.traits
        return points

    @classmethod
    def _listed(cls, space: Space, limit: int, seed: int) -> Points:
        names = list(space.parameters)
        values = [tuple(v) for v in space.parameters.values()]
        size = space.size
        if not names or not size:
            return cls(names, values, np.zeros((0, len(names)), np.int16))
        random = np.random.default_rng(seed)
        if space.check is not None:
            points = cls(names, values, _walk(space, values, min(limit, CHECKED), random))
            points._space = space
            return points
        kept: Codes = _legal(space, values, _always_kept(space, values)).astype(np.int32)
        if size <= TRIES * limit:
            legal = _legal_of_products(space, values, _every(space, values))
            if len(legal) <= limit:
                return cls(names, values, legal)
            drawn = legal[random.choice(len(legal), limit, replace=False)]
            kept = _distinct(np.concatenate([kept, drawn]))
        for _ in range(TRIES):
            if len(kept) >= limit:
                break
            drawn = _draw(space, values, max(limit, _LEAST_DRAWN), random)
            legal = _legal_of_products(space, values, drawn)
            kept = _distinct(np.concatenate([kept, legal]))
        kept = kept[:limit]
        return cls(names, values, _sorted_rows(kept))

    def __len__(self) -> int:
        return len(self.codes)

    def config(self, i: int) -> Config:
        """Return the configuration of point `i`."""
        row = self.codes[i]
        return FrozenDict(
            {n: v[c] for n, v, c in zip(self.names, self.values, row.tolist(), strict=True)}
        )

    def index(self, config: Config) -> int | None:
        """Return the number of the point with exactly these values, or None."""
        if len(config) != len(self.names):
            return None
        code = []
        for name, codes in zip(self.names, self._value_codes, strict=True):
            if name not in config or config[name] not in codes:
                return None
            code.append(codes[config[name]])
        numbers = self.find(np.array([code]))
        return int(numbers[0]) if numbers[0] >= 0 else None

    def find(self, codes: NDArray[np.integer]) -> Numbers:
        """Return the number of the point for each row of codes, −1 for rows without a point."""
        if not len(self) or not len(codes):
            return np.full(len(codes), -1, np.int64)
        keys = codes.astype(np.int64) @ self._weights
        sorted_keys, order = self._sorted
        at = np.minimum(np.searchsorted(sorted_keys, keys), len(self) - 1)
        numbers = order[at]
        # Weights of a huge space are random, so different codes can have equal keys.
        right = (self.codes[numbers] == codes).all(axis=1)
        return np.where(right, numbers, -1)

    def adopt(self, codes: NDArray[np.integer]) -> Numbers:
        """Return the number of the point for each row of codes, −1 for illegal rows. In a space
        with a `check`, legal rows without a point become points."""
        numbers = self.find(codes)
        if self._space is None or (numbers >= 0).all():
            return numbers
        unknown = _distinct(codes[numbers < 0])
        legal = _legal(self._space, self.values, unknown)
        if not len(legal):
            return numbers
        self.codes = np.concatenate([self.codes, legal.astype(self.codes.dtype)])
        del self._sorted
        return self.find(codes)

    @cached_property
    def ordered(self) -> NDArray[np.bool_]:
        """Whether the values of each parameter are numbers in ascending order, so that close ones
        are alike."""
        return np.array([_is_ordered(values) for values in self.values], bool)

    def neighbours(self, i: int) -> Numbers:
        """Return the points that differ from `i` in one parameter, ordered by parameter and
        value."""
        numbers = self.find(_one_changed(self.codes[i], [len(v) for v in self.values]))
        return numbers[numbers >= 0]

    @cached_property
    def _value_codes(self) -> list[dict[ConfigValue, int]]:
        return [{value: code for code, value in enumerate(v)} for v in self.values]

    @cached_property
    def _weights(self) -> Numbers:
        """Multipliers that map a row of codes to a key: mixed radix, or random if a mixed-radix key
        would not fit into 63 bits."""
        product = 1
        weights = []
        for dim in reversed([len(v) for v in self.values]):
            weights.append(product)
            product *= dim
        if product < 2**63:
            return np.array(weights[::-1], np.int64)
        return np.random.default_rng(0).integers(1, 2**62, len(self.values))

    @cached_property
    def _sorted(self) -> tuple[Numbers, Numbers]:
        keys = self.codes.astype(np.int64) @ self._weights
        order = np.argsort(keys, kind="stable")
        return keys[order], order


class UnionPoints(Points):
    """The points of several backends. Point i is point i // n of the i % n-th of n backends, so
    that numbers stay as they are when points are adopted."""

    def __init__(self, parts: Mapping[str, Points]) -> None:
        super().__init__((), (), np.zeros((0, 0), np.int16))
        self.parts = dict(parts)
        self._names = list(parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def number(self, backend: str, point: int) -> int:
        """Return the number of a backend's point."""
        return point * len(self._names) + self._names.index(backend)

    def part(self, number: int) -> tuple[str, int]:
        """Return the backend of a point, and its number there."""
        point, at = divmod(number, len(self._names))
        return self._names[at], point

    def config(self, i: int) -> Config:
        backend, point = self.part(i)
        return join_config(backend, self.parts[backend].config(point))

    def index(self, config: Config) -> int | None:
        backend, own = split_config(config)
        points = self.parts.get(backend)
        point = None if points is None else points.index(own)
        return None if point is None else self.number(backend, point)


def _legal_of_products(
    space: Space, values: Sequence[Sequence[ConfigValue]], codes: Codes
) -> Codes:
    """Return the legal rows of combinations of the space's products: all, if the space is exact.
    The rules of a GEMM take 20 µs a point, 200,000 times."""
    return codes if space.exact else _legal(space, values, codes)


def _every(space: Space, values: Sequence[Sequence[ConfigValue]]) -> Codes:
    """Return the codes of all combinations of the space's products, one product after another."""
    products = _product_codes(space, values)
    ends = np.cumsum([math.prod(map(len, codes)) for codes in products]).tolist()
    columns = np.empty((len(values), ends[-1]), np.int32)
    for codes, start, end in zip(products, [0, *ends], ends, strict=False):
        dims = tuple(map(len, codes))
        for at, own in enumerate(codes):
            column = columns[at, start:end].reshape(dims)
            column[...] = own.reshape([-1 if i == at else 1 for i in range(len(dims))])
    return columns.T


def _draw(
    space: Space, values: Sequence[Sequence[ConfigValue]], count: int, random: np.random.Generator
) -> Codes:
    """Return the codes of `count` random combinations, from products by their sizes. A GEMM on
    gfx942 has 309 products of a million combinations in all."""
    products = [codes for codes in _product_codes(space, values) if all(map(len, codes))]
    sizes = np.array([math.prod(map(len, codes)) for codes in products], np.float64)
    counts = random.multinomial(count, sizes / sizes.sum()).tolist() if products else []
    return np.concatenate(
        [
            np.stack([c[random.integers(0, len(c), some)] for c in codes], axis=1, dtype=np.int32)
            for codes, some in zip(products, counts, strict=True)
        ]
    )


def _product_codes(space: Space, values: Sequence[Sequence[ConfigValue]]) -> list[list[Numbers]]:
    """Return, for each product of the space, the codes of its values by parameter."""
    return [
        [
            np.array([at for at, value in enumerate(values_of) if value in listed], np.int32)
            # A set is fast to search: a list of solutions is one parameter of thousands of values.
            for values_of, listed in zip(values, map(set, product), strict=True)
        ]
        for product in space.products
    ]


def _legal(space: Space, values: Sequence[Sequence[ConfigValue]], codes: Codes) -> Codes:
    """Return the rows whose configuration the space neither forbids nor rejects by its check."""
    names = list(space.parameters)
    columns = [[v[c] for c in codes[:, p].tolist()] for p, v in enumerate(values)]
    forbids = space.forbids
    keep = [
        forbids(dict(zip(names, row, strict=True))) is None for row in zip(*columns, strict=True)
    ]
    legal: Codes = codes[np.array(keep, bool)]
    if space.check is None or not len(legal):
        return legal
    rows = [[v[c] for v, c in zip(values, row, strict=True)] for row in legal.tolist()]
    reasons = space.check([FrozenDict(zip(names, row, strict=True)) for row in rows])
    checked: Codes = legal[[not reason for reason in reasons]]
    return checked


def _walk(
    space: Space, values: Sequence[Sequence[ConfigValue]], count: int, random: np.random.Generator
) -> Codes:
    """Return `count` legal points: the default, the seeds, and copies of legal points with some
    parameters drawn anew. Of random combinations hardly any is legal."""
    kept = _legal(space, values, _starts(space, values))[:count]
    for _ in range(2 * TRIES):
        if len(kept) >= count:
            break
        drawn = _draw(space, values, count, random)
        if len(kept):
            parents = kept[random.integers(0, len(kept), len(drawn))]
            drawn = np.where(random.random(drawn.shape) < _DRAWN_ANEW, drawn, parents)
        kept = _distinct(np.concatenate([kept, _legal(space, values, _distinct(drawn))]))
    return kept[:count]


def _starts(space: Space, values: Sequence[Sequence[ConfigValue]]) -> Codes:
    """Return the default and the seeds; a value that the space lacks is replaced by its first."""
    rows = [
        [
            legal.index(config[name]) if config.get(name) in legal else 0
            for name, legal in zip(space.parameters, values, strict=True)
        ]
        for config in (space.default, *space.seeds)
    ]
    return _distinct(np.array(rows, np.int64).reshape(len(rows), len(values)))


def _is_ordered(values: Sequence[ConfigValue]) -> bool:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == len(values) and numbers == sorted(numbers)


def _distinct(codes: Codes) -> Codes:
    """Return each row once, in the order of first occurrence."""
    keys = _keys(codes)
    axis = 0 if keys is None else None
    _, first = np.unique(codes if keys is None else keys, axis=axis, return_index=True)
    rows: Codes = codes[np.sort(first)]
    return rows


def _sorted_rows(codes: Codes) -> Codes:
    keys = _keys(codes)
    rows: Codes = codes[np.lexsort(codes.T[::-1]) if keys is None else np.argsort(keys)]
    return rows


def _keys(codes: Codes) -> Numbers | None:
    """Return a number for each row, in their lexicographic order; None if they exceed 63 bits. To
    sort rows takes a hundred times as long."""
    if not len(codes):
        return None
    dims = [int(most) + 1 for most in codes.max(axis=0)]
    if math.prod(dims) >= 2**63:
        return None
    keys = np.zeros(len(codes), np.int64)
    for column, dim in zip(codes.T, dims, strict=True):
        keys = keys * dim + column
    return keys


def _always_kept(space: Space, values: Sequence[Sequence[ConfigValue]]) -> Codes:
    """Return the codes of the default, of its neighbours and of the seeds, without configs that
    have values outside the space."""
    rows = []
    for config in (space.default, *space.seeds):
        pairs = list(zip(space.parameters, values, strict=True))
        if all(name in config and config[name] in legal for name, legal in pairs):
            rows.append([legal.index(config[name]) for name, legal in pairs])
    codes = np.array(rows, np.int64).reshape(len(rows), len(values))
    if not rows or not space.default:
        return codes
    return np.concatenate([codes, _one_changed(codes[0], [len(v) for v in values])])


def _one_changed(row: Codes, dims: Sequence[int]) -> Codes:
    """Return all rows that differ from `row` in one column."""
    changed = [np.zeros((0, len(dims)), np.int64)]
    for p, dim in enumerate(dims):
        codes = np.delete(np.arange(dim), int(row[p]))
        rows = np.repeat(row[None].astype(np.int64), len(codes), axis=0)
        rows[:, p] = codes
        changed.append(rows)
    return np.concatenate(changed)


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
        default, the best by a prior)."""

    def choose(self, pending: Sequence[int]) -> int:
        """Return which of some proposed points to time next: the one that was proposed first,
        unless the times reported since say otherwise."""
        return pending[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """`pool` candidates are proposed and compiled before they are timed; more are proposed when
    `refill` are left. After each result the next one to time is chosen anew, but not among the last
    `lag` proposed ones, which are still being compiled: on an H200, a search that waited for its
    newest candidate each time made 129 evaluations a minute."""

    pool: int = 6
    refill: int = 5
    lag: int = 4


ONE_AT_A_TIME = Pipeline(pool=1, refill=0, lag=0)


class Proposals:
    """The candidates of a search in the order in which a pipeline times them, `limit` in all."""

    def __init__(self, search: Search, pipeline: Pipeline, limit: int) -> None:
        self.waiting: list[int] = []
        self._search = search
        self._pipeline = pipeline
        self._left = limit

    def next(self) -> int | None:
        """Return the next point to time, None if none is left; times must be reported before."""
        room = self._pipeline.pool - len(self.waiting)
        if len(self.waiting) <= self._pipeline.refill and self._left:
            more = self._search.ask(min(room, self._left))
            self._left -= len(more)
            self.waiting += more
        if not self.waiting:
            return None
        compiled = self.waiting[: max(1, len(self.waiting) - self._pipeline.lag)]
        point = self._search.choose(compiled) if len(compiled) > 1 else compiled[0]
        self.waiting.remove(point)
        return point


class Strategy(ABC):
    """A search algorithm over points and times, independent of problem and backend."""

    name: str
    summary: str  # one line for `kmark list strategies`

    def search(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        """Return a search of points, of one backend or of several."""
        if not isinstance(points, UnionPoints):
            return self.begin(points, budget=budget, seed=seed, starts=starts)

        def begin(own: Points, own_starts: list[int]) -> Search:
            return self.begin(own, budget=budget, seed=seed, starts=own_starts)

        return UnionSearch(points, begin, starts)

    @abstractmethod
    def begin(
        self, points: Points, *, budget: int, seed: int, starts: Sequence[int] = ()
    ) -> Search:
        """Return a search planned for `budget` points. It proposes `starts` first, in order: the
        default, then the best by a prior."""


class Evaluated:
    """The proposed points, and their reported times. A failed point has an infinite time."""

    def __init__(self, count: int, starts: Iterable[int] = ()) -> None:
        self.seen: NDArray[np.bool_] = np.zeros(count, bool)
        self.left = count
        self.seconds: dict[int, float] = {}
        self._starts = iter(starts)

    def grow(self, count: int) -> None:
        """Add the points that were adopted since."""
        more = count - len(self.seen)
        self.seen = np.concatenate([self.seen, np.zeros(more, bool)])
        self.left += more

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


# Of 1 − share of the optimum that our search has reached after n evaluations, times n: 3 on the
# recorded spaces (benchmarks/results/search.json: .70 after 10, .88 after 25, .97 after 100).
TO_COME = 3.0
LEAST_TRIED = 6  # evaluations of each backend before one is judged by its times


class UnionSearch(Search):
    """A search for each backend. The next evaluation is for the one that may reach the shortest
    time: its best one so far, less what a search is expected to gain from here on."""

    def __init__(
        self,
        points: UnionPoints,
        begin: Callable[[Points, list[int]], Search],
        starts: Sequence[int],
    ) -> None:
        self._points = points
        own: dict[str, list[int]] = {name: [] for name in points.parts}
        for number in starts:
            backend, point = points.part(number)
            own[backend].append(point)
        self._searches = {name: begin(points.parts[name], own[name]) for name in points.parts}
        self._best = dict.fromkeys(points.parts, math.inf)
        self._asked = dict.fromkeys(points.parts, 0)

    def ask(self, n: int) -> list[int]:
        chosen: list[int] = []
        open_searches = dict(self._searches)
        while len(chosen) < n and open_searches:
            name = min(open_searches, key=self._promise)
            if point := open_searches[name].ask(1):
                self._asked[name] += 1
                chosen.append(self._points.number(name, point[0]))
            else:
                del open_searches[name]
        return chosen

    def _promise(self, name: str) -> tuple[bool, float]:
        """Return the rank of a backend: first those that were hardly tried, least tried first."""
        asked, points = self._asked[name], len(self._points.parts[name])
        if asked < min(LEAST_TRIED, points):
            return False, float(asked)
        # Nothing succeeded, or not yet: as long as others take, but later and later.
        best = self._best[name] if self._best[name] < math.inf else min(self._best.values()) * asked
        gain = max(0.0, 1 - asked / points) * TO_COME / asked
        return True, best * (1 - min(gain, 0.5)) if best < math.inf else float(asked)

    def tell(self, point: int, seconds: float | None) -> None:
        name, own = self._points.part(point)
        self._searches[name].tell(own, seconds)
        if seconds is not None:
            self._best[name] = min(self._best[name], seconds)

    def choose(self, pending: Sequence[int]) -> int:
        name, _ = self._points.part(
            min(pending, key=lambda point: self._promise(self._points.part(point)[0]))
        )
        own = [point for backend, point in map(self._points.part, pending) if backend == name]
        return self._points.number(name, self._searches[name].choose(own))


class Queue(Search):
    """A search in a fixed order, independent of the reported times."""

    def __init__(self, order: Iterable[int], count: int) -> None:
        self._evaluated = Evaluated(count, order)

    def ask(self, n: int) -> list[int]:
        return list(self._evaluated.starts(n))

    def tell(self, point: int, seconds: float | None) -> None:
        self._evaluated.tell(point, seconds)
