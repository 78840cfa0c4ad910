"""The input generator: any element of any input from a seed and its index, on any device.

Element i of a tensor is `pool[(offset + i) mod POOL]`, where the pool holds hashed uniform values
rounded to the tensor's dtype and the offset is a hash of (seed, tensor name, argument set). A
device may fill memory by copying the pool or by computing the hash; a reference computes only the
elements it needs; inputs are never downloaded to check a result. A tensor with given values has
these as its pool.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype
from kernelmark.core.tensor import TensorSpec
from kernelmark.numerics.floats import decode, encode

# A prime, so that power-of-two strides do not coincide with the period.
POOL = 1_048_583

_MIX_A, _MIX_B, _STEP = 0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1


def hash32(values: NDArray[np.uint32], seed: int) -> NDArray[np.uint32]:
    """Return a 32-bit hash of index and seed; the GPU's generator computes the same."""
    h = values * np.uint32(_STEP) + np.uint32(seed & 0xFFFFFFFF)
    h ^= h >> np.uint32(16)
    h *= np.uint32(_MIX_A)
    h ^= h >> np.uint32(13)
    h *= np.uint32(_MIX_B)
    h ^= h >> np.uint32(16)
    return h


def period(spec: TensorSpec) -> int:
    """Return the number of elements in a tensor's pool."""
    return POOL if spec.given is None else max(1, spec.given.count)


def offset(spec: TensorSpec, seed: int, set_index: int) -> int:
    """Return the index in the pool of a tensor's first element."""
    if spec.given is not None and not spec.given.rotates:
        return 0
    row = 1 if spec.given is None else spec.given.row
    return zlib.crc32(f"{seed}/{set_index}/{spec.name}".encode()) % (period(spec) // row) * row


def source_bits(spec: TensorSpec, seed: int) -> NDArray[np.generic]:
    """Return the pool that a tensor's elements come from, as bit patterns."""
    if spec.given is not None:
        return spec.given.bits
    return pool_bits(spec.dtype, spec.low, spec.high, seed)


def source_values(spec: TensorSpec, seed: int) -> NDArray[np.float64]:
    """Return the pool that a tensor's elements come from, as float64."""
    if spec.given is not None:
        return _given_values(spec)
    return pool_values(spec.dtype, spec.low, spec.high, seed)


@functools.lru_cache(maxsize=4)
def _given_values(spec: TensorSpec) -> NDArray[np.float64]:
    assert spec.given is not None
    return decode(spec.given.bits, spec.dtype)


@functools.lru_cache(maxsize=16)
def pool_bits(dtype_name: str, low: float, high: float, seed: int) -> NDArray[np.generic]:
    """Return the pool as bit patterns of the dtype, in the type that `floats.storage` returns."""
    hashed = hash32(np.arange(POOL, dtype=np.uint32), seed)
    # 24 bits: exact in float32, so that a device that computes in float32 agrees bit for bit.
    unit = (hashed >> np.uint32(8)).astype(np.float64) * 2.0**-24
    if dtype(dtype_name).kind == "int":
        values = np.floor(low + unit * (high - low + 1))
    else:
        values = low + unit * (high - low)
    bits = encode(values, dtype_name)
    bits.setflags(write=False)
    return bits


@functools.lru_cache(maxsize=16)
def pool_values(dtype_name: str, low: float, high: float, seed: int) -> NDArray[np.float64]:
    """Return the pool's values after rounding to the dtype, as float64."""
    values = decode(pool_bits(dtype_name, low, high, seed), dtype_name)
    values.setflags(write=False)
    return values


@functools.lru_cache(maxsize=4)
def _doubled_pool(dtype_name: str, low: float, high: float, seed: int) -> NDArray[np.float64]:
    """Return the pool's values twice in a row, so that runs of up to POOL are contiguous."""
    values = pool_values(dtype_name, low, high, seed)
    return np.concatenate([values, values])


class Inputs:
    """The inputs of one argument set, computed element by element on the host."""

    def __init__(self, tensors: tuple[TensorSpec, ...], seed: int, set_index: int) -> None:
        self._tensors = {spec.name: spec for spec in tensors if spec.role == "in"}
        self._seed = seed
        self._set_index = set_index

    def start(self, name: str) -> int:
        """Return the index in its pool of the first element of tensor `name`."""
        return offset(self._tensors[name], self._seed, self._set_index)

    def take(self, name: str, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return elements of tensor `name` at flat positions `where`, in its shape."""
        spec = self._tensors[name]
        values = source_values(spec, self._seed)
        return values[(where + self.start(name)) % len(values)]

    def whole(self, name: str) -> NDArray[np.float64]:
        """Return all elements of tensor `name`, in its shape."""
        spec = self._tensors[name]
        values = source_values(spec, self._seed)
        start = self.start(name) % len(values) if spec.count else 0
        filled = np.empty(spec.count)
        done = 0
        while done < spec.count:  # slices are many times faster than an index array
            piece = values[start : start + spec.count - done]
            filled[done : done + len(piece)] = piece
            done, start = done + len(piece), 0
        return filled.reshape(spec.shape)

    def run(self, name: str, start: int, count: int) -> NDArray[np.float64]:
        """Return `count` consecutive elements from `start` on, read-only: as `take` with start +
        arange(count). Up to POOL elements are returned without a copy."""
        spec = self._tensors[name]
        if spec.given is not None or count > POOL:
            return self.take(name, start + np.arange(count))
        values = _doubled_pool(spec.dtype, spec.low, spec.high, self._seed)
        first = (start + self.start(name)) % POOL
        return values[first : first + count]

    def runs(self, name: str, starts: NDArray[np.int64], count: int) -> NDArray[np.float64]:
        """Return `run` from each of `starts` on, as rows."""
        values = np.empty((len(starts), count))
        for row, start in zip(values, starts.tolist(), strict=True):
            row[:] = self.run(name, start, count)
        return values
