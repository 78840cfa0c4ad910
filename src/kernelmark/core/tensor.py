"""TensorSpec: one argument of an op, dense and row-major in the order of its shape."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kernelmark.core.dtype import DType, dtype

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Role = Literal["in", "out"]


class ValuesOnDevice(ABC):
    """Flat bit patterns in the memory of the GPU that measures, which nothing writes to."""

    size: int  # elements

    @property
    @abstractmethod
    def address(self) -> int: ...

    @abstractmethod
    def download(self) -> NDArray[np.generic]:
        """Return a copy in host memory."""


@dataclass(frozen=True, slots=True, eq=False)
class GivenValues:
    """An input's values as the user gave them, as flat bit patterns of a format of whole bytes.

    With `rotates`, each rewrite of the input starts at another element and continues at the first
    one after the last: other values at every position, of the same distribution. It starts at a
    multiple of `row` elements, so that values that belong together stay so.
    """

    source: NDArray[np.generic] | ValuesOnDevice
    rotates: bool = True
    row: int = 1

    @property
    def count(self) -> int:
        return self.source.size

    @property
    def on_device(self) -> ValuesOnDevice | None:
        """The values if they are in a GPU's memory."""
        return self.source if isinstance(self.source, ValuesOnDevice) else None

    @property
    def bits(self) -> NDArray[np.generic]:
        """The values in host memory."""
        return self.source.download() if isinstance(self.source, ValuesOnDevice) else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, shape, dtype and role of an argument; transposes are already in the shape.

    `low` and `high` bound the uniform distribution its elements are drawn from, unless its values
    are `given`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role = "in"
    low: float = -1.0
    high: float = 1.0
    given: GivenValues | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(self.count)

    @property
    def type(self) -> DType:
        return dtype(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far from the float64 reference an output may be, at one position:

    `per_magnitude` × (the reference's sum of absolute terms) + `per_value` × |reference|
    + `absolute`. `why` says how the factors were derived.
    """

    per_magnitude: float
    per_value: float
    absolute: float
    why: str
