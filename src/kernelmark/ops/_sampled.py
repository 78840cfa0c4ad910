"""Selection of the output positions to check, and sums of products at these positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernelmark.ops._error import POSITIONS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Limit of the input elements that a reference gathers: about 10 ns each.
GATHER = 2**20
_TILES = (16, 32, 64, 128, 256)
_CHUNK = 2**20
_PRODUCT = 2**22


def rng_for(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def axis(length: int, count: int, rng: np.random.Generator) -> Ints:
    """Return up to `count` coordinates: both ends, edges of outer tiles, random ones."""
    if length <= count:
        return np.arange(length, dtype=np.int64)
    if count == 1:
        return rng.integers(0, length, 1)
    edges = set()
    for tile in _TILES:
        last = (length - 1) // tile * tile
        edges |= {tile - 1, tile, last - 1, last}
    inner = np.array(sorted(e for e in edges if 0 < e < length - 1), dtype=np.int64)
    edge_count = min(len(inner), (count - 2 + 1) // 2)
    picked = np.unique(
        np.concatenate([[0, length - 1], rng.choice(inner, edge_count, replace=False)])
    )
    while len(picked) < count:
        more = rng.integers(0, length, count - len(picked))
        picked = np.unique(np.concatenate([picked, more]))
    return picked.astype(np.int64)


def sides(rows: int, cols: int, terms: int, groups: int) -> tuple[int, int]:
    """Return the number of rows and columns of an output to check in each of `groups` groups. What
    a short side does not use goes to the other; at least a corner of 4 × 4 is checked."""
    positions = POSITIONS // groups
    lines = max(8, GATHER // (groups * terms))
    row_count = min(rows, math.isqrt(positions), max(4, lines // 2))
    col_count = min(cols, positions // row_count, max(4, lines - row_count))
    row_count = min(rows, positions // col_count, max(4, lines - col_count))
    return row_count, col_count


def grid(shape: tuple[int, ...], axes: tuple[Ints, ...]) -> Ints:
    """Return the flat positions of every combination of coordinates, sorted."""
    flat = np.zeros((), dtype=np.int64)
    for size, coordinates in zip(shape, axes, strict=True):
        flat = flat[..., None] * size + coordinates
    return np.unique(flat)


def contract(
    where: tuple[Ints, Ints, Ints],
    terms: int,
    left: Callable[[int, Ints, Ints], Floats],
    right: Callable[[int, Ints, Ints], Floats],
) -> tuple[Floats, Floats]:
    """Return Σ_t left·right and Σ_t |left·right| at positions `where` = (group, row, column).

    `left(group, rows, t)` and `right(group, columns, t)` return elements for arrays that broadcast.
    Rows and columns shared by several positions are gathered once.
    """
    group, row, col = where
    value, magnitude = np.empty(len(row)), np.empty(len(row))
    pending = [np.flatnonzero(group == g) for g in np.unique(group)]
    while pending:
        chosen = pending.pop()
        rows, row_index = np.unique(row[chosen], return_inverse=True)
        cols, col_index = np.unique(col[chosen], return_inverse=True)
        if len(rows) * len(cols) > _PRODUCT:
            pending += np.array_split(chosen, 2)
            continue
        total = np.zeros((len(rows), len(cols)))
        size = np.zeros_like(total)
        step = max(1, _CHUNK // (len(rows) + len(cols)))
        for start in range(0, terms, step):
            t = np.arange(start, min(start + step, terms), dtype=np.int64)
            a = left(int(group[chosen[0]]), rows[:, None], t[None, :])
            b = right(int(group[chosen[0]]), cols[None, :], t[:, None])
            total += a @ b
            size += np.abs(a) @ np.abs(b)
        value[chosen] = total[row_index, col_index]
        magnitude[chosen] = size[row_index, col_index]
    return value, magnitude
