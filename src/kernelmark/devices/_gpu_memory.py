"""GPU memory: layout of tensors for the helper kernels, and asynchronous copies to the host."""

from __future__ import annotations

import ctypes
import functools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.tensor import AXES, Axis, Contraction, Step, TensorSpec, Vector, WeightedSum
from kernelmark.devices.base import GUARD_BYTES, ArgumentSet, Buffer, Deferred, Tensor
from kernelmark.gpu.driver import Driver, pack
from kernelmark.gpu.rtc import compile_source
from kernelmark.kernels import rtc as kernels
from kernelmark.numerics.floats import storage
from kernelmark.numerics.generate import POOL, offset
from kernelmark.numerics.project import Projection


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
class CopySlot:
    """Pinned host memory, and an event that completes when the device no longer uses it."""

    address: int
    bytes: NDArray[np.uint8]
    event: int


class Transfer:
    """An enqueued copy to the host; calling it waits and returns the bytes."""

    def __init__(self, driver: Driver, slot: CopySlot, nbytes: int, free: list[CopySlot]) -> None:
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
        self._free: list[CopySlot] = []

    def slot(self, nbytes: int) -> CopySlot:
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
        return CopySlot(
            address=address,
            bytes=np.frombuffer(memoryview(pinned), np.uint8),
            event=self._driver.event(),
        )

    def start(self, source: int, nbytes: int, slot: CopySlot | None = None) -> Transfer:
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


_FILE = "project.cu"
_BLOCK = 256
_TILE = 32  # rows per thread block of `along`; must match project.cu
_PAIR = 16  # bytes of two float64
# Minimum blocks per SM/CU, as long as each block still gets _FEWEST_COLS columns.
# Two waves of blocks of 256 threads: fewer leave SMs idle at the end of a wide reduction.
_BLOCKS_PER_UNIT = 16
_FEWEST_COLS = {"along": 256, "across": 32}
_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64
_ptr, _double = ctypes.c_void_p, ctypes.c_double


class Projector:
    """Computes projections on one GPU. Its kernels are compiled in the background while the first
    case is warmed up and timed: without a cache, compilation takes seconds."""

    def __init__(self, driver: Driver, readback: Readback, arch: str, units: int) -> None:
        self._driver = driver
        self._readback = readback
        self._units = units
        pool = ThreadPoolExecutor(1)
        self._binary = pool.submit(compile_source, kernels.source(_FILE), arch=arch, name=_FILE)

    @functools.cached_property
    def _module(self) -> int:
        return self._driver.load(self._binary.result().code)

    def nbytes(self, contraction: Contraction) -> int:
        """Return the bytes of device memory that `project` needs."""
        pairs = contraction.cols + contraction.projected + 2 * contraction.rows
        return _PAIR * pairs + contraction.cols

    def project(
        self,
        contraction: Contraction,
        tensors: ArgumentSet,
        signs: NDArray[np.float64],
        memory: Buffer,
        stream: int,
    ) -> Deferred[Projection]:
        """Enqueue a projection and its readback on `stream`."""
        driver, rows = self._driver, contraction.rows
        first = memory.address + _PAIR * contraction.cols
        expected = first + _PAIR * contraction.projected
        places: dict[Vector, int] = {
            "signs": memory.address,
            "projected": first,
            "expected": expected,
            "got": expected + _PAIR * rows,
        }
        end = places["got"] + _PAIR * rows
        shape = (2, rows, 2)
        nbytes = 8 * math.prod(shape)
        slot = self._readback.slot(max(signs.size, nbytes))  # for the signs and the result
        slot.bytes[: signs.size] = signs.astype(np.int8).view(np.uint8)
        size = ctypes.c_size_t(signs.size)
        driver.call("copy_to_device_async", _ptr(end), _ptr(slot.address), size, _ptr(stream))
        arguments = pack(_ptr(end), _ptr(places["signs"]), _u32(signs.size))
        grid = (-(-signs.size // _BLOCK), 1, 1)
        driver.launch(self._function("signs"), grid, (_BLOCK, 1, 1), arguments, stream)
        driver.fill(first, 0, end - first, stream)
        for step in contraction.steps():
            self._start(step, tensors[step.sum.tensor], places, stream)
        transfer = self._readback.start(places["expected"], nbytes, slot)

        def projection() -> Projection:
            inputs, output = transfer().view(np.float64).reshape(shape)
            return Projection(inputs=inputs, output=output)

        return projection

    def _start(self, step: Step, tensor: Tensor, places: dict[Vector, int], stream: int) -> None:
        weighted = step.sum
        rows = _ordered_axes(weighted)
        # Neighbouring threads must read neighbouring addresses, whichever way the tensor lies.
        walk = "along" if _reads_columns(weighted) else "across"
        blocks, chunk = self._split(walk, rows, weighted.cols)
        view = [getattr(axis, name) for name in ("size", "stride", "result") for axis in rows]
        view += [weighted.cols, weighted.col_stride, weighted.group_weight]
        width = storage(tensor.spec.dtype).itemsize
        arguments = pack(
            (_u64 * len(view))(*view),
            _ptr(tensor.address + width * weighted.start),
            _ptr(places[step.weights] + _PAIR * weighted.weight_start),
            _ptr(places[step.result] + _PAIR * weighted.result_start),
            _double(weighted.factor),
            _double(step.square),
            _u32(chunk),
        )
        function = self._function(f"{walk}_{tensor.spec.dtype}")
        self._driver.launch(function, (blocks, 1, 1), (_BLOCK, 1, 1), arguments, stream)

    @functools.cache  # noqa: B019  (lives as long as the device)
    def _function(self, name: str) -> int:
        return self._driver.function(self._module, name)

    def _split(self, walk: str, rows: list[Axis], cols: int) -> tuple[int, int]:
        """Return the number of thread blocks and of columns that each block sums."""
        sizes = [axis.size for axis in rows]
        if walk == "along":
            tiles = sizes[0] * -(-math.prod(sizes[1:]) // _TILE)
        else:
            tiles = -(-math.prod(sizes) // _BLOCK)
        chunks = min(-(-self._units * _BLOCKS_PER_UNIT // tiles), -(-cols // _FEWEST_COLS[walk]))
        # A multiple of the warp size, and so of a memory transaction.
        chunk = -(-cols // (chunks * _TILE)) * _TILE
        return tiles * -(-cols // chunk), chunk

    def close(self) -> None:
        if "_module" in self.__dict__:
            self._driver.destroy("module", self._module)


def _ordered_axes(weighted: WeightedSum) -> list[Axis]:
    """Return AXES row axes: the groups' axis first, the axis with the smallest stride last."""
    groups = weighted.rows[:1] if weighted.group_weight else ()
    rest = weighted.rows[len(groups) :]
    # A stride of 0 (broadcast) has no neighbours in memory, so it is sorted first.
    rest = tuple(sorted(rest, key=lambda axis: -axis.stride or -math.inf))
    return [*groups, *[Axis(size=1)] * (AXES - len(weighted.rows)), *rest]


def _reads_columns(weighted: WeightedSum) -> bool:
    """Return whether neighbouring threads should read neighbouring columns instead of rows."""
    return weighted.col_stride == 1 and weighted.cols >= _TILE
