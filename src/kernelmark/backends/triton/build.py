"""Compile a Triton kernel for an architecture, with or without that GPU, and report its
resources."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import KernelInfo
from kernelmark.gpu import objects
from kernelmark.gpu.rtc import vendor_of
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder, temporary_folder

Constant = int | float | bool | str | None

# Triton's names of our dtypes, as a pointer's element type.
TRITON_TYPES = {
    "f64": "fp64",
    "f32": "fp32",
    "tf32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "i8": "i8",
    "i16": "i16",
    "i32": "i32",
    "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
    "f8e4m3fnuz": "fp8e4b8",
    "f8e5m2fnuz": "fp8e5b16",
}
_OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A run-time argument: `kind` is a pointer's dtype, or i32 / f32 for a number."""

    name: str
    kind: str
    pointer: bool
    aligned: bool = True  # the address or value is a multiple of 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A compiled kernel, for any driver."""

    code: bytes
    name: str
    shared_bytes: int
    threads: int
    scratch_bytes: int  # per program
    resources: Mapping[str, int]
    seconds: float

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.code).hexdigest()[:16]


def kernel_info(built: Sequence[Built], main: Built) -> KernelInfo:
    """Return the joint info of a plan's kernels, with the resources of the main one."""
    return KernelInfo(
        name="+".join(one.name for one in built),
        compile_s=sum(one.seconds for one in built),
        binary_hash="-".join(one.hash for one in built),
        resources=main.resources,
    )


def target(arch: str) -> Any:
    """Return Triton's target for an architecture."""
    from triton.backends.compiler import GPUTarget

    if vendor_of(arch) == "cuda":
        return GPUTarget("cuda", int(arch.removeprefix("sm_").rstrip("af")), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


def build(
    function: Any,
    arguments: tuple[Argument, ...],
    constants: Mapping[str, Constant],
    options: Mapping[str, Constant],
    arch: str,
) -> Built:
    """Return `function` compiled for `arch`; Triton has its own cache on disk."""
    key = (arguments, tuple(sorted(constants.items())), tuple(sorted(options.items())), arch)
    return _build(function, *key)


@functools.lru_cache(maxsize=256)
def _build(
    function: Any,
    arguments: tuple[Argument, ...],
    constants: tuple[tuple[str, Constant], ...],
    options: tuple[tuple[str, Constant], ...],
    arch: str,
) -> Built:
    prepare_cache()
    import triton

    start = time.perf_counter()
    try:
        source = _source(function, arguments, dict(constants))
        compiled = triton.compile(source, target=target(arch), options=_usable(options, arch))
    except Exception as error:
        raise CompileError(
            Reason("triton-refused", kernel=function.__name__, arch=arch, error=_first(error))
        ) from None
    seconds = time.perf_counter() - start
    cuda = vendor_of(arch) == "cuda"
    code = compiled.asm["cubin" if cuda else "hsaco"]
    metadata = compiled.metadata
    used = dict(objects.resources(code).get(metadata.name, {}))
    used["shared_bytes"] = metadata.shared
    used["num_warps"] = metadata.num_warps
    if getattr(metadata, "num_ctas", 1) != 1:
        raise Unsupported(Reason("clusters-unsupported", kernel=metadata.name))
    return Built(
        code=code,
        name=metadata.name,
        shared_bytes=metadata.shared,
        threads=metadata.num_warps * metadata.warp_size
        if hasattr(metadata, "warp_size")
        else metadata.num_warps * metadata.target.warp_size,
        scratch_bytes=int(getattr(metadata, "global_scratch_size", 0) or 0),
        resources=used,
        seconds=seconds,
    )


def _source(function: Any, arguments: tuple[Argument, ...], constants: dict[str, Constant]) -> Any:
    from triton.compiler import ASTSource

    given = {argument.name: argument for argument in arguments}
    signature, fixed, attributes = {}, {}, {}
    for index, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            fixed[(index,)] = constants[name]
            continue
        argument = given[name]
        kind = TRITON_TYPES.get(argument.kind, argument.kind)
        signature[name] = f"*{kind}" if argument.pointer else kind
        if argument.aligned:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=function, signature=signature, constexprs=fixed, attrs=attributes)


def _usable(options: tuple[tuple[str, Constant], ...], arch: str) -> dict[str, Constant]:
    """Return the options that this vendor's compiler supports."""
    amd_only = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
    cuda = vendor_of(arch) == "cuda"
    return {
        name: value
        for name, value in options
        if name in _OPTIONS and not (cuda and name in amd_only)
    }


def _first(error: BaseException) -> str:
    """Return the most informative line of a Triton error: the last line of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"[:500]


def prepare_cache() -> None:
    """Put Triton's cache next to kernelmark's, and pin a default that changes between Triton
    releases."""
    if not os.environ.get("TRITON_CACHE_DIR"):
        os.environ["TRITON_CACHE_DIR"] = str(_cache_folder())
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def _cache_folder() -> Path:
    """Return Triton's cache folder. Compiled launchers are loaded from it, so no other user may be
    able to write to it."""
    try:
        return private_folder(cache_root() / "triton")
    except OSError:
        return temporary_folder() / "triton"
