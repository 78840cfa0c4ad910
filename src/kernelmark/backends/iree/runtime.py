"""Run a compiled module on our own memory, without copies in or out.

On the host, memory is imported as HAL buffers and the output argument is the result's storage, so
that the kernel writes between our guard bytes.

On a GPU, IREE's drivers use the device's primary context, as we do, so that our addresses are valid
there; but they enqueue on their own stream, which our graphs cannot capture and our gate cannot
block. So launches are asynchronous invocations, up to `BATCH` of them in one, timed by the host's
clock.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from kernelmark.backends.base import Kernel
from kernelmark.backends.iree.choices import BATCH, BATCH_FUNCTION
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo
from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import ArgumentSet, Stream, Tensor
from kernelmark.gpu import rocm
from kernelmark.gpu.library import missing_library, path_of
from kernelmark.kernels.mlir.base import FUNCTION, argument_shape

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
        bind = ViewBinder(specs, _host_memory(device))
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
        raise OutOfMemory(f"iree: not enough memory for intermediate results: {text}") from None
    raise RuntimeError(f"iree: {text}") from None


def argument_list(values: Sequence[Any]) -> Any:
    """Return values as the list that an invocation takes."""
    import iree.runtime as rt

    arguments = rt.VmVariantList(len(values))
    for value in values:
        arguments.push_ref(value)
    return arguments


class ViewBinder:
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
            f"iree starts at most {_MAX_WORKERS} workers, not {threads}",
            hint=f"use threads={_MAX_WORKERS} or less",
        )
    rt.flags.parse_flags(f"--task_topology_group_count={threads}")
    # A new driver: the cached one keeps the count that it was created with.
    return _binding.create_hal_driver("local-task").create_default_device()


_UNSIGNED = 1  # DLPack's code for unsigned integers
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dims", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# One for all imports, never freed: IREE copies the fields immediately, but calls the deleter when
# one of its threads releases the buffer, which may be long after the kernel is closed.
_shape = (ctypes.c_int64 * 1)()
_managed = _Managed()
_managed.tensor.dims = 1
_managed.tensor.type = _Type(_UNSIGNED, 8, 1)
_managed.tensor.shape = ctypes.cast(_shape, ctypes.POINTER(ctypes.c_int64))

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def import_memory(device: Any, address: int, nbytes: int) -> Any:
    """Return a HalBuffer of `nbytes` at `address` of the device; the memory must outlive its
    use."""
    _managed.tensor.data = address
    _shape[0] = nbytes
    capsule = _new_capsule(ctypes.addressof(_managed), _NAME, None)
    return device.from_dlpack_capsule(capsule).get_buffer()


# Loaded modules that are kept: the blocks of a measurement load the same one, and the driver would
# translate its code again each time.
_KEPT = 2
# A launch longer than this hides the host cost of its invocation.
_LONG_S = 1e-3
_REASON = re.compile(r"\b[A-Z_]{4,}; (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A loaded module: `single` processes one argument set, `batch` processes `BATCH` of them."""

    device: Any
    invoke: Callable[[Any, Any, Any], None]
    single: Any
    batch: Any


@functools.lru_cache(maxsize=_KEPT)
def load(device: Any, binary: bytes) -> Program:
    """Load a module on a HAL device; the driver may compile here."""
    import iree.runtime as rt

    try:
        module = rt.VmModule.copy_buffer(instance(), binary)
        context = rt.VmContext(instance(), [rt.create_hal_module(instance(), device), module])
    except (RuntimeError, ValueError) as error:
        reraise(error)
    return Program(
        device=device,
        invoke=context.invoke,
        single=module.lookup_function(FUNCTION),
        batch=module.lookup_function(BATCH_FUNCTION),
    )


