"""What the configs of all Triton kernels share: block sizes, limits of GPUs, checks of values, and
copies of operands into another form before a kernel that is slow with the stored form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from kernelmark.backends._rules import AMD_NARROW_TYPES, no_narrow_float, refuse_unknown
from kernelmark.backends.triton.launch import Arguments, KernelCall, KernelPlan, TensorBlocks, Value
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue
from kernelmark.core.units import join_commas
from kernelmark.gpu.rtc import vendor_of

Values = dict[str, tuple[ConfigValue, ...]]  # of a space, by parameter
T = TypeVar("T")

# Config names of copies (`turn` pre-transposes, `widen` upcasts) that a problem may not need.
_ELSEWHERE = {
    "turn": "operands of this problem are read as they are stored, there is nothing to transpose",
    "widen": "there is nothing to upcast in this problem: only 8-bit values of many queries are",
}
CACHE_MODIFIERS = ("", ".ca", ".cg", ".cv")  # load modifiers that all of Triton's targets support
_MAY_BE_ZERO = ("split_kv", "waves_per_eu", "matrix_instr_nonkdim")
_OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")


def check_config(config: Config, default: Config) -> None:
    """Raise Unsupported with a reason for values from which no plan can be made; the compiler
    checks the rest."""
    refuse_unknown("triton", config, tuple(default), _ELSEWHERE)
    for name, value in config.items():
        if name == "cache_modifier":
            if value not in CACHE_MODIFIERS:
                modifiers = join_commas(map(repr, CACHE_MODIFIERS))
                raise Unsupported(f"triton: {name} is one of {modifiers}, not {value!r}")
            continue
        flag = isinstance(default[name], bool)
        if not isinstance(value, int) or isinstance(value, bool) != flag:
            kind = "yes or no (in Python: True, False)" if flag else "a whole number ≥ 0"
            raise Unsupported(f"triton: {name}={value!r} in the config is not {kind}")
        least = 0 if name in _MAY_BE_ZERO else 1
        if not flag and value < least:
            raise Unsupported(f"triton: {name}={value} is below {least}")


def level(info: DeviceInfo) -> int:
    """Return NVIDIA's architecture number, such as 90 for sm_90a; 0 for AMD."""
    if vendor_of(info.arch) != "cuda":
        return 0
    return int(info.arch.removeprefix("sm_").rstrip("af"))


def has_wide_unit(info: DeviceInfo) -> bool:
    """Return whether matrix instructions read shared memory, as on Hopper and the large Blackwells.
    Other GPUs also need registers for operands, so their tiles are smaller."""
    return 90 <= level(info) < 120


def shared_bytes(info: DeviceInfo) -> int:
    """Return the shared memory limit of a block; if unknown, the largest of any GPU."""
    return int(info.attributes.get("shared_per_block", "0")) or 232448


def staged_bytes(config: Config, info: DeviceInfo, row_bits: int, depth: int = 0) -> int:
    """Return the shared memory of the staged tiles, of which all rows and columns together have
    `row_bits` per element of k; `depth` replaces a missing block_k."""
    stages = int(config["num_stages"])
    if vendor_of(info.arch) == "hip":
        # The tiles of one stage are in registers, except with gfx950's loads into the LDS.
        stages = max(1, stages - 1)
    return row_bits * int(config.get("block_k", depth)) // 8 * stages


def accumulators_fit(config: Config, info: DeviceInfo) -> bool:
    """Return whether the f32 tile fits into registers: on CDNA half of the 512 of each of 64 lanes,
    on RDNA half of the 256 of each of 32 lanes, on NVIDIA by warpgroups of 128 × 256."""
    elements = int(config["block_m"]) * int(config["block_n"])
    if vendor_of(info.arch) == "cuda":
        return elements <= 256 * 128
    per_wave = 64 * 256 if info.arch.startswith("gfx9") else 32 * 128
    return elements <= per_wave * int(config["num_warps"])


