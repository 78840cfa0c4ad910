"""Compile Triton kernels for an architecture, with or without that GPU, and launch them.

A `KernelPlan` has the launches that compute one problem with one config. They go through
kernelmark's driver, on our stream and buffers, without torch.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernelmark.backends.base import Kernel
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.core.result import KernelInfo
from kernelmark.devices.base import ArgumentSet, Buffer, Stream
from kernelmark.gpu import objects
from kernelmark.gpu.driver import Driver, pack
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
    """A run-time argument: `kind` is a pointer's dtype, or i32 / f32 for a number. An argument with
    a `block` is a tensor descriptor (TMA) that loads and stores such blocks."""

    name: str
    kind: str
    pointer: bool
    aligned: bool = True  # the address or value is a multiple of 16
    near: bool = False  # every element is within 2 GiB of the address
    block: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltKernel:
    """A compiled kernel, for any driver."""

    code: bytes
    name: str
    shared_bytes: int
    threads: int
    scratch_bytes: int  # per program
    resources: Mapping[str, int]
    seconds: float
    maps: tuple[Mapping[str, Any], ...] = ()  # of each tensor descriptor, how its blocks are stored

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.code).hexdigest()[:16]


def kernel_info(built: Sequence[BuiltKernel], main: BuiltKernel) -> KernelInfo:
    """Return the joint info of a plan's kernels, with the resources of the main one."""
    return KernelInfo(
        name="+".join(kernel.name for kernel in built),
        compile_s=sum(kernel.seconds for kernel in built),
        binary_hash="-".join(kernel.hash for kernel in built),
        resources=main.resources,
    )


def target(arch: str) -> Any:
    """Return Triton's target for an architecture."""
    from triton.backends.compiler import GPUTarget

    if vendor_of(arch) == "cuda":
        return GPUTarget("cuda", int(arch.removeprefix("sm_").rstrip("af")), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)  # lanes of a wave


def build(
    function: Any,
    arguments: tuple[Argument, ...],
    constants: Mapping[str, Constant],
    options: Mapping[str, Constant],
    arch: str,
) -> BuiltKernel:
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
) -> BuiltKernel:
    start = time.perf_counter()
    compiled = _compile(function, arguments, dict(constants), dict(options), arch)
    seconds = time.perf_counter() - start
    cuda = vendor_of(arch) == "cuda"
    code = compiled.asm["cubin" if cuda else "hsaco"]
    metadata = compiled.metadata
    used = dict(objects.resources(code).get(metadata.name, {}))
    used["shared_bytes"] = metadata.shared
    used["num_warps"] = metadata.num_warps
    lanes = (metadata if hasattr(metadata, "warp_size") else metadata.target).warp_size
    if getattr(metadata, "num_ctas", 1) != 1:
        raise Unsupported(
            f"{metadata.name} uses thread-block clusters, which cannot be launched here"
        )
    return BuiltKernel(
        code=code,
        name=metadata.name,
        shared_bytes=metadata.shared,
        threads=metadata.num_warps * lanes,
        scratch_bytes=int(getattr(metadata, "global_scratch_size", 0) or 0),
        resources=used,
        seconds=seconds,
        maps=tuple(getattr(metadata, "tensordesc_meta", None) or ()),
    )


def _compile(
    function: Any,
    arguments: tuple[Argument, ...],
    constants: Mapping[str, Constant],
    options: Mapping[str, Constant],
    arch: str,
) -> Any:
    """Return what Triton compiles, with the text of every stage in `asm`."""
    prepare_cache()
    import triton

    try:
        source = _source(function, arguments, constants)
        return triton.compile(source, target=target(arch), options=_usable(options, arch))
    except Exception as error:
        raise CompileError(
            f"Triton cannot compile {function.__name__} for {arch}: {_first(error)}"
        ) from None


