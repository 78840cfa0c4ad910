"""Tensor layout as the GPU helper kernels see it: packed elements, widths, guards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import GUARD_BYTES, Tensor
from kernelmark.numerics.floats import storage
from kernelmark.numerics.generate import POOL, offset


def units(spec: TensorSpec) -> int:
    """Return the count that kernels use: elements, or bytes of a format packed two to a byte."""
    return spec.nbytes if spec.type.bits < 8 else spec.count


def width(spec: TensorSpec) -> int:
    """Return the bytes of one unit."""
    return storage(spec.dtype).itemsize


def elements(spec: TensorSpec, count: int) -> int:
    """Return the elements in so many units."""
    return min(2 * count, spec.count) if spec.type.bits < 8 else count


def first_unit(spec: TensorSpec, seed: int, set_index: int) -> int:
    """Return where in the device's pool a tensor begins."""
    start = offset(spec, seed, set_index)
    return _pair_index(start) if spec.type.bits < 8 else start


def pairs(codes: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the pool of a 4-bit format packed two elements per byte, the first in the low half.
    The pool's length is odd, so two rounds of it end on a whole byte: the same number of bytes."""
    twice = np.concatenate([codes, codes]).astype(np.uint8)
    return twice[0::2] | (twice[1::2] << np.uint8(4))


def _pair_index(start: int) -> int:
    """Return where in `pairs` the element `start` of the pool is the low half of a byte."""
    return (start if start % 2 == 0 else start + POOL) // 2


def guards(tensor: Tensor) -> list[tuple[int, int]]:
    """Return address and bytes of the guards around an output inside its buffer."""
    start, end = tensor.address, tensor.address + tensor.spec.nbytes
    first = max(tensor.buffer.address, start - GUARD_BYTES)
    last = min(tensor.buffer.address + tensor.buffer.nbytes, end + GUARD_BYTES)
    return [(first, start - first), (end, last - end)]