def too_large_tiles(
    config: Config, info: DeviceInfo, *, bits: tuple[int, int], depth: int = 0
) -> str | None:
    """Return why the tiles of a config do not fit on an SM/CU, or None; `bits` are those of an
    element of each operand, `depth` replaces a missing block_k."""
    row_bits = int(config["block_m"]) * bits[0] + int(config["block_n"]) * bits[1]
    staged, most = staged_bytes(config, info, row_bits, depth), shared_bytes(info)
    if staged > most:
        return f"{staged} bytes of staged tiles exceed {most} of shared memory"
    if not accumulators_fit(config, info):
        return "the accumulator tile does not fit into registers"
    return None


def dtype_reason(name: str, info: DeviceInfo) -> Reason | None:
    """Return why an operand of this dtype cannot be multiplied natively on this architecture, or
    None."""
    ocp = name in ("f8e4m3", "f8e5m2")
    if not ocp and not name.endswith("fnuz"):
        everywhere = name in ("f32", "f16", "bf16", "i8")
        return None if everywhere else Reason(f"triton has no kernel for operands of {name}")
    # NVIDIA multiplies OCP's 8-bit floats from sm_89 (Ada) on.
    native = (ocp and level(info) >= 89) or name in AMD_NARROW_TYPES.get(info.arch, ())
    return None if native else no_narrow_float("triton", name, info.arch)


def compiler_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that Triton's compiler reads."""
    return {name: config[name] for name in _OPTIONS if name in config}


def amd_only(info: DeviceInfo, waves: T, shape: T, kpack: T, **more: T) -> dict[str, T]:
    """Return values by the names of the parameters that only AMD's compiler reads: waves per EU,
    shape of the matrix instruction, and kpack, which only gfx942 has."""
    values = {"waves_per_eu": waves, "matrix_instr_nonkdim": shape, **more}
    return values | ({"kpack": kpack} if info.arch == "gfx942" else {})


def block_sizes(size: int, least: int = 16, most: int = 256, always: int = 0) -> tuple[int, ...]:
    """Return the powers of two that a block along a dim may have: up to the first that covers it,
    and in any case the least one and those up to `always`."""
    powers = [1 << bit for bit in range(least.bit_length() - 1, most.bit_length())]
    return tuple(b for b in powers if b <= max(least, always) or b < 2 * size)


def filling_split(tiles: int, k: int, block_k: int, units: int) -> int:
    """Return the slices of k, a power of two up to 16, that give most SMs/CUs a tile and each slice
    at least four blocks."""
    split = 1
    while tiles * split * 2 <= units and k // (split * 2) >= 4 * block_k and split < 16:
        split *= 2
    return split


def slices(k: int, split: int, block_k: int) -> tuple[int, int]:
    """Return the actual number of slices of k, each of whole blocks, and the length of a slice."""
    per_part = ceil_div(ceil_div(k, split), block_k) * block_k
    return ceil_div(k, per_part), per_part


def gemm_sizes(problem: Problem) -> tuple[int, int, int, int]:
    """Return (batch, m, n, k)."""
    dims = problem.dims
    return dims.get("batch", 1), dims["m"], dims["n"], dims["k"]


def blocks_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the kernel's constants of a tile."""
    blocks = {f"BLOCK_{x}": int(config[f"block_{x.lower()}"]) for x in "MNK"}
    return blocks | {"GROUP_M": int(config["group_m"])}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(value: int, least: int, most: int) -> int:
    """Return the smallest power of two that is at least `value`, clamped to the bounds."""
    return max(least, min(most, 1 << max(0, value - 1).bit_length()))


# -- copies of operands, part of every launch and of its time

_BLOCK = {8: 128, 16: 64, 32: 64}  # a tile's edge length by the element's bits
_CHUNK = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperandCopy:
    """A call that writes `nbytes` to `buffer`, which the kernel reads instead of operand `name`."""

    name: str
    buffer: str
    nbytes: int
    call: KernelCall


