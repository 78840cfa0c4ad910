"""TensorSpec: one argument of an op, dense and row-major in the order of its shape."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
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