class QueueKernel(Kernel):
    """A program with the views of each set's tensors.

    `ready` waits until the arguments may be used. The queue runs one invocation after the other.
    """

    def __init__(
        self,
        program: Program,
        specs: Sequence[TensorSpec],
        sets: Sequence[ArgumentSet],
        info: KernelInfo,
        *,
        ready: Callable[[], None],
    ) -> None:
        import iree.runtime as rt

        self.info = info
        self._program = program
        self._ready = ready
        bind = ViewBinder(
            specs, lambda tensor: import_memory(program.device, tensor.address, tensor.spec.nbytes)
        )
        self._views = [bind(tensors) for tensors in sets]
        self._fence = rt.HalFence.create_at
        self._timeline: Any = program.device.create_semaphore(0)
        self._launch_s = 0.0
        self._last = 0  # the timeline's value when all enqueued work is done
        self._results: Any = rt.VmVariantList(BATCH)

    def launch(self, stream: Stream, set_index: int) -> None:
        """Run after all work on the device's stream, and wait until done."""
        self._ready()
        self._run(self._invocations((set_index,)))

    def replay_s(self, order: Sequence[int]) -> float:
        """Return the host seconds of these launches, back to back."""
        self._ready()
        invocations = self._invocations(order)
        collecting = gc.isenabled()
        gc.disable()
        try:
            start = time.perf_counter()
            self._run(invocations)
            elapsed_s = time.perf_counter() - start
        finally:
            if collecting:
                gc.enable()
        self._launch_s = elapsed_s / len(order)
        return elapsed_s

    def even_launches(self, launches: int) -> int:
        """Round up to whole batches; keep a few long launches whose double is still less than a
        batch."""
        if 2 * launches < BATCH and self._launch_s > _LONG_S:
            return launches
        return -(-launches // BATCH) * BATCH

    def close(self) -> None:
        # The memory of the views is about to be freed; no more work is enqueued.
        self._views.clear()
        self._results = self._timeline = None

    def _invocations(self, order: Sequence[int]) -> list[tuple[Any, Any]]:
        """Return (function, arguments) of each invocation: whole batches, then single sets."""
        whole = len(order) - len(order) % BATCH
        groups = [order[at : at + BATCH] for at in range(0, whole, BATCH)]
        groups += [order[at : at + 1] for at in range(whole, len(order))]
        invocations = []
        for group in groups:
            function = self._program.batch if len(group) == BATCH else self._program.single
            values = [view for index in group for view in self._views[index]]
            # A fence at a value that the timeline has already reached does not block.
            start = self._fence(self._timeline, 0)
            self._last += 1
            end = self._fence(self._timeline, self._last)
            invocations.append((function, argument_list([*values, start, end])))
        return invocations

    def _run(self, invocations: Sequence[tuple[Any, Any]]) -> None:
        """Enqueue all invocations, then wait for the last one."""
        invoke, results = self._program.invoke, self._results
        reached, last = self._timeline.query, self._last
        try:
            for function, arguments in invocations:
                invoke(function, arguments, results)
            # Poll, because a blocking wait wakes up late, by a varying time.
            while reached() < last:
                time.sleep(0)
        except (RuntimeError, ValueError) as error:
            reraise(error)


# -- finding the GPU


@functools.cache
def absent(driver: str) -> str | None:
    """Return why IREE's runtime has no device of this driver here, or None."""
    try:
        devices = _driver(driver).query_available_devices()
    except (RuntimeError, ValueError) as error:
        return _explain(driver, str(error))
    return None if devices else Reason(f"IREE's runtime reports no {driver} device")


@functools.cache
def open_device(driver: str, uuid: str, index: int) -> Any:
    """Return IREE's device with this uuid, or with this index if IREE reports no uuid."""
    devices = _driver(driver).query_available_devices()
    same = [item for item in devices if uuid and uuid in str(item["path"]).replace("-", "").lower()]
    chosen = same[0] if same else devices[index]
    return _driver(driver).create_device(chosen["device_id"])


@functools.cache
def _driver(name: str) -> Any:
    import iree.runtime as rt

    if name == "hip" and "IREE_HIP_DYLIB_PATH" not in os.environ and (path := hip_runtime()):
        rt.flags.parse_flags(f"--hip_dylib_path=file:{path}")
    return rt.get_driver(name)


def hip_runtime() -> Path | None:
    """Return the HIP runtime library that the device uses. IREE must use the same copy, since
    another one does not know the device's memory; by itself IREE would only search the loader's
    path for libamdhip64.so."""
    library = rocm.runtime()
    return None if library is None else path_of(library, "hipInit")


def _explain(driver: str, text: str) -> Reason:
    if driver == "cuda" and _loads("libcuda.so.1") and not _loads("libcuda.so"):
        hint = "link libcuda.so.1 under that name in a folder on LD_LIBRARY_PATH"
        return missing_library("libcuda.so", hint)
    match = _REASON.search(text)
    reason = " ".join((match[1] if match else text).split())
    return Reason(f"{driver} cannot be used: IREE's runtime: {reason.rstrip(':. ')}")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
