"""Plans, defaults and spaces of the Triton convolution."""

from __future__ import annotations

from typing import Any

from kernelmark.backends._rules import wrong_acc
from kernelmark.backends.triton.configs import (
    OperandCopy,
    Values,
    block_sizes,
    blocks_of,
    ceil_div,
    compiler_options,
    dtype_reason,
    level,
    power_of_two,
    shared_bytes,
    too_large_tiles,
    transposed,
    with_copies,
)
from kernelmark.backends.triton.launch import Arguments, KernelCall, KernelPlan
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue, Space
from kernelmark.gpu.rtc import vendor_of
from kernelmark.ops.conv import output_size

# A transposed copy pays off if each element is loaded this often, from this many channels.
_TRANSPOSE_MIN_LOADS = 2
_TRANSPOSE_MIN_DEPTH = 32


def supports(problem: Problem, info: DeviceInfo) -> str | None:
    reason = wrong_acc("triton", problem, ("f32", "i32"))
    return reason or dtype_reason(problem.dtypes["x"], info)


def _sizes(problem: Problem) -> tuple[int, int, int]:
    """Return (pixels, filters per group, channels per group)."""
    d = problem.dims
    p, q = output_size(problem)
    return d["n"] * p * q, d["k"] // d["groups"], d["c"] // d["groups"]


def default(problem: Problem, info: DeviceInfo) -> Config:
    """Return the default config for the architecture and shape."""
    return _default(problem, info, pretranspose=_transpose_pays(problem))


def _transpose_pays(problem: Problem) -> bool:
    """Return whether a copy with channels innermost pays off.

    With NCHW the channels of a pixel are far apart, so each element is loaded separately, for every
    tap and every tile of filters. A stride skips elements, but spreads the others further apart."""
    if problem.options["layout"] != "nchw":
        return False
    d = problem.dims
    _, filters, depth = _sizes(problem)
    loads = ceil_div(filters, 128) * d["r"] * d["s"]
    return (
        depth >= _TRANSPOSE_MIN_DEPTH
        and loads >= _TRANSPOSE_MIN_LOADS
        and problem.dtypes["x"] != "f32"
    )


