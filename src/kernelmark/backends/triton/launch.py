"""Launch compiled Triton kernels through kernelmark's driver: no torch, our stream and buffers."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernelmark.backends.base import Kernel
from kernelmark.backends.triton.build import Argument, Built, kernel_info
from kernelmark.backends.triton.plan import WORKSPACE, ZEROED, Call, Plan, Value
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.reason import Reason
from kernelmark.devices.base import ArgumentSet, Buffer, Stream
from kernelmark.gpu.driver import Driver, pack

_DEFAULT_SHARED_BYTES = 48 * 1024
_NUMBERS: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "fp32": ctypes.c_float,
}


class Gpu(Protocol):
    """The part of a GPU device that launching needs."""

    info: DeviceInfo
    driver: Driver

    @property
    def stream(self) -> Stream: ...
    def allocate(self, nbytes: int) -> Buffer: ...
    def free(self, buffer: Buffer) -> None: ...


class TritonKernel(Kernel):
    """A plan's kernels loaded on a device, with the packed arguments of every set."""

    def __init__(self, plan: Plan, device: Gpu, sets: Sequence[ArgumentSet]) -> None:
        self._device = device
        self._owned: list[Buffer] = []
        self._modules: list[int] = []
        built = [call.build(device.info.arch) for call in plan.calls]
        for one in built:
            check_fits(one, device.info)
        try:
            self._addresses = {
                WORKSPACE: self._own(plan.workspace_bytes),
                ZEROED: self._own(plan.zeroed_bytes),
                **{name: self._own(nbytes) for name, nbytes in plan.named_bytes.items()},
            }
            if plan.zeroed_bytes:
                # On the launch stream: a small copy from the host may still be in progress when it
                # returns, and the launch stream does not wait for it.
                zeroed = self._addresses[ZEROED]
                device.driver.fill(zeroed, 0, plan.zeroed_bytes, device.stream)
            starters = [self._load(call, one) for call, one in zip(plan.calls, built, strict=True)]
        except BaseException:
            self.close()
            raise
        self._launches = [[start(arguments) for start in starters] for arguments in sets]
        told = kernel_info(built, built[plan.main])
        workspace_bytes = plan.workspace_bytes + sum(plan.named_bytes.values())
        self.info = dataclasses.replace(
            told, resources={**told.resources, "workspace_bytes": workspace_bytes}
        )

    def _own(self, nbytes: int) -> int:
        if nbytes == 0:
            return 0
        buffer = self._device.allocate(nbytes)
        self._owned.append(buffer)
        return buffer.address

    def _load(self, call: Call, built: Built) -> Callable[[ArgumentSet], Callable[[Stream], None]]:
        driver = self._device.driver
        module = driver.load(built.code)
        self._modules.append(module)
        function = driver.function(module, built.name)
        if built.shared_bytes > _DEFAULT_SHARED_BYTES:
            driver.allow_shared(function, built.shared_bytes)
        programs = call.grid[0] * call.grid[1] * call.grid[2]
        scratch = self._own(built.scratch_bytes * programs)

        def bind(arguments: ArgumentSet) -> Callable[[Stream], None]:
            values = [
                self._argument(argument, value, arguments)
                for argument, value in zip(call.arguments, call.values, strict=True)
            ]
            # Triton's two hidden arguments: its scratch memory and its profiler's.
            packed = pack(*values, ctypes.c_void_p(scratch), ctypes.c_void_p(0))
            block = (built.threads, 1, 1)

            def start(stream: Stream) -> None:
                driver.launch(function, call.grid, block, packed, stream, built.shared_bytes)

            return start

        return bind

    def _argument(self, argument: Argument, value: Value, arguments: ArgumentSet) -> Any:
        if not argument.pointer:
            return _NUMBERS[argument.kind](value)
        if value in self._addresses:
            return ctypes.c_void_p(self._addresses[str(value)])
        # An operand that the problem does not have is never read, so any address is valid.
        name = str(value)
        address = arguments[name].address if name in arguments else 0
        return ctypes.c_void_p(address)

    def launch(self, stream: Stream, set_index: int) -> None:
        for start in self._launches[set_index]:
            start(stream)

    def close(self) -> None:
        for module in self._modules:
            self._device.driver.destroy("module", module)
        for buffer in self._owned:
            self._device.free(buffer)
        self._modules.clear()
        self._owned.clear()


def check_fits(built: Built, info: DeviceInfo) -> None:
    """Raise Unsupported with a reason if the device cannot launch the kernel, before the driver
    fails with an error code."""
    most = int(info.attributes.get("shared_per_block", "0"))
    if most and built.shared_bytes > most:
        raise Unsupported(
            Reason(
                "shared-memory-exceeded",
                kernel=built.name,
                needed=built.shared_bytes,
                arch=info.arch,
                most=most,
            ),
            hint="use smaller blocks or fewer stages",
        )
