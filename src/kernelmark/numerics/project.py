"""Random projections of a contraction with NumPy, and the result type for every device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from kernelmark.core.tensor import Axis, Contraction, Step, Vector
from kernelmark.numerics.floats import Bits, decode

Floats = NDArray[np.float64]
_Any = TypeVar("_Any", bound=np.generic)

# Elements decoded at a time: few enough that their float64 values stay in a core's cache.
_CHUNK = 2**16
# Below this many columns NumPy is faster along rows.
_FEW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Both sides of out · signs = left · (right · signs) + added · signs. Each row has two values:
    the sum, and the sum of squares."""

    output: Floats
    inputs: Floats

    @property
    def got(self) -> Floats:
        return self.output[:, 0]

    @property
    def expected(self) -> Floats:
        return self.inputs[:, 0]

    @property
    def out_norm(self) -> Floats:
        """The norm of each row of the output."""
        return np.asarray(np.sqrt(self.output[:, 1]))

    @property
    def magnitude(self) -> Floats:
        """An upper bound of the norm, over a row's columns, of the sums of absolute terms."""
        return np.asarray(np.sqrt(self.inputs[:, 1]))


def project(
    contraction: Contraction, tensors: Mapping[str, tuple[Bits, str]], signs: Floats
) -> Projection:
    """Project tensors in host memory, each given as flat bit patterns and a dtype."""
    vectors: dict[Vector, Floats] = {
        "signs": np.stack([signs, np.ones_like(signs)], axis=1),
        "projected": np.zeros((contraction.projected, 2)),
        "expected": np.zeros((contraction.rows, 2)),
        "got": np.zeros((contraction.rows, 2)),
    }
    # A wrong kernel may write anything; the check handles non-finite values.
    with np.errstate(over="ignore", invalid="ignore"):
        for step in contraction.steps():
            bits, dtype_name = tensors[step.sum.tensor]
            _add(step, bits, dtype_name, vectors[step.weights], vectors[step.result])
    return Projection(output=vectors["got"], inputs=vectors["expected"])


def _add(step: Step, bits: Bits, dtype_name: str, weights: Floats, result: Floats) -> None:
    """Perform one step: add its sums and squares to `result`."""
    partial = step.sum
    groups = partial.rows[0].size if partial.group_weight else 1
    rows = [axis for axis in partial.rows if axis.size > 1] or [Axis(size=1)]
    sizes, steps = [axis.size for axis in rows], [axis.result for axis in rows]
    strides = [*(axis.stride for axis in rows), partial.col_stride]
    box = _view(bits, partial.start, [*sizes, partial.cols], strides)
    shape = [groups, partial.cols], [partial.group_weight, 1]
    plain, squared = (_view(weights[:, i], partial.weight_start, *shape) for i in (0, 1))
    total, square = (_view(result[:, i], partial.result_start, sizes, steps) for i in (0, 1))
    for chunk in _chunks(box):
        at, weight = chunk[:-1], (chunk[0] if groups > 1 else slice(1), chunk[-1])
        values = decode(box[chunk], dtype_name)
        total[at] += partial.factor * _dot(values, plain[weight])
        square[at] += step.square * _dot(np.square(values), squared[weight])


def _view(array: NDArray[_Any], start: int, sizes: list[int], steps: list[int]) -> NDArray[_Any]:
    """Return a strided view of a one-dimensional array."""
    width = array.strides[0]
    return as_strided(array[start:], sizes, [step * width for step in steps])


def _chunks(box: NDArray[np.generic]) -> Iterator[tuple[slice, ...]]:
    """Return slices of at most _CHUNK elements that cover a box, contiguous if possible."""
    ranges: list[list[slice]] = [[]] * box.ndim
    room = _CHUNK
    for axis in sorted(range(box.ndim), key=lambda axis: box.strides[axis]):
        size, step = box.shape[axis], min(box.shape[axis], room)
        ranges[axis] = [slice(i, min(i + step, size)) for i in range(0, size, step)]
        room //= step
    return itertools.product(*ranges)


def _dot(values: Floats, weights: Floats) -> Floats:
    """Return Σ_col values · weights, with one row of weights per first index or for all."""
    if len(weights) > 1:
        return np.asarray(np.einsum("g...c,gc->g...", values, weights))
    if values.ndim == 2:
        return np.asarray(values @ np.ascontiguousarray(weights[0]))
    if values.shape[-1] < _FEW:
        total = values[..., 0] * weights[0, 0]
        for col in range(1, values.shape[-1]):
            total += values[..., col] * weights[0, col]
        return np.asarray(total)
    return np.asarray(np.einsum("...c,c->...", values, weights[0]))
