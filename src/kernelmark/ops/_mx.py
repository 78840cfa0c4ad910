"""Shared code of ops with MX operands: 4- and 8-bit floats with one e8m0 scale per 32 along k."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.tensor import TensorSpec
from kernelmark.numerics.generate import Inputs
from kernelmark.numerics.mxfp4 import GROUP
from kernelmark.ops._types import input_spec

Ints = NDArray[np.int64]
Element = Callable[[int, Ints, Ints], NDArray[np.float64]]
ScaleIndex = Callable[[int, Ints, Ints], Ints]

# Scales that differ by powers of two make terms differ more in size: the ratio of their root mean
# square to their mean magnitude is up to √2 times that of terms with one scale.
SPREAD = math.sqrt(2)


def operand_spec(name: str, shape: tuple[int, ...], dtype_name: str) -> TensorSpec:
    """Return an input; f4e2m1 is drawn from [-6, 6], as [-1, 1] has 5 of its 15 values."""
    if dtype_name != "f4e2m1":
        return input_spec(name, shape, dtype_name)
    return TensorSpec(name=name, shape=shape, dtype=dtype_name, low=-6.0, high=6.0)


def scale_spec(name: str, shape: tuple[int, ...], top: float = 1.0) -> TensorSpec:
    """Return scales that are powers of two from top/8 to top, as in other tests of such kernels."""
    return TensorSpec(name=name, shape=shape, dtype="f8e8m0", low=top / 8, high=top)


def scaled(element: Element, inputs: Inputs, name: str, scale_index: ScaleIndex) -> Element:
    """Return elements times the scales `name`; `scale_index` locates a group's scale."""

    def found(item: int, lines: Ints, t: Ints) -> NDArray[np.float64]:
        return element(item, lines, t) * inputs.take(name, scale_index(item, lines, t // GROUP))

    return found


def summed_like(dtype_name: str) -> str:
    """Return the dtype whose accumulation error is assumed: that of 8-bit floats for f4e2m1."""
    return "f8e4m3" if dtype_name == "f4e2m1" else dtype_name
