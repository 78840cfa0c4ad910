"""Device memory in host memory, shared by the CPU and the fake device."""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype
from kernelmark.core.errors import OutOfMemory
from kernelmark.core.reason import Reason
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.units import bytes_text
from kernelmark.devices.base import (
    GUARD_BYTE,
    GUARD_BYTES,
    Buffer,
    Deferred,
    Device,
    Stream,
    Tensor,
)
from kernelmark.numerics.floats import storage
from kernelmark.numerics.generate import POOL, offset, source_bits

PAGE = mmap.PAGESIZE
# Linux 5.14 and later; Python 3.11 has no name for it.
_MADV_POPULATE_WRITE = 23

_NATIVE: dict[str, type[np.generic]] = {
    "f64": np.float64,
    "f32": np.float32,
    "tf32": np.float32,
    "f16": np.float16,
    "i8": np.int8,
    "i32": np.int32,
}
_GUARD = bytes([GUARD_BYTE]) * GUARD_BYTES


class HostBuffer:
    """Newly mapped pages, populated so that no launch takes a page fault. With `populate` false, a
    page is placed by the thread that touches it first.

    Requests huge pages, as NumPy does for large arrays: distributions differ in their default, and
    set-up with small pages takes about ten times as long.
    """

    __slots__ = ("_map", "address", "array", "capacity", "nbytes")

    def __init__(self, nbytes: int, capacity: int = 0, *, populate: bool = True) -> None:
        size = max(PAGE, -(-max(nbytes, capacity) // PAGE) * PAGE)
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.capacity = size
        self.cut(nbytes)
        if not populate:
            return
        try:
            self._map.madvise(_MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:  # an older kernel does not support this advice
                self.close()
                raise
            np.frombuffer(self._map, np.uint8)[::PAGE] = 0

    def cut(self, nbytes: int) -> None:
        """Set the size to `nbytes`, at most the capacity."""
        self.array: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)[:nbytes]
        self.address: int = self.array.ctypes.data if nbytes else 0
        self.nbytes = nbytes

    def close(self) -> None:
        """Unmap the pages now, or with the last array that refers to them."""
        self.array = np.empty(0, np.uint8)
        self.address = 0
        with contextlib.suppress(BufferError):
            self._map.close()


def array(tensor: Tensor) -> NDArray[np.generic]:
    """Return a view of the tensor's memory as an array of its shape.

    Formats that NumPy lacks are viewed as unsigned integers with the same bits; 4-bit formats as
    bytes that pack two elements along the last axis.
    """
    spec = tensor.spec
    kind = _NATIVE.get(spec.dtype) or storage(spec.dtype)
    shape = spec.shape if spec.type.bits >= 8 else _packed_shape(spec)
    # Built directly, not as a view of a slice: a small problem has thousands of tensors.
    memory = cast(HostBuffer, tensor.buffer).array
    return np.ndarray(shape, kind, memory, tensor.offset)


class HostDevice(Device):
    """A device whose memory is host memory."""

    @property
    def stream(self) -> Stream:
        return 0

    def allocate(self, nbytes: int) -> HostBuffer:
        return self.fresh(nbytes)

    def fresh(self, nbytes: int, capacity: int = 0) -> HostBuffer:
        """Allocate new pages, with room to grow to `capacity` bytes."""
        free = self.free_bytes()
        if nbytes > free:
            raise OutOfMemory(
                Reason(
                    f"{bytes_text(nbytes)} needed, {bytes_text(max(free, 0))} free",
                    "out-of-memory",
                    needed=nbytes,
                    free=max(free, 0),
                ),
                hint="choose a smaller problem, or give the process more memory",
            )
        try:
            return HostBuffer(nbytes, capacity)
        except (OSError, OverflowError, MemoryError) as error:
            reason = Reason(
                f"{bytes_text(nbytes)} needed, {bytes_text(free)} free"
                + (f" ({error})" if str(error) else ""),
                "out-of-memory",
                needed=nbytes,
                free=free,
                cause=str(error),
            )
            raise OutOfMemory(reason) from None

    def free(self, buffer: Buffer) -> None:
        cast(HostBuffer, buffer).close()

    def write(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None:
        cast(HostBuffer, buffer).array[offset : offset + data.size] = data

    def read(self, buffer: Buffer, offset: int, nbytes: int) -> NDArray[np.uint8]:
        return cast(HostBuffer, buffer).array[offset : offset + nbytes].copy()

    def generate(self, tensor: Tensor, seed: int, set_index: int) -> None:
        spec = tensor.spec
        pool = source_bits(spec, seed)
        start = offset(spec, seed, set_index)
        count = spec.count
        if spec.type.bits < 8:
            _memory(tensor)[:] = _pack(pool[(start + np.arange(count)) % POOL])
            return
        memory = cast(HostBuffer, tensor.buffer).array
        target = np.ndarray(count, pool.dtype, memory, tensor.offset)
        if start + count <= pool.size:
            target[:] = pool[start : start + count]
            return
        for part, values in _pool_parts(pool, start, count):
            target[part] = values

    def count_changed(
        self, tensors: Sequence[tuple[Tensor, int]], seed: int
    ) -> Deferred[list[int]]:
        counts = [self._count_changed(tensor, seed, number) for tensor, number in tensors]
        return lambda: counts

    def _count_changed(self, tensor: Tensor, seed: int, number: int) -> int:
        spec = tensor.spec
        pool = source_bits(spec, seed)
        start = offset(spec, seed, number)
        if spec.type.bits < 8:
            expected = _pack(pool[(start + np.arange(spec.count)) % POOL])
            return min(2 * int(np.count_nonzero(_memory(tensor) != expected)), spec.count)
        actual = _memory(tensor).view(pool.dtype)
        return sum(
            int(np.count_nonzero(actual[part] != values))
            for part, values in _pool_parts(pool, start, spec.count)
        )

    def poison(self, tensor: Tensor, byte: int) -> None:
        before, after = _guards(tensor)
        before[:] = GUARD_BYTE
        after[:] = GUARD_BYTE
        _memory(tensor)[:] = byte

    def count_poison(self, tensor: Tensor, byte: int) -> int:
        width = max(1, tensor.spec.type.bits // 8)
        pattern = int.from_bytes(bytes([byte]) * width, "little")
        count = int(np.count_nonzero(self._bits(tensor) == pattern))
        return count if tensor.spec.type.bits >= 8 else min(2 * count, tensor.spec.count)

    def guards_intact(self, tensor: Tensor) -> bool:
        before, after = _guards(tensor)
        return before.tobytes() == _GUARD and after.tobytes() == _GUARD

    def take(self, tensor: Tensor, where: NDArray[np.int64]) -> NDArray[np.generic]:
        if tensor.spec.type.bits >= 8:
            return self._bits(tensor)[where]
        high = (where % 2).astype(np.uint8)
        return (_memory(tensor)[where // 2] >> (high * np.uint8(4))) & np.uint8(15)

    def _bits(self, tensor: Tensor) -> NDArray[np.generic]:
        return _memory(tensor).view(storage(tensor.spec.dtype))  # a view, not a copy

    def synchronize(self) -> None:
        """Do nothing: launches return when they are done."""


def _pool_parts(
    pool: NDArray[np.generic], start: int, count: int
) -> Iterator[tuple[slice, NDArray[np.generic]]]:
    """Yield slices of a tensor of `count` elements with the pool values in each: the pool from
    `start` on, repeated."""
    done = 0
    while done < count:
        length = min(pool.size - start, count - done)
        yield slice(done, done + length), pool[start : start + length]
        done += length
        start = 0


def _memory(tensor: Tensor) -> NDArray[np.uint8]:
    memory = cast(HostBuffer, tensor.buffer).array
    return memory[tensor.offset : tensor.offset + tensor.spec.nbytes]


def _guards(tensor: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    memory = cast(HostBuffer, tensor.buffer).array
    end = tensor.offset + tensor.spec.nbytes
    if tensor.offset < GUARD_BYTES or end + GUARD_BYTES > memory.size:
        raise ValueError(f"{tensor.spec.name}: its buffer has no room for guard bytes")
    return memory[tensor.offset - GUARD_BYTES : tensor.offset], memory[end : end + GUARD_BYTES]


def _pack(codes: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Pack 4-bit codes two per byte, the first in the low half."""
    even = np.zeros(-(-codes.size // 2) * 2, np.uint8)
    even[: codes.size] = codes
    return even[0::2] | (even[1::2] << np.uint8(4))


def _packed_shape(spec: TensorSpec) -> tuple[int, ...]:
    if spec.shape[-1] % 2:
        return (dtype(spec.dtype).nbytes(spec.count),)
    return (*spec.shape[:-1], spec.shape[-1] // 2)


MIN_BYTES = 64 * 2**20
_MAX_KEPT = 2  # one for argument sets, one for another large buffer
_EXTRA = 3  # allocate 1/3 more, so that the next case fits too


class PagePool:
    """Freed buffers, kept for reuse."""

    def __init__(self) -> None:
        self._kept: list[HostBuffer] = []

    @property
    def nbytes(self) -> int:
        return sum(buffer.capacity for buffer in self._kept)

    def take(self, nbytes: int) -> HostBuffer | None:
        """Return the smallest kept buffer that is large enough, cut to `nbytes`."""
        fitting = [buffer for buffer in self._kept if buffer.capacity >= nbytes]
        if nbytes < MIN_BYTES or not fitting:
            return None
        smallest = min(fitting, key=lambda buffer: buffer.capacity)
        self._kept.remove(smallest)
        smallest.cut(nbytes)
        return smallest

    def capacity(self, nbytes: int) -> int:
        """Return the size to allocate when no kept buffer fits."""
        return nbytes if nbytes < MIN_BYTES else nbytes + nbytes // _EXTRA

    def put(self, buffer: HostBuffer) -> None:
        """Keep a buffer; drop the smallest if there are more than _MAX_KEPT."""
        if buffer.capacity < MIN_BYTES:
            buffer.close()
            return
        self._kept.append(buffer)
        self._kept.sort(key=lambda kept: -kept.capacity)
        while len(self._kept) > _MAX_KEPT:
            self._kept.pop().close()

    def clear(self) -> None:
        while self._kept:
            self._kept.pop().close()
