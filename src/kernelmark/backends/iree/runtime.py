"""Running a compiled module on our own memory: nothing is copied, in or out.

Host memory is imported as HAL buffers and the output argument is the result's storage, so that
the kernel writes between our guard bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from kernelmark.backends.base import Kernel
from kernelmark.core.errors import OutOfMemory
from kernelmark.core.result import KernelInfo
from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import ArgumentSet, Stream
from kernelmark.kernels.mlir.base import FUNCTION

_ELEMENTS = {
    "f64": "FLOAT_64",
    "f32": "FLOAT_32",
    "f16": "FLOAT_16",
    "bf16": "BFLOAT_16",
    "i8": "INT_8",
    "i32": "INT_32",
}
# What compiled code assumes of every argument; importing does not check it.
_ALIGNMENT = 64


class HostKernel(Kernel):
    """A module's function with one argument list for each set, the tensors as in `specs`."""

    def __init__(
        self,
        binary: bytes,
        specs: Sequence[TensorSpec],
        sets: Sequence[ArgumentSet],
        threads: int,
        info: KernelInfo,
    ) -> None:
        import iree.runtime as rt

        self.info = info
        device = _open(threads)
        instance = _instance()
        module = rt.VmModule.copy_buffer(instance, binary)
        context = rt.VmContext(instance, [rt.create_hal_module(instance, device), module])
        self._function: Any = module.lookup_function(FUNCTION)
        bind = _Binder(device, specs)
        self._arguments = [bind(tensors) for tensors in sets]
        self._results: Any = rt.VmVariantList(1)
        self._invoke: Any = context.invoke

    def launch(self, stream: Stream, set_index: int) -> None:
        try:
            self._invoke(self._function, self._arguments[set_index], self._results)
        except (RuntimeError, ValueError) as error:
            _reraise(error)

    def close(self) -> None:
        # The lists hold the caller's memory and the context holds the device with its pool of
        # intermediate results: nothing is given back before they are gone.
        self._arguments.clear()
        self._results = self._function = self._invoke = None


def _reraise(error: Exception) -> NoReturn:
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" in text:
        raise OutOfMemory(f"iree: not enough memory for intermediate results: {text}") from None
    raise RuntimeError(f"iree: {text}") from None


class _Binder:
    """Makes argument lists, quickly: a small problem has thousands of sets."""

    def __init__(self, device: Any, specs: Sequence[TensorSpec]) -> None:
        import iree.runtime as rt

        self._list, self._view = rt.VmVariantList, rt.HalBufferView
        self._import = device.allocator.import_host_allocation
        self._memory = int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE)
        self._usage = int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING)
        types = rt.HalElementType
        self._specs = [
            (spec.name, spec.nbytes, list(spec.shape), int(getattr(types, _ELEMENTS[spec.dtype])))
            for spec in specs
        ]

    def __call__(self, tensors: ArgumentSet) -> Any:
        """The tensors' own memory as a list of buffer views."""
        arguments = self._list(len(self._specs))
        for name, nbytes, shape, element in self._specs:
            tensor = tensors[name]
            if tensor.address % _ALIGNMENT:
                raise ValueError(f"{name} does not begin at a multiple of {_ALIGNMENT} bytes")
            whole = cast(Any, tensor.buffer).array
            memory = whole[tensor.offset : tensor.offset + nbytes]
            buffer = self._import(memory, self._memory, self._usage)
            arguments.push_ref(self._view(buffer, shape, element))
        return arguments


@functools.cache
def _instance() -> Any:
    import iree.runtime as rt

    return rt.VmInstance()


def _open(threads: int) -> Any:
    """A new HAL device with so many workers: none for one thread, where the caller does the work.

    The workers are not pinned by IREE: they inherit this process's affinity, which the device
    has set to its cores.
    """
    import iree.runtime as rt
    from iree.runtime import _binding

    if threads == 1:
        # Without a cache this driver maps and unmaps intermediate results at every launch.
        return rt.get_driver("local-sync").create_default_device(["caching"])
    rt.flags.parse_flags(f"--task_topology_group_count={threads}")
    # A driver of our own: the cached one keeps the count that it was first made with.
    return _binding.create_hal_driver("local-task").create_default_device()
