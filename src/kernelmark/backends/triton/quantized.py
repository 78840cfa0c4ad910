"""Plans, defaults and spaces of the Triton kernels for quantised batched GEMM."""

from __future__ import annotations

from typing import Any

from kernelmark.backends.triton.gemm import dtype_reason
from kernelmark.backends.triton.plan import (
    WORKSPACE,
    Arguments,
    Call,
    Plan,
    ceil_div,
    level,
    power_of_two,
    too_large_tiles,
)
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue
from kernelmark.core.space import Space
from kernelmark.gpu.rtc import vendor_of

_REDUCE_BLOCK = 1024
_MX_GROUP = 32
# A sum of this many int8 products always fits into 32 bits.
_MOST_INT8_TERMS = (2**31 - 1) // 2**14
_OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")


def native_fp4(info: DeviceInfo) -> bool:
    """Return whether the matrix units multiply MXFP4 natively; otherwise it is emulated."""
    if vendor_of(info.arch) == "hip":
        return info.arch in ("gfx950", "gfx1250")
    return 100 <= level(info) < 120


def supports(problem: Problem, info: DeviceInfo) -> str | None:
    if _is_fp4(problem):
        return None
    reason = dtype_reason(problem.dtypes["b"], info)
    if reason:
        return reason
    if problem.options["scheme"] == "a8w8" and problem.dims["k"] > _MOST_INT8_TERMS:
        why = f"with triton: sums of more than {_MOST_INT8_TERMS} int8 terms may overflow 32 bits"
        return Reason("not-possible", name="k", value=problem.dims["k"], why=why)
    return None


def _is_fp4(problem: Problem) -> bool:
    return problem.dtypes["b"] == "f4e2m1"


def _is_group(problem: Problem) -> bool:
    return problem.options["scheme"] == "a8w8_group"


# -- configs


def default(problem: Problem, info: DeviceInfo) -> Config:
    """Return the default config for the architecture and shape. A group's length is the depth of
    its block, so `a8w8_group` has no block_k."""
    batch, m, n, k = (problem.dims[name] for name in ("batch", "m", "n", "k"))
    block_m, block_n = power_of_two(m, 16, 64), power_of_two(n, 32, 128)
    block_k = power_of_two(k, *_depths(problem, info))
    split = 1
    tiles = batch * ceil_div(m, block_m) * ceil_div(n, block_n)
    while tiles * split * 2 <= info.units and k // (split * 2) >= 4 * block_k and split < 16:
        split *= 2
    config: dict[str, ConfigValue] = {
        "block_m": block_m,
        "block_n": block_n,
        **({} if _is_group(problem) else {"block_k": block_k}),
        "group_m": 8,
        "split_k": split,
        "num_warps": 8 if block_m * block_n >= 64 * 128 else 4,
        "num_stages": 3,
    }
    if vendor_of(info.arch) == "hip":
        config |= {"num_stages": 2, "waves_per_eu": 2, "matrix_instr_nonkdim": 16}
        if info.arch == "gfx942":
            config["kpack"] = 1
    return FrozenDict(config)


def _depths(problem: Problem, info: DeviceInfo) -> tuple[int, int]:
    """Return the smallest and the largest useful block_k."""
    if not _is_fp4(problem):
        return (32 if vendor_of(info.arch) == "cuda" else 64), 128
    return (128, 256) if native_fp4(info) else (32, 64)


