"""Run a compiled module on our own memory, without copies in or out.

Host memory is imported as HAL buffers and the output argument is the result's storage, so that the
kernel writes between our guard bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from kernelmark.backends.base import Kernel
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo
from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import ArgumentSet, Stream, Tensor
from kernelmark.kernels.mlir._sizes import argument_shape
from kernelmark.kernels.mlir.base import FUNCTION

_ELEMENTS = {
    "f64": "FLOAT_64",
    "f32": "FLOAT_32",
    "f16": "FLOAT_16",
    "bf16": "BFLOAT_16",
    "f8e4m3": "FLOAT_8_E4M3_FN",
    "f8e5m2": "FLOAT_8_E5M2",
    "f8e4m3fnuz": "FLOAT_8_E4M3_FNUZ",
    "f8e5m2fnuz": "FLOAT_8_E5M2_FNUZ",
    "f8e8m0": "FLOAT_8_E8M0_FNU",
    "f4e2m1": "INT_8",  # two per byte
    "i8": "INT_8",
    "i32": "INT_32",
}
# Alignment that compiled code assumes for every argument; importing does not check it.
_ALIGNMENT = 64
# Above this, the task system silently uses fewer workers than requested.
_MAX_WORKERS = 256


class HostKernel(Kernel):
    """A module's function with one argument list per set, the tensors in the order of `specs`."""

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
        module = rt.VmModule.copy_buffer(instance(), binary)
        context = rt.VmContext(instance(), [rt.create_hal_module(instance(), device), module])
        self._function: Any = module.lookup_function(FUNCTION)
        bind = Binder(specs, _host_memory(device))
        self._arguments = [argument_list(bind(tensors)) for tensors in sets]
        self._results: Any = rt.VmVariantList(1)
        self._invoke: Any = context.invoke

    def launch(self, stream: Stream, set_index: int) -> None:
        try:
            self._invoke(self._function, self._arguments[set_index], self._results)
        except (RuntimeError, ValueError) as error:
            reraise(error)

    def close(self) -> None:
        # The lists hold the caller's memory and the context holds the device with its pool of
        # intermediate results: memory is freed only when both are gone.
        self._arguments.clear()
        self._results = self._function = self._invoke = None


def reraise(error: Exception) -> NoReturn:
    """Raise an error of the runtime as one of kernelmark's."""
    text = " ".join(str(error).split())
    # IREE's Python binding raises a RuntimeError for this status; only the text has its name.
    if "RESOURCE_EXHAUSTED" in text:
        raise OutOfMemory(Reason("iree-out-of-memory", error=text)) from None
    raise RuntimeError(f"iree: {text}") from None


def argument_list(values: Sequence[Any]) -> Any:
    """Return values as the list that an invocation takes."""
    import iree.runtime as rt

    arguments = rt.VmVariantList(len(values))
    for value in values:
        arguments.push_ref(value)
    return arguments


class Binder:
    """Creates the buffer views of a set, quickly: a small problem has thousands of sets."""

    def __init__(self, specs: Sequence[TensorSpec], wrap: Callable[[Tensor], Any]) -> None:
        import iree.runtime as rt

        self._view, self._wrap = rt.HalBufferView, wrap
        types = rt.HalElementType
        self._specs = [
            (spec.name, list(argument_shape(spec)), int(getattr(types, _ELEMENTS[spec.dtype])))
            for spec in specs
        ]

    def __call__(self, tensors: ArgumentSet) -> list[Any]:
        """Return views of the tensors' memory, in the order of the function's arguments."""
        views = []
        for name, shape, element in self._specs:
            tensor = tensors[name]
            if tensor.address % _ALIGNMENT:
                raise ValueError(f"{name} does not begin at a multiple of {_ALIGNMENT} bytes")
            views.append(self._view(self._wrap(tensor), shape, element))
        return views


def _host_memory(device: Any) -> Callable[[Tensor], Any]:
    """Return a function that imports tensors in host memory as buffers."""
    import iree.runtime as rt

    import_memory = device.allocator.import_host_allocation
    memory = int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE)
    usage = int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING)

    def wrap(tensor: Tensor) -> Any:
        whole = cast(Any, tensor.buffer).array
        end = tensor.offset + tensor.spec.nbytes
        return import_memory(whole[tensor.offset : end], memory, usage)

    return wrap


@functools.cache
def instance() -> Any:
    """Return the VM instance of this process."""
    import iree.runtime as rt

    return rt.VmInstance()


def _open(threads: int) -> Any:
    """Return a new HAL device with `threads` workers: none for one thread, where the caller does
    the work.

    IREE does not pin the workers: they inherit this process's affinity, which the device has set to
    its cores.
    """
    import iree.runtime as rt
    from iree.runtime import _binding

    if threads == 1:
        # Without a cache this driver maps and unmaps intermediate results at every launch.
        return rt.get_driver("local-sync").create_default_device(["caching"])
    if threads > _MAX_WORKERS:
        raise Unsupported(
            Reason("iree-workers", most=_MAX_WORKERS, threads=threads),
            hint=f"use threads={_MAX_WORKERS} or less",
        )
    rt.flags.parse_flags(f"--task_topology_group_count={threads}")
    # A new driver: the cached one keeps the count that it was created with.
    return _binding.create_hal_driver("local-task").create_default_device()
