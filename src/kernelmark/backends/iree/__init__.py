"""IREE: MLIR made per problem, compiled by the real compiler, run by the real runtime."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from kernelmark import ops
from kernelmark.backends._rules import unknown_op, wrong_device
from kernelmark.backends.base import Backend, Kernel
from kernelmark.backends.iree import choices
from kernelmark.backends.iree.choices import Choice
from kernelmark.backends.iree.compiler import Build, build
from kernelmark.backends.iree.runtime import HostKernel
from kernelmark.backends.iree.targets import Target, target
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, KernelInfo
from kernelmark.core.space import Space
from kernelmark.core.units import bytes_text
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.kernels import mlir

_INSTALL = 'pip install "kernelmark[iree]"'
_UPGRADE = 'pip install --upgrade "kernelmark[iree]"'
_PACKAGES = {"iree.compiler": "iree-base-compiler", "iree.runtime": "iree-base-runtime"}


class Iree(Backend):
    """llvm-cpu code on the cores of the device."""

    name = "iree"
    summary = "IREE's compiler and runtime (llvm-cpu)"
    device_kinds = ("cpu",)

    def available(self) -> str | None:
        missing = [pip for module, pip in _PACKAGES.items() if not _present(module)]
        if missing:
            return f"iree: {' and '.join(missing)} not installed; {_INSTALL}"
        import iree.runtime as rt
        from iree.runtime.version import VERSION

        if not hasattr(rt.HalAllocator, "import_host_allocation"):
            return f"iree: runtime {VERSION} cannot work on given memory; {_UPGRADE}"
        return None

    def version(self) -> str:
        from iree.compiler.version import VERSION

        return str(VERSION)

    def libraries(self) -> dict[str, str]:
        from iree.compiler.version import REVISIONS
        from iree.runtime.version import VERSION as RUNTIME

        commit = REVISIONS.get("IREE", "")[:12]
        compiler = f"{self.version()} ({commit})" if commit else self.version()
        return {"iree-compiler": compiler, "iree-runtime": str(RUNTIME)}

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        reason = wrong_device(self.name, self.device_kinds, info)
        reason = reason or unknown_op(self.name, mlir.registry.names(), problem)
        return reason or mlir.registry.get(problem.op).refuses(problem) or _emulated(problem)

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        choice, built = _build(problem, config, _target(info))
        return _info(choice, built)

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        if reason := self.supports(problem, device.info):
            raise Unsupported(reason)
        choice, built = _build(problem, config, _target(device.info))
        scratch = mlir.registry.get(problem.op).scratch_bytes(problem, choice.form)
        if scratch > device.free_bytes():
            raise OutOfMemory(
                f"iree needs {bytes_text(scratch)} for intermediate results and "
                f"{bytes_text(device.free_bytes())} are free"
            )
        threads = getattr(device, "threads", device.info.units)
        specs = ops.registry.get(problem.op).tensors(problem)
        return HostKernel(built.binary, specs, sets, threads, _info(choice, built))

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        return choices.space(problem, _target(info))


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package `iree` itself is absent
        return False


def _emulated(problem: Problem) -> str | None:
    """Why a dtype has no arithmetic of its own on CPUs, or None.

    bf16 is not refused: where the CPU lacks bf16 instructions, elements are widened to f32 by a
    shift, exactly, and summed in f32, which is what acc=f32 over bf16 means. 8-bit floats are
    taken apart bit by bit, many times slower than either the sums or any hardware with them.
    """
    for name, dtype_name in problem.dtypes.items():
        if dtype(dtype_name).kind == "float" and dtype(dtype_name).bits < 16:
            return f"iree emulates {dtype_name} ({name}) in software on CPUs"
    return None


def _target(info: DeviceInfo) -> Target:
    found = target(info)
    if found is None:
        raise Unsupported(f"iree has no target for {info.kind} {info.arch}")
    return found


def _build(problem: Problem, config: Config, goal: Target) -> tuple[Choice, Build]:
    choice = choices.choose(problem, config, goal)
    tensors = ops.registry.get(problem.op).tensors(problem)
    source = mlir.registry.get(problem.op).text(problem, tensors, choice.form)
    return choice, build(source, choice.flags, goal.identity)


def _info(choice: Choice, built: Build) -> KernelInfo:
    return KernelInfo(
        name=choice.label,
        compile_s=built.seconds,
        cached=built.cached,
        binary_hash=built.hash,
        resources={"binary_bytes": len(built.binary)},
    )


backend = Iree()
