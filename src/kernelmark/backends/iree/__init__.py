"""IREE: generate MLIR per problem, compile it with iree-compile, run it with IREE's runtime."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from kernelmark import ops
from kernelmark.backends._rules import ON_AMD, not_installed, unknown_op, wrong_device
from kernelmark.backends.base import Backend, Kernel
from kernelmark.backends.iree import choices, runtime
from kernelmark.backends.iree.choices import CompileChoice
from kernelmark.backends.iree.compiler import (
    PACK_PREFIX,
    Build,
    ToolRound,
    build,
    compiler_present,
    compiler_version,
    packed_by,
    parse_round,
    present,
    run_tool,
    tool_command,
)
from kernelmark.backends.iree.runtime import HostKernel
from kernelmark.backends.iree.targets import Target, kernel_resources, target
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import OutOfMemory, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Config, KernelInfo, Space
from kernelmark.core.units import bytes_text
from kernelmark.devices.base import ArgumentSet, Device
from kernelmark.gpu.pack import holds
from kernelmark.kernels import mlir

_INSTALL = 'pip install "kernelmark[iree]"'
_UPGRADE = 'pip install --upgrade "kernelmark[iree]"'
_PACKAGES = {"iree.compiler": "iree-base-compiler", "iree.runtime": "iree-base-runtime"}


class Iree(Backend):
    """IREE's llvm-cpu code on the device's cores, or GPU code on IREE's own queue."""

    name = "iree"
    summary = f"IREE's compiler and runtime (llvm-cpu, cuda, rocm); on hip {ON_AMD}"
    device_kinds = ("cpu", "cuda", "hip")
    # On a GPU, support depends on whether IREE's runtime finds the device.
    supports_examples = FrozenDict(
        {
            "cpu": (
                *("gemm *", "gemm_epilogue *", "batched_gemm *", "attention *", "conv *", "copy *"),
                *("batched_gemm_quant * scheme=a8w8", "!*=f8*", "!*=f4*"),
            )
        }
    )

    def available(self) -> str | None:
        missing = [pip for module, pip in _PACKAGES.items() if not present(module)]
        if missing == ["iree-base-compiler"] and holds(PACK_PREFIX):
            missing = []  # modules in a bundle were compiled elsewhere
        if missing:
            return not_installed(self.name, " and ".join(missing), _INSTALL)
        import iree.runtime as rt
        from iree.runtime.version import VERSION

        if not hasattr(rt.HalAllocator, "import_host_allocation"):
            return Reason(f"{self.name}: runtime {VERSION} is too old; {_UPGRADE}")
        return None

    def version(self) -> str:
        if not compiler_present():
            from iree.runtime.version import VERSION

            return str(VERSION)
        from iree.compiler.version import VERSION

        return str(VERSION)

    def libraries(self) -> dict[str, str]:
        from iree.runtime.version import VERSION

        versions = {"iree-runtime": str(VERSION)}
        compiler = compiler_version() if compiler_present() else packed_by()
        return versions | ({"iree-compiler": compiler} if compiler else {})

    def supports(self, problem: Problem, info: DeviceInfo) -> str | None:
        reason = self.refuses(problem, info)
        if reason is None and info.kind != "cpu":
            return runtime.absent(info.kind)
        if reason is None and not compiler_present():
            return not_installed(self.name, "iree-base-compiler", _INSTALL)
        return reason

    def refuses(self, problem: Problem, info: DeviceInfo) -> str | None:
        """Return why such a device, present or not, cannot run the problem; None if it can."""
        reason: str | None = wrong_device(self.name, self.device_kinds, info)
        reason = reason or _ungrouped(problem)
        reason = reason or unknown_op(self.name, mlir.SOURCES, problem)
        if reason is not None:
            return reason
        goal = target(info)
        if goal is None:
            return _no_target(info)
        reason = mlir.SOURCES[problem.op].refuses(problem)
        # The compiler decides which dtypes a GPU supports: its diagnostic becomes the reason.
        return reason or (None if goal.gpu else _emulated(problem))

    def compile(self, problem: Problem, config: Config, info: DeviceInfo) -> KernelInfo:
        if reason := self.refuses(problem, info):
            raise Unsupported(reason)
        choice, built = _build(problem, config, _target(info))
        return _info(choice, built)

    def prepare(
        self, problem: Problem, config: Config, device: Device, sets: Sequence[ArgumentSet]
    ) -> Kernel:
        if reason := self.supports(problem, device.info):
            raise Unsupported(reason)
        goal = _target(device.info)
        choice, built = _build(problem, config, goal)
        scratch = mlir.SOURCES[problem.op].scratch_bytes(problem, choice.form)
        if scratch > device.free_bytes():
            raise OutOfMemory(
                Reason(
                    f"{bytes_text(scratch)} needed for intermediate results, "
                    f"{bytes_text(device.free_bytes())} free",
                    "out-of-memory",
                    needed=scratch,
                    free=device.free_bytes(),
                    what="intermediate results",
                )
            )
        specs = ops.registry.get(problem.op).tensors(problem)
        info = _info(choice, built)
        if not goal.gpu:
            threads = getattr(device, "threads", device.info.units)
            return HostKernel(built.binary, specs, sets, threads, info)
        start = time.perf_counter()
        opened = runtime.open_device(goal.driver, device.info.uuid, device.info.index)
        program = runtime.load(opened, built.binary)
        # The driver translates the code that IREE's compiler leaves to it (PTX).
        info = dataclasses.replace(info, compile_s=info.compile_s + time.perf_counter() - start)
        return runtime.QueueKernel(program, specs, sets, info, ready=device.synchronize)

    def benchmark(
        self,
        problem: Problem,
        config: Config,
        device: Device,
        files: Sequence[Path],
        *,
        repetitions: int,
        repetition_s: float,
        warmup_s: float,
        timeout_s: float,
    ) -> ToolRound:
        """Time a problem with one process of iree-benchmark-module, on the tensors in `files`."""
        goal = _target(device.info)
        _, built = _build(problem, config, goal)
        binary = files[0].with_name("module.vmfb")
        binary.write_bytes(built.binary)
        threads = getattr(device, "threads", device.info.units)
        if threads == 1 and not goal.gpu:  # same as `HostKernel`
            goal, threads = dataclasses.replace(goal, driver="local-sync"), 0
        specs = ops.registry.get(problem.op).tensors(problem)
        types = [mlir.base.argument_type(spec)[len("tensor<") : -1] for spec in specs]
        pairs = zip(types, files, strict=True)
        arguments = [
            *tool_command("iree-benchmark-module", binary, mlir.base.FUNCTION, goal, threads),
            *(f"--input={kind}=@{file}" for kind, file in pairs),
            *("--benchmark_format=json", f"--benchmark_repetitions={repetitions}"),
            f"--benchmark_min_time={repetition_s:.6f}s",
            f"--benchmark_min_warmup_time={warmup_s:.6f}",
        ]
        return parse_round(run_tool(arguments, timeout_s))

    def space(self, problem: Problem, info: DeviceInfo) -> Space | None:
        goal = target(info)
        return choices.space(problem, goal) if goal else None

    def untunable(self, problem: Problem, info: DeviceInfo) -> Reason:
        goal = target(info)
        return choices.untunable(problem, goal) if goal else NO_REASON


