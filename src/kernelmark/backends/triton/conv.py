"""Plans, defaults and spaces of the Triton convolution."""

from __future__ import annotations

from typing import Any

from kernelmark.backends.triton.gemm import dtype_reason
from kernelmark.backends.triton.plan import Arguments, Plan, ceil_div, power_of_two
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue
from kernelmark.core.space import Space
from kernelmark.gpu.rtc import vendor_of
from kernelmark.ops.conv import output_size


def supports(problem: Problem, info: DeviceInfo) -> str | None:
    if problem.dtypes["acc"] not in ("f32", "i32"):
        return f"the Triton kernel accumulates in f32 or i32, not {problem.dtypes['acc']}"
    return dtype_reason(problem.dtypes["x"], info)


def _sizes(problem: Problem) -> tuple[int, int, int]:
    """(pixels, filters of a group, channels of a group)."""
    d = problem.dims
    p, q = output_size(problem)
    return d["n"] * p * q, d["k"] // d["groups"], d["c"] // d["groups"]


def default(problem: Problem, info: DeviceInfo) -> Config:
    """A sensible config for the architecture, from the shape alone."""
    pixels, filters, depth = _sizes(problem)
    block_m = power_of_two(pixels, 16, 128)
    block_n = power_of_two(filters, 16, 128)
    tiles = problem.dims["groups"] * ceil_div(pixels, block_m) * ceil_div(filters, block_n)
    if tiles < info.units and block_n > 64:
        block_n = 64
    if tiles < info.units // 2 and block_m > 64:
        block_m = 64
    least = 32 if dtype(problem.dtypes["x"]).bits == 8 else 16
    cuda = vendor_of(info.arch) == "cuda"
    deepest = 64 if problem.dtypes["x"] != "f32" else 32
    roomy = 128 * 128  # the tile from which on eight warps are needed
    if cuda and problem.options["layout"] == "nchw":
        # Channels lie far apart: an address for each element, all in registers.
        deepest, roomy = 32, 128 * 64
        if problem.dtypes["x"] not in ("f16", "bf16"):
            block_n = min(block_n, 64)
    config: dict[str, ConfigValue] = {
        "block_m": block_m,
        "block_n": block_n,
        "block_k": power_of_two(depth, least, deepest),
        "group_m": 8,
        "num_warps": 8 if block_m * block_n >= roomy else 4,
        "num_stages": 4 if cuda else 2,
    }
    if not cuda:
        config |= {"waves_per_eu": 2, "matrix_instr_nonkdim": 16}
    return FrozenDict(config)


def space(problem: Problem, info: DeviceInfo) -> Space:
    """Everything the kernel can be built with for this problem."""
    pixels, filters, depth = _sizes(problem)
    bits = dtype(problem.dtypes["x"]).bits
    least = 32 if bits == 8 else 16
    parameters: dict[str, tuple[ConfigValue, ...]] = {
        "block_m": tuple(b for b in (16, 32, 64, 128, 256) if b == 16 or b < 2 * pixels),
        "block_n": tuple(b for b in (16, 32, 64, 128, 256) if b == 16 or b < 2 * filters),
        "block_k": tuple(b for b in (least, 2 * least, 64, 128) if b == least or b < 2 * depth),
        "group_m": (1, 4, 8),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4, 5) if vendor_of(info.arch) == "cuda" else (1, 2),
    }
    if vendor_of(info.arch) == "hip":
        parameters |= {"waves_per_eu": (0, 2, 4), "matrix_instr_nonkdim": (16, 32)}
    parameters["block_k"] = tuple(dict.fromkeys(parameters["block_k"]))
    shared = int(info.attributes.get("shared_per_block", "0")) or 232448

    def forbids(config: Config) -> str | None:
        block_m, block_n, block_k = (int(config[f"block_{x}"]) for x in "mnk")
        if (block_m + block_n) * block_k * bits // 8 * int(config["num_stages"]) > shared:
            return "the staged tiles do not fit into shared memory"
        if block_m * block_n > 256 * 128:
            return "the accumulator tile does not fit into registers"
        return None

    return Space(parameters=parameters, default=default(problem, info), forbids=forbids)


def plan(problem: Problem, config: Config, info: DeviceInfo) -> Plan:
    """The launch for a config; values that the config leaves out come from the default."""
    import triton.language as tl

    from kernelmark.kernels.triton.conv import conv_tiles

    chosen: dict[str, Any] = {**default(problem, info), **config}
    d = problem.dims
    pixels, filters, depth = _sizes(problem)
    p, q = output_size(problem)
    arguments = Arguments().pointer("x", problem.dtypes["x"], "x")
    arguments.pointer("w", problem.dtypes["x"], "w").pointer("y", problem.dtypes["y"], "y")
    numbers = {"pixels": pixels, "height": d["h"], "width": d["w"], "rows_out": p}
    numbers |= {"columns_out": q, "depth": depth, "filters": filters}
    if problem.options["layout"] == "nhwc":
        x_strides = (d["h"] * d["w"] * d["c"], d["w"] * d["c"], d["c"], 1)
        w_strides = (d["r"] * d["s"] * depth, d["s"] * depth, depth, 1)
        y_strides = (p * q * d["k"], q * d["k"], d["k"], 1)
        unit = ("x_channel", "w_channel", "y_channel")
    else:
        x_strides = (d["c"] * d["h"] * d["w"], d["w"], 1, d["h"] * d["w"])
        w_strides = (depth * d["r"] * d["s"], d["s"], 1, d["r"] * d["s"])
        y_strides = (d["k"] * p * q, q, 1, p * q)
        unit = ("x_column", "w_column", "y_column")
    words = ("image", "row", "column", "channel")
    numbers |= {f"x_{word}": s for word, s in zip(words, x_strides, strict=True)}
    w_words = ("filter", "row", "column", "channel")
    numbers |= {f"w_{word}": s for word, s in zip(w_words, w_strides, strict=True)}
    numbers |= {f"y_{word}": s for word, s in zip(words, y_strides, strict=True)}
    constants: dict[str, Any] = dict.fromkeys(unit, 1)
    for name, value in numbers.items():
        if name not in constants:
            arguments.integer(name, value)
    for short in ("stride", "pad", "dilation"):
        constants[f"{short}_h".upper()] = d[f"{short}_h"]
        constants[f"{short}_w".upper()] = d[f"{short}_w"]
    constants |= {"TAPS_H": d["r"], "TAPS_W": d["s"], "PRECISION": "ieee"}
    integers = problem.dtypes["acc"] == "i32"
    constants |= {"ACC": tl.int32, "ZERO": 0} if integers else {"ACC": tl.float32, "ZERO": 0.0}
    constants |= {f"BLOCK_{x}": int(chosen[f"block_{x.lower()}"]) for x in "MNK"}
    constants["GROUP_M"] = int(chosen["group_m"])
    tiles = ceil_div(pixels, constants["BLOCK_M"]) * ceil_div(filters, constants["BLOCK_N"])
    names = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim")
    options = {name: chosen[name] for name in names if name in chosen}
    return Plan(calls=(arguments.call(conv_tiles, constants, options, (tiles, d["groups"], 1)),))
