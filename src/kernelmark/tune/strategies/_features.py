"""Features: coordinates of the points of a space, for a model that uses distances only.

The first feature of a parameter is the index of its value in the list: authors list values so that
neighbours are similar, whatever the unit. Integers that are not all powers of two have a second
feature: log₂ of the largest power of two that divides the value, over log₂ of the value. Hardware
works in groups of 2ⁿ, so 128 can be more similar to 64 and 256 than to 112 and 144, with 96 in
between. A few unordered names are one-hot encoded, so all pairs have the same distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.result import ConfigValue
from kernelmark.tune.points import Points

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
    """Return for each property the columns over `values`, and its expected length scale."""
    count = len(values)
    if count < 2:
        return []
    if 2 < count <= UNORDERED and any(isinstance(v, str) for v in values):
        return [(np.eye(count) / math.sqrt(2), 1.0)]
    made = [(np.linspace(0, 1, count)[:, None], 1.0)]
    whole = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    if len(whole) == count and any(v & (v - 1) for v in whole) and any(v % 2 == 0 for v in whole):
        fractions = np.array([_fraction_of_twos(v) for v in whole])
        made.append((fractions[:, None], 1.0 if max(whole) >= GROUP else DOUBTFUL))
    return made


def _fraction_of_twos(value: int) -> float:
    return math.log2(value & -value) / math.log2(value) if value > 1 else 1.0
