"""Plans, defaults and spaces of the Triton kernels for quantised GEMMs: batched_gemm_quant, and the
scaled 8-bit floats of gemm_epilogue."""

from __future__ import annotations

from typing import Any

from kernelmark.backends._rules import wrong_dtypes
from kernelmark.backends.triton.configs import (
    Values,
    amd_only,
    block_sizes,
    blocks_of,
    ceil_div,
    compiler_options,
    dtype_reason,
    filling_split,
    gemm_sizes,
    level,
    power_of_two,
    slices,
    too_large_tiles,
)
from kernelmark.backends.triton.launch import WORKSPACE, Arguments, KernelCall, KernelPlan
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue, Space
from kernelmark.core.units import join_or
from kernelmark.gpu.rtc import vendor_of

_REDUCE_BLOCK = 1024
_MX_GROUP = 32
_SCALE_GROUP = 128  # elements that share a factor with scale=block
# A sum of this many int8 products always fits into 32 bits.
_MOST_INT8_TERMS = (2**31 - 1) // 2**14


def native_fp4(info: DeviceInfo) -> bool:
    """Return whether the matrix units multiply MXFP4 natively; otherwise it is emulated."""
    if vendor_of(info.arch) == "hip":
        return info.arch in ("gfx950", "gfx1250")
    return 100 <= level(info) < 120


def supports(problem: Problem, info: DeviceInfo) -> str | None:
    if problem.op == "gemm_epilogue":
        return _epilogue_reason(problem, info)
    if _is_fp4(problem):
        return None
    reason = dtype_reason(problem.dtypes["b"], info)
    if reason:
        return reason
    if problem.options["scheme"] == "a8w8" and problem.dims["k"] > _MOST_INT8_TERMS:
        why = f"with triton: sums of more than {_MOST_INT8_TERMS} int8 terms may overflow 32 bits"
        return Reason(f"k={problem.dims['k']} is not possible {why}")
    return None


def _epilogue_reason(problem: Problem, info: DeviceInfo) -> Reason | None:
    """Return why a gemm_epilogue is not one of scaled 8-bit floats, or None."""
    options, c = problem.options, problem.dtypes["c"]
    for name, values in (("scale", ("tensor", "row", "block")), ("act", ("none",))):
        if options[name] not in values:
            what = f"{problem.op} only with {name}={join_or(values)}, not {name}={options[name]}"
            return Reason(f"triton has {what}")
    if c not in ("f32", "f16", "bf16"):
        return wrong_dtypes("triton", problem)
    if (options["ta"], options["tb"]) != ("n", "t"):
        # Matrix units take 8-bit operands with k innermost.
        return Reason(f"triton multiplies {problem.dtypes['a']} with scales only as ta=n tb=t")
    return dtype_reason(problem.dtypes["a"], info) or dtype_reason(problem.dtypes["b"], info)


def _is_fp4(problem: Problem) -> bool:
    return problem.dtypes["b"] == "f4e2m1"


def _is_group(problem: Problem) -> bool:
    return problem.options.get("scheme") == "a8w8_group"


def _deepest(problem: Problem) -> int:
    """Return the largest block_k: a step along k has one factor per row of A if scale=block."""
    return _SCALE_GROUP if problem.options.get("scale") == "block" else 256


# -- configs


def default(problem: Problem, info: DeviceInfo) -> Config:
    """Return the default config for the architecture and shape. A group's length is the depth of
    its block, so `a8w8_group` has no block_k."""
    batch, m, n, k = gemm_sizes(problem)
    block_m, block_n = power_of_two(m, 16, 64), power_of_two(n, 32, 128)
    block_k = power_of_two(k, *_depths(problem, info))
    tiles = batch * ceil_div(m, block_m) * ceil_div(n, block_n)
    config: dict[str, ConfigValue] = {
        "block_m": block_m,
        "block_n": block_n,
        **({} if _is_group(problem) else {"block_k": block_k}),
        "group_m": 8,
        "split_k": filling_split(tiles, k, block_k, info.units),
        "num_warps": 8 if block_m * block_n >= 64 * 128 else 4,
        "num_stages": 3,
    }
    if vendor_of(info.arch) == "hip":
        config |= {"num_stages": 2, **amd_only(info, 2, 16, 1)}
    return FrozenDict(config)


def _depths(problem: Problem, info: DeviceInfo) -> tuple[int, int]:
    """Return the smallest and the largest useful block_k."""
    if not _is_fp4(problem):
        return (32 if vendor_of(info.arch) == "cuda" else 64), 128
    if not native_fp4(info):
        return 32, 64
    # Quantising a tile of 64 rows in the kernel takes more registers than there are for 256.
    return 128, 128 if problem.options["scheme"] == "a16wfp4" else 256


