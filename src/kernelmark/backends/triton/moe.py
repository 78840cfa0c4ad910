"""Plans, defaults and spaces of the Triton mixture of experts.

Both GEMMs are launched with one config; its parameters are those of vLLM and SGLang.
"""

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
    power_of_two,
    too_large_tiles,
)
from kernelmark.backends.triton.launch import Arguments, KernelCall, KernelPlan
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue, Space
from kernelmark.gpu.rtc import vendor_of
from kernelmark.ops.moe import SCALE_GROUP

_STREAMED = 1024  # elements per program of the kernels without a GEMM
_ORDER, _OWNERS, _WIDE, _HIDDEN = "order", "owners", "both or parts", "hidden"
_QUANTISED, _SCALES = "quantised", "scales of activations"


def supports(problem: Problem, info: DeviceInfo) -> str | None:
    if problem.dtypes["x"] == "f32":
        return wrong_dtypes("triton", problem)
    return dtype_reason(problem.dtypes["x"], info) or dtype_reason(_weights(problem), info)


def _weights(problem: Problem) -> str:
    return problem.dtypes.get("w", problem.dtypes["x"])


def _scale(problem: Problem) -> str:
    return str(problem.options.get("scale", "none"))


def _deepest(problem: Problem) -> int:
    """Return the largest block_k: a step along k has one factor per row if scale=block."""
    return SCALE_GROUP if _scale(problem) == "block" else 256


def _sizes(problem: Problem) -> tuple[int, int, int, int, int]:
    """Return (tokens, intermediate size, hidden size, experts, rows)."""
    d = problem.dims
    return d["m"], d["n"], d["k"], d["e"], d["m"] * d["top_k"]


def default(problem: Problem, info: DeviceInfo) -> Config:
    """Return the default config for the architecture and shape."""
    _, n, k, e, rows = _sizes(problem)
    each = ceil_div(rows, e)  # rows per expert, if evenly distributed
    block_m = power_of_two(each, 16, 128)
    # Few rows: the weights are read once with any tile, and deep tiles read them in long runs.
    block_k = power_of_two(min(n, k), 32, 128 if block_m <= 32 else 64)
    block_n = power_of_two(min(2 * n, k), 32, 64 if block_m <= 32 else 128)
    config: dict[str, ConfigValue] = {
        "block_m": block_m,
        "block_n": block_n,
        "block_k": min(_deepest(problem), max(_shallowest(problem), block_k)),
        "group_m": 16 if each > 128 else 1,
        "num_warps": 8 if block_m * block_n >= 128 * 128 else 4,
        "num_stages": 4 if block_m <= 32 else 3,
    }
    if vendor_of(info.arch) == "hip":
        config |= {"num_stages": 2, **amd_only(info, 2, 16, 1)}
    return FrozenDict(config)


def space(problem: Problem, info: DeviceInfo) -> Space:
    """Return all configs that the kernel can be built with for this problem."""
    m, n, k, _, _ = _sizes(problem)
    wide, deep = max(2 * n, k), max(n, k)
    parameters: Values = {
        "block_m": block_sizes(m),  # no expert has more rows than there are tokens
        "block_n": block_sizes(wide, least=32),
        "block_k": block_sizes(deep, least=_shallowest(problem), most=_deepest(problem)),
        "group_m": (1, 16, 32, 64),
    }
    if vendor_of(info.arch) == "cuda":
        parameters |= {"num_warps": (4, 8), "num_stages": (2, 3, 4, 5)}
    else:
        parameters |= {"num_warps": (1, 2, 4, 8), "num_stages": (2, 3)}
        parameters |= amd_only(info, (0, 1, 2, 4), (16, 32), (1, 2))
    bits = dtype(_weights(problem)).bits

    def forbids(config: Config) -> str | None:
        return too_large_tiles(config, info, bits=(bits, bits))

    return Space(parameters=parameters, default=default(problem, info), forbids=forbids)


def plan(problem: Problem, config: Config, info: DeviceInfo) -> KernelPlan:
    """Return the launches for a config; missing values come from the default."""
    chosen: dict[str, Any] = {**default(problem, info), **config}
    if _deepest(problem) % int(chosen["block_k"]):
        raise Unsupported(f"block_k={chosen['block_k']} does not divide {_deepest(problem)}")
    _, n, k, e, rows = _sizes(problem)
    block_m = int(chosen["block_m"])
    # Each chosen expert leaves less than one block unused.
    blocks = (rows + min(rows, e) * (block_m - 1)) // block_m
    nbytes = dtype(problem.dtypes["x"]).bits // 8
    quantised = "w" in problem.dtypes
    quantise = [[_quantise(problem, first=f)] if quantised else [] for f in (True, False)]
    groups = max(n, k) // SCALE_GROUP if _scale(problem) == "block" else 1
    return KernelPlan(
        calls=(
            _sort(problem, block_m, blocks),
            *quantise[0],
            _tiles(problem, chosen, blocks, first=True),
            _gate(problem),
            *quantise[1],
            _tiles(problem, chosen, blocks, first=False),
            _sum(problem),
        ),
        main=1 + len(quantise[0]),
        named_bytes={
            # The first GEMM's input is no longer needed when the second's is quantised.
            _QUANTISED: max(problem.dims["m"] * k, rows * n) * quantised,
            _SCALES: rows * groups * 4 * quantised,
            _ORDER: blocks * block_m * 4,
            _OWNERS: blocks * 4,
            # The first GEMM's output is no longer needed when the second's is written.
            _WIDE: rows * max(2 * n, k) * nbytes,
            _HIDDEN: rows * n * nbytes,
        },
    )