def _ungrouped(problem: Problem) -> Reason | None:
    """Return why moe cannot be expressed as grouped GEMMs, or None.

    IREE 3.13 has no op for GEMMs whose sizes are data: the host would have to read the token count
    of each expert. The alternatives compute all experts for all tokens, or copy the weights for
    each token."""
    if problem.op != "moe":
        return None
    experts, top_k = problem.dims["e"], problem.dims["top_k"]
    return Reason(
        f"iree has no grouped GEMM: of {problem.op} it would compute all "
        f"{experts} experts for every token, not {top_k}"
    )


def _emulated(problem: Problem) -> str | None:
    """Return why a dtype has no native arithmetic on CPUs, or None.

    bf16 is not refused: without bf16 instructions, elements are upcast to f32 by a shift, exactly,
    and summed in f32, which is what acc=f32 over bf16 means. 8-bit floats are decoded bit by bit,
    many times slower than the sums or any hardware support.
    """
    for name, dtype_name in problem.dtypes.items():
        if dtype(dtype_name).kind == "float" and dtype(dtype_name).bits < 16:
            return Reason(f"iree emulates {dtype_name} ({name}) in software on CPUs")
    return None


def _target(info: DeviceInfo) -> Target:
    goal = target(info)
    if goal is None:
        raise Unsupported(_no_target(info))
    return goal


def _no_target(info: DeviceInfo) -> Reason:
    return Reason(f"iree has no target for {info.kind} {info.arch}")


def _build(problem: Problem, config: Config, goal: Target) -> tuple[CompileChoice, Build]:
    choice = choices.choose(problem, config, goal)
    source = choices.source(problem, choice)
    return choice, build(source, choice.flags, goal.identity, goal.pack, choice.spec)


def _info(choice: CompileChoice, built: Build) -> KernelInfo:
    kernels = kernel_resources(built.binary)
    # A problem may use several kernels: the largest use of each resource limits occupancy.
    used: dict[str, int] = {"binary_bytes": len(built.binary)}
    for kernel in kernels.values():
        for name, amount in kernel.items():
            used[name] = max(used.get(name, 0), amount)
    return KernelInfo(
        name=f"{choice.label}: {'+'.join(kernels)}" if kernels else choice.label,
        compile_s=built.seconds,
        cached=built.cached,
        binary_hash=built.hash,
        resources=used,
        configs=built.configs,
    )


backend = Iree()