def space(problem: Problem, info: DeviceInfo) -> Space:
    """Return all configs that the kernels can be built with for this problem."""
    _, m, n, k = gemm_sizes(problem)
    parameters: Values = {"block_m": block_sizes(m), "block_n": block_sizes(n, always=32)}
    if not _is_group(problem):
        parameters["block_k"] = block_sizes(
            k, least=_depths(problem, info)[0], most=_deepest(problem)
        )
    parameters["group_m"] = (1, 4, 8)
    parameters["split_k"] = tuple(s for s in (1, 2, 4, 8, 16) if s == 1 or k // s >= 128)
    if vendor_of(info.arch) == "cuda":
        parameters |= {"num_warps": (4, 8), "num_stages": (2, 3, 4, 5)}
    else:
        parameters |= {"num_warps": (2, 4, 8), "num_stages": (1, 2, 3)}
        parameters |= amd_only(info, (0, 1, 2, 4), (16, 32), (1, 2))
    bits = dtype(problem.dtypes["a"]).bits, dtype(problem.dtypes["b"]).bits
    depth = problem.dims.get("group", 128)

    def forbids(config: Config) -> str | None:
        return too_large_tiles(config, info, bits=bits, depth=depth)

    return Space(parameters=parameters, default=default(problem, info), forbids=forbids)


# -- plans


def plan(problem: Problem, config: Config, info: DeviceInfo) -> KernelPlan:
    """Return the launches for a config; missing values come from the default."""
    chosen: dict[str, Any] = {**default(problem, info), **config}
    batch, m, n, k = gemm_sizes(problem)
    if _is_group(problem):
        chosen["block_k"] = problem.dims["group"]
    block_k = int(chosen["block_k"])
    if _is_fp4(problem) and block_k % _MX_GROUP:
        raise Unsupported(f"triton: block_k={block_k} is not a multiple of {_MX_GROUP}")
    if problem.options.get("scale") == "block" and _SCALE_GROUP % block_k:
        raise Unsupported(f"triton: block_k={block_k} does not divide a block of {_SCALE_GROUP}")
    split, per_part = slices(k, int(chosen["split_k"]), block_k)
    main = _tiles(problem, chosen, info, split, per_part)
    if split == 1:
        return KernelPlan(calls=(main,))
    return KernelPlan(
        calls=(main, _reduce(problem, split)), workspace_bytes=batch * split * m * n * 4
    )


def _tiles(
    problem: Problem, config: dict[str, Any], info: DeviceInfo, split: int, per_part: int
) -> KernelCall:
    batch, m, n, k = gemm_sizes(problem)
    types, scales = problem.dtypes, "u8" if _is_fp4(problem) else "f32"
    # f4e2m1 is read as bytes of two elements.
    a, b = ("u8" if types[name] == "f4e2m1" else types[name] for name in "ab")
    arguments = Arguments().tensors(a=a, b=b, a_scale=scales, b_scale=scales)
    arguments.tensors(bias=_bias_type(problem))
    arguments.pointer("d", *(("f32", WORKSPACE) if split > 1 else (types["c"], "d")))
    arguments.integers(batches=batch, m=m, n=n, k=k, k_split=per_part)
    blocks = blocks_of(config)
    constants: dict[str, Any] = {
        **_orders(problem),
        "A_SWAPPED": problem.options.get("a_order") == "mbk",
        "EVEN_K": k % blocks["BLOCK_K"] == 0,
        "SPLIT": split > 1,
        **blocks,
    }
    function, extra = _kernel(problem, info)
    tiles = ceil_div(m, blocks["BLOCK_M"]) * ceil_div(n, blocks["BLOCK_N"])
    grid = (tiles, split, batch)
    return arguments.call(function, constants | extra, compiler_options(config), grid)


def _kernel(problem: Problem, info: DeviceInfo) -> tuple[Any, dict[str, Any]]:
    """Return the kernel of a scheme and the constants that only it takes. Its name shows an
    emulation."""
    import triton.language as tl

    from kernelmark.kernels.triton import quantized as kernels

    if problem.op == "gemm_epilogue":
        scale = problem.options["scale"]
        return kernels.scaled_tiles, {"SCALE": scale, "GROUP": _SCALE_GROUP}
    scheme = problem.options["scheme"]
    if scheme == "a8w8":
        return kernels.int8_tiles, {}
    if scheme == "a8w8_group":
        return kernels.group_tiles, {"LARGEST": dtype(problem.dtypes["b"]).max_value}
    extra: dict[str, Any] = {"QUANTISE_A": scheme == "a16wfp4"}
    if native_fp4(info):
        return kernels.mxfp4_native_tiles, extra
    return kernels.mxfp4_emulated_tiles, extra | {"PRODUCT": tl.bfloat16}


def _orders(problem: Problem) -> dict[str, bool]:
    return {
        "D_SWAPPED": problem.options.get("c_order") == "mbn",
        "HAS_BIAS": bool(problem.options["bias"]),
    }


def _bias_type(problem: Problem) -> str:
    return problem.dtypes.get("bias_type", problem.dtypes["c"])


def _reduce(problem: Problem, split: int) -> KernelCall:
    from kernelmark.kernels.triton.quantized import quantized_reduce

    batch, m, n, _ = gemm_sizes(problem)
    arguments = Arguments().pointer("parts", "f32", WORKSPACE)
    arguments.tensors(bias=_bias_type(problem), d=problem.dtypes["c"])
    arguments.integers(batches=batch, m=m, n=n)
    block = power_of_two(m * n, 128, _REDUCE_BLOCK)
    constants = {**_orders(problem), "PARTS": split, "BLOCK": block}
    grid = (ceil_div(m * n, block), batch, 1)
    return arguments.call(quantized_reduce, constants, {"num_warps": 4}, grid)
