"""Features: where the points of a space lie, for a model that knows distances only.

A parameter gives its place in the list of its values: authors list values so that neighbours are
alike, whatever the unit. Integers that are not all powers of two also give how often two divides
them: a block of 96 behaves like 32 and 64 in what hardware does in groups, and unlike 80. A few
names without order are all equally far from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.result import ConfigValue
from kernelmark.tune.points import Points

UNORDERED = 8  # longer lists of names are solutions of a library, where neighbours are alike
DIVISIONS = 6  # beyond 64 nothing on a GPU comes in groups

Columns = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Features:
    """`table[i]` is where point i lies, each column in 0…1; columns with the same number in
    `groups` are one property and share a length scale."""

    table: Columns
    groups: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many properties there are."""
        return int(self.groups.max()) + 1 if len(self.groups) else 0


def features(points: Points) -> Features:
    """The features of every point."""
    columns: list[Columns] = []
    groups: list[int] = []
    group = 0
    for parameter, values in enumerate(points.values):
        codes = points.codes[:, parameter]
        for property_ in _properties(values):
            columns.append(property_.astype(np.float32)[codes])
            groups += [group] * property_.shape[1]
            group += 1
    empty = np.zeros((len(points), 0), np.float32)
    return Features(np.concatenate([empty, *columns], axis=1), np.array(groups, np.int64))


def _properties(values: Sequence[ConfigValue]) -> list[NDArray[np.float64]]:
    """A column of numbers for each property of a value; several columns for an unordered one."""
    count = len(values)
    if count < 2:
        return []
    if 2 < count <= UNORDERED and any(isinstance(v, str) for v in values):
        return [np.eye(count) / np.sqrt(2)]
    made = [np.linspace(0, 1, count)[:, None]]
    whole = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    if len(whole) == count and any(v & (v - 1) for v in whole):
        twos = np.array([min(DIVISIONS, (v & -v).bit_length() - 1) for v in whole], float)
        if twos.any():
            made.append(twos[:, None] / twos.max())
    return made
