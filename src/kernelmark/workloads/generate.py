"""Generators: a geometric grid of sizes, and random problems with log-uniform sizes, by category.

Random problems depend only on a seed, so that a suite with a generator is a fixed list.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.reason import Reason, prefixed
from kernelmark.ops import registry
from kernelmark.ops.base import Op, Parameter
from kernelmark.workloads.select import check_count

Given = dict[str, Parameter]

# FLOP per byte: far below the ridge point of any present CPU or GPU.
MEMORY_BOUND_INTENSITY = 16.0
COMPUTE_BOUND_INTENSITY = 256.0
# "Skinny" has at least this many times more columns than rows, "tall" more rows than columns.
ASPECT = 16
_TRIES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The bounds of the sizes, and the multiple that sizes are rounded to."""

    low: int = 64
    high: int = 8192
    multiple: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise UsageError(
                f"generator: low={self.low} and high={self.high} are not 1 ≤ low ≤ high"
            )
        if self.multiple < 1:
            raise UsageError(_below("multiple", self.multiple, 1))


class Dice:
    """A seeded random generator with the same results on every machine and Python version."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, items: Sequence[int]) -> int:
        return items[int(self._random.random() * len(items))]

    def between(self, low: int, high: int) -> int:
        """Return a log-uniform integer, both ends included."""
        ratio = (high + 1) / low
        return min(high, int(low * ratio ** self._random.random()))

    def size(self, sizes: Sizes, low: int | None = None, high: int | None = None) -> int:
        """Return a log-uniform size, rounded to the multiple if that is within the bounds."""
        floor = max(sizes.low if low is None else low, 1)
        ceiling = max(sizes.high if high is None else high, floor)
        drawn = self.between(floor, ceiling)
        rounded = round(drawn / sizes.multiple) * sizes.multiple
        return rounded if floor <= rounded <= ceiling else drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """A category of problems: how to draw one, and a predicate for membership."""

    draw: Callable[[Dice, Sizes], Given]
    holds: Callable[[Op, Given], bool] = lambda op, given: True


def categories(op: str) -> dict[str, Category]:
    """Return the categories of an op; raise UsageError for an op without a generator."""
    if op not in _CATEGORIES:
        raise UsageError(
            f"no generator makes {op} problems", hint=f"generators know: {', '.join(_CATEGORIES)}"
        )
    return _CATEGORIES[op]


def draw(
    op: str,
    *,
    count: int,
    seed: int,
    names: Sequence[str] = (),
    sizes: Sizes | None = None,
    fixed: Mapping[str, Parameter] | None = None,
) -> list[Given]:
    """Return `count` distinct random problems, from the categories in turn (default: all).

    `fixed` parameters (a dtype, a transpose) are part of each problem.
    """
    if count < 1:
        raise UsageError(_below("count", count, 1))
    check_count(count, "the generator")
    chosen = _chosen(op, names)
    bounds, extra = sizes or Sizes(), dict(fixed or {})
    dice, the_op = Dice(seed), registry.get(op)
    drawn: dict[tuple[tuple[str, Parameter], ...], Given] = {}
    for name, category in itertools.islice(itertools.cycle(chosen.items()), count):
        tries = (category.draw(dice, bounds) | extra for _ in range(_TRIES))
        parameters = next(
            (g for g in tries if _key(g) not in drawn and category.holds(the_op, g)), None
        )
        if parameters is None:
            raise UsageError(
                "generator: no "
                + ("further " if len(drawn) else "")
                + f"{name} {op} problem was found between {bounds.low} and {bounds.high}"
                f" in {_TRIES} draws",
                hint="widen low and high, or lower the count",
            )
        drawn[_key(parameters)] = parameters
    return list(drawn.values())


def _key(parameters: Given) -> tuple[tuple[str, Parameter], ...]:
    return tuple(parameters.items())


def grid(
    op: str,
    *,
    factor: int = 2,
    names: Sequence[str] = (),
    sizes: Sizes | None = None,
    fixed: Mapping[str, Parameter] | None = None,
) -> list[Given]:
    """Return m × n × k over the sizes low, low·factor, … high; if categories are named, only their
    problems."""
    if op not in ("gemm", "batched_gemm"):
        raise UsageError(
            f"generator: a grid needs the dims m, n and k, which {op} does not have",
            hint="list the values of its axes instead, or use generator = 'random'",
        )
    if factor < 2:
        raise UsageError(_below("factor", factor, 2))
    bounds, extra = sizes or Sizes(), dict(fixed or {})
    if op == "batched_gemm":
        extra.setdefault("batch", 8)
    chosen = _chosen(op, names) if names else {}
    the_op = registry.get(op)
    ladder = [bounds.low]
    while ladder[-1] * factor <= bounds.high:
        ladder.append(ladder[-1] * factor)
    check_count(len(ladder) ** 3, "the grid")
    points: list[Given] = []
    for m, n, k in itertools.product(ladder, repeat=3):
        parameters: Given = {"m": m, "n": n, "k": k, **extra}
        if not chosen or any(c.holds(the_op, parameters) for c in chosen.values()):
            points.append(parameters)
    return points


def _below(name: str, value: int, least: int) -> Reason:
    return Reason(f"generator: {name}={value} is not at least {least}")


def _chosen(op: str, names: Sequence[str]) -> dict[str, Category]:
    known_categories = categories(op)
    for name in names:
        if name not in known_categories:
            raise UsageError(
                f"generator: {op} has no category {name!r}",
                hint=f"known: {', '.join(known_categories)}",
            )
    return {name: known_categories[name] for name in names} if names else known_categories


def _intensity(op: Op, parameters: Given) -> float:
    try:
        problem = op.problem(**parameters)
    except ProblemError as error:
        reason = prefixed(error.message, "generator: ")
        raise ProblemError(reason, hint=error.hint) from None
    return op.flops(problem) / op.bytes(problem)


def _free(dice: Dice, sizes: Sizes) -> Given:
    return {name: dice.size(sizes) for name in ("m", "n", "k")}


def _square(dice: Dice, sizes: Sizes) -> Given:
    side = dice.size(sizes)
    return {"m": side, "n": side, "k": side}


def _skinny(dice: Dice, sizes: Sizes) -> Given:
    n, k = dice.size(sizes), dice.size(sizes)
    return {"m": dice.between(1, max(1, min(n, k) // ASPECT)), "n": n, "k": k}


def _tall(dice: Dice, sizes: Sizes) -> Given:
    top = max(sizes.low, sizes.high // ASPECT)
    n, k = dice.size(sizes, high=top), dice.size(sizes, high=top)
    return {"m": dice.size(sizes, low=ASPECT * max(n, k)), "n": n, "k": k}


def _thin(dice: Dice, sizes: Sizes) -> Given:
    """Draw a GEMM with one small dim: no other GEMM is memory-bound."""
    parameters = _free(dice, sizes)
    thin = ("m", "n", "k")[dice.pick((0, 1, 2))]
    return parameters | {thin: dice.between(1, ASPECT)}


def _dims(parameters: Given, *names: str) -> list[int]:
    return [int(parameters[name]) for name in names]


def _is_square(op: Op, parameters: Given) -> bool:
    return len(set(_dims(parameters, "m", "n", "k"))) == 1


def _is_skinny(op: Op, parameters: Given) -> bool:
    m, n, k = _dims(parameters, "m", "n", "k")
    return ASPECT * m <= min(n, k)


def _is_tall(op: Op, parameters: Given) -> bool:
    m, n, k = _dims(parameters, "m", "n", "k")
    return m >= ASPECT * max(n, k)


def _is_memory_bound(op: Op, parameters: Given) -> bool:
    return _intensity(op, parameters) <= MEMORY_BOUND_INTENSITY


def _is_compute_bound(op: Op, parameters: Given) -> bool:
    return _intensity(op, parameters) >= COMPUTE_BOUND_INTENSITY


def _is_extend(op: Op, parameters: Given) -> bool:
    seq_q, seq_kv = _dims(parameters, "seq_q", "seq_kv")
    return 1 < seq_q < seq_kv


def _batched(category: Category) -> Category:
    def batched_draw(dice: Dice, sizes: Sizes) -> Given:
        return {"batch": dice.between(2, 64), **category.draw(dice, sizes)}

    return Category(draw=batched_draw, holds=category.holds)


def _attention(dice: Dice, batch: int, seq_q: int, seq_kv: int) -> Given:
    heads_kv = dice.pick((1, 2, 4, 8))
    return {
        "batch": batch,
        "heads_q": heads_kv * dice.pick((1, 4, 8)),
        "heads_kv": heads_kv,
        "seq_q": seq_q,
        "seq_kv": seq_kv,
        "dim": dice.pick((64, 128)),
        "causal": seq_q > 1,
    }


def _prefill(dice: Dice, sizes: Sizes) -> Given:
    length = dice.size(sizes)
    return _attention(dice, dice.pick((1, 2, 4)), length, length)


def _decode(dice: Dice, sizes: Sizes) -> Given:
    return _attention(dice, dice.between(1, 128), 1, dice.size(sizes))


def _extend(dice: Dice, sizes: Sizes) -> Given:
    context = dice.size(sizes, low=max(2, sizes.low))
    return _attention(dice, 1, dice.between(2, max(2, context - 1)), context)


def _conv(side: int, stride: int) -> Callable[[Dice, Sizes], Given]:
    def draw_conv(dice: Dice, sizes: Sizes) -> Given:
        image = dice.pick((7, 14, 28, 56, 112))
        return {
            "n": dice.between(1, 32),
            "c": dice.size(sizes),
            "h": image,
            "w": image,
            "k": dice.size(sizes),
            "r": side,
            "s": side,
            "stride": stride,
            "pad": side // 2,
        }

    return draw_conv


_GEMM: dict[str, Category] = {
    "square": Category(draw=_square, holds=_is_square),
    "skinny": Category(draw=_skinny, holds=_is_skinny),
    "tall": Category(draw=_tall, holds=_is_tall),
    "memory-bound": Category(draw=_thin, holds=_is_memory_bound),
    "compute-bound": Category(draw=_free, holds=_is_compute_bound),
}
_CATEGORIES: dict[str, dict[str, Category]] = {
    "gemm": _GEMM,
    "batched_gemm": {name: _batched(category) for name, category in _GEMM.items()},
    "attention": {
        "prefill": Category(draw=_prefill),
        "decode": Category(draw=_decode),
        "extend": Category(draw=_extend, holds=_is_extend),
    },
    "conv": {
        "pointwise": Category(draw=_conv(1, 1)),
        "spatial": Category(draw=_conv(3, 1)),
        "strided": Category(draw=_conv(3, 2)),
    },
}
