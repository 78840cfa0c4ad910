"""plain: axpy with two NumPy calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelmark.backends.base import Backend, Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, KernelInfo
from kernelmark.devices.base import ArgumentSet, Device, Stream
from kernelmark.devices.cpu import array


class PlainKernel(Kernel):
    def __init__(self, alpha: float, sets: Sequence[ArgumentSet]) -> None:
        self.info = KernelInfo(name="multiply, add")
        self._alpha = alpha
        self._sets = [tuple(array(held[name]) for name in "xyz") for held in sets]

    def launch(self, stream: Stream, set_index: int) -> None:
        x, y, z = self._sets[set_index]
        np.multiply(x, self._alpha, out=z)
        np.add(z, y, out=z)

    def close(self) -> None:
        self._sets = []


class Plain(Backend):
    name = "plain"
    summary = "axpy with two NumPy calls"
    device_kinds = ("cpu",)
    supports_examples = {"cpu": ("axpy *",)}  # noqa: RUF012

    def available(self) -> str | None:
        return None

    def version(self) -> str:
        return np.__version__

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        return None if problem.op == "axpy" else f"plain has axpy and no {problem.op}"

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        if config:
            raise Unsupported("plain has nothing to choose in a config")
        return PlainKernel(float(problem.options["alpha"]), sets)


backend = Plain()
