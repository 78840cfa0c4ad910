"""From a config to compiler flags and a form of MLIR, and the space that can be tuned.

Config names: `data_tiling` packs the operands of products into tiles first; `im2col` writes a
convolution as a product of its patches; the tile names fix how a gemm is cut for a CPU, which
excludes data tiling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernelmark import ops
from kernelmark.backends._rules import refuse_unknown
from kernelmark.backends.iree.batch import with_batch
from kernelmark.backends.iree.targets import Target
from kernelmark.core.dtype import dtype
from kernelmark.core.errors import Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue
from kernelmark.core.space import Space
from kernelmark.kernels import mlir
from kernelmark.kernels.mlir.base import Form
from kernelmark.ops.conv import output_size

TILES = ("tile_m", "tile_n", "cache_m", "cache_n", "cache_k", "vector_m", "vector_n", "vector_k")
_PRODUCTS = ("gemm", "batched_gemm")
_VALUES: Mapping[str, tuple[int, ...]] = {
    "tile_m": (1, 16, 32, 64, 128, 256),
    "tile_n": (16, 32, 64, 128, 256),
    "cache_m": (1, 8, 16, 32, 64),
    "cache_n": (16, 32, 64),
    "cache_k": (0, 32, 64, 128),
    "vector_m": (1, 4, 8),
    "vector_n": (4, 8, 16),
    "vector_k": (1, 4),
}
# With a cache tile along k the compiler keeps the tile of the result in one vector, and refuses
# vectors of this size.
_VECTOR_BYTES = 8192
# Packing pays where each packed element is used about this often: on a Neoverse N1, f32 products
# gain from about 100 rows and columns on (2 × at 512³) and lose below.
_REUSE = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to hand to the compiler for one problem and config."""

    form: Form
    flags: tuple[str, ...]
    label: str


def choose(problem: Problem, config: Config, target: Target) -> Choice:
    """The config's choice with defaults filled in; an impossible config is `Unsupported`."""
    refuse_unknown("iree", config, known_names(problem, target))
    tiles = {name: _size(config, name) for name in TILES if name in config}
    tiled = _flag(config, "data_tiling", default_data_tiling(problem, target) and not tiles)
    im2col = _flag(config, "im2col", _has_columns(problem) and not target.gpu)
    if tiles and tiled:
        raise Unsupported("iree cannot use tile sizes together with data_tiling")
    if tiles and (reason := forbids(tiles)):
        raise Unsupported(f"iree cannot use these tiles: {reason}")
    words = ["data-tiled"] * tiled + ["im2col"] * im2col + ["tiled as given"] * bool(tiles)
    return Choice(
        form=Form(gpu=target.gpu, im2col=im2col, lowering=_lowering(tiles) if tiles else ""),
        flags=(*target.flags, *_exactness(problem), f"--iree-opt-data-tiling={str(tiled).lower()}"),
        label=" ".join([problem.op, target.name, *words]),
    )


def source(problem: Problem, choice: Choice) -> str:
    """The module to compile; one for a GPU also works on many argument sets at once."""
    tensors = ops.registry.get(problem.op).tensors(problem)
    text = mlir.registry.get(problem.op).text(problem, tensors, choice.form)
    return with_batch(text, tensors) if choice.form.gpu else text


def known_names(problem: Problem, target: Target) -> tuple[str, ...]:
    """The config names that mean something for this problem."""
    names = ["data_tiling"]
    if _has_columns(problem):
        names.append("im2col")
    if _tunable(problem, target):
        names += TILES
    return tuple(names)


def _has_columns(problem: Problem) -> bool:
    """Whether im2col applies; on a Neoverse N1 it is as fast as IREE's own form (1×1, nhwc) or
    faster, 3 to 15 times for filters of 3×3 and 7×7."""
    return problem.op == "conv" and problem.dims["groups"] == 1