def _source(
    function: Any, arguments: tuple[Argument, ...], constants: Mapping[str, Constant]
) -> Any:
    from triton.compiler import ASTSource

    by_name = {argument.name: argument for argument in arguments}
    signature, fixed, attributes = {}, {}, {}
    for index, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            fixed[(index,)] = constants[name]
            continue
        argument = by_name[name]
        kind = TRITON_TYPES.get(argument.kind, argument.kind)
        if argument.block:
            signature[name] = f"tensordesc<{kind}{list(argument.block)}>"
            continue
        signature[name] = f"*{kind}" if argument.pointer else kind
        marks = [["tt.divisibility", 16]] * argument.aligned
        if marks := marks + [["tt.pointer_range", 32]] * argument.near:
            attributes[(index,)] = marks
    return ASTSource(fn=function, signature=signature, constexprs=fixed, attrs=attributes)


def _usable(options: Mapping[str, Constant], arch: str) -> dict[str, Constant]:
    """Return the options that this vendor's compiler supports."""
    amd_only = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
    cuda = vendor_of(arch) == "cuda"
    return {
        name: value
        for name, value in options.items()
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


WORKSPACE = "workspace"
ZEROED = "zeroed"  # zero before the first launch, and reset to zero by every launch


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBlocks:
    """The value of a tensor descriptor: a tensor or buffer with a shape and strides in elements.
    The last stride is 1."""

    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


# The name of a tensor or of a buffer of the plan, a descriptor's tensor, or a number.
Value = str | int | float | TensorBlocks


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One launch: a kernel, its arguments in order with their values, and its grid."""

    function: Any
    arguments: tuple[Argument, ...]
    values: tuple[Value, ...]
    constants: Mapping[str, Constant]
    options: Mapping[str, Constant]
    grid: tuple[int, int, int]

    def build(self, arch: str) -> BuiltKernel:
        return build(self.function, self.arguments, self.constants, self.options, arch)

    def assembly(self, arch: str) -> str:
        """Return the assembly text: PTX, or an AMD GPU's own instructions."""
        text = _compile(self.function, self.arguments, self.constants, self.options, arch).asm
        return str(text["ptx" if vendor_of(arch) == "cuda" else "amdgcn"])


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """Calls in order, and the bytes of the buffers that pass data between them. `main` is the call
    that multiplies: calls before it prepare operands, calls after it sum partial results."""

    calls: tuple[KernelCall, ...]
    main: int = 0
    workspace_bytes: int = 0
    zeroed_bytes: int = 0
    named_bytes: Mapping[str, int] = field(default_factory=dict)  # by the name in `values`

    def with_ranges(self, tensor_bytes: Mapping[str, int]) -> KernelPlan:
        """Return the plan with each pointer to less than 2 GiB marked, as by Triton's AMD launcher:
        only such memory is read by buffer instructions, which need no branch at an edge."""
        nbytes = {**tensor_bytes, **self.named_bytes}
        nbytes |= {WORKSPACE: self.workspace_bytes, ZEROED: self.zeroed_bytes}

        def marked(argument: Argument, value: Value) -> Argument:
            near = argument.pointer and nbytes.get(str(value), 0) < 2**31
            return dataclasses.replace(argument, near=near)

        calls = (
            dataclasses.replace(call, arguments=tuple(map(marked, call.arguments, call.values)))
            for call in self.calls
        )
        return dataclasses.replace(self, calls=tuple(calls))


class Arguments:
    """Collects the arguments of a call, in the kernel's order."""

    def __init__(self) -> None:
        self._arguments: list[Argument] = []
        self._values: list[Value] = []
        self._ones: dict[str, int] = {}

    def _add(self, argument: Argument, value: Value) -> None:
        self._arguments.append(argument)
        self._values.append(value)

    def tensors(self, **dtypes: str) -> Arguments:
        """Add pointers to tensors of the problem, by name."""
        for name, dtype in dtypes.items():
            self.pointer(name, dtype, name)
        return self

    def pointer(self, name: str, dtype: str, tensor: str) -> Arguments:
        """Add a pointer to a tensor, or to a buffer of the plan."""
        self._add(Argument(name=name, kind=dtype, pointer=True), tensor)
        return self

    def blocks(
        self, name: str, dtype: str, tensor: TensorBlocks, block: tuple[int, ...]
    ) -> Arguments:
        """Add a descriptor made on the host: one made by the kernel delays its first load by about
        2 µs on an H200."""
        self._add(Argument(name=name, kind=dtype, pointer=False, block=block), tensor)
        return self

    def integers(self, **values: int) -> Arguments:
        """Add whole numbers. A 1 becomes a constant, as in Triton's own launches."""
        for name, value in values.items():
            if value == 1:
                self._ones[name] = 1
                continue
            kind = "i32" if abs(value) < 2**31 else "i64"
            aligned = value % 16 == 0
            self._add(Argument(name=name, kind=kind, pointer=False, aligned=aligned), value)
        return self

    def reals(self, **values: float) -> Arguments:
        for name, value in values.items():
            self._add(Argument(name=name, kind="fp32", pointer=False, aligned=False), value)
        return self

    def call(
        self,
        function: Any,
        constants: Mapping[str, Constant],
        options: Mapping[str, Constant],
        grid: tuple[int, int, int],
    ) -> KernelCall:
        return KernelCall(
            function=function,
            arguments=tuple(self._arguments),
            values=tuple(self._values),
            constants={**constants, **self._ones},
            options=options,
            grid=grid,
        )


_DEFAULT_SHARED_BYTES = 48 * 1024
_NUMBERS: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}


