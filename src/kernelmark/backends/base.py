"""Backend and Kernel: what can compute an op on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Config, KernelInfo
from kernelmark.core.space import Space
from kernelmark.devices.base import ArgumentSet, Device, Stream


class Kernel(ABC):
    """A prepared, launchable thing for one problem and config, bound to its argument sets."""

    info: KernelInfo

    @abstractmethod
    def launch(self, stream: Stream, set_index: int) -> None:
        """Enqueue once on `stream`; allocate nothing. On the CPU, return when done."""

    def collect(self, set_index: int) -> None:
        """Bring the output into its argument set, where a runtime insists on its own memory.

        Called after timing, never inside it."""

    def close(self) -> None:
        """Give back what preparing took."""


class Backend(ABC):
    """One library or compiler. Its third-party import happens inside methods only."""

    name: str
    summary: str  # one line for `kmark list backends`
    device_kinds: tuple[str, ...]
    # Which of the ops' `examples` are supported, by device kind ("cpu") or architecture ("sm_90"):
    # shell patterns, of which the last match decides; "!" excludes. The contract test compares
    # them with `supports`, so that no support is lost or added unnoticed.
    supports_examples: Mapping[str, Sequence[str]] = FrozenDict()

    @abstractmethod
    def available(self) -> str | None:
        """None, or one sentence on why it cannot run here and what to install."""

    def missing_on(self, kind: str) -> Reason:
        """Return why the installed build cannot run on one of `device_kinds`, or NO_REASON; only
        asked when available."""
        return NO_REASON

    @abstractmethod
    def version(self) -> str:
        """Version of the library underneath; only asked when available."""

    @abstractmethod
    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        """None, or one sentence on why this problem cannot be done on this device.

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
        that it cannot use, also where `space` is None."""
        return None

    def check_config(self, problem: Problem, config: Config, info: DeviceInfo) -> None:
        """Raise Unsupported for a config that is known to be wrong without a device, as `prepare`
        will. Called before a run is stored."""

    def untunable(self, problem: Problem, info: DeviceInfo) -> Reason:
        """Return why there is nothing to tune for a problem, where more is known than that."""
        return NO_REASON

    def libraries(self) -> dict[str, str]:
        """Versions worth recording in the environment, by library name."""
        return {self.name: self.version()}