def _sort(problem: Problem, block_m: int, blocks: int) -> KernelCall:
    from kernelmark.kernels.triton.moe import moe_sort

    _, _, _, e, rows = _sizes(problem)
    arguments = Arguments().tensors(ids="i32")
    arguments.pointer("order", "i32", _ORDER).pointer("owners", "i32", _OWNERS)
    arguments.integers(rows=rows, experts=e, blocks=blocks)
    chunk = power_of_two(rows, 128, 4096)
    constants = {"BINS": power_of_two(e + 1, 2, 2 * e), "CHUNK": chunk, "BLOCK_M": block_m}
    warps = 4 if chunk <= 512 else 8
    return arguments.call(moe_sort, constants, {"num_warps": warps}, (e, 1, 1))


def _tiles(problem: Problem, chosen: dict[str, Any], blocks: int, *, first: bool) -> KernelCall:
    """Return one GEMM call: from x to gate and up, or from the hidden layer to an output per
    choice."""
    import triton.language as tl

    from kernelmark.kernels.triton.moe import moe_tiles

    _, n, k, _, rows = _sizes(problem)
    kind, stored, scale = problem.dtypes["x"], _weights(problem), _scale(problem)
    wide, deep = (2 * n, k) if first else (k, n)
    source = _QUANTISED if scale != "none" else "x" if first else _HIDDEN
    name = "w1" if first else "w2"
    arguments = Arguments().pointer("a", stored, source).pointer("w", stored, name)
    arguments.pointer("a_scale", "f32", _SCALES).pointer("w_scale", "f32", f"{name}_scale")
    arguments.tensors(weights="f32")
    arguments.pointer("order", "i32", _ORDER).pointer("owners", "i32", _OWNERS)
    arguments.pointer("c", kind, _WIDE)
    arguments.integers(rows=rows, blocks=blocks, n=wide, k=deep)
    constants: dict[str, Any] = {
        "SHARED": problem.dims["top_k"] if first else 1,
        "WEIGHTED": not first,
        "EVEN_K": deep % int(chosen["block_k"]) == 0,
        "PRECISION": "ieee",
        "SCALE": scale,
        "GROUP": SCALE_GROUP,
        "ACC": tl.int32 if stored == "i8" else tl.float32,
        # Of the operands' kind: older Tritons cannot cast an integer to an 8-bit float.
        "ZERO": 0 if stored == "i8" else 0.0,
        **blocks_of(chosen),
    }
    grid = (blocks * ceil_div(wide, constants["BLOCK_N"]), 1, 1)
    return arguments.call(moe_tiles, constants, compiler_options(chosen), grid)


def _shallowest(problem: Problem) -> int:
    """Return the smallest block_k that fills the matrix unit."""
    return 32 if "w" not in problem.dtypes else 64


def _quantise(problem: Problem, *, first: bool) -> KernelCall:
    from kernelmark.kernels.triton.moe import moe_quantise

    m, n, k, _, rows = _sizes(problem)
    lines, deep = (m, k) if first else (rows, n)
    small = problem.dtypes["w"]
    arguments = Arguments().pointer("source", problem.dtypes["x"], "x" if first else _HIDDEN)
    arguments.pointer("target", small, _QUANTISED).pointer("scales", "f32", _SCALES)
    arguments.integers(k=deep)
    group = SCALE_GROUP if _scale(problem) == "block" else deep
    block = power_of_two(group, 128, 2**20)
    constants = {"LARGEST": dtype(small).max_value, "GROUP": group, "BLOCK": block}
    warps = 1 if group == SCALE_GROUP else 8
    return arguments.call(
        moe_quantise, constants, {"num_warps": warps}, (lines, ceil_div(deep, group), 1)
    )


def _gate(problem: Problem) -> KernelCall:
    from kernelmark.kernels.triton.moe import moe_gate

    _, n, _, _, rows = _sizes(problem)
    kind = problem.dtypes["x"]
    arguments = Arguments().pointer("gate_up", kind, _WIDE).pointer("hidden", kind, _HIDDEN)
    arguments.integers(n=n)
    block = power_of_two(n, 128, _STREAMED)
    grid = (rows, ceil_div(n, block), 1)
    return arguments.call(moe_gate, {"BLOCK": block}, {"num_warps": 4}, grid)


def _sum(problem: Problem) -> KernelCall:
    from kernelmark.kernels.triton.moe import moe_sum

    m, _, k, _, _ = _sizes(problem)
    kind = problem.dtypes["x"]
    arguments = Arguments().pointer("parts", kind, _WIDE).tensors(out=kind)
    arguments.integers(k=k)
    block = power_of_two(k, 128, _STREAMED)
    constants = {"TOP_K": problem.dims["top_k"], "BLOCK": block}
    grid = (m, ceil_div(k, block), 1)
    return arguments.call(moe_sum, constants, {"num_warps": 4}, grid)
