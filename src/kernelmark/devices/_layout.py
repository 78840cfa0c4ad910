"""Tensors as the small kernels of a GPU see them: units, widths, and what lies around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import GUARD_BYTES, Tensor
from kernelmark.numerics.floats import storage
from kernelmark.numerics.generate import POOL, offset


def units(spec: TensorSpec) -> int:
    """What the kernels count: elements, or bytes of a format that is packed two to a byte."""
    return spec.nbytes if spec.type.bits < 8 else spec.count


def width(spec: TensorSpec) -> int:
    """Bytes of a unit."""
    return storage(spec.dtype).itemsize


def elements(spec: TensorSpec, count: int) -> int:
    """Elements in so many units."""
    return min(2 * count, spec.count) if spec.type.bits < 8 else count


def first_unit(spec: TensorSpec, seed: int, set_index: int) -> int:
    """Where in the pool on the device a tensor begins."""
    start = offset(spec, seed, set_index)
    return _pair_index(start) if spec.type.bits < 8 else start


def pairs(codes: NDArray[np.generic]) -> NDArray[np.uint8]:
    """The pool of a 4-bit format two elements a byte, the first in the low half.

    The pool's length is odd, so twice round it ends on a whole byte: the same number of bytes."""
    twice = np.concatenate([codes, codes]).astype(np.uint8)
    return twice[0::2] | (twice[1::2] << np.uint8(4))


def _pair_index(start: int) -> int:
    """Where in `pairs` the element `start` of the pool is a byte's low half."""
    return (start if start % 2 == 0 else start + POOL) // 2


def guards(tensor: Tensor) -> list[tuple[int, int]]:
    """(address, bytes) of what lies around an output, inside its buffer."""
    start, end = tensor.address, tensor.address + tensor.spec.nbytes
    first = max(tensor.buffer.address, start - GUARD_BYTES)
    last = min(tensor.buffer.address + tensor.buffer.nbytes, end + GUARD_BYTES)
    return [(first, start - first), (end, last - end)]