# CUtensorMapDataType by Triton's number of a type, where they differ.
_MAP_TYPES = {8: 10, 9: 8, 10: 9}
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
_PROMOTE_128 = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


def _descriptor(
    driver: Driver, address: int, tensor: TensorBlocks, layout: Mapping[str, Any]
) -> list[Any]:
    """Return the kernel arguments of a tensor descriptor: a CUtensorMap, the shape, the strides."""
    rank, nbytes = len(tensor.shape), layout["elem_size"]
    room = (ctypes.c_byte * (_MAP_BYTES + _MAP_ALIGNMENT))()
    aligned = -ctypes.addressof(room) % _MAP_ALIGNMENT
    tensor_map = (ctypes.c_byte * _MAP_BYTES).from_buffer(room, aligned)
    # CUDA lists dims from the innermost, whose stride is implied.
    kind = layout["elem_type"]
    driver.call(
        "tensor_map",
        ctypes.byref(tensor_map),
        _MAP_TYPES.get(kind, kind),
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*reversed(tensor.shape)),
        (ctypes.c_uint64 * max(1, rank - 1))(*(s * nbytes for s in reversed(tensor.strides[:-1]))),
        (ctypes.c_uint32 * rank)(*reversed(layout["block_size"])),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,  # not interleaved
        layout["swizzle"],
        _PROMOTE_128,
        0,  # elements out of bounds are zero
    )
    shape, strides = map(ctypes.c_int32, tensor.shape), map(ctypes.c_int64, tensor.strides)
    return [tensor_map, *shape, *strides]


class TritonGpu(Protocol):
    """The part of a GPU device that launching needs."""

    info: DeviceInfo
    driver: Driver

    @property
    def stream(self) -> Stream: ...
    def allocate(self, nbytes: int) -> Buffer: ...
    def free(self, buffer: Buffer) -> None: ...


