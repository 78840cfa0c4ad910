"""Choose problems: axes, filters, limits."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelmark.core.errors import UsageError
from kernelmark.core.problem import Problem, parse_value
from kernelmark.core.text import found_in
from kernelmark.ops import registry
from kernelmark.ops.base import Op, Parameter

# log2 of the FLOP range of a stratum: a factor of 8, twice the size in each of three dims.
_STRATUM_LOG2 = 3.0


def sample(problems: Sequence[Problem], limit: int, seed: int = 1) -> list[Problem]:
    """Return at most `limit` problems, in order, distributed over strata of op, dtypes and size.

    Every stratum is represented if the limit allows it; otherwise the ops take turns, each with its
    largest strata first. The choice within a stratum depends only on the seed and the problem, so
    that adding or removing other problems does not change it.
    """
    if limit < 1:
        raise UsageError(
            f"a limit of {limit} leaves nothing to measure", hint="use --limit 1 or more"
        )
    if limit >= len(problems):
        return list(problems)
    strata: dict[tuple[object, ...], list[int]] = {}
    for index, problem in enumerate(problems):
        strata.setdefault(stratum(problem), []).append(index)
    ranks = [_rank(problem, seed) for problem in problems]
    groups = _in_turns(strata)
    chosen: list[int] = []
    for members, share in zip(groups, _shares([len(g) for g in groups], limit), strict=True):
        chosen += sorted(members, key=ranks.__getitem__)[:share]
    return [problems[index] for index in sorted(chosen)]


def matching(problems: Sequence[Problem], regex: str) -> list[Problem]:
    """Return the problems whose key contains a match of the regular expression."""
    hint = "it is searched for in keys such as 'gemm m=512 n=512 k=512 a=f32 …'"
    matched = found_in(regex, [problem.key for problem in problems], hint=hint)
    return [problem for problem, fits in zip(problems, matched, strict=True) if fits]


def stratum(problem: Problem) -> tuple[object, ...]:
    """Return the stratum of a problem: op, dtypes and order of magnitude of its FLOPs."""
    flops = registry.get(problem.op).flops(problem)
    size = math.floor(math.log2(max(1, flops)) / _STRATUM_LOG2)
    return (problem.op, *problem.dtypes.values(), size)


def _in_turns(strata: Mapping[tuple[object, ...], list[int]]) -> list[list[int]]:
    turns: Counter[object] = Counter()
    order: list[tuple[int, list[int]]] = []
    for key, members in sorted(strata.items(), key=lambda item: (-len(item[1]), item[1][0])):
        order.append((turns[key[0]], members))
        turns[key[0]] += 1
    return [members for _, members in sorted(order, key=lambda item: item[0])]


def _rank(problem: Problem, seed: int) -> bytes:
    # A hash, not a shuffle: equal on every machine and independent of other problems.
    return hashlib.blake2b(f"{seed} {problem.key}".encode(), digest_size=16).digest()


def _shares(sizes: Sequence[int], limit: int) -> list[int]:
    """Return how many problems to take from each stratum: one each as far as the limit allows, then
    in proportion to the remaining sizes."""
    shares = [1 if rank < limit else 0 for rank in range(len(sizes))]
    rest = limit - sum(shares)
    left = [size - 1 for size in sizes]
    total = sum(left)
    if rest <= 0 or total <= 0:
        return shares
    extra = [rest * count // total for count in left]
    order = sorted(range(len(sizes)), key=lambda i: (-(rest * left[i] % total), i))
    for i in order[: rest - sum(extra)]:
        extra[i] += 1
    return [share + more for share, more in zip(shares, extra, strict=True)]


MAX_PROBLEMS = 1_000_000
EXAMPLES = "write m=512, m=[1,2,4], m=[1:16], m=[0:100:10] or m=[1024:8192:*2]"

_QUOTED = 80  # characters of an axis that are quoted in errors
_LONGEST = 100  # characters of a value
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*\Z")
_RANGE = re.compile(r"(-?[0-9]{1,30}):(-?[0-9]{1,30})(?::([*+]?)(-?[0-9]{1,30}))?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemAxis:
    """One parameter of an op with its values, in order."""

    name: str
    values: tuple[Parameter, ...]

    @property
    def text(self) -> str:
        """The axis as text: `parse(axis.text) == axis`."""
        values = ",".join(_text(v) for v in self.values)
        return f"{self.name}={values}" if len(self.values) == 1 else f"{self.name}=[{values}]"


def parse(text: str) -> ProblemAxis:
    """Parse an axis, such as `m=[1,2,4]`."""
    name, equals, values = text.strip().partition("=")
    if not equals:
        raise UsageError(f"axis {text!r} is not name=values", hint=EXAMPLES)
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is not a name (a-z, 0-9, _)", hint=EXAMPLES)
    return ProblemAxis(name=name, values=parse_values(values, text))


def parse_values(text: str, where: str) -> tuple[Parameter, ...]:
    """Parse the values of an axis, without its name; errors quote `where`."""
    text = text.strip()
    where = where if len(where) <= _QUOTED else where[:_QUOTED] + "…"
    opened, closed = text.startswith("["), text.endswith("]")
    if opened != closed:
        raise UsageError(f"axis {where!r} has a bracket that does not close", hint=EXAMPLES)
    inner = text[1:-1] if opened else text
    if opened and ":" in inner and "," not in inner:
        return _range(inner.strip(), where)
    return tuple(_scalar(item.strip(), where) for item in inner.split(","))


def expand(op: str | Op, axes: Sequence[str], dtypes: Sequence[str] = ()) -> list[Problem]:
    """Return the valid problems of the product of axes: the last varies fastest, dtype slowest."""
    parsed = [parse(text) for text in axes]
    if dtypes:
        if any(axis.name == "dtype" for axis in parsed):
            raise UsageError(
                "the dtype is given twice, as an axis and as an option",
                hint="keep one of -a dtype=… and --dtype …",
            )
        parsed.insert(0, ProblemAxis(name="dtype", values=tuple(dtypes)))
    the_op = registry.get(op) if isinstance(op, str) else op
    problems = (the_op.problem(**parameters) for parameters in product(parsed))
    return list(dict.fromkeys(problems))


def product(axes: Sequence[ProblemAxis]) -> Iterator[dict[str, Parameter]]:
    """Yield every combination in order; raise UsageError before the first if they are too many."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"axis {name!r} is given twice", hint=f"put the values in one list: {name}=[1,2]"
            )
    check_count(math.prod(len(axis.values) for axis in axes), " × ".join(names))
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip(names, values, strict=True))


