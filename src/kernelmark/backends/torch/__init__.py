"""PyTorch in eager mode, on the problem's own memory.

GEMMs write into the given output. The other ops have no such form in torch: a launch includes
torch's allocation of its result, as for every user of torch, and the result is copied into the
output after timing. PyTorch is only imported in `prepare`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Sequence

from kernelmark.backends._rules import (
    ON_AMD,
    not_installed,
    refuse_unknown,
    unknown_op,
    wrong_device,
)
from kernelmark.backends.base import Backend, Kernel
from kernelmark.backends.torch import cpu, gpu
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.core.space import Space
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.devices.cpu import CpuDevice

OPS = ("gemm", "batched_gemm", "gemm_epilogue", "attention", "conv", "moe")
OLDEST = (2, 5)  # the first whose attention shares key heads without copying them


_OPS = (
    *("gemm *", "batched_gemm *", "gemm_epilogue *", "attention *", "conv *", "moe *"),
    *("!*c=f32", "!*acc=f16", "!batched_gemm *i8", "!conv *i8", "!conv *=f8*"),
)
_GPU = ("!*fnuz", "!*i8 alpha=*", "!attention *=f8*", "!*c=f8*")
_CUDA = (*_OPS, *_GPU, "!moe *=f32", "!moe *=f16", "!*fnuz*", "!*f4e2m1*")
_HIP = (*_OPS, *_GPU, "!moe *")


class TorchBackend(Backend):
    name = "torch"
    summary = f"PyTorch's own operators, called eagerly; on hip {ON_AMD}"
    device_kinds = ("cpu", "cuda", "hip")
    supports_examples = FrozenDict(
        {
            "cpu": (*_OPS, "!*=f8*", "!*=f4*", "!attention *dim_v=16 dtype=bf16"),
            "sm_90": (*_CUDA, "!*scale=mx*"),
            "sm_100": (*_CUDA, "!*scale=mx"),
            "gfx942": (*_HIP, "!*dtype=f8e4m3 *", "!*scale=mx*"),
            "gfx950": (*_HIP, "!*fnuz*", "!*swizzle*"),
        }
    )

    def available(self) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return not_installed(self.name, "torch", 'pip install "kernelmark[torch]"')
        # Called before every case, and looking up an installation takes a millisecond.
        loaded = sys.modules.get("torch")
        version = self.version() if loaded is None else str(loaded.__version__)
        found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if found < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            return f"torch {version} is too old; pip install 'torch>={wanted}'"
        return None

    def version(self) -> str:
        try:
            return importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            # Built in place, without installation metadata.
            return str(importlib.import_module("torch").__version__)

    def missing_on(self, kind: str) -> Reason:
        return gpu.missing_build(kind, self.version())

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        return (
            wrong_device(self.name, self.device_kinds, info)
            or unknown_op(self.name, OPS, problem)
            or (cpu.missing(problem) if info.kind == "cpu" else gpu.missing(problem, info))
            or cpu.loosened(problem, os.environ)
        )

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        """Return, on the CPU, whether torch may use oneDNN for the op. Both paths are torch's own
        code."""
        if self.supports(problem, info) is not None:
            return None
        if info.kind != "cpu":
            return gpu.space(problem, info)
        if problem.op == "attention":
            return None
        return Space(
            parameters={"onednn": cpu.onednn_choices(problem, info)},
            default={"onednn": cpu.onednn_choices(problem, info)[0]},
        )

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        reason = self.supports(problem, device.info)
        if reason is not None:
            raise Unsupported(reason)
        try:
            importlib.import_module("torch")
        except (ImportError, OSError) as error:
            raise CaseError(
                f"torch is installed but cannot be imported: {error}", hint="reinstall torch"
            ) from error
        if not isinstance(device, CpuDevice):
            return gpu.prepare(problem, config, device, sets)
        refuse_unknown(self.name, config, ("onednn",))
        onednn = cpu.onednn(problem, config, device.info)
        return cpu.prepare(problem, device, sets, threads=device.threads, onednn=onednn)


backend = TorchBackend()
