"""Backend and Kernel: the interfaces of what computes an op on a device."""

from __future__ import annotations

import errno
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Config, KernelInfo, Space
from kernelmark.devices.base import ArgumentSet, Device, Stream


class Kernel(ABC):
    """A launchable kernel for one problem and config, bound to its argument sets."""

    info: KernelInfo

    @abstractmethod
    def launch(self, stream: Stream, set_index: int) -> None:
        """Enqueue once on `stream`; allocate nothing. On the CPU, return when done."""

    def collect(self, set_index: int) -> None:
        """Copy the output into its argument set, if the runtime writes to its own memory.

        Called after timing, never inside it."""

    def close(self) -> None:
        """Free what `prepare` allocated."""


class Backend(ABC):
    """One library or compiler. Third-party packages are imported inside methods only."""

    name: str
    summary: str  # one line for `kmark list backends`
    device_kinds: tuple[str, ...]
    # Which of the ops' `examples` are supported, by device kind ("cpu") or architecture ("sm_90"):
    # shell patterns, of which the last match decides; "!" excludes. The contract test compares
    # them with `supports`, so that no support is lost or added unnoticed.
    supports_examples: Mapping[str, Sequence[str]] = FrozenDict()

    @abstractmethod
    def available(self) -> str | None:
        """Return None, or one sentence on why it cannot run here and what to install."""

    def missing_on(self, kind: str) -> Reason:
        """Return why the installed build cannot run on one of `device_kinds`, or NO_REASON; called
        only if available."""
        return NO_REASON

    @abstractmethod
    def version(self) -> str:
        """Return the version of the underlying library; called only if available."""

    @abstractmethod
    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        """Return None, or why this device cannot compute this problem: a `Reason`, which is a str,
        or one plain sentence.

        A dtype that would silently be computed in another one is not supported."""

    @abstractmethod
    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        """Return a kernel bound to `sets`. Cheap after `compile` of the same problem and config."""

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        """Fill the compile cache for a device that need not be present; safe in parallel."""
        return KernelInfo()

    def settings(self, info: DeviceInfo) -> Config:
        """Return the config entries that environment variables set, unless their values are the
        defaults. They become part of a case's config, which says what was measured."""
        return FrozenDict()

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        """Return the configs that `kmark tune` may try, or None. `prepare` refuses names and values
        that it cannot use, also if `space` is None."""
        return None

    def check_config(self, problem: Problem, config: Config, info: DeviceInfo) -> None:
        """Raise Unsupported for a config that can be refused without a device, as `prepare` would.
        Called before a run is stored."""

    def untunable(self, problem: Problem, info: DeviceInfo) -> Reason:
        """Return a specific reason why there is nothing to tune for a problem, if there is one."""
        return NO_REASON

    def libraries(self) -> dict[str, str]:
        """Return the library versions to record in the environment, by name."""
        return {self.name: self.version()}


# cudaErrorMemoryAllocation and hipErrorOutOfMemory.
_OUT_OF_MEMORY = 2
# torch raises a plain RuntimeError for these, with the cause only in its text: an allocation of its
# CPU allocator, a cuBLAS or hipBLAS handle without workspace, and C++'s std::bad_alloc.
_TORCH_TEXT = re.compile(
    r"DefaultCPUAllocator: |\b(CU|HIP)BLAS_STATUS_ALLOC_FAILED\b|\Astd::bad_alloc\Z"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that the host or the device ran out of memory."""
    if isinstance(error, OutOfMemory | MemoryError):  # NumPy's and CuPy's are MemoryErrors
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return _is_of_torch(error)


def _is_of_torch(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    accelerator = getattr(torch, "AcceleratorError", None)  # new in torch 2.8
    if accelerator is not None and isinstance(error, accelerator):
        return getattr(error, "error_code", None) == _OUT_OF_MEMORY
    return type(error) is RuntimeError and _TORCH_TEXT.search(str(error)) is not None