def transposed(name: str, kind: str, *, batch: int, rows: int, columns: int) -> OperandCopy:
    """Return a copy of `batch` matrices of dtype `kind` from row-major to column-major storage."""
    from kernelmark.kernels.triton import gemm as kernels

    bits = dtype(kind).bits
    buffer = f"transposed {name}"
    # Copied as integers: no compiler lacks a conversion then.
    arguments = Arguments().pointer("source", f"i{bits}", name)
    arguments.pointer("target", f"i{bits}", buffer).integers(rows=rows, columns=columns)
    block_r, block_c = (power_of_two(edge, 16, _BLOCK[bits]) for edge in (rows, columns))
    grid = (ceil_div(rows, block_r) * ceil_div(columns, block_c) * batch, 1, 1)
    constants = {"BLOCK_R": block_r, "BLOCK_C": block_c}
    call = arguments.call(kernels.transpose, constants, {"num_warps": 8}, grid)
    return OperandCopy(
        name=name, buffer=buffer, nbytes=batch * rows * columns * bits // 8, call=call
    )


def upcast(name: str, kind: str, wide: str, count: int) -> OperandCopy:
    """Return a copy of `count` elements of dtype `kind` upcast to `wide`."""
    from kernelmark.kernels.triton import gemm as kernels

    buffer = f"upcast {name}"
    arguments = Arguments().pointer("source", kind, name).pointer("target", wide, buffer)
    arguments.integers(count=count)
    grid = (ceil_div(count, _CHUNK), 1, 1)
    call = arguments.call(kernels.upcast, {"BLOCK": _CHUNK}, {"num_warps": 8}, grid)
    return OperandCopy(name=name, buffer=buffer, nbytes=count * dtype(wide).bits // 8, call=call)


def with_copies(plan: KernelPlan, copies: Sequence[OperandCopy]) -> KernelPlan:
    """Return the plan with the copies first; its kernels read them instead of the operands."""
    buffers = {copy.name: copy.buffer for copy in copies}
    calls = [
        dataclasses.replace(call, values=tuple(_read_from(value, buffers) for value in call.values))
        for call in plan.calls
    ]
    return dataclasses.replace(
        plan,
        calls=(*(copy.call for copy in copies), *calls),
        main=len(copies) + plan.main,
        named_bytes={copy.buffer: copy.nbytes for copy in copies},
    )


def _read_from(value: Value, buffers: Mapping[str, str]) -> Value:
    """Return the value with the tensor replaced by its copy, if it has one."""
    if isinstance(value, TensorBlocks):
        return dataclasses.replace(value, tensor=buffers.get(value.tensor, value.tensor))
    return buffers.get(str(value), value)


def can_pretranspose(problem: Problem, info: DeviceInfo) -> bool:
    """Return whether a GEMM has an operand that is faster to multiply after a transpose.

    NVIDIA's matrix units take 8-bit operands with k innermost only. Otherwise the GEMM transposes
    them byte by byte, each tile again for every output tile that uses it.
    """
    if vendor_of(info.arch) != "cuda" or dtype(problem.dtypes["a"]).bits != 8:
        return False
    return problem.options["ta"] == "t" or problem.options["tb"] == "n"


def k_innermost(problem: Problem) -> Problem:
    """Return the same GEMM with operands stored as the matrix unit takes them."""
    return dataclasses.replace(problem, options={**problem.options, "ta": "n", "tb": "t"})


def transposed_operands(problem: Problem) -> list[OperandCopy]:
    """Return a transposing copy of each operand that is stored otherwise than in
    `k_innermost(problem)`."""
    batch, m, n, k = gemm_sizes(problem)
    widths = {"a": m} if problem.options["ta"] == "t" else {}
    widths |= {"b": n} if problem.options["tb"] == "n" else {}
    return [
        transposed(name, problem.dtypes[name], batch=batch, rows=k, columns=width)
        for name, width in widths.items()
    ]
