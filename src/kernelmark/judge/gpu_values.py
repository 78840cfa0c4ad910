"""Secret inputs that a GPU makes itself: the values of `judge.values`, by kernels/rtc/secret.cu.

A verdict rewrites gigabytes of inputs; the host makes and copies a fraction of one in a second.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from kernelmark.core.tensor import TensorSpec
from kernelmark.devices._gpu import GpuBuffer, GpuDevice
from kernelmark.devices.base import Tensor
from kernelmark.gpu.driver import pack
from kernelmark.gpu.rtc import compile_source
from kernelmark.judge.values import UNIFORM, Values, family_of, is_tabled, table_of
from kernelmark.kernels import rtc as kernels

_FILE = "secret.cu"
_ROWS = 64  # tensors per launch; must match secret.cu
_BLOCK = 256
_BYTES_PER_THREAD = 32
_u64, _ptr, _float = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_float


class GpuValues:
    """Writes and compares inputs on a GPU."""

    def __init__(self, device: GpuDevice, values: Values) -> None:
        self._device = device
        self._values = values
        self._tables: dict[tuple[str, float, float], GpuBuffer] = {}

    @staticmethod
    def can_make(spec: TensorSpec, number: int) -> bool:
        """Return whether the kernels make these values; the others are made on the host."""
        if family_of(number) != UNIFORM or spec.given is not None:
            return False
        if is_tabled(spec):
            return spec.type.bits >= 8
        span = spec.high - spec.low
        # secret.cu needs an exact product.
        return spec.dtype == "f32" and span > 0 and math.frexp(span)[0] == 0.5

    def write(self, tensors: Sequence[tuple[Tensor, int]]) -> None:
        """Enqueue the values of these tensors, each given with its number."""
        for spec, members in _by_spec(tensors):
            arguments = pack(*self._arguments(spec, members, tensors))
            self._start("secret", spec, len(members), arguments)

    def count_altered(self, tensors: Sequence[tuple[Tensor, int]]) -> list[int]:
        """Return the number of elements of each tensor that differ from what `write` wrote."""
        device, counts = self._device, [0] * len(tensors)
        target = device.scratch("altered", 8 * _ROWS)
        for spec, members in _by_spec(tensors):
            device.driver.fill(target.address, 0, target.nbytes, device.stream)
            arguments = pack(*self._arguments(spec, members, tensors), _ptr(target.address))
            self._start("altered", spec, len(members), arguments)
            found = device.read(target, 0, 8 * len(members)).view(np.uint64).tolist()
            for at, count in zip(members, found, strict=True):
                counts[at] = count
        return counts

    def close(self) -> None:
        """Free the tables and the kernels; the device must no longer use them."""
        for table in self._tables.values():
            self._device.free(table)
        self._tables.clear()
        if "_module" in self.__dict__:
            self._device.driver.destroy("module", self._module)

    def _arguments(
        self, spec: TensorSpec, members: Sequence[int], tensors: Sequence[tuple[Tensor, int]]
    ) -> list[object]:
        rows = [n for at in members for n in (tensors[at][0].address, tensors[at][1])]
        values: list[object]
        if is_tabled(spec):
            values = [_ptr(self._table(spec).address)]
        else:
            scale = np.float32(2.0**-24 * (spec.high - spec.low))
            values = [_float(float(scale)), _float(float(np.float32(spec.low)))]
        key = self._values.stream_key(spec.name)
        return [(_u64 * (2 * _ROWS))(*rows), *values, _u64(spec.count), *map(_u64, key)]

    def _table(self, spec: TensorSpec) -> GpuBuffer:
        key = spec.dtype, spec.low, spec.high
        if key not in self._tables:
            bits = np.ascontiguousarray(table_of(spec)).view(np.uint8)
            self._tables[key] = self._device.allocate(bits.nbytes)
            self._device.write(self._tables[key], 0, bits)
        return self._tables[key]

    def _start(
        self, name: str, spec: TensorSpec, rows: int, arguments: ctypes.Array[ctypes.c_void_p]
    ) -> None:
        device = self._device
        blocks = -(-spec.nbytes // (_BYTES_PER_THREAD * _BLOCK))
        blocks = max(1, min(blocks, -(-device.info.units * 32 // rows)))
        function = self._function(f"{name}_{spec.nbytes // max(1, spec.count)}")
        device.driver.launch(function, (blocks, rows, 1), (_BLOCK, 1, 1), arguments, device.stream)

    @functools.cached_property
    def _module(self) -> int:
        binary = compile_source(kernels.source(_FILE), arch=self._device.info.arch, name=_FILE)
        return self._device.driver.load(binary.code)

    @functools.cache  # noqa: B019  (lives as long as a judgement)
    def _function(self, name: str) -> int:
        return self._device.driver.function(self._module, name)


def _by_spec(tensors: Sequence[tuple[Tensor, int]]) -> Iterator[tuple[TensorSpec, list[int]]]:
    """Yield each spec with the indices of at most _ROWS of its tensors."""
    groups: dict[int, tuple[TensorSpec, list[int]]] = {}
    for at, (tensor, _) in enumerate(tensors):
        # By identity: sets share their specs, and hashing one is slow.
        groups.setdefault(id(tensor.spec), (tensor.spec, []))[1].append(at)
    for spec, members in groups.values():
        if spec.count:
            for start in range(0, len(members), _ROWS):
                yield spec, members[start : start + _ROWS]
