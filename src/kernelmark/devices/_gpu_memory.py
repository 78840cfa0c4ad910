"""GPU memory: layout of tensors for the helper kernels, and asynchronous copies to the host."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import GUARD_BYTES, Tensor
from kernelmark.gpu.driver import Driver
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
    # Tensors at an end of their buffer have a shorter guard there.
    first = max(tensor.buffer.address, start - GUARD_BYTES)
    last = min(tensor.buffer.address + tensor.buffer.nbytes, end + GUARD_BYTES)
    return [(first, start - first), (end, last - end)]


# Smallest slot: most checks read a few values, and one size lets them share slots.
_MIN_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Pinned host memory, and an event that completes when the device no longer uses it."""

    address: int
    bytes: NDArray[np.uint8]
    event: int


class Transfer:
    """An enqueued copy to the host; calling it waits and returns the bytes."""

    def __init__(self, driver: Driver, slot: Slot, nbytes: int, free: list[Slot]) -> None:
        self._driver = driver
        self._slot = slot
        self._nbytes = nbytes
        self._free = free

    def __call__(self) -> NDArray[np.uint8]:
        self._driver.wait(self._slot.event)
        return self._slot.bytes[: self._nbytes].copy()

    def __del__(self) -> None:
        # Not in __call__: the results of a failed measurement are never read.
        self._free.append(self._slot)


class Readback:
    """Starts transfers and reuses their slots: pinning memory takes longer than most checks."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver = driver
        self._stream = stream
        self._free: list[Slot] = []

    def slot(self, nbytes: int) -> Slot:
        """Return a free slot of at least `nbytes`."""
        fitting = [slot for slot in self._free if slot.bytes.size >= nbytes]
        if fitting:
            slot = min(fitting, key=lambda slot: slot.bytes.size)
            self._free.remove(slot)
            self._driver.wait(slot.event)
            return slot
        size = max(_MIN_BYTES, 1 << (nbytes - 1).bit_length())
        address = self._driver.host_allocate(size)
        pinned = (ctypes.c_uint8 * size).from_address(address)
        return Slot(
            address=address,
            bytes=np.frombuffer(memoryview(pinned), np.uint8),
            event=self._driver.event(),
        )

    def start(self, source: int, nbytes: int, slot: Slot | None = None) -> Transfer:
        """Enqueue a copy of device memory to the host, into `slot` if given."""
        slot = slot or self.slot(nbytes)
        self._driver.copy_to_host_async(slot.address, source, nbytes, self._stream)
        self._driver.record(slot.event, self._stream)
        return Transfer(self._driver, slot, nbytes, self._free)

    def close(self) -> None:
        """Free all slots; the device must no longer use them."""
        for slot in self._free:
            self._driver.destroy("event", slot.event)
            self._driver.host_free(slot.address)
        self._free.clear()
