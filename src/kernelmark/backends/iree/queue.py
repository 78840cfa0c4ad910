"""Run a compiled module on a GPU, with our memory and IREE's own queue.

IREE's drivers use the device's primary context, as we do, so that our addresses are valid there;
but they enqueue on their own stream, which our graphs cannot capture and our gate cannot block. So
launches are asynchronous invocations, up to `BATCH` of them in one, timed by the host's clock.
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
from typing import Any

from kernelmark.backends.base import Kernel
from kernelmark.backends.iree.batch import BATCH, BATCH_FUNCTION
from kernelmark.backends.iree.memory import import_memory
from kernelmark.backends.iree.runtime import Binder, argument_list, instance, reraise
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo
from kernelmark.core.tensor import TensorSpec
from kernelmark.devices.base import ArgumentSet, Stream
from kernelmark.gpu.library import find_library, missing_library, path_of
from kernelmark.gpu.table import HIP
from kernelmark.kernels.mlir.base import FUNCTION

# Loaded modules that are kept: the blocks of a measurement load the same one, and the driver would
# translate its code again each time.
_KEPT = 2
# A launch longer than this hides the host cost of its invocation.
_LONG_S = 1e-3
_REASON = re.compile(r"\b[A-Z_]{4,}; (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A loaded module: `one` processes one argument set, `many` processes `BATCH` of them."""

    device: Any
    invoke: Callable[[Any, Any, Any], None]
    one: Any
    many: Any


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
        one=module.lookup_function(FUNCTION),
        many=module.lookup_function(BATCH_FUNCTION),
    )


class QueueKernel(Kernel):
    """A program with the views of each set's tensors.

    `ready` waits until the arguments may be used. That is enough if the queue runs one invocation
    after the other; otherwise `chained` makes each wait for the previous one.
    """

    def __init__(
        self,
        program: Program,
        specs: Sequence[TensorSpec],
        sets: Sequence[ArgumentSet],
        info: KernelInfo,
        *,
        ready: Callable[[], None],
        chained: bool = False,
    ) -> None:
        import iree.runtime as rt

        self.info = info
        self._program = program
        self._ready = ready
        self._chained = chained
        bind = Binder(
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
        made = []
        for group in groups:
            function = self._program.many if len(group) == BATCH else self._program.one
            values = [view for index in group for view in self._views[index]]
            # A fence at a value that the timeline has already reached does not block.
            start = self._fence(self._timeline, self._last if self._chained else 0)
            self._last += 1
            end = self._fence(self._timeline, self._last)
            made.append((function, argument_list([*values, start, end])))
        return made

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
        found = _driver(driver).query_available_devices()
    except (RuntimeError, ValueError) as error:
        return _explain(driver, str(error))
    return None if found else Reason("no-device-found", library="IREE's runtime", kind=driver)


@functools.cache
def open_device(driver: str, uuid: str, index: int) -> Any:
    """Return IREE's device with this uuid, or with this index if IREE reports no uuid."""
    found = _driver(driver).query_available_devices()
    same = [one for one in found if uuid and uuid in str(one["path"]).replace("-", "").lower()]
    chosen = same[0] if same else found[index]
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
    library = find_library(HIP)
    return None if library is None else path_of(library, "hipInit")


def _explain(driver: str, text: str) -> Reason:
    if driver == "cuda" and _loads("libcuda.so.1") and not _loads("libcuda.so"):
        hint = "link libcuda.so.1 under that name in a folder on LD_LIBRARY_PATH"
        return missing_library("libcuda.so", hint)
    found = _REASON.search(text)
    reason = " ".join((found[1] if found else text).split())
    return Reason("device-unusable", device=driver, cause=f"IREE's runtime: {reason.rstrip(':. ')}")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
