"""Several backends as one, `cublaslt,triton`, so that one search covers them all: a config names
its backend, as `backend=triton triton.block_m=64 …`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, prefixed
from kernelmark.core.result import Config, KernelInfo, Space, split_config
from kernelmark.devices.base import ArgumentSet, Device


class Several(Backend):
    """Backends of which each computes the problems that it supports. The first is the default."""

    summary = "several backends as one"

    def __init__(self, parts: Sequence[Backend]) -> None:
        self._parts = {part.name: part for part in parts}
        self.name = ",".join(self._parts)
        self.device_kinds = tuple(dict.fromkeys(k for part in parts for k in part.device_kinds))

    def available(self) -> str | None:
        return next(filter(None, (part.available() for part in self._parts.values())), None)

    def version(self) -> str:
        return ", ".join(f"{name} {part.version()}" for name, part in self._parts.items())

    def libraries(self) -> dict[str, str]:
        return {k: v for part in self._parts.values() for k, v in part.libraries().items()}

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        return self._refused(lambda part: part.supports(problem, info), info)

    def refuses(self, problem: Problem, info: DeviceInfo) -> str | None:
        """Return what `supports` does for a device that is not present."""
        return self._refused(
            lambda part: getattr(part, "refuses", part.supports)(problem, info), info
        )

    def _refused(self, rule: Callable[[Backend], str | None], info: DeviceInfo) -> str | None:
        reasons = [Reason(rule(part) or "") for part in self._on(info)]
        return None if "" in reasons else "; ".join(reasons) or f"{self.name}: not on {info.kind}"

    def _on(self, info: DeviceInfo) -> Iterator[Backend]:
        return (part for part in self._parts.values() if info.kind in part.device_kinds)

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        """Return the union of the spaces of those that support the problem; a backend without one
        has a single point."""
        able = [part for part in self._on(info) if part.supports(problem, info) is None]
        spaces = {part.name: part.space(problem, info) or Space(parameters={}) for part in able}
        return Space.union(spaces) if spaces else None

    def check_config(self, problem: Problem, config: Config, info: DeviceInfo) -> None:
        part, own = self._resolve(config)
        part.check_config(problem, own, info)

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        part, own = self._resolve(config)
        return part.compile(problem, own, info)

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        part, own = self._resolve(config)
        # Of other sizes than the space's, the backend may support none.
        if reason := part.supports(problem, device.info):
            raise Unsupported(prefixed(Reason(reason), f"{part.name}: "))
        return part.prepare(problem, own, device, sets)

    def _resolve(self, config: Config) -> tuple[Backend, Config]:
        name, own = split_config(config)
        if name not in self._parts:
            raise UsageError(f"{name} is none of {self.name}", hint="name one of these")
        return self._parts[name], own
