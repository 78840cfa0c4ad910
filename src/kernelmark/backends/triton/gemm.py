"""Plans, defaults and spaces of the Triton GEMM and batched GEMM."""

from __future__ import annotations

import math
from typing import Any

from kernelmark.backends._rules import AMD_NARROW_TYPES, no_narrow_float, wrong_acc, wrong_dtypes
from kernelmark.backends.triton._copy import (
    can_pretranspose,
    k_innermost,
    transposed_operands,
    with_copies,
)
from kernelmark.backends.triton._gemm_rules import (
    GROUPS,
    NO_SLICES,
    PERSISTENT_SPLIT,
    PERSISTENT_SWAP,
    SPLITS,
    Rules,
    descriptors_fit,
    in_halves,
    least_depth,
    least_group,
    least_split,
    sizes,
    slices,
    splits_in_vain,
    swap_pays,
    waiting_bytes,
)
from kernelmark.backends.triton.plan import (
    WORKSPACE,
    ZEROED,
    Arguments,
    Call,
    Plan,
    ceil_div,
    has_wide_unit,
    level,
    power_of_two,
    shared_bytes,
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
_STREAMED_ROWS = 256
_PLAIN_CUDA = {"fused_sum": False, "swap": False, "specialize": False}


def supports(problem: Problem, info: DeviceInfo) -> str | None:
    if reason := wrong_acc("triton", problem, ("f32", "i32")):
        return reason
    for name in (problem.dtypes["a"], problem.dtypes["b"]):
        reason = dtype_reason(name, info)
        if reason:
            return reason
    if problem.dtypes["a"] != problem.dtypes["b"] and not problem.dtypes["a"].startswith("f8"):
        return wrong_dtypes("triton", problem)
    if problem.dtypes["c"] not in ("f32", "f16", "bf16", "i32", "f8e4m3", "f8e5m2"):
        return wrong_dtypes("triton", problem)
    return None


def dtype_reason(name: str, info: DeviceInfo) -> Reason | None:
    """Return why an operand of this dtype cannot be multiplied natively on this architecture, or
    None."""
    if name in ("f8e4m3", "f8e5m2"):
        on_cuda = vendor_of(info.arch) == "cuda" and level(info) >= 89
        native = on_cuda or name in AMD_NARROW_TYPES.get(info.arch, ())
    elif name.endswith("fnuz"):
        native = name in AMD_NARROW_TYPES.get(info.arch, ())
    elif name in ("f32", "f16", "bf16", "i8"):
        native = True
    else:
        return Reason("operand-unsupported", backend="triton", dtype=name)
    if native:
        return None
    return no_narrow_float("triton", name, info.arch)


# -- configs


def default(problem: Problem, info: DeviceInfo) -> Config:
    """Return the default config for the architecture and shape."""
    return _default(problem, info, pretranspose=True)


def _default(problem: Problem, info: DeviceInfo, *, pretranspose: bool) -> Config:
    if can_pretranspose(problem, info):
        stored = k_innermost(problem) if pretranspose else problem
        return FrozenDict({**_default_as_stored(stored, info), "turn": pretranspose})
    return _default_as_stored(problem, info)


def _default_as_stored(problem: Problem, info: DeviceInfo) -> Config:
    if vendor_of(info.arch) == "hip":
        return _default_amd(problem, info)
    batch, m, n, k = sizes(problem)
    wide = dtype(problem.dtypes["a"]).bits
    if problem.dtypes["a"] == "f32":
        block_m, block_n = power_of_two(m, 16, 64), power_of_two(n, 32, 64)
        plain = _simple(m, block_m, block_n, 32, warps=4, stages=3)
        return FrozenDict({**plain, **_PLAIN_CUDA})
    best, least = None, math.inf
    for candidate in _candidates(m, n, k, 256 if has_wide_unit(info) else 128):
        if candidate[2] > 1 and splits_in_vain(problem, candidate[0], candidate[1]):
            continue
        cost = _cost(candidate, batch, m, n, k, wide, info.units)
        if cost < least:
            best, least = candidate, cost
    assert best is not None
    block_m, block_n, split = best
    block_k = (64 if block_m >= 64 else 128) * (2 if wide == 8 else 1)
    block_k = power_of_two(k, least_depth(wide), block_k)
    large = block_m * block_n >= 128 * 256
    warps = 8 if block_m * block_n >= 128 * 128 else 4
    staged_bytes = (block_m + block_n) * block_k * wide // 8
    room = shared_bytes(info)
    split = least_split(k, split, block_k)
    config = _simple(m, block_m, block_n, block_k, warps=warps, stages=2, split=split)
    config |= _PLAIN_CUDA
    if descriptors_fit(problem, info, config) and split == 1 and block_m >= 64:
        left = room - waiting_bytes(problem, info, block_m, block_n)
        if left >= 2 * staged_bytes:
            config["persistent"], room = True, left
    config["num_stages"] = max(2, min(3 if large else 4, room // staged_bytes))
    return FrozenDict(config)


def _simple(
    m: int, block_m: int, block_n: int, block_k: int, *, warps: int, stages: int, split: int = 1
) -> dict[str, ConfigValue]:
    return {
        "block_m": block_m,
        "block_n": block_n,
        "block_k": block_k,
        "group_m": least_group(m, block_m, 8),
        "split_k": split,
        "num_warps": warps,
        "num_stages": stages,
        "persistent": False,
    }


def _candidates(m: int, n: int, k: int, widest: int) -> list[tuple[int, int, int]]:
    rows = [r for r in (16, 32, 64, 128) if r == 16 or r < 2 * m]
    columns = [c for c in (32, 64, 128, 256) if c == 32 or (c < 2 * n and c <= widest)]
    splits = [s for s in (1, 2, 4, 8, 16) if s == 1 or k // s >= 256]
    return [(r, c, s) for r in rows for c in columns for s in splits if not (r < 64 and c == 256)]


def _cost(
    tile: tuple[int, int, int], batch: int, m: int, n: int, k: int, wide: int, units: int
) -> float:
    """Return the relative time of a tile shape: waves of tiles, each limited by arithmetic or
    loads.

    An SM multiplies at full rate only from 128 × 256 on, and reads a fixed number of bytes per
    cycle; split-K adds a pass over float32 partial sums and a second launch."""
    block_m, block_n, split = tile
    tiles = batch * ceil_div(m, block_m) * ceil_div(n, block_n) * split
    depth = k / split
    share = min(1.0, 0.45 + 0.55 * min(1.0, block_m * block_n / (128 * 256)))
    arithmetic = max(block_m, 64) * block_n * depth / share / (4096 * 16 / wide)
    traffic = (block_m + block_n) * depth * wide / 8 / 64
    waves = ceil_div(tiles, units)
    # Fewer tiles than SMs leave memory channels idle.
    starving = max(1.0, 0.75 * units / tiles)
    time = waves * max(arithmetic, traffic * min(starving, 4.0)) + 1500
    if split > 1:
        time += 3000 + 2 * split * batch * m * n * 4 / (units * 24)
    return time


def _default_amd(problem: Problem, info: DeviceInfo) -> Config:
    batch, m, n, k = sizes(problem)
    wide = dtype(problem.dtypes["a"]).bits
    # RDNA has no matrix unit for f32: waves of 32 lanes spill with larger tiles.
    largest = 64 if wide == 32 and not info.arch.startswith("gfx9") else 128
    block_m = power_of_two(m, 16, largest)
    block_n = power_of_two(n, 32, largest)
    # 8-bit operands that are read across k, or whose rows are not aligned, are loaded byte by byte:
    # blocks of 128 bytes of k then spill VGPRs, or SGPRs (a mask of 64 lanes takes two).
    across = problem.options["ta"] == "t" or problem.options["tb"] == "n" or k % 16
    deepest = 64 if wide == 8 and across else 64 * 16 // max(wide, 8)
    block_k = power_of_two(k, least_depth(wide), deepest)
    tiles = batch * ceil_div(m, block_m) * ceil_div(n, block_n)
    split = 1
    while tiles * split * 2 <= info.units and k // (split * 2) >= 4 * block_k and split < 16:
        split *= 2
    split = least_split(k, split, block_k)
    config = _simple(m, block_m, block_n, block_k, warps=4, stages=2, split=split)
    if block_m * block_n >= 128 * 128:
        config["num_warps"] = 8
    config |= {"waves_per_eu": 2, "matrix_instr_nonkdim": 16}
    # For the tuner only: not yet measured where they help.
    config |= {"xcds": 1, "cache_modifier": ""}
    if info.arch == "gfx942":
        config["kpack"] = 1
    return FrozenDict(config)


def _xcds(info: DeviceInfo) -> int:
    """Return the chiplets of an AMD GPU in its current partitioning. Drivers that do not report
    them report CUs: an MI300 chiplet has 38, one of an MI350 32."""
    reported = int(info.attributes.get("chiplets", "0"))
    return reported or max(1, info.units // {"gfx942": 38, "gfx950": 32}.get(info.arch, info.units))


def space(problem: Problem, info: DeviceInfo) -> Space:
    """Return all configs that the kernel can be built with for this problem, each kernel once."""
    _, m, n, k = sizes(problem)
    least = least_depth(dtype(problem.dtypes["a"]).bits)
    heights = tuple(b for b in (16, 32, 64, 128, 256) if b == 16 or b < 2 * m)
    parameters: dict[str, tuple[ConfigValue, ...]] = {
        "block_m": heights,
        "block_n": tuple(b for b in (16, 32, 64, 128, 256) if b <= 32 or b < 2 * n),
        "block_k": tuple(b for b in (32, 64, 128, 256) if b == least or least < b < 2 * k),
        "group_m": tuple(g for g in GROUPS if least_group(m, heights[0], g) == g),
        "split_k": tuple(s for s in SPLITS if s == 1 or k // s >= 128),
    }
    if vendor_of(info.arch) == "cuda":
        parameters |= {"num_warps": (4, 8), "num_stages": (2, 3, 4, 5, 6)}
        parameters["persistent"] = (False, True) if level(info) >= 90 else (False,)
        # Not on AMD, whose barrier does not wait for stores: not yet shown to be safe there.
        parameters["fused_sum"] = (False, True)
        swaps = swap_pays(
            k_innermost(problem) if can_pretranspose(problem, info) else problem, info
        )
        parameters["swap"] = (False, True) if swaps else (False,)
        parameters["specialize"] = (False,)  # only on request: on Hopper it gains nothing
    else:
        parameters |= {"num_warps": (2, 4, 8), "num_stages": (1, 2, 3), "persistent": (False,)}
        parameters |= {"waves_per_eu": (0, 1, 2, 4), "matrix_instr_nonkdim": (16, 32)}
        parameters["xcds"] = tuple(dict.fromkeys((1, _xcds(info))))
        # With few rows of A every element of B is read once: .cg keeps it from evicting A.
        parameters["cache_modifier"] = ("", ".cg") if m <= _STREAMED_ROWS else ("",)
        if info.arch == "gfx942":
            parameters["kpack"] = (1, 2)
    rules = Rules(problem, info)
    if not can_pretranspose(problem, info):
        return Space(parameters=parameters, default=default(problem, info), forbids=rules.forbids)
    transposed_rules = Rules(k_innermost(problem), info)

    def forbids(config: Config) -> str | None:
        return (transposed_rules if config["turn"] else rules).forbids(config)

    parameters["turn"] = (False, True)
    return Space(parameters=parameters, default=default(problem, info), forbids=forbids)


# -- plans


def plan(problem: Problem, config: Config, info: DeviceInfo) -> Plan:
    """Return the launches for a config; missing values come from the default."""
    _refuse_ignored(problem, config)
    chosen = {**_default(problem, info, pretranspose=bool(config.get("turn", True))), **config}
    if chosen.pop("turn", False):
        return with_copies(
            _as_stored(k_innermost(problem), chosen, info), transposed_operands(problem)
        )
    return _as_stored(problem, chosen, info)


def _refuse_ignored(problem: Problem, config: Config) -> None:
    """Raise Unsupported for settings without effect: they would be measured as another kernel."""
    if config.get("persistent"):
        if int(config.get("split_k", 1)) > 1:
            raise Unsupported(PERSISTENT_SPLIT)
        if config.get("swap"):
            raise Unsupported(PERSISTENT_SWAP)
    split, k = int(config.get("split_k", 1)), problem.dims["k"]
    if "block_k" in config and split > 1 and slices(k, split, int(config["block_k"]))[0] == 1:
        raise Unsupported(Reason("one-slice", k=k, block_k=int(config["block_k"])))


def _as_stored(problem: Problem, chosen: dict[str, Any], info: DeviceInfo) -> Plan:
    from kernelmark.kernels.triton import gemm as kernels

    if chosen.get("persistent"):
        if not descriptors_fit(problem, info, chosen):
            raise Unsupported(Reason("descriptors-unfit", arch=info.arch))
        if chosen.get("fused_sum"):
            raise Unsupported(NO_SLICES)
        return Plan(calls=(_persistent(kernels, problem, chosen, info),))
    if chosen.get("specialize"):
        raise Unsupported(Reason("not-persistent"))
    _, _, _, k = sizes(problem)
    split, per_part = slices(k, int(chosen["split_k"]), int(chosen["block_k"]))
    if split == 1 and chosen.get("fused_sum"):
        raise Unsupported(NO_SLICES)
    main = _tiles(kernels, problem, chosen, split, per_part)
    if split == 1:
        return Plan(calls=(main,))
    batch, m, n, _ = sizes(problem)
    workspace_bytes = batch * split * m * n * 4
    if chosen.get("fused_sum"):
        arrivals = batch * main.grid[0]
        return Plan(calls=(main,), workspace_bytes=workspace_bytes, zeroed_bytes=arrivals * 4)
    return Plan(calls=(main, _reduce(kernels, problem, split)), workspace_bytes=workspace_bytes)


def _operands(problem: Problem) -> Arguments:
    types = problem.dtypes
    arguments = Arguments().pointer("a", types["a"], "a").pointer("b", types["b"], "b")
    arguments.pointer("c", types["c"], "c").pointer("bias", types["c"], "bias")
    return arguments.pointer("d", types["c"], "d")


def _epilogue(problem: Problem) -> dict[str, bool | float]:
    options = problem.options
    return {
        "HAS_C": float(options.get("beta", 0.0)) != 0.0,
        "HAS_BIAS": bool(options.get("bias", False)),
        "SCALED": float(options.get("alpha", 1.0)) != 1.0,
        # Of the operands' kind: older Tritons cannot cast an integer to an 8-bit float.
        "ZERO": 0 if problem.dtypes["acc"] == "i32" else 0.0,
    }


def _blocks(config: dict[str, Any]) -> dict[str, int]:
    return {f"BLOCK_{x}": int(config[f"block_{x.lower()}"]) for x in "MNK"} | {
        "GROUP_M": int(config["group_m"])
    }


def _options(config: dict[str, Any]) -> dict[str, Any]:
    names = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
    return {name: config[name] for name in names if name in config}


def _accumulator(problem: Problem) -> Any:
    import triton.language as tl

    return tl.int32 if problem.dtypes["acc"] == "i32" else tl.float32


def _transposes(problem: Problem) -> dict[str, bool]:
    return {"TA": problem.options["ta"] == "t", "TB": problem.options["tb"] == "t"}


def _tiles(
    kernels: Any, problem: Problem, config: dict[str, Any], split: int, per_part: int
) -> Call:
    batch, m, n, k = sizes(problem)
    arguments = _operands(problem)
    arguments.pointer("parts", problem.dtypes["acc"], WORKSPACE).pointer("arrivals", "i32", ZEROED)
    arguments.integer("m", m).integer("n", n).integer("k", k).integer("k_split", per_part)
    arguments.real("alpha", float(problem.options.get("alpha", 1.0)))
    arguments.real("beta", float(problem.options.get("beta", 0.0)))
    blocks = _blocks(config)
    tiles = ceil_div(m, blocks["BLOCK_M"]) * ceil_div(n, blocks["BLOCK_N"])
    constants = {
        **_transposes(problem),
        **_epilogue(problem),
        **blocks,
        "ACC": _accumulator(problem),
        "EVEN_K": k % blocks["BLOCK_K"] == 0,
        "SPLIT": split > 1,
        "FUSED": split if split > 1 and config.get("fused_sum") else 0,  # slices to sum
        "SWAP": bool(config.get("swap")),
        "PRECISION": "ieee",
        "XCDS": int(config.get("xcds", 1)),
        "CACHE": config.get("cache_modifier", ""),
    }
    return arguments.call(kernels.gemm_tiles, constants, _options(config), (tiles, split, batch))


def _reduce(kernels: Any, problem: Problem, split: int) -> Call:
    batch, m, n, _ = sizes(problem)
    types = problem.dtypes
    arguments = Arguments().pointer("parts", types["acc"], WORKSPACE)
    arguments.pointer("c", types["c"], "c").pointer("bias", types["c"], "bias")
    arguments.pointer("d", types["c"], "d").integer("m", m).integer("n", n)
    arguments.real("alpha", float(problem.options.get("alpha", 1.0)))
    arguments.real("beta", float(problem.options.get("beta", 0.0)))
    block = min(_REDUCE_BLOCK, power_of_two(m * n, 128, _REDUCE_BLOCK))
    constants = {**_epilogue(problem), "PARTS": split, "BLOCK": block}
    return arguments.call(
        kernels.gemm_reduce, constants, {"num_warps": 4}, (ceil_div(m * n, block), batch, 1)
    )


def _persistent(kernels: Any, problem: Problem, config: dict[str, Any], info: DeviceInfo) -> Call:
    batch, m, n, k = sizes(problem)
    arguments = _operands(problem)
    arguments.integer("m", m).integer("n", n).integer("k", k).integer("batches", batch)
    arguments.real("alpha", float(problem.options.get("alpha", 1.0)))
    arguments.real("beta", float(problem.options.get("beta", 0.0)))
    blocks = _blocks(config)
    tiles = batch * ceil_div(m, blocks["BLOCK_M"]) * ceil_div(n, blocks["BLOCK_N"])
    programs = min(tiles, info.units)
    constants = {
        **_transposes(problem),
        **_epilogue(problem),
        **blocks,
        "ACC": _accumulator(problem),
        "SPECIALIZE": bool(config.get("specialize")),
        "HALVES": in_halves(problem),
        "PROGRAMS": programs,
    }
    return arguments.call(kernels.gemm_persistent, constants, _options(config), (programs, 1, 1))