def _default(problem: Problem, info: DeviceInfo, *, pretranspose: bool) -> Config:
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
    roomy = 128 * 128  # tile size from which on eight warps are needed
    nchw = problem.options["layout"] == "nchw"
    if cuda and nchw and not pretranspose:
        # Channels are far apart: one address per element, all in registers.
        deepest, roomy = 32, 128 * 64
        if problem.dtypes["x"] not in ("f16", "bf16"):
            block_n = min(block_n, 64)
        if problem.dtypes["x"] == "f32" and level(info) == 90:
            # Without a matrix unit four warps are faster, even if they spill a few registers.
            deepest, roomy = 16, 128 * 128
    elif nchw and not pretranspose:
        # Each separately loaded element has its own mask, in two of about 100 SGPRs.
        deepest //= 2
    block_k = power_of_two(depth, least, deepest)
    steps = problem.dims["r"] * problem.dims["s"] * ceil_div(depth, block_k)
    # A short sum needs few stages: the shared memory is better used for a second resident block.
    stages = (2 if steps <= 2 else 3 if steps < 16 else 4) if cuda else 2
    staged_bytes = (block_m + block_n) * block_k * dtype(problem.dtypes["x"]).bits // 8
    config: dict[str, ConfigValue] = {
        "block_m": block_m,
        "block_n": block_n,
        "block_k": block_k,
        "group_m": 8,
        "num_warps": 8 if block_m * block_n >= roomy else 4,
        "num_stages": max(1, min(stages, shared_bytes(info) // staged_bytes)),
    }
    if not cuda:
        config |= {"waves_per_eu": 2, "matrix_instr_nonkdim": 16}
    if nchw:
        config["turn"] = pretranspose
    return FrozenDict(config)


def space(problem: Problem, info: DeviceInfo) -> Space:
    """Return all configs that the kernel can be built with for this problem."""
    pixels, filters, depth = _sizes(problem)
    bits = dtype(problem.dtypes["x"]).bits
    parameters: Values = {
        "block_m": block_sizes(pixels),
        "block_n": block_sizes(filters),
        "block_k": block_sizes(depth, least=32 if bits == 8 else 16, most=128),
        "group_m": (1, 4, 8),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4, 5) if vendor_of(info.arch) == "cuda" else (1, 2),
    }
    if vendor_of(info.arch) == "hip":
        parameters |= {"waves_per_eu": (0, 2, 4), "matrix_instr_nonkdim": (16, 32)}
    if problem.options["layout"] == "nchw":
        parameters["turn"] = (False, True)

    def forbids(config: Config) -> str | None:
        return too_large_tiles(config, info, bits=(bits, bits))

    return Space(parameters=parameters, default=default(problem, info), forbids=forbids)


def plan(problem: Problem, config: Config, info: DeviceInfo) -> KernelPlan:
    """Return the launches for a config; missing values come from the default."""
    pretranspose = bool(config.get("turn", _transpose_pays(problem)))
    chosen: dict[str, Any] = {**_default(problem, info, pretranspose=pretranspose), **config}
    direct = KernelPlan(calls=(_tiles(problem, chosen),))
    return with_copies(direct, _copies(problem)) if chosen.get("turn") else direct


def _copies(problem: Problem) -> list[OperandCopy]:
    d, kind = problem.dims, problem.dtypes["x"]
    depth, taps = d["c"] // d["groups"], d["r"] * d["s"]
    pixels = d["h"] * d["w"]
    shapes = [("x", d["n"], d["c"], pixels)] if pixels > 1 else []
    if taps > 1:
        shapes.append(("w", d["k"], depth, taps))
    return [transposed(x, kind, batch=b, rows=rows, columns=c) for x, b, rows, c in shapes]


def _strides(layout: str, channels: int, rows: int, columns: int) -> dict[str, int]:
    """Return the strides in elements of a tensor of images or filters."""
    if layout == "nhwc":
        steps = (rows * columns * channels, columns * channels, channels, 1)
    else:
        steps = (channels * rows * columns, columns, 1, rows * columns)
    return dict(zip(("image", "row", "column", "channel"), steps, strict=True))


def _tiles(problem: Problem, chosen: dict[str, Any]) -> KernelCall:
    import triton.language as tl

    from kernelmark.kernels.triton.conv import conv_tiles

    d = problem.dims
    pixels, filters, depth = _sizes(problem)
    p, q = output_size(problem)
    x_type, y_type = problem.dtypes["x"], problem.dtypes["y"]
    arguments = Arguments().tensors(x=x_type, w=x_type, y=y_type)
    numbers = {"pixels": pixels, "height": d["h"], "width": d["w"], "rows_out": p}
    numbers |= {"columns_out": q, "depth": depth, "filters": filters}
    layout = str(problem.options["layout"])
    read = "nhwc" if chosen.get("turn") else layout
    tensors = {
        "x": _strides(read, d["c"], d["h"], d["w"]),
        "w": _strides(read, depth, d["r"], d["s"]),
        "y": _strides(layout, d["k"], p, q),
    }
    tensors["w"] = {"filter": tensors["w"].pop("image"), **tensors["w"]}
    numbers |= {f"{t}_{word}": s for t, strides in tensors.items() for word, s in strides.items()}
    innermost = {"nhwc": "channel", "nchw": "column"}
    constants: dict[str, Any] = {f"{tensor}_{innermost[read]}": 1 for tensor in "xw"}
    constants[f"y_{innermost[layout]}"] = 1
    arguments.integers(**{name: v for name, v in numbers.items() if name not in constants})
    for short in ("stride", "pad", "dilation"):
        constants[f"{short}_h".upper()] = d[f"{short}_h"]
        constants[f"{short}_w".upper()] = d[f"{short}_w"]
    constants |= {"TAPS_H": d["r"], "TAPS_W": d["s"], "PRECISION": "ieee"}
    constants["WIDE"] = max(d["c"] * d["h"] * d["w"], d["k"] * p * q) >= 2**31
    integers = problem.dtypes["acc"] == "i32"
    constants |= {"ACC": tl.int32, "ZERO": 0} if integers else {"ACC": tl.float32, "ZERO": 0.0}
    constants |= blocks_of(chosen)
    tiles = ceil_div(pixels, constants["BLOCK_M"]) * ceil_div(filters, constants["BLOCK_N"])
    grid = (tiles, d["groups"], 1)
    return arguments.call(conv_tiles, constants, compiler_options(chosen), grid)
