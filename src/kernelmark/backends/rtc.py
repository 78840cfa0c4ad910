"""kernelmark's own plain kernels, one source for both vendors, compiled at run time: a copy, which
with one element is the closest to an empty kernel that can still be checked. They do not depend on
any library under test, so they serve as canaries of a machine."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol, cast

from kernelmark.backends._rules import ON_AMD, refuse_unknown, unknown_op, wrong_device
from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, KernelInfo
from kernelmark.devices.base import ArgumentSet, Device, Stream
from kernelmark.gpu import pack as packs
from kernelmark.gpu import rtc
from kernelmark.gpu.driver import Driver, pack
from kernelmark.gpu.rtc import Binary, compile_source
from kernelmark.kernels import rtc as kernels

OPS = ("copy",)
FILE = "copy.cu"
_BLOCK = 256
_BLOCKS_A_UNIT = 16
_BYTES_A_THREAD = 64  # eight loads of eight bytes


class Gpu(Protocol):
    """The part of a GPU device that launching needs."""

    info: DeviceInfo
    driver: Driver


class RtcKernel(Kernel):
    """The copy kernel, with packed arguments for every set."""

    def __init__(self, device: Gpu, sets: Sequence[ArgumentSet], binary: Binary) -> None:
        driver = device.driver
        self.info = binary.kernel_info("copy")
        self._driver = driver
        self._module = driver.load(binary.code)
        self._function = driver.function(self._module, "copy")
        nbytes = sets[0]["x"].spec.nbytes if sets else 0
        blocks = -(-nbytes // (_BLOCK * _BYTES_A_THREAD))
        self._grid = (max(1, min(blocks, _BLOCKS_A_UNIT * device.info.units)), 1, 1)
        self._arguments: list[Any] = [
            pack(
                ctypes.c_void_p(item["y"].address),
                ctypes.c_void_p(item["x"].address),
                ctypes.c_uint64(nbytes),
            )
            for item in sets
        ]

    def launch(self, stream: Stream, set_index: int) -> None:
        block = (_BLOCK, 1, 1)
        self._driver.launch(self._function, self._grid, block, self._arguments[set_index], stream)

    def close(self) -> None:
        self._driver.destroy("module", self._module)


class RtcBackend(Backend):
    """Kernels of kernels/rtc for the ops that canaries use."""

    name = "rtc"
    summary = f"our own plain kernels, compiled at run time: copy; on hip {ON_AMD}"
    device_kinds = ("cuda", "hip")
    supports_examples = FrozenDict({"sm_90": ("copy *",), "gfx942": ("copy *",)})

    def available(self) -> str | None:
        """Return None if either vendor has a compiler or a bundle; `supports` checks that of the
        device."""
        prefixes = {"cuda": "sm_", "hip": "gfx"}
        reasons = [_uncompiled(kind, prefixes[kind]) for kind in self.device_kinds]
        return None if None in reasons else reasons[0]

    def version(self) -> str:
        return "1"

    def libraries(self) -> dict[str, str]:
        return {}

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        return (
            wrong_device(self.name, self.device_kinds, info)
            or unknown_op(self.name, OPS, problem)
            or _uncompiled(info.kind, info.arch)
        )

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        return _built(info).kernel_info("copy")

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        refuse_unknown(self.name, config)
        reason = self.supports(problem, device.info)
        if reason is not None:
            raise Unsupported(reason)
        return RtcKernel(cast(Gpu, device), sets, _built(device.info))


def _uncompiled(kind: str, arch: str) -> str | None:
    """Return None if kernels for `arch` can be compiled or are in a bundle, else one sentence."""
    return None if packs.holds(arch) else rtc.unavailable(kind)


def _built(info: DeviceInfo) -> Binary:
    return compile_source(kernels.source(FILE), arch=info.arch, name=FILE)


backend = RtcBackend()
