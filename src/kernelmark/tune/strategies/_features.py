"""Features: where the points of a space lie, for a model that knows distances only.

A parameter gives its place in the list of its values: authors list values so that neighbours are
alike, whatever the unit. Integers that are not all powers of two also give how much of them is
one: log₂ of the largest power of two that divides them, over log₂ of the value. Hardware works in
groups of 2ⁿ and sizes are multiples of 2ⁿ, so 128 can be more like 64 and 256 than like 112 and
144, and 96 is between. A few names without order are all equally far from each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.result import ConfigValue
from kernelmark.tune.points import Points

UNORDERED = 8  # longer lists of names are solutions of a library, where neighbours are alike
GROUP = 16  # values from here on count threads or elements that hardware takes in groups
DOUBTFUL = 3.0  # how much farther the likeness by powers of two of smaller values is expected to be

Columns = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Features:
    """`table[i]` is where point i lies, each column in 0…1; columns with the same number in
    `groups` are one property and share a length scale, which is expected near `lengths[group]`."""

    table: Columns
    groups: NDArray[np.int64]
    lengths: NDArray[np.float64]

    @property
    def count(self) -> int:
        """How many properties there are."""
        return len(self.lengths)


def features(points: Points) -> Features:
    """Return the features of every point."""
    columns: list[Columns] = [np.zeros((len(points), 0), np.float32)]
    groups: list[int] = []
    lengths: list[float] = []
    for parameter, values in enumerate(points.values):
        codes = points.codes[:, parameter]
        for column, length in _properties(values):
            columns.append(column.astype(np.float32)[codes])
            groups += [len(lengths)] * column.shape[1]
            lengths.append(length)
    return Features(
        table=np.concatenate(columns, axis=1),
        groups=np.array(groups, np.int64),
        lengths=np.array(lengths, float),
    )


def _properties(values: Sequence[ConfigValue]) -> list[tuple[NDArray[np.float64], float]]:
    """For each property of a value its number, or numbers if unordered, and its length."""
    count = len(values)
    if count < 2:
        return []
    if 2 < count <= UNORDERED and any(isinstance(v, str) for v in values):
        return [(np.eye(count) / math.sqrt(2), 1.0)]
    made = [(np.linspace(0, 1, count)[:, None], 1.0)]
    whole = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    if len(whole) == count and any(v & (v - 1) for v in whole) and any(v % 2 == 0 for v in whole):
        shares = np.array([_share_of_twos(v) for v in whole])
        made.append((shares[:, None], 1.0 if max(whole) >= GROUP else DOUBTFUL))
    return made


def _share_of_twos(value: int) -> float:
    return math.log2(value & -value) / math.log2(value) if value > 1 else 1.0