def default_data_tiling(problem: Problem, target: Target) -> bool:
    """Whether packing pays: measured where sums are as wide as the inputs, or are integers."""
    if target.gpu or problem.op not in ("gemm", "batched_gemm", "conv"):
        return False
    inputs = problem.dtypes["x" if problem.op == "conv" else "a"]
    if dtype(inputs).kind == "int":
        return True
    if inputs not in ("f32", "f16") or problem.dtypes["acc"] != inputs:
        return False
    return min(_rows_and_columns(problem)) >= _REUSE


def _rows_and_columns(problem: Problem) -> tuple[int, int]:
    d = problem.dims
    if problem.op == "conv":
        return d["n"] * math.prod(output_size(problem)), d["k"] // d["groups"]
    return d["m"], d["n"]


def _exactness(problem: Problem) -> tuple[str, ...]:
    """Flags without which IREE would compute in another type than the problem says."""
    flags = ["--iree-input-demote-f64-to-f32=false"]
    if problem.dtypes.get("acc") == "f16":
        flags.append("--iree-llvmcpu-skip-intermediate-roundings=false")
    return tuple(flags)


def space(problem: Problem, target: Target) -> Space | None:
    """Tile sizes of an f32 gemm on a CPU that are not larger than the problem; None otherwise."""
    if not _tunable(problem, target):
        return None
    limits = {name: problem.dims[name[-1]] for name in TILES}
    parameters = {}
    for name, values in _VALUES.items():
        # One size beyond the dim is the same as any other.
        enough = next((i for i, v in enumerate(values) if v >= limits[name]), len(values))
        parameters[name] = values[: enough + 1]
    return Space(parameters=parameters, forbids=forbids)


def _tunable(problem: Problem, target: Target) -> bool:
    return problem.op == "gemm" and problem.dtypes["a"] == "f32" and not target.gpu


def forbids(config: Config) -> str | None:
    """Why tile sizes do not go together, or None; no sizes leave all to the compiler."""
    if not config:
        return None
    missing = [name for name in TILES if name not in config and name != "cache_k"]
    if missing:
        return f"{missing[0]} is missing"
    size = {name: _size(config, name) for name in TILES}
    for name, value in size.items():
        if value < 1 and name != "cache_k":
            return f"{name}={value} must be at least 1"
    for dim in "mn":
        vector, cache, tile = size[f"vector_{dim}"], size[f"cache_{dim}"], size[f"tile_{dim}"]
        if cache % vector or tile % cache:
            return f"tile_{dim}={tile} ⊇ cache_{dim}={cache} ⊇ vector_{dim}={vector} must divide"
    if size["cache_k"] % size["vector_k"]:
        return f"cache_k={size['cache_k']} is not a multiple of vector_k={size['vector_k']}"
    held = ("cache" if size["cache_k"] else "vector") + "_"
    if size[held + "m"] * size[held + "n"] * 4 >= _VECTOR_BYTES:
        return f"{held}m × {held}n exceeds the compiler's largest vector"
    return None


def _lowering(tiles: Mapping[str, int]) -> str:
    """The attribute that fixes the tiles of a gemm."""
    t = {"cache_k": 0} | dict(tiles)
    reduction = f"cache_reduction = [0, 0, {t['cache_k']}], " if t["cache_k"] else ""
    return (
        "#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<"
        f"distribution = [{t['tile_m']}, {t['tile_n']}, 0], "
        f"cache_parallel = [{t['cache_m']}, {t['cache_n']}, 0], {reduction}"
        f"vector_common_parallel = [{t['vector_m']}, {t['vector_n']}, 0], "
        f"vector_reduction = [0, 0, {t['vector_k']}]>, "
        "translation_info = #iree_codegen.translation_info<"
        "pipeline = #iree_cpu.pipeline<DoubleTilingExpert>, {enable_loop_peeling}>>"
    )


def _flag(config: Config, name: str, default: bool) -> bool:  # noqa: FBT001
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise Unsupported(f"iree: {name}={value!r} in the config is not a truth value")
    return value


def _size(config: Mapping[str, ConfigValue], name: str) -> int:
    value = config.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unsupported(f"iree: {name}={value!r} in the config is not a size")
    return value