def space(problem: Problem, info: DeviceInfo) -> Space:
    """Return all configs that the kernels can be built with for this problem."""
    m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
    parameters: dict[str, tuple[ConfigValue, ...]] = {
        "block_m": tuple(b for b in (16, 32, 64, 128, 256) if b == 16 or b < 2 * m),
        "block_n": tuple(b for b in (16, 32, 64, 128, 256) if b <= 32 or b < 2 * n),
    }
    if not _is_group(problem):
        least, most = _depths(problem, info)[0], 256
        depths = tuple(b for b in (32, 64, 128, 256) if least <= b <= most)
        parameters["block_k"] = tuple(b for b in depths if b == least or b < 2 * k)
    parameters["group_m"] = (1, 4, 8)
    parameters["split_k"] = tuple(s for s in (1, 2, 4, 8, 16) if s == 1 or k // s >= 128)
    if vendor_of(info.arch) == "cuda":
        parameters |= {"num_warps": (4, 8), "num_stages": (2, 3, 4, 5)}
    else:
        parameters |= {"num_warps": (2, 4, 8), "num_stages": (1, 2, 3)}
        parameters |= {"waves_per_eu": (0, 1, 2, 4), "matrix_instr_nonkdim": (16, 32)}
        if info.arch == "gfx942":
            parameters["kpack"] = (1, 2)
    bits = dtype(problem.dtypes["a"]).bits, dtype(problem.dtypes["b"]).bits

    def forbids(config: Config) -> str | None:
        depth = problem.dims.get("group", 128)
        return too_large_tiles(config, info, bits=bits, depth=depth)

    return Space(parameters=parameters, default=default(problem, info), forbids=forbids)


# -- plans


def plan(problem: Problem, config: Config, info: DeviceInfo) -> Plan:
    """Return the launches for a config; missing values come from the default."""
    from kernelmark.kernels.triton import quantized as kernels

    chosen = {**default(problem, info), **config}
    k = problem.dims["k"]
    block_k = problem.dims["group"] if _is_group(problem) else int(chosen["block_k"])
    if _is_fp4(problem) and block_k % _MX_GROUP:
        raise Unsupported(
            Reason(
                "at",
                where="triton",
                cause=Reason("not-multiple", name="block_k", value=block_k, multiple=_MX_GROUP),
            )
        )
    per_part = ceil_div(ceil_div(k, int(chosen["split_k"])), block_k) * block_k
    split = ceil_div(k, per_part)
    main = _tiles(kernels, problem, chosen, info, block_k, split, per_part)
    if split == 1:
        return Plan(calls=(main,))
    batch, m, n = (problem.dims[name] for name in ("batch", "m", "n"))
    return Plan(
        calls=(main, _reduce(kernels, problem, split)), workspace_bytes=batch * split * m * n * 4
    )


def _tiles(
    kernels: Any,
    problem: Problem,
    config: dict[str, Any],
    info: DeviceInfo,
    block_k: int,
    split: int,
    per_part: int,
) -> Call:
    batch, m, n, k = (problem.dims[name] for name in ("batch", "m", "n", "k"))
    scales = "u8" if _is_fp4(problem) else "f32"
    arguments = Arguments()
    for name in ("a", "b"):
        kind = problem.dtypes[name]
        arguments.pointer(name, "u8" if kind == "f4e2m1" else kind, name)
    arguments.pointer("a_scale", scales, "a_scale").pointer("b_scale", scales, "b_scale")
    arguments.pointer("bias", problem.dtypes["c"], "bias")
    arguments.pointer("d", *(("f32", WORKSPACE) if split > 1 else (problem.dtypes["c"], "d")))
    arguments.integer("batches", batch).integer("m", m).integer("n", n).integer("k", k)
    arguments.integer("k_split", per_part)
    block_m, block_n = int(config["block_m"]), int(config["block_n"])
    constants: dict[str, Any] = {
        **_orders(problem),
        "A_SWAPPED": problem.options["a_order"] == "mbk",
        "EVEN_K": k % block_k == 0,
        "SPLIT": split > 1,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "GROUP_M": int(config["group_m"]),
    }
    function, extra = _kernel(kernels, problem, info)
    options = {name: config[name] for name in _OPTIONS if name in config}
    tiles = ceil_div(m, block_m) * ceil_div(n, block_n)
    return arguments.call(function, constants | extra, options, (tiles, split, batch))


def _kernel(kernels: Any, problem: Problem, info: DeviceInfo) -> tuple[Any, dict[str, Any]]:
    """Return the kernel of a scheme and the constants that only it takes. Its name shows an
    emulation."""
    import triton.language as tl

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
        "D_SWAPPED": problem.options["c_order"] == "mbn",
        "HAS_BIAS": bool(problem.options["bias"]),
    }


def _reduce(kernels: Any, problem: Problem, split: int) -> Call:
    batch, m, n = (problem.dims[name] for name in ("batch", "m", "n"))
    arguments = Arguments().pointer("parts", "f32", WORKSPACE)
    arguments.pointer("bias", problem.dtypes["c"], "bias").pointer("d", problem.dtypes["c"], "d")
    arguments.integer("batches", batch).integer("m", m).integer("n", n)
    block = power_of_two(m * n, 128, _REDUCE_BLOCK)
    constants = {**_orders(problem), "PARTS": split, "BLOCK": block}
    grid = (ceil_div(m * n, block), batch, 1)
    return arguments.call(kernels.quantized_reduce, constants, {"num_warps": 4}, grid)
