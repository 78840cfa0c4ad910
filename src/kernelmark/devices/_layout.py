"""Tensor layout in the GPU helper kernels: packed elements, item sizes, guards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import GUARD_BYTES, Tensor
from kernelmark.numerics.floats import storage
from kernelmark.numerics.generate import POOL, offset


def item_count(spec: TensorSpec) -> int:
    """Return the number of items in a tensor. Kernels count in items: an element, or a byte that
    packs two elements of a 4-bit format."""
    return spec.nbytes if spec.type.bits < 8 else spec.count


def item_bytes(spec: TensorSpec) -> int:
    """Return the bytes of one item."""
    return storage(spec.dtype).itemsize


def elements(spec: TensorSpec, count: int) -> int:
    """Return the number of elements in `count` items."""
    return min(2 * count, spec.count) if spec.type.bits < 8 else count


def first_item(spec: TensorSpec, seed: int, set_index: int) -> int:
    """Return the index in the device's pool of a tensor's first item."""
    start = offset(spec, seed, set_index)
    return _pair_index(start) if spec.type.bits < 8 else start


def pairs(codes: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the pool of a 4-bit format packed two elements per byte, the first in the low half.
    The pool's length is odd, so the pool is packed twice in a row: as many bytes as elements."""
    twice = np.concatenate([codes, codes]).astype(np.uint8)
    return twice[0::2] | (twice[1::2] << np.uint8(4))


def _pair_index(start: int) -> int:
    """Return the index in `pairs` of the byte whose low half is the pool's element `start`."""
    return (start if start % 2 == 0 else start + POOL) // 2


def guards(tensor: Tensor) -> list[tuple[int, int]]:
    """Return the address and size of the two guards around an output."""
    start, end = tensor.address, tensor.address + tensor.spec.nbytes
    first = max(tensor.buffer.address, start - GUARD_BYTES)
    last = min(tensor.buffer.address + tensor.buffer.nbytes, end + GUARD_BYTES)
    return [(first, start - first), (end, last - end)]
