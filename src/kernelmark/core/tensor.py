"""TensorSpec: one argument of an op, dense and row-major in the order of its shape; Contraction: an
op's output as sums of products, in a form that can be projected.

Let out = left · right + added, rows by columns. For a vector of signs r, out · r must equal
left · (right · r) + added · r: a check of the whole output that reads every tensor once and
multiplies no matrices (Freivalds' algorithm). It consists of weighted sums along the rows of
tensors in memory, described by sizes and strides; `numerics.project` computes them with NumPy,
`kernels/rtc/project.cu` on a GPU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kernelmark.core.dtype import DType, dtype

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Role = Literal["in", "out"]


class ValuesOnDevice(ABC):
    """Flat, read-only bit patterns in the memory of the measured GPU."""

    size: int  # elements

    @property
    @abstractmethod
    def address(self) -> int: ...

    @abstractmethod
    def download(self) -> NDArray[np.generic]:
        """Return a copy in host memory."""


@dataclass(frozen=True, slots=True, eq=False)
class GivenValues:
    """The values of an input that the user gave, as flat bit patterns of a format of whole bytes.

    With `rotates`, each rewrite of the input rotates the values by another offset: other values at
    every position, with the same distribution. Offsets are multiples of `row` elements, which keeps
    the values of a row together.
    """

    source: NDArray[np.generic] | ValuesOnDevice
    rotates: bool = True
    row: int = 1

    @property
    def count(self) -> int:
        return self.source.size

    @property
    def on_device(self) -> ValuesOnDevice | None:
        """The values, if they are in GPU memory; else None."""
        return self.source if isinstance(self.source, ValuesOnDevice) else None

    @property
    def bits(self) -> NDArray[np.generic]:
        """The values in host memory."""
        return self.source.download() if isinstance(self.source, ValuesOnDevice) else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, shape, dtype and role of an argument; the shape includes transposes.

    `low` and `high` bound the uniform distribution of its elements, unless values are `given`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role = "in"
    low: float = -1.0
    high: float = 1.0
    given: GivenValues | None = None
    # Computed once: the set-up of a block reads them for thousands of tensors.
    type: DType = field(init=False, repr=False, compare=False)
    count: int = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kind, count = dtype(self.dtype), math.prod(self.shape)
        object.__setattr__(self, "type", kind)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "nbytes", kind.nbytes(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The allowed error of an output element against the float64 reference:

    `per_magnitude` × (sum of the absolute terms of the reference) + `per_value` × |reference|
    + `absolute`. `why` describes how the factors were derived.
    """

    per_magnitude: float
    per_value: float
    absolute: float
    why: str


AXES = 4  # most row axes of a WeightedSum

Vector = Literal["signs", "projected", "expected", "got"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A row axis of a box of elements: its size, and its strides in the tensor and in the vector of
    results."""

    size: int
    stride: int = 0
    result: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedSum:
    """result[row] += factor · Σ_col weight[col] · element[row, col] over a box of a tensor.

    `rows` are up to AXES axes. The weights of a row are contiguous; `group_weight` is their stride
    along the first row axis. Offsets and strides count elements.
    """

    tensor: str
    rows: tuple[Axis, ...]
    cols: int
    col_stride: int
    group_weight: int = 0
    start: int = 0
    result_start: int = 0
    weight_start: int = 0
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One weighted sum with the vectors that it reads and adds to.

    The vectors hold pairs. The second number of a pair sums `square` · Σ_col weight · element²,
    with the second numbers of the weights, which are 1 for signs. Hence the second numbers of
    "projected" are squared norms of the rows of the right operand, those of "got" squared norms of
    output rows, and those of "expected" bound the squared norm, over the columns of a row, of the
    sums of absolute terms: (Σ_t |left_t| · ‖right_t‖)² ≤ terms · Σ_t left_t² · ‖right_t‖².
    """

    sum: WeightedSum
    weights: Vector
    result: Vector
    square: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """out[row, col] = Σ_term left[row, term] · right[term, col] + added[row, col].

    `shape` and `names` describe the index of a row, as in ("batch", "row"). `cols` is the number of
    outputs in a row, and of signs; `terms` that of products in the sums of a row, over all columns
    if these do not share them; `projected` that of elements of right · signs. `unit` is what a row
    is in the output: a row, a column, a pixel.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    cols: int
    terms: int
    projected: int
    right: tuple[WeightedSum, ...]
    left: tuple[WeightedSum, ...]
    added: tuple[WeightedSum, ...] = ()
    out: WeightedSum
    unit: str = "row"

    @property
    def rows(self) -> int:
        return math.prod(self.shape)

    def steps(self) -> Iterator[Step]:
        """Yield the weighted sums in an order in which they can be computed."""
        # (a + b + …)² ≤ parts · (a² + b² + …)
        parts = 1 + len(self.added)
        for item in self.right:
            yield Step(sum=item, weights="signs", result="projected")
        for entry in self.left:
            square = parts * self.terms * entry.factor**2
            yield Step(sum=entry, weights="projected", result="expected", square=square)
        for element in self.added:
            square = parts * element.factor**2
            yield Step(sum=element, weights="signs", result="expected", square=square)
        yield Step(sum=self.out, weights="signs", result="got")
