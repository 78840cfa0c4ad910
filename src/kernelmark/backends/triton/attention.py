"""Plans, defaults and spaces of the Triton attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernelmark.backends._rules import wrong_acc, wrong_dtypes
from kernelmark.backends.triton.configs import (
    Values,
    block_sizes,
    ceil_div,
    compiler_options,
    dtype_reason,
    has_wide_unit,
    level,
    power_of_two,
    shared_bytes,
    slices,
    upcast,
    with_copies,
)
from kernelmark.backends.triton.launch import (
    WORKSPACE,
    Arguments,
    KernelCall,
    KernelPlan,
    TensorBlocks,
)
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue, Space
from kernelmark.gpu.rtc import vendor_of
from kernelmark.ops.attention import scale

_LOG2_E = math.log2(math.e)
_SPLIT_ROWS = 64  # up to this many query rows per key-value head, keys are split over programs
_CACHED_BYTES = 2**25  # of keys and values that stay in a Hopper's L2 between programs
_UPCAST_ROWS = 1024  # with fewer, an upcast copy of the values costs more than it saves


def supports(problem: Problem, info: DeviceInfo) -> str | None:
    types = problem.dtypes
    if reason := wrong_acc("triton", problem, ("f32",)):
        return reason
    if types["q"] != types["kv"]:
        dtypes = f"q={types['q']} kv={types['kv']}"
        return Reason(f"triton has {problem.op} only for Q, K, V of one dtype, not {dtypes}")
    if types["q"] in ("f32", "f64"):
        return wrong_dtypes("triton", problem)
    for name in ("dim_qk", "dim_v"):
        if problem.dims[name] > 256:
            why = "with triton, whose kernel keeps a head's row in one block of at most 256"
            return Reason(f"{name}={problem.dims[name]} is not possible {why}")
    return dtype_reason(types["q"], info)


def _rows(problem: Problem) -> int:
    """Return the query rows that share a key-value head."""
    d = problem.dims
    return d["heads_q"] // d["heads_kv"] * d["seq_q"]


def default(problem: Problem, info: DeviceInfo) -> Config:
    """Return the default config for the architecture and shape."""
    return _default(problem, info, upcast_values=_upcast_pays(problem, info))


def _default(problem: Problem, info: DeviceInfo, *, upcast_values: bool) -> Config:
    d = problem.dims
    pad = power_of_two(max(d["dim_qk"], d["dim_v"]), 16, 256)
    if _rows(problem) <= _SPLIT_ROWS:
        heads = d["batch"] * d["heads_kv"]
        parts = max(1, min(2 * info.units // max(1, heads), d["seq_kv"] // 256))
        config: dict[str, ConfigValue] = {
            "block_m": power_of_two(_rows(problem), 16, 64),
            "block_n": power_of_two(d["seq_kv"], 16, 64 if pad <= 128 else 32),
            "split_kv": power_of_two(parts, 1, 128),
            "num_warps": 4,
            "num_stages": 3 if vendor_of(info.arch) == "cuda" else 1,
        }
    else:
        widest = 128 if pad <= 64 else 64 if pad <= 128 else 32
        # Matrix units that cannot read shared memory also need registers for keys and values. On
        # AMD, scores of 128 x 128 in four waves spill, and each mask of 64 lanes takes two SGPRs.
        if not has_wide_unit(info):
            widest = widest // 2 if level(info) else min(widest, 64)
        # On AMD a causal mask takes two SGPRs per score of a lane, which four waves do not have.
        masked = vendor_of(info.arch) == "hip" and bool(problem.options["causal"])
        if masked and info.arch == "gfx90a" and pad == 128 and problem.dtypes["q"] == "bf16":
            widest = 32  # it has no instruction that rounds to bf16: a wider tile spills
        block_m = power_of_two(d["seq_q"], 16, 128 if pad <= 128 else 64)
        block_n = power_of_two(d["seq_kv"], 16, widest)
        # Four warps do not have the registers for scores of 128 × `most`.
        most = 128 if has_wide_unit(info) else 64
        crowded = vendor_of(info.arch) == "cuda" and block_m * block_n >= 128 * most
        config = {
            "block_m": block_m,
            "block_n": block_n,
            "split_kv": 0,
            "num_warps": 8 if crowded or (d["seq_q"] > 64 and (pad >= 128 or masked)) else 4,
            "num_stages": 3 if vendor_of(info.arch) == "cuda" else 1,
        }
    if _can_upcast(problem):
        config["widen"] = upcast_values
        if upcast_values and level(info) == 90 and pad <= 128:
            config |= {"block_n": min(64, int(config["block_n"])), "num_warps": 4}
    most = max(1, _most_stages(problem, info, config))
    config["num_stages"] = min(int(config["num_stages"]), most)
    config["descriptors"] = config["split_kv"] == 0 and _descriptors_fit(problem, info)
    config["heads_first"] = False
    bits = dtype(problem.dtypes["kv"]).bits
    if config["descriptors"] and level(info) == 90 and (bits, pad) == (16, 128):
        # On an H200, 5 to 22 % faster than 128 rows in eight warps up to 4096 keys, and as fast
        # with 8192: two programs per SM, of which one multiplies while the other exponentiates.
        config |= {"block_m": min(64, int(config["block_m"])), "num_warps": 4}
        values = d["batch"] * d["heads_kv"] * d["seq_kv"] * (d["dim_qk"] + d["dim_v"])
        config["heads_first"] = bool(problem.options["causal"]) and 2 * values <= _CACHED_BYTES
    if vendor_of(info.arch) == "hip":
        config |= {"waves_per_eu": 2, "matrix_instr_nonkdim": 16}
    return FrozenDict(config)


def _can_upcast(problem: Problem) -> bool:
    """Return whether values may be upcast to the weights' type before the multiplication.

    Otherwise every block of queries upcasts them again. With few queries they are read only once
    anyway."""
    return dtype(problem.dtypes["kv"]).bits == 8 and _rows(problem) > _SPLIT_ROWS


def _upcast_pays(problem: Problem, info: DeviceInfo) -> bool:
    if vendor_of(info.arch) == "hip":
        # The kernel would read 8-bit values from the LDS byte by byte, in three times as many
        # instructions per block of keys as 16-bit ones.
        return _can_upcast(problem)
    # The wide unit reads values from shared memory: an upcast in the kernel takes an extra pass
    # through registers.
    return has_wide_unit(info) and _can_upcast(problem) and _rows(problem) >= _UPCAST_ROWS


def _weight(problem: Problem) -> str:
    """Return the type in which the matrix unit multiplies weights and values.

    8-bit weights would exceed the op's tolerance, so values are upcast instead: f16 represents each
    8-bit value exactly, and weights, which are at most 1, more precisely than bf16."""
    return "bf16" if problem.dtypes["kv"] == "bf16" else "f16"


def _pads(problem: Problem) -> tuple[int, int]:
    """Return the padded lengths of a head's rows in a block: the matrix unit sums over at least 32
    bytes."""
    least = 32 if dtype(problem.dtypes["q"]).bits == 8 else 16
    d = problem.dims
    return power_of_two(d["dim_qk"], least, 256), power_of_two(d["dim_v"], 16, 256)


def _descriptors_fit(problem: Problem, info: DeviceInfo) -> bool:
    d = problem.dims
    bits = dtype(problem.dtypes["q"]).bits
    padded = (d["dim_qk"], d["dim_v"]) != _pads(problem)
    aligned = d["dim_qk"] * bits % 128 == 0 and d["dim_v"] * bits % 128 == 0
    return level(info) >= 90 and aligned and not padded


def _most_stages(problem: Problem, info: DeviceInfo, config: Mapping[str, ConfigValue]) -> int:
    """Return the stages of keys and values that fit into shared memory next to the queries."""
    d, bits = problem.dims, dtype(problem.dtypes["kv"]).bits
    keys, values = d["dim_qk"] * bits // 8, d["dim_v"] * bits // 8
    free = shared_bytes(info) - int(config["block_m"]) * (keys + values) // 2
    if config.get("widen"):
        values *= 2
    return free // max(1, int(config["block_n"]) * (keys + values))


def space(problem: Problem, info: DeviceInfo) -> Space:
    """Return all configs that the kernels can be built with for this problem."""
    rows = _rows(problem)
    seq_q, seq_kv = problem.dims["seq_q"], problem.dims["seq_kv"]
    parameters: Values = {
        "block_m": block_sizes(max(rows, seq_q), most=128),
        "block_n": block_sizes(seq_kv, most=128),
        "num_warps": (2, 4, 8),
        "num_stages": (1, 2, 3, 4, 5),
    }
    if rows <= _SPLIT_ROWS:
        splits = (1, 2, 4, 8, 16, 32, 64, 128)
        parameters["split_kv"] = tuple(s for s in splits if s == 1 or seq_kv // s >= 64)
    else:
        parameters["split_kv"] = (0,)
    if vendor_of(info.arch) == "hip":
        parameters |= {"waves_per_eu": (0, 1, 2, 4), "matrix_instr_nonkdim": (16, 32)}
    fits = _descriptors_fit(problem, info) and rows > _SPLIT_ROWS
    parameters["descriptors"] = (False, True) if fits else (False,)
    parameters["heads_first"] = (False, True) if fits else (False,)
    if _can_upcast(problem):
        parameters["widen"] = (False, True)
    pad = power_of_two(problem.dims["dim_v"], 16, 256)
    cuda = vendor_of(info.arch) == "cuda"

    def forbids(config: Config) -> str | None:
        block_m, block_n = int(config["block_m"]), int(config["block_n"])
        if int(config["num_stages"]) > _most_stages(problem, info, config):
            return "the staged keys and values do not fit into shared memory"
        if block_m * 16 < int(config["num_warps"]) * 64 and int(config["num_warps"]) > 4:
            return "more warps than the block has rows for"
        # In float32: a block's scores and its output. A thread has 255 registers.
        registers = block_m * (block_n + pad) // (32 * int(config["num_warps"]))
        if cuda and registers >= 256:
            return "scores and output do not fit into the registers of so few warps"
        return None

    return Space(parameters=parameters, default=default(problem, info), forbids=forbids)


def plan(problem: Problem, config: Config, info: DeviceInfo) -> KernelPlan:
    """Return the launches for a config; missing values come from the default."""
    split = bool(config.get("split_kv"))
    upcast_values = bool(config.get("widen", _upcast_pays(problem, info) and not split))
    if upcast_values and split:
        raise Unsupported("values are only upcast first where keys are not split (split_kv=0)")
    chosen = {**_default(problem, info, upcast_values=upcast_values), **config}
    parts = int(chosen["split_kv"])
    if config.get("descriptors"):
        if parts:
            raise Unsupported("the kernel that splits keys does not read them by descriptors")
        if not _descriptors_fit(problem, info):
            raise Unsupported(f"descriptors cannot address these operands on {info.arch}")
    d = problem.dims
    if parts == 0:
        direct = KernelPlan(calls=(_tiles(problem, chosen),))
        if not chosen.get("widen"):
            return direct
        count = d["batch"] * d["heads_kv"] * d["seq_kv"] * d["dim_v"]
        return with_copies(direct, [upcast("v", problem.dtypes["kv"], _weight(problem), count)])
    parts, per_part = slices(d["seq_kv"], parts, int(chosen["block_n"]))
    rows, pairs = _rows(problem), d["batch"] * d["heads_kv"]
    return KernelPlan(
        calls=(_split(problem, chosen, parts, per_part), _join(problem, parts)),
        workspace_bytes=pairs * parts * rows * (d["dim_v"] + 2) * 4,
    )


def _strides(problem: Problem, heads: str, seq: str, dim: str) -> tuple[int, int, int]:
    """Return (batch, head, row) strides in elements."""
    d = problem.dims
    if problem.options["layout"] == "bshd":
        return d[seq] * d[heads] * d[dim], d[dim], d[heads] * d[dim]
    return d[heads] * d[seq] * d[dim], d[seq] * d[dim], d[dim]


def _heads(problem: Problem, name: str, rows: int) -> tuple[TensorBlocks, tuple[int, ...]]:
    """Return keys or values as heads of rows, and the block of `rows` rows of one head."""
    d, dim = problem.dims, "dim_qk" if name == "k" else "dim_v"
    shape = (d["batch"], d["heads_kv"], d["seq_kv"], d[dim])
    strides = (*_strides(problem, "heads_kv", "seq_kv", dim), 1)
    return TensorBlocks(tensor=name, shape=shape, strides=strides), (1, 1, rows, d[dim])


def _add_strides(arguments: Arguments, problem: Problem, names: str) -> None:
    of = {
        "q": ("heads_q", "seq_q", "dim_qk"),
        "k": ("heads_kv", "seq_kv", "dim_qk"),
        "v": ("heads_kv", "seq_kv", "dim_v"),
        "o": ("heads_q", "seq_q", "dim_v"),
    }
    for name in names:
        strides = zip(("batch", "head", "row"), _strides(problem, *of[name]), strict=True)
        arguments.integers(**{f"{name}_{along}": stride for along, stride in strides})


def _constants(problem: Problem, config: dict[str, Any]) -> dict[str, Any]:
    import triton.language as tl

    d = problem.dims
    pad_qk, pad_v = _pads(problem)
    weight = {"f16": tl.float16, "bf16": tl.bfloat16}[_weight(problem)]
    return {
        "DIM_QK": d["dim_qk"],
        "DIM_V": d["dim_v"],
        "PAD_QK": pad_qk,
        "PAD_V": pad_v,
        "CAUSAL": bool(problem.options["causal"]),
        "WEIGHT": weight,
        "BLOCK_M": int(config["block_m"]),
        "BLOCK_N": int(config["block_n"]),
    }


def _group(problem: Problem) -> int:
    """Return the query heads that share a key-value head."""
    return problem.dims["heads_q"] // problem.dims["heads_kv"]


def _tiles(problem: Problem, config: dict[str, Any]) -> KernelCall:
    from kernelmark.kernels.triton.attention import attention_tiles

    d, types = problem.dims, problem.dtypes
    values = _weight(problem) if config.get("widen") else types["kv"]
    arguments = Arguments().tensors(q=types["q"])
    for name, kind in (("k", types["kv"]), ("v", values)):
        if config["descriptors"]:
            arguments.blocks(name, kind, *_heads(problem, name, int(config["block_n"])))
        else:
            arguments.tensors(**{name: kind})
    arguments.tensors(o=types["o"])
    _add_strides(arguments, problem, "qkvo")
    arguments.integers(heads_q=d["heads_q"], group=_group(problem))
    arguments.integers(seq_q=d["seq_q"], seq_kv=d["seq_kv"]).reals(scale=scale(problem) * _LOG2_E)
    constants = _constants(problem, config)
    heads_first = bool(config["heads_first"])
    constants |= {"DESCRIPTORS": bool(config["descriptors"]), "HEADS_FIRST": heads_first}
    blocks, pairs = ceil_div(d["seq_q"], constants["BLOCK_M"]), d["batch"] * d["heads_q"]
    grid = (pairs, blocks, 1) if heads_first else (blocks, pairs, 1)
    return arguments.call(attention_tiles, constants, compiler_options(config), grid)


def _split(problem: Problem, config: dict[str, Any], parts: int, per_part: int) -> KernelCall:
    from kernelmark.kernels.triton.attention import attention_split

    d, types = problem.dims, problem.dtypes
    arguments = Arguments().tensors(q=types["q"], k=types["kv"], v=types["kv"])
    arguments.pointer("parts", "f32", WORKSPACE)
    _add_strides(arguments, problem, "qkv")
    arguments.integers(heads_kv=d["heads_kv"], group=_group(problem))
    arguments.integers(seq_q=d["seq_q"], seq_kv=d["seq_kv"], keys_part=per_part)
    arguments.reals(scale=scale(problem) * _LOG2_E)
    constants = _constants(problem, config)
    blocks = ceil_div(_rows(problem), constants["BLOCK_M"])
    grid = (parts, d["batch"] * d["heads_kv"], blocks)
    return arguments.call(attention_split, constants, compiler_options(config), grid)


def _join(problem: Problem, parts: int) -> KernelCall:
    from kernelmark.kernels.triton.attention import attention_join

    d = problem.dims
    arguments = Arguments().pointer("parts", "f32", WORKSPACE).tensors(o=problem.dtypes["o"])
    _add_strides(arguments, problem, "o")
    arguments.integers(heads_kv=d["heads_kv"], group=_group(problem), seq_q=d["seq_q"])
    pad = power_of_two(d["dim_v"], 16, 256)
    constants = {"DIM_V": d["dim_v"], "PAD_V": pad, "PARTS": parts}
    grid = (_rows(problem), d["batch"] * d["heads_kv"], 1)
    return arguments.call(attention_join, constants, {"num_warps": 1}, grid)
