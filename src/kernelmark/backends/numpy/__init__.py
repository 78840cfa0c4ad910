"""NumPy: BLAS GEMMs for f64 and f32, NumPy's own loops for f16 and i8, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelmark import ops
from kernelmark.backends._rules import refuse_unknown, unknown_op, wrong_device
from kernelmark.backends.base import Backend, Kernel
from kernelmark.backends.numpy import attention, conv, copy, gemm, gemm_epilogue, moe
from kernelmark.backends.numpy.matmuls import Plan, missing
from kernelmark.backends.numpy.threads import set_threads
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, KernelInfo
from kernelmark.devices.base import ArgumentSet, Device, Stream
from kernelmark.devices.cpu import CpuDevice, array

PLANS = {
    "gemm": gemm.plan,
    "batched_gemm": gemm.plan,
    "attention": attention.plan,
    "conv": conv.plan,
    "copy": copy.plan,
    "moe": moe.plan,
    "gemm_epilogue": gemm_epilogue.plan,
}


class NumpyKernel(Kernel):
    """Prebuilt NumPy calls on prebuilt views."""

    def __init__(self, plan: Plan) -> None:
        resources = {"workspace_bytes": plan.workspace_bytes} if plan.workspace_bytes else {}
        self.info = KernelInfo(name=plan.name, resources=resources)
        self._launches = plan.launches

    def launch(self, stream: Stream, set_index: int) -> None:
        for step in self._launches[set_index]:
            step()

    def close(self) -> None:
        self._launches = []


class NumpyBackend(Backend):
    name = "numpy"
    summary = "NumPy with its BLAS: the plain baseline on the CPU"
    device_kinds = ("cpu",)
    supports_examples = FrozenDict(
        {
            "cpu": (
                *("gemm *", "batched_gemm *", "attention *", "conv *", "copy *", "moe *"),
                *("!*bf16*", "!*=f8*", "!*f16 alpha=*", "!*acc=f16", "gemm_epilogue *"),
            )
        }
    )

    def available(self) -> str | None:
        return None

    def version(self) -> str:
        return np.__version__

    def libraries(self) -> dict[str, str]:
        found: Any = np.show_config(mode="dicts")
        blas = (found or {}).get("Build Dependencies", {}).get("blas", {})
        text = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
        return {"numpy": np.__version__, "numpy blas": text}

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        return (
            wrong_device(self.name, self.device_kinds, info)
            or unknown_op(self.name, PLANS, problem)
            or missing(problem)
        )

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        refuse_unknown(self.name, config)
        reason = self.supports(problem, device.info)
        if reason is not None:
            raise Unsupported(reason)
        if isinstance(device, CpuDevice):
            set_threads(device.threads)
        names = [spec.name for spec in ops.registry.get(problem.op).tensors(problem)]
        arrays = [{name: array(arguments[name]) for name in names} for arguments in sets]
        return NumpyKernel(PLANS[problem.op](problem, arrays, device.free_bytes()))


backend = NumpyBackend()
