"""Select problems: a stratified sample, or those whose key matches a regular expression."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from kernelmark.core.errors import UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.text import found_in
from kernelmark.ops import registry

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
    found = found_in(regex, [problem.key for problem in problems], hint=hint)
    return [problem for problem, fits in zip(problems, found, strict=True) if fits]


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
    shares = [1 if place < limit else 0 for place in range(len(sizes))]
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
