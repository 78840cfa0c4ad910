"""The input generator: any element of any input from a seed and its index, on any device.

Element i of a tensor is `pool[(offset + i) mod POOL]`, where the pool holds hashed uniform values
rounded to the tensor's dtype and the offset is a hash of (seed, tensor name, argument set). A
device may fill memory by copying the pool or by computing the hash; a reference computes only the
elements it needs; nothing is ever downloaded to check a result. A tensor whose values are given is
a pool of its own.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype
from kernelmark.core.tensor import TensorSpec
from kernelmark.numerics.floats import decode, encode

# A prime, so that no power-of-two stride falls into step with the period.
POOL = 1_048_583

_MIX_A, _MIX_B, _STEP = 0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1


def hash32(values: NDArray[np.uint32], seed: int) -> NDArray[np.uint32]:
    """Return a 32-bit finaliser of index and seed; the GPU's generator computes the same."""
    h = values * np.uint32(_STEP) + np.uint32(seed & 0xFFFFFFFF)
    h ^= h >> np.uint32(16)
    h *= np.uint32(_MIX_A)
    h ^= h >> np.uint32(13)
    h *= np.uint32(_MIX_B)
    h ^= h >> np.uint32(16)
    return h


def period(spec: TensorSpec) -> int:
    """Return how many elements a tensor's pool has."""
    return POOL if spec.given is None else max(1, spec.given.count)


def offset(spec: TensorSpec, seed: int, set_index: int) -> int:
    """Return where in the pool a tensor's first element lies."""
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
    """Return the pool as the dtype's bit patterns in the type `floats.storage` gives."""
    hashed = hash32(np.arange(POOL, dtype=np.uint32), seed)
    # 24 bits: exact in float32, so that a device computing in float32 agrees bit for bit.
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
def _twice(dtype_name: str, low: float, high: float, seed: int) -> NDArray[np.float64]:
    """Return the pool's values twice over: any run that is no longer than the pool lies in one
    piece."""
    values = pool_values(dtype_name, low, high, seed)
    return np.concatenate([values, values])


class Inputs:
    """The inputs of one argument set, element by element, without their memory."""

    def __init__(self, tensors: tuple[TensorSpec, ...], seed: int, set_index: int) -> None:
        self._tensors = {spec.name: spec for spec in tensors if spec.role == "in"}
        self._seed = seed
        self._set_index = set_index

    def start(self, name: str) -> int:
        """Return where in its pool the first element of tensor `name` lies."""
        return offset(self._tensors[name], self._seed, self._set_index)

    def take(self, name: str, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """Elements of tensor `name` at flat positions `where`, in the shape of `where`."""
        spec = self._tensors[name]
        values = source_values(spec, self._seed)
        return values[(where + self.start(name)) % len(values)]

    def whole(self, name: str) -> NDArray[np.float64]:
        """Return all elements of tensor `name`, in its shape."""
        spec = self._tensors[name]
        values = source_values(spec, self._seed)
        start = self.start(name) % len(values) if spec.count else 0
        found = np.empty(spec.count)
        done = 0
        while done < spec.count:  # in slices: many times quicker than by positions
            piece = values[start : start + spec.count - done]
            found[done : done + len(piece)] = piece
            done, start = done + len(piece), 0
        return found.reshape(spec.shape)

    def run(self, name: str, start: int, count: int) -> NDArray[np.float64]:
        """`count` elements that follow each other from `start` on, not to be written to: what
        `take` gives for start + arange(count). Up to POOL of them are not even copied."""
        spec = self._tensors[name]
        if spec.given is not None or count > POOL:
            return self.take(name, start + np.arange(count))
        values = _twice(spec.dtype, spec.low, spec.high, self._seed)
        place = (start + self.start(name)) % POOL
        return values[place : place + count]

    def runs(self, name: str, starts: NDArray[np.int64], count: int) -> NDArray[np.float64]:
        """`run` from each of `starts` on, as rows."""
        found = np.empty((len(starts), count))
        for row, start in zip(found, starts.tolist(), strict=True):
            row[:] = self.run(name, start, count)
        return found
