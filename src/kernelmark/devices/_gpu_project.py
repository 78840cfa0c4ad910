"""Random projections on a GPU: the steps of a contraction as launches of kernels/rtc/project.cu."""

from __future__ import annotations

import ctypes
import functools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.tensor import AXES, Axis, Contraction, Step, Vector, WeightedSum
from kernelmark.devices._gpu_memory import Readback
from kernelmark.devices.base import ArgumentSet, Buffer, Deferred, Tensor
from kernelmark.gpu.driver import Driver, pack
from kernelmark.gpu.rtc import compile_source
from kernelmark.kernels import rtc as kernels
from kernelmark.numerics.floats import storage
from kernelmark.numerics.project import Projection

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
    others = weighted.rows[len(groups) :]
    # A stride of 0 (broadcast) has no neighbours in memory, so it is sorted first.
    others = tuple(sorted(others, key=lambda axis: -axis.stride or -math.inf))
    return [*groups, *[Axis(size=1)] * (AXES - len(weighted.rows)), *others]


def _reads_columns(weighted: WeightedSum) -> bool:
    """Return whether neighbouring threads should read neighbouring columns instead of rows."""
    return weighted.col_stride == 1 and weighted.cols >= _TILE