class TritonKernel(Kernel):
    """A plan's kernels loaded on a device, with the packed arguments of every set."""

    def __init__(self, plan: KernelPlan, device: TritonGpu, sets: Sequence[ArgumentSet]) -> None:
        self._device = device
        self._owned: list[Buffer] = []
        self._modules: list[int] = []
        built = [call.build(device.info.arch) for call in plan.calls]
        for kernel in built:
            check_fits(kernel, device.info)
        try:
            self._addresses = {
                WORKSPACE: self._own(plan.workspace_bytes),
                ZEROED: self._own(plan.zeroed_bytes),
                **{name: self._own(nbytes) for name, nbytes in plan.named_bytes.items()},
            }
            if plan.zeroed_bytes:
                # On the launch stream: a small copy from the host may still be in progress when it
                # returns, and the launch stream does not wait for it.
                zeroed = self._addresses[ZEROED]
                device.driver.fill(zeroed, 0, plan.zeroed_bytes, device.stream)
            starters = [self._load(*pair) for pair in zip(plan.calls, built, strict=True)]
        except BaseException:
            self.close()
            raise
        self._launches = [[start(arguments) for start in starters] for arguments in sets]
        info = kernel_info(built, built[plan.main])
        workspace_bytes = plan.workspace_bytes + sum(plan.named_bytes.values())
        self.info = dataclasses.replace(
            info, resources={**info.resources, "workspace_bytes": workspace_bytes}
        )

    def _own(self, nbytes: int) -> int:
        if nbytes == 0:
            return 0
        buffer = self._device.allocate(nbytes)
        self._owned.append(buffer)
        return buffer.address

    def _load(
        self, call: KernelCall, built: BuiltKernel
    ) -> Callable[[ArgumentSet], Callable[[Stream], None]]:
        driver = self._device.driver
        module = driver.load(built.code)
        self._modules.append(module)
        function = driver.function(module, built.name)
        if built.shared_bytes > _DEFAULT_SHARED_BYTES:
            driver.allow_shared(function, built.shared_bytes)
        programs = call.grid[0] * call.grid[1] * call.grid[2]
        scratch = self._own(built.scratch_bytes * programs)

        def bind(arguments: ArgumentSet) -> Callable[[Stream], None]:
            values: list[Any] = []
            maps = iter(built.maps)
            for argument, value in zip(call.arguments, call.values, strict=True):
                if isinstance(value, TensorBlocks):
                    address = self._address(value.tensor, arguments)
                    values += _descriptor(driver, address, value, next(maps))
                else:
                    values.append(self._argument(argument, value, arguments))
            # Triton's two hidden arguments: its scratch memory and its profiler's.
            packed = pack(*values, ctypes.c_void_p(scratch), ctypes.c_void_p(0))
            block = (built.threads, 1, 1)

            def start(stream: Stream) -> None:
                driver.launch(function, call.grid, block, packed, stream, built.shared_bytes)

            return start

        return bind

    def _argument(self, argument: Argument, value: Value, arguments: ArgumentSet) -> Any:
        if not argument.pointer:
            return _NUMBERS[argument.kind](value)
        return ctypes.c_void_p(self._address(str(value), arguments))

    def _address(self, name: str, arguments: ArgumentSet) -> int:
        if name in self._addresses:
            return self._addresses[name]
        # An operand that the problem does not have is never read, so any address is valid.
        return arguments[name].address if name in arguments else 0

    def launch(self, stream: Stream, set_index: int) -> None:
        for start in self._launches[set_index]:
            start(stream)

    def close(self) -> None:
        for module in self._modules:
            self._device.driver.destroy("module", module)
        for buffer in self._owned:
            self._device.free(buffer)
        self._modules.clear()
        self._owned.clear()


def check_fits(built: BuiltKernel, info: DeviceInfo) -> None:
    """Raise Unsupported with a reason if the device cannot launch the kernel, before the driver
    fails with an error code."""
    most = int(info.attributes.get("shared_per_block", "0"))
    if most and built.shared_bytes > most:
        raise Unsupported(
            f"{built.name} needs {built.shared_bytes} bytes of shared memory, "
            f"{info.arch} has {most} a block",
            hint="use smaller blocks or fewer stages",
        )
