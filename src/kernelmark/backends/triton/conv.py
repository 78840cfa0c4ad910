"""Plans, defaults and spaces of the Triton convolution."""

from __future__ import annotations

import math
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
from kernelmark.backends.triton.launch import Arguments, KernelCall, KernelPlan, TensorBlocks
from kernelmark.core.dtype import dtype
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue, Space
from kernelmark.gpu.rtc import vendor_of
from kernelmark.ops.conv import output_size

# A transposed copy pays off if each element is loaded this often, from this many channels.
_TRANSPOSE_MIN_LOADS = 2
_TRANSPOSE_MIN_DEPTH = 32
_MOST_BOX_BITS = 1024  # channels that the TMA writes in one row of its swizzle
_DEEP_BOX = Reason("a box of pixels has at most 128 bytes of channels")


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
    config["descriptors"] = _descriptors_fit(problem, info)
    if config["descriptors"]:
        config |= _default_of_patches(problem, info)
    return FrozenDict(config)


def _descriptors_fit(problem: Problem, info: DeviceInfo) -> bool:
    """Return whether tensor descriptors can address pixels, filters and outputs."""
    d, types = problem.dims, problem.dtypes
    if level(info) < 90 or problem.options["layout"] != "nhwc" or types["x"] == "f32":
        return False
    rows = ((d["c"], types["x"]), (d["k"], types["y"]))
    aligned = all(size * dtype(kind).bits % 128 == 0 for size, kind in rows)
    return aligned and d["groups"] == d["stride_h"] == d["stride_w"] == 1


def _default_of_patches(problem: Problem, info: DeviceInfo) -> dict[str, ConfigValue]:
    """Return the tile of the kernel with descriptors: the largest of which there is one for
    every other SM (128 × 64: every SM); of 64 × 64 otherwise."""
    filters, bits = problem.dims["k"], dtype(problem.dtypes["x"]).bits
    block_m, block_n = next(
        (
            (m, n)
            # The widest is slower than 128 filters where a pixel needs its neighbours.
            for m, n in ((128, 256), (128, 128), (128, 64))[_images(problem)[:2] != (1, 1) :]
            if n < 2 * filters
            # The narrow tile only where it fills the GPU: 64 × 64 is faster with fewer.
            and (1 + (n > 64)) * _patches(problem, m) * ceil_div(filters, n) >= info.units
        ),
        (64, 64),
    )
    stages = {256: 3, 128: 4}.get(block_n, 5 if block_m == 128 else 6)
    return {
        "block_m": block_m,
        "block_n": block_n,
        "block_k": 64 * 16 // bits,
        "num_warps": 8 if block_n >= 128 else 4,
        "num_stages": stages,
    }


def _patch(problem: Problem, block_m: int) -> tuple[int, int, int]:
    """Return the images, rows and columns of a patch of pixels: those of the fewest patches."""
    images, rows, columns = _images(problem)
    edges = [1 << bit for bit in range(block_m.bit_length())]
    shapes = [(block_m // (r * c), r, c) for r in edges for c in edges if r * c <= block_m]

    def cost(shape: tuple[int, int, int]) -> tuple[int, int, int]:
        count = ceil_div(images, shape[0]) * ceil_div(rows, shape[1]) * ceil_div(columns, shape[2])
        return count, shape[0], -shape[2]

    return min(shapes, key=cost)


def _patches(problem: Problem, block_m: int) -> int:
    sizes = zip(_images(problem), _patch(problem, block_m), strict=True)
    return math.prod(ceil_div(size, edge) for size, edge in sizes)


def _images(problem: Problem) -> tuple[int, int, int]:
    """Return the images of the output, their rows and columns. If a pixel needs no neighbours, all
    are one row."""
    d, (p, q) = problem.dims, output_size(problem)
    if d["r"] == d["s"] == 1 and d["pad_h"] == d["pad_w"] == 0:
        return 1, 1, d["n"] * p * q
    return d["n"], p, q


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
    parameters["descriptors"] = (False, True) if _descriptors_fit(problem, info) else (False,)

    def forbids(config: Config) -> str | None:
        if config["descriptors"] and int(config["block_k"]) * bits > _MOST_BOX_BITS:
            return _DEEP_BOX
        return too_large_tiles(config, info, bits=(bits, bits))

    return Space(parameters=parameters, default=default(problem, info), forbids=forbids)


def plan(problem: Problem, config: Config, info: DeviceInfo) -> KernelPlan:
    """Return the launches for a config; missing values come from the default."""
    pretranspose = bool(config.get("turn", _transpose_pays(problem)))
    chosen: dict[str, Any] = {**_default(problem, info, pretranspose=pretranspose), **config}
    if chosen["descriptors"]:
        if not _descriptors_fit(problem, info):
            raise Unsupported(f"descriptors cannot address these operands on {info.arch}")
        if int(chosen["block_k"]) * dtype(problem.dtypes["x"]).bits > _MOST_BOX_BITS:
            raise Unsupported(_DEEP_BOX)
        return KernelPlan(calls=(_boxes(problem, chosen),))
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


def _boxes(problem: Problem, chosen: dict[str, Any]) -> KernelCall:
    import triton.language as tl

    from kernelmark.kernels.triton.conv import conv_patches

    d, types = problem.dims, problem.dtypes
    blocks = blocks_of(chosen)
    block_m, block_n, block_k = (blocks[f"BLOCK_{x}"] for x in "MNK")
    images, rows, columns = _images(problem)
    pixels = images, rows, columns
    if d["r"] * d["s"] > 1 or d["pad_h"] or d["pad_w"]:
        pixels = d["n"], d["h"], d["w"]
    patch = _patch(problem, block_m)
    arguments = Arguments()
    arguments.blocks("x_tiles", types["x"], _dense("x", *pixels, d["c"]), (*patch, block_k))
    arguments.blocks(
        "w_tiles", types["x"], _dense("w", d["k"], d["r"] * d["s"] * d["c"]), (block_n, block_k)
    )
    arguments.blocks(
        "y_tiles", types["y"], _dense("y", images, rows, columns, d["k"]), (*patch, block_n)
    )
    arguments.integers(images=images, rows_out=rows, columns_out=columns)
    arguments.integers(depth=d["c"], filters=d["k"])
    constants: dict[str, Any] = {
        **{f"{word}_{x}".upper(): d[f"{word}_{x}"] for word in ("pad", "dilation") for x in "hw"},
        **dict(zip(("IMAGES", "ROWS", "COLUMNS"), patch, strict=True)),
        "TAPS_H": d["r"],
        "TAPS_W": d["s"],
        "ACC": tl.int32 if types["acc"] == "i32" else tl.float32,
        **blocks,
    }
    tiles = _patches(problem, block_m) * ceil_div(d["k"], block_n)
    return arguments.call(conv_patches, constants, compiler_options(chosen), (tiles, 1, 1))


def _dense(name: str, *shape: int) -> TensorBlocks:
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return TensorBlocks(tensor=name, shape=shape, strides=strides)