def check_count(count: int, what: str) -> None:
    """Raise UsageError for more problems than a run could finish."""
    if count > MAX_PROBLEMS:
        raise UsageError(
            f"{what} makes {count:,} problems, more than {MAX_PROBLEMS:,}",
            hint="use fewer values, or larger steps such as m=[1024:8192:*2]",
        )


def _range(text: str, where: str) -> tuple[int, ...]:
    match = _RANGE.match(text)
    if not match:
        raise UsageError(
            f"axis {where!r} is not a range of integers first:last,"
            " first:last:step or first:last:*factor",
            hint=EXAMPLES,
        )
    first, last = int(match[1]), int(match[2])
    sign, step = match[3] or "", int(match[4] or 1)
    if first > last:
        raise UsageError(f"axis {where!r} ends before it begins", hint=EXAMPLES)
    if sign == "*":
        return _geometric(first, last, step, where)
    _check_least("step", step, 1, where)
    check_count((last - first) // step + 1, f"axis {where!r}")
    return tuple(range(first, last + 1, step))


def _geometric(first: int, last: int, factor: int, where: str) -> tuple[int, ...]:
    _check_least("first value", first, 1, where)
    _check_least("factor", factor, 2, where)
    values = [first]
    while values[-1] * factor <= last:
        values.append(values[-1] * factor)
    return tuple(values)


def _check_least(name: str, value: int, least: int, where: str) -> None:
    if value < least:
        raise UsageError(f"axis {where!r} needs a {name} of at least {least}", hint=EXAMPLES)


def _scalar(text: str, where: str) -> Parameter:
    if not text:
        raise UsageError(f"axis {where!r} has an empty value", hint=EXAMPLES)
    if len(text) > _LONGEST:
        raise UsageError(
            f"axis {where!r} has a value of more than {_LONGEST} characters", hint=EXAMPLES
        )
    value = parse_value(text)
    finite = not isinstance(value, float) or math.isfinite(value)
    if not finite or (isinstance(value, str) and not _WORD.match(value)):
        raise UsageError(
            f"axis {where!r}: {text!r} is not a finite number or a word", hint=EXAMPLES
        )
    return value


def _text(value: Parameter) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return repr(value) if isinstance(value, float) else str(value)
