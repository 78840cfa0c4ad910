"""kernelmark's Triton kernels, compiled ahead for any architecture and launched without torch."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import cast

from kernelmark import ops
from kernelmark.backends import _memory
from kernelmark.backends._rules import ON_AMD, not_installed, unknown_op, wrong_device
from kernelmark.backends.base import Backend, Kernel
from kernelmark.backends.triton.configs import check_config
from kernelmark.backends.triton.launch import KernelPlan, TritonGpu, TritonKernel, kernel_info
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, KernelInfo, Space
from kernelmark.devices.base import ArgumentSet, Device

# The module that plans each op; a batch is a dimension of the GEMM's grid.
_PLANNERS = {
    "gemm": "gemm",
    "batched_gemm": "gemm",
    "batched_gemm_quant": "quantized",
    "gemm_epilogue": "quantized",
    "attention": "attention",
    "conv": "conv",
    "moe": "moe",
}
_OPS = (
    *("gemm *", "batched_gemm*", "attention *", "conv *", "moe *"),
    *("gemm_epilogue *scale=row", "gemm_epilogue *scale=block", "!gemm_epilogue *act=[!n]*"),
    "!*w_order=tiled",
    *("!*f64", "!*acc=f16", "!attention *dtype=f32*", "!moe *=f32"),
)
_NO_OCP = ("!*=f8e4m3", "!*=f8e4m3 *", "!*a8w8_group")  # gfx942 has the fnuz floats


class TritonBackend(Backend):
    """GEMM, batched and scaled GEMM, attention, convolution and mixture of experts in Triton."""

    name = "triton"
    summary = (
        "our own Triton kernels: GEMM, batched GEMM, attention, convolution, experts; "
        f"on hip {ON_AMD}"
    )
    device_kinds = ("cuda", "hip")
    supports_examples = FrozenDict({"sm_90": (*_OPS, "!*fnuz*"), "gfx942": (*_OPS, *_NO_OCP)})

    def available(self) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return not_installed(self.name, "triton", 'pip install "kernelmark[triton]"')
        return None

    def version(self) -> str:
        return importlib.metadata.version("triton")

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        reason = wrong_device(self.name, self.device_kinds, info)
        if reason := reason or unknown_op(self.name, _PLANNERS, problem):
            return reason
        return cast("str | None", _planner(problem).supports(problem, info))

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        space = cast(Space, _planner(problem).space(problem, info))
        return dataclasses.replace(space, default=_default(problem, info))

    def default(self, problem: Problem, info: DeviceInfo) -> Config:
        """Return the config that `{}` stands for."""
        return _default(problem, info)

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        plan = _plan(problem, config, info)
        built = [call.build(info.arch) for call in plan.calls]
        return kernel_info(built, built[plan.main])

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        plan = _plan(problem, config, device.info)
        return TritonKernel(plan, cast(TritonGpu, device), sets)


@functools.lru_cache(maxsize=256)
def _default(problem: Problem, info: DeviceInfo) -> Config:
    """Return what the shipped times predict to be the best config, else what the rules choose."""
    planner = _planner(problem)
    predicted = _memory.guess("triton", problem, info, lambda: planner.space(problem, info))
    return predicted or cast(Config, planner.default(problem, info))


def _plan(problem: Problem, config: Config, info: DeviceInfo) -> KernelPlan:
    planner = _planner(problem)
    check_config(config, planner.default(problem, info))
    # The missing values of a part of a config come from the rules, which fit them to each other.
    plan = cast(KernelPlan, planner.plan(problem, config or _default(problem, info), info))
    if info.kind != "hip":
        return plan
    tensors = ops.registry.get(problem.op).tensors(problem)
    return plan.with_ranges({spec.name: spec.nbytes for spec in tensors})


def _planner(problem: Problem) -> ModuleType:
    return importlib.import_module(f"kernelmark.backends.triton.{_PLANNERS[problem.op]}")


backend = TritonBackend()
