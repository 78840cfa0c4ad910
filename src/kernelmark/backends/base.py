"""Backend and Kernel: the interfaces of what computes an op on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Config, KernelInfo
from kernelmark.core.space import Space
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
