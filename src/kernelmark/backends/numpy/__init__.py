"""NumPy: BLAS GEMMs for f64 and f32, NumPy's own loops for f16 and i8, on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelmark import ops
from kernelmark.backends._rules import refuse_unknown, unknown_op, wrong_device
from kernelmark.backends.base import Backend, Kernel
from kernelmark.backends.numpy import gemms, layers
from kernelmark.backends.numpy.gemms import Plan, missing
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, KernelInfo
from kernelmark.devices.base import ArgumentSet, Device, Stream
from kernelmark.devices.cpu import CpuDevice, array

PLANS = {
    "gemm": gemms.plan_gemm,
    "batched_gemm": gemms.plan_gemm,
    "attention": layers.plan_attention,
    "conv": layers.plan_conv,
    "copy": gemms.plan_copy,
    "moe": layers.plan_moe,
    "gemm_epilogue": gemms.plan_gemm_epilogue,
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


# Library name -> functions that set the count; builds of OpenBLAS decorate their names.
_SET_THREADS = {
    "openblas": (
        "scipy_openblas_set_num_threads64_",
        "scipy_openblas_set_num_threads",
        "openblas_set_num_threads64_",
        "openblas_set_num_threads",
    ),
    "mkl_rt": ("MKL_Set_Num_Threads",),
    "libblis": ("bli_thread_set_num_threads",),
}


def set_threads(count: int) -> bool:
    """Make every loaded BLAS use `count` threads; return False if none was found.

    A worker's environment sets the count before NumPy is imported; measuring in a process that has
    already imported NumPy needs a call of the library. Two BLAS threads on one core wait for each
    other, which makes a small GEMM ten times as slow."""
    setters = _thread_setters(tuple(_loaded_blas()))
    for setter in setters:
        setter(count)
    return bool(setters)


# By the libraries that are loaded: SciPy's wheels bring a BLAS of their own, often later.
@functools.cache
def _thread_setters(paths: tuple[str, ...]) -> tuple[Callable[[int], object], ...]:
    setters: list[Callable[[int], object]] = []
    for path in paths:
        library = ctypes.CDLL(path)
        names = next(names for part, names in _SET_THREADS.items() if part in Path(path).name)
        for name in names:
            with contextlib.suppress(AttributeError):
                setters.append(getattr(library, name))
                break
    return tuple(setters)


def _loaded_blas() -> list[str]:
    """Return the libraries mapped into this process that look like a BLAS."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return [path for path in paths if any(part in Path(path).name for part in _SET_THREADS)]


backend = NumpyBackend()
