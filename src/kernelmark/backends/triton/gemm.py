"""Plans, defaults and spaces of the Triton GEMM and batched GEMM.

A batch is a dimension of the GEMM's grid. Rules decide which configs of a space can be built, and
which are duplicates of others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from kernelmark.backends._rules import wrong_acc, wrong_dtypes
from kernelmark.backends.triton.configs import (
    Values,
    accumulators_fit,
    amd_only,
    block_sizes,
    blocks_of,
    can_pretranspose,
    ceil_div,
    compiler_options,
    dtype_reason,
    filling_split,
    gemm_sizes,
    has_wide_unit,
    k_innermost,
    level,
    power_of_two,
    shared_bytes,
    slices,
    staged_bytes,
    transposed_operands,
    with_copies,
)
from kernelmark.backends.triton.launch import (
    WORKSPACE,
    ZEROED,
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

_GROUPS = (1, 4, 8, 16)
_SPLITS = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16)
# From this many tiles on, split-K only adds traffic: several per SM/CU of any GPU.
_TILES_ENOUGH = 1024
_MOST_ACCUMULATORS = 128  # registers per thread
_REDUCE_BLOCK = 1024
_FEW_ROWS = 32
# Tiles of the persistent kernel on Hopper: rows, columns, bytes of k, warps, stages. A tile of
# fewer than 64 rows swaps the operands.
_DESCRIBED_TILES = (
    *((16, 64, 256, 4, 6), (32, 64, 256, 4, 6), (64, 64, 256, 4, 5), (64, 128, 256, 4, 4)),
    *((64, 256, 128, 4, 4), (128, 128, 128, 8, 5), (128, 256, 128, 8, 3)),
)
_PLAIN_CUDA = {"fused_sum": False, "swap": False, "specialize": False}
_NO_SLICES, _PERSISTENT_SPLIT = (
    Reason("there are no slices of k to sum"),
    Reason("the persistent kernel does not split k"),
)
_SPECIALIZED_TILE = Reason(
    "specialize wants 4 warps and tiles of 64 rows and up to 128 columns, after a swap"
)
_DESCRIPTORS_ALIGNMENT = Reason("rows are not a multiple of 16 bytes, as descriptors need")


def supports(problem: Problem, info: DeviceInfo) -> str | None:
    a, b, c = (problem.dtypes[name] for name in "abc")
    reason = wrong_acc("triton", problem, ("f32", "i32"))
    if reason := reason or dtype_reason(a, info) or dtype_reason(b, info):
        return reason
    mixed = a != b and not a.startswith("f8")
    if mixed or c not in ("f32", "f16", "bf16", "i32", "f8e4m3", "f8e5m2"):
        return wrong_dtypes("triton", problem)
    return None


# -- rules


def _in_halves(problem: Problem) -> bool:
    """Return whether the persistent kernel stores a tile in two steps."""
    return dtype(problem.dtypes["c"]).bits == 32


def _waiting_bytes(problem: Problem, info: DeviceInfo, block_m: int, block_n: int) -> int:
    """Return the shared memory of the persistent kernel's output tile, in addition to the staged
    tiles. Without wide matrix units the staged tiles are no longer in use at that time."""
    if not has_wide_unit(info):
        return 0
    nbytes = block_m * block_n * dtype(problem.dtypes["c"]).bits // 8
    return nbytes // 2 if _in_halves(problem) else nbytes


def _least_depth(bits: int) -> int:
    """Return the smallest block_k that fills the matrix unit with operands of `bits` bits."""
    return 64 if bits == 8 else 32


def _least_group(m: int, block_m: int, group: int) -> int:
    """Return the smallest group that visits the tiles in the same order as `group`."""
    rows = ceil_div(m, block_m)
    return next((g for g in _GROUPS if g >= min(rows, group)), group)


def _least_split(k: int, split: int, block_k: int) -> int:
    """Return the smallest split that gives the same slices as `split`."""
    same = slices(k, split, block_k)
    return next((s for s in _SPLITS if slices(k, s, block_k) == same), split)


def _splits_in_vain(problem: Problem, block_m: int, block_n: int) -> bool:
    """Return whether there are enough tiles without splitting k."""
    batch, m, n, _ = gemm_sizes(problem)
    return batch * ceil_div(m, block_m) * ceil_div(n, block_n) >= _TILES_ENOUGH


def _swap_pays(problem: Problem, info: DeviceInfo) -> bool:
    """Return whether swapped operands may be faster: A has fewer than the 64 rows that wide matrix
    units need, and B's columns fill them. With fewer rows, such GPUs use the older instructions."""
    _, m, n, _ = gemm_sizes(problem)
    kind = dtype(problem.dtypes["a"])
    # With any other layout Triton 3.6 to 3.9 load without pipelining.
    innermost = problem.options["ta"] == "n" and problem.options["tb"] == "t"
    float_16 = kind.kind == "float" and kind.bits <= 16
    return has_wide_unit(info) and m < 64 <= n and innermost and float_16


def _descriptors_fit(problem: Problem, info: DeviceInfo, config: Config) -> bool:
    """Return whether tensor descriptors can address every operand."""
    if level(info) < 90 or problem.dtypes["a"] == "f32":
        return False
    batch, m, n, k = gemm_sizes(problem)
    ta, tb = problem.options["ta"] == "t", problem.options["tb"] == "t"
    rows = {"a": m if ta else k, "b": k if tb else n, "c": n}
    if any(rows[x] * dtype(problem.dtypes[x]).bits % 128 for x in rows):
        return False
    if dtype(problem.dtypes["a"]).bits == 8 and (ta or not tb):
        return False  # the matrix unit takes 8-bit operands only with k innermost
    blocks = (int(config[f"block_{x}"]) for x in "mnk")
    # All batches share one descriptor: a block must not reach into the next matrix.
    return batch == 1 or not any(s % block for s, block in zip((m, n, k), blocks, strict=True))


def _can_specialize(config: Config, info: DeviceInfo) -> bool:
    """Return whether Triton 3.6 to 3.9 can give the warps of the persistent kernel different work.

    On Hopper they halve a larger tile between two groups of warps, and fail because the block of a
    descriptor made on the host is fixed. With smaller tiles or more warps they ignore it."""
    tile = int(config["block_m"]), int(config["block_n"])
    rows, columns = tile[::-1] if config.get("swap") else tile
    fits = rows == 64 and columns <= 128 and config["num_warps"] == 4
    return fits or level(info) != 90


class _Rules:
    """Decides why a config is not a distinct kernel for a problem. `forbids` is called for every
    point of a space, so what is common to all points is computed once."""

    def __init__(self, problem: Problem, info: DeviceInfo) -> None:
        self._problem = problem
        self._info = info
        self._bits = dtype(problem.dtypes["a"]).bits
        self._lanes = 64 if info.arch.startswith("gfx9") else 32
        self._cuda = vendor_of(info.arch) == "cuda"
        self._shared = shared_bytes(info)
        self._swap_pays = _swap_pays(problem, info)
        self._same: dict[tuple[int, int, int, int], bool] = {}

    def forbids(self, config: Config) -> str | None:
        block_m, block_n = int(config["block_m"]), int(config["block_n"])
        block_k, split = int(config["block_k"]), int(config["split_k"])
        persistent = config.get("persistent")
        staged = staged_bytes(config, self._info, (block_m + block_n) * self._bits)
        if persistent:
            staged += _waiting_bytes(self._problem, self._info, block_m, block_n)
        if staged > self._shared:
            return f"{staged} bytes of staged tiles exceed {self._shared} of shared memory"
        if split == 1:
            if config.get("fused_sum"):
                return _NO_SLICES
        elif persistent:
            return _PERSISTENT_SPLIT
        elif _splits_in_vain(self._problem, block_m, block_n):
            return "there are tiles enough without splitting k"
        if self._repeats(block_m, int(config["group_m"]), block_k, split):
            return "a smaller group_m or split_k makes the same kernel"
        warps = int(config["num_warps"])
        if not accumulators_fit(config, self._info):
            return "the accumulator tile does not fit into registers"
        if block_k < _least_depth(self._bits):
            return "8-bit operands want a deeper block"
        if not self._cuda:
            return self._forbids_amd(config, block_m, block_n, self._lanes * warps)
        if block_m * block_n > _MOST_ACCUMULATORS * 32 * warps:
            return "the accumulator tile does not fit into the registers of so few warps"
        if block_m * block_n < 32 * 32 and warps > 4:
            return "more warps than the tile has work for"
        if config.get("swap") and not (self._swap_pays and block_m < 64 <= block_n):
            return "swapped operands want few rows, at least 64 columns and k innermost"
        if persistent and not _descriptors_fit(self._problem, self._info, config):
            return _DESCRIPTORS_ALIGNMENT
        return None

    def _forbids_amd(self, config: Config, block_m: int, block_n: int, lanes: int) -> str | None:
        """Return why AMD's compiler has no use for a config, or None."""
        if (block_m + block_n) * int(config["block_k"]) * self._bits < 64 * lanes:
            return "the tile has less than 8 bytes to load for each lane"
        if block_n < 16 <= block_m:
            return "a tile narrower than the matrix instruction wants few rows"
        if min(block_m, block_n) < int(config["matrix_instr_nonkdim"]) > 16:
            return "the tile is smaller than the matrix instruction"
        # CDNA has 512 registers for the waves of a SIMD; the accumulators are at most half of them.
        if self._lanes == 64 and block_m * block_n * int(config["waves_per_eu"]) > 256 * lanes:
            return "so many waves leave no registers for the accumulator tile"
        return _DESCRIPTORS_ALIGNMENT if config.get("persistent") else None

    def _repeats(self, block_m: int, group: int, block_k: int, split: int) -> bool:
        key = block_m, group, block_k, split
        if key not in self._same:
            _, m, _, k = gemm_sizes(self._problem)
            plain = _least_group(m, block_m, group), _least_split(k, split, block_k)
            self._same[key] = plain != (group, split)
        return self._same[key]


# -- configs


def default(problem: Problem, info: DeviceInfo) -> Config:
    """Return the default config for the architecture and shape."""
    return _default(problem, info, pretranspose=True)


def _default(problem: Problem, info: DeviceInfo, *, pretranspose: bool) -> Config:
    if not can_pretranspose(problem, info):
        return _default_as_stored(problem, info)
    stored = k_innermost(problem) if pretranspose else problem
    return FrozenDict({**_default_as_stored(stored, info), "turn": pretranspose})


def _default_as_stored(problem: Problem, info: DeviceInfo) -> Config:
    if vendor_of(info.arch) == "hip":
        return _default_amd(problem, info)
    if described := _default_described(problem, info):
        return described
    _, m, n, k = gemm_sizes(problem)
    bits = dtype(problem.dtypes["a"]).bits
    if problem.dtypes["a"] == "f32":
        blocks = power_of_two(m, 16, 64), power_of_two(n, 32, 64), 32
        return FrozenDict({**_simple(m, blocks, warps=4, stages=3), **_PLAIN_CUDA})
    block_m, block_n, split = min(
        (
            tile
            for tile in _candidates(m, n, k, 256 if has_wide_unit(info) else 128)
            if tile[2] == 1 or not _splits_in_vain(problem, *tile[:2])
        ),
        key=lambda tile: _cost(tile, problem, info.units),
    )
    block_k = (64 if block_m >= 64 else 128) * (2 if bits == 8 else 1)
    block_k = power_of_two(k, _least_depth(bits), block_k)
    warps = 8 if block_m * block_n >= 128 * 128 else 4
    stage_bytes = (block_m + block_n) * block_k * bits // 8
    room = shared_bytes(info)
    split = _least_split(k, split, block_k)
    config = _simple(m, (block_m, block_n, block_k), warps=warps, stages=2, split=split)
    config |= _PLAIN_CUDA
    if _descriptors_fit(problem, info, config) and split == 1 and block_m >= 64:
        left = room - _waiting_bytes(problem, info, block_m, block_n)
        if left >= 2 * stage_bytes:
            config["persistent"], room = True, left
    most = 3 if block_m * block_n >= 128 * 256 else 4
    config["num_stages"] = max(2, min(most, room // stage_bytes))
    return FrozenDict(config)


def _default_described(problem: Problem, info: DeviceInfo) -> Config | None:
    """Return the config of the persistent kernel on Hopper; None if descriptors cannot address the
    operands, or if a split along k has to fill the SMs.

    Of 15 shapes on an H200, these costs choose the fastest of the tiles or one that is 1 % slower
    in 14, and one that is 22 % slower in 1."""
    if level(info) != 90:
        return None
    batch, m, n, _ = gemm_sizes(problem)
    bits, swap_pays = dtype(problem.dtypes["a"]).bits, _swap_pays(problem, info)
    costs: list[tuple[float, Config]] = []
    for block_m, block_n, depth, warps, stages in _DESCRIBED_TILES:
        blocks = block_m, block_n, depth * 8 // bits
        config = _simple(m, blocks, warps=warps, stages=stages) | _PLAIN_CUDA
        config |= {"persistent": True, "swap": block_m < 64}
        staged = (block_m + block_n) * depth * stages
        staged += _waiting_bytes(problem, info, block_m, block_n)
        tiles = batch * ceil_div(m, block_m) * ceil_div(n, block_n)
        fits = _descriptors_fit(problem, info, config) and staged <= shared_bytes(info)
        if fits and (block_m >= 64) != (swap_pays and m <= 32) and 4 * tiles >= info.units:
            # Cycles: a matrix unit takes 64 rows at a time and is busy only with large tiles; an SM
            # reads 40 bytes a cycle from the L2.
            share = 0.3 + 0.7 * block_m * block_n / (128 * 256)
            arithmetic = max(block_m, 64) * block_n / share / 8192
            waves = ceil_div(tiles, info.units)
            cost = max(waves * arithmetic, waves * (block_m + block_n) / 40)
            costs.append((cost, FrozenDict(config)))
    return min(costs, key=lambda pair: pair[0])[1] if costs else None


def _simple(
    m: int, blocks: tuple[int, int, int], *, warps: int, stages: int, split: int = 1
) -> dict[str, ConfigValue]:
    return {
        **dict(zip(("block_m", "block_n", "block_k"), blocks, strict=True)),
        "group_m": _least_group(m, blocks[0], 8),
        "split_k": split,
        "num_warps": warps,
        "num_stages": stages,
        "persistent": False,
    }


def _candidates(m: int, n: int, k: int, widest: int) -> list[tuple[int, int, int]]:
    rows = block_sizes(m, most=128)
    columns = block_sizes(n, least=32, most=widest)
    splits = [s for s in (1, 2, 4, 8, 16) if s == 1 or k // s >= 256]
    return [(r, c, s) for r in rows for c in columns for s in splits if not (r < 64 and c == 256)]


def _cost(tile: tuple[int, int, int], problem: Problem, units: int) -> float:
    """Return the relative time of a tile shape: waves of tiles, each limited by arithmetic or
    loads.

    An SM multiplies at full rate only from 128 × 256 on, and reads a fixed number of bytes per
    cycle; split-K adds a pass over float32 partial sums and a second launch."""
    batch, m, n, k = gemm_sizes(problem)
    bits = dtype(problem.dtypes["a"]).bits
    block_m, block_n, split = tile
    tiles = batch * ceil_div(m, block_m) * ceil_div(n, block_n) * split
    depth = k / split
    share = min(1.0, 0.45 + 0.55 * min(1.0, block_m * block_n / (128 * 256)))
    arithmetic = max(block_m, 64) * block_n * depth / share / (4096 * 16 / bits)
    traffic = (block_m + block_n) * depth * bits / 8 / 64
    waves = ceil_div(tiles, units)
    # Fewer tiles than SMs leave memory channels idle.
    starving = max(1.0, 0.75 * units / tiles)
    time = waves * max(arithmetic, traffic * min(starving, 4.0)) + 1500
    if split > 1:
        time += 3000 + 2 * split * batch * m * n * 4 / (units * 24)
    return time


def _default_amd(problem: Problem, info: DeviceInfo) -> Config:
    batch, m, n, k = gemm_sizes(problem)
    bits = dtype(problem.dtypes["a"]).bits
    # RDNA has no matrix unit for f32: waves of 32 lanes spill with larger tiles.
    largest = 64 if bits == 32 and not info.arch.startswith("gfx9") else 128
    block_m = power_of_two(m, 16, largest)
    block_n = power_of_two(n, 32, largest)
    # 8-bit operands that are read across k, or whose rows are not aligned, are loaded byte by byte:
    # blocks of 128 bytes of k then spill VGPRs, or SGPRs (a mask of 64 lanes takes two).
    across = problem.options["ta"] == "t" or problem.options["tb"] == "n" or k % 16
    deepest = 64 if bits == 8 and across else 64 * 16 // max(bits, 8)
    block_k = power_of_two(k, _least_depth(bits), deepest)
    tiles = batch * ceil_div(m, block_m) * ceil_div(n, block_n)
    split = _least_split(k, filling_split(tiles, k, block_k, info.units), block_k)
    warps = 8 if block_m * block_n >= 128 * 128 else 4
    config = _simple(m, (block_m, block_n, block_k), warps=warps, stages=2, split=split)
    config |= _pingpong(problem, info)
    # xcds and cache_modifier are for the tuner only: not yet measured where they help.
    more: dict[str, ConfigValue] = {"xcds": 1, "cache_modifier": ""}
    return FrozenDict(config | amd_only(info, 2, 16, 1, **more))


def _pingpong(problem: Problem, info: DeviceInfo) -> dict[str, ConfigValue]:
    """Return the tile for which Triton schedules half of the waves to load while the others
    multiply, if the operands are aligned and its tiles occupy most CUs; otherwise nothing."""
    batch, m, n, k = gemm_sizes(problem)
    bits = dtype(problem.dtypes["a"]).bits
    # gfx942 prefetches into registers. gfx950 loads into the LDS, which has no room for three
    # stages of a larger tile. Not yet measured on AMD hardware.
    block_m, block_n, stages = {"gfx942": (256, 256, 2), "gfx950": (256, 128, 3)}.get(
        info.arch, (0, 0, 0)
    )
    aligned = all(size % 16 == 0 for size in (m, n)) and k % 64 == 0
    if not block_m or bits > 16 or not aligned:
        return {}
    if 4 * batch * ceil_div(m, block_m) * ceil_div(n, block_n) < 3 * info.units:
        return {}
    depth = 128 if info.arch == "gfx950" and bits == 8 and k % 128 == 0 else 64
    tile = {"block_m": block_m, "block_n": block_n, "block_k": depth, "split_k": 1}
    return {**tile, "group_m": _least_group(m, block_m, 8), "num_warps": 8, "num_stages": stages}


def _xcds(info: DeviceInfo) -> int:
    """Return the chiplets of an AMD GPU in its current partitioning. Drivers that do not report
    them report CUs: an MI300 chiplet has 38, one of an MI350 32."""
    reported = int(info.attributes.get("chiplets", "0"))
    return reported or max(1, info.units // {"gfx942": 38, "gfx950": 32}.get(info.arch, info.units))


def space(problem: Problem, info: DeviceInfo) -> Space:
    """Return all configs that the kernel can be built with for this problem, each kernel once."""
    _, m, n, k = gemm_sizes(problem)
    pretransposes = can_pretranspose(problem, info)
    least_depth = _least_depth(dtype(problem.dtypes["a"]).bits)
    parameters: Values = {
        "block_m": block_sizes(m),
        "block_n": block_sizes(n, always=32),
        "block_k": block_sizes(k, least=least_depth),
        "group_m": tuple(g for g in _GROUPS if _least_group(m, 16, g) == g),
        "split_k": tuple(s for s in _SPLITS if s == 1 or k // s >= 128),
    }
    if vendor_of(info.arch) == "cuda":
        parameters |= {"num_warps": (4, 8), "num_stages": (2, 3, 4, 5, 6)}
        parameters["persistent"] = (False, True) if level(info) >= 90 else (False,)
        # Not on AMD, whose barrier does not wait for stores: not yet shown to be safe there.
        parameters["fused_sum"] = (False, True)
        swaps = _swap_pays(k_innermost(problem) if pretransposes else problem, info)
        parameters["swap"] = (False, True) if swaps else (False,)
        parameters["specialize"] = (False,)  # only on request: on Hopper it gains nothing
    else:
        if m <= _FEW_ROWS:
            # Tiles below the matrix instruction's 16 x 16 run on vector units.
            parameters["block_m"] = block_sizes(m, least=1, always=_FEW_ROWS)
            parameters["block_n"] = block_sizes(n, least=4, always=32)
        parameters["block_k"] = block_sizes(k, least=least_depth, most=1024)
        parameters |= {"num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3), "persistent": (False,)}
        more: Values = {"xcds": tuple(dict.fromkeys((1, _xcds(info))))}
        more["cache_modifier"] = ("", ".cg")  # .cg keeps B from evicting A
        parameters |= amd_only(info, (0, 1, 2, 4, 6, 8), (16, 32), (1, 2), **more)
    forbids = _Rules(problem, info).forbids
    if pretransposes:
        parameters["turn"] = (False, True)
        stored, transposed = forbids, _Rules(k_innermost(problem), info).forbids

        def forbids(config: Config) -> str | None:
            return (transposed if config["turn"] else stored)(config)

    def canonical(config: Config) -> Config:
        block_m, block_k = int(config["block_m"]), int(config["block_k"])
        group = _least_group(m, block_m, int(config["group_m"]))
        split = _least_split(k, int(config["split_k"]), block_k)
        return FrozenDict({**config, "group_m": group, "split_k": split})

    parts = _parts(parameters, forbids) if vendor_of(info.arch) == "hip" else ()
    return Space(
        parameters=parameters,
        default=default(problem, info),
        forbids=forbids,
        parts=parts,
        exact=bool(parts),
        canonical=canonical,
    )


def _parts(parameters: Values, forbids: Callable[[Config], str | None]) -> tuple[Values, ...]:
    """Return the legal part of a space for AMD: values for each tile and number of warps, with
    which every rule is on one other parameter. One combination in twenty of all is legal."""
    fixed = ("block_m", "block_n", "block_k", "num_warps")
    least = {name: values[0] for name, values in parameters.items()}  # what is always legal
    parts = []
    for chosen in itertools.product(*(parameters[name] for name in fixed)):
        tile = dict(zip(fixed, chosen, strict=True))
        if forbids(FrozenDict({**least, **tile})) is None:
            part = {
                name: tuple(v for v in values if forbids({**least, **tile, name: v}) is None)
                for name, values in parameters.items()
                if name not in fixed
            }
            parts.append({**part, **{name: (value,) for name, value in tile.items()}})
    return tuple(parts)


# -- plans


def plan(problem: Problem, config: Config, info: DeviceInfo) -> KernelPlan:
    """Return the launches for a config; missing values come from the default."""
    _refuse_ignored(problem, config)
    chosen = {**_default(problem, info, pretranspose=bool(config.get("turn", True))), **config}
    if "persistent" not in config and (int(chosen["split_k"]) > 1 or chosen.get("fused_sum")):
        # The default's kernel may be the persistent one, which would ignore both.
        chosen["persistent"] = False
    if chosen.pop("turn", False):
        copies = transposed_operands(problem)
        return with_copies(_as_stored(k_innermost(problem), chosen, info), copies)
    return _as_stored(problem, chosen, info)


def _refuse_ignored(problem: Problem, config: Config) -> None:
    """Raise Unsupported for settings without effect: they would be measured as another kernel."""
    split, k = int(config.get("split_k", 1)), problem.dims["k"]
    if config.get("persistent") and split > 1:
        raise Unsupported(_PERSISTENT_SPLIT)
    if "block_k" in config and split > 1 and slices(k, split, int(config["block_k"]))[0] == 1:
        raise Unsupported(
            f"k={k} is a single block of {int(config['block_k'])}: it cannot be split"
        )


def _as_stored(problem: Problem, chosen: dict[str, Any], info: DeviceInfo) -> KernelPlan:
    if chosen.get("persistent"):
        if not _descriptors_fit(problem, info, chosen):
            raise Unsupported(f"descriptors cannot address these operands on {info.arch}")
        if chosen.get("fused_sum"):
            raise Unsupported(_NO_SLICES)
        if chosen.get("specialize") and not _can_specialize(chosen, info):
            raise Unsupported(_SPECIALIZED_TILE)
        return KernelPlan(calls=(_persistent(problem, chosen, info),))
    if chosen.get("specialize"):
        raise Unsupported("only the persistent kernel gives its warps different work")
    batch, m, n, k = gemm_sizes(problem)
    split, per_part = slices(k, int(chosen["split_k"]), int(chosen["block_k"]))
    if split == 1 and chosen.get("fused_sum"):
        raise Unsupported(_NO_SLICES)
    main = _tiles(problem, chosen, split, per_part)
    if split == 1:
        return KernelPlan(calls=(main,))
    workspace_bytes = batch * split * m * n * 4
    if chosen.get("fused_sum"):
        arrivals = batch * main.grid[0]
        return KernelPlan(calls=(main,), workspace_bytes=workspace_bytes, zeroed_bytes=arrivals * 4)
    return KernelPlan(calls=(main, _reduce(problem, split)), workspace_bytes=workspace_bytes)


def _operands(problem: Problem) -> Arguments:
    a, b, c = (problem.dtypes[name] for name in "abc")
    return Arguments().tensors(a=a, b=b, c=c, bias=c, d=c)


def _factors(problem: Problem) -> dict[str, float]:
    alpha, beta = problem.options.get("alpha", 1.0), problem.options.get("beta", 0.0)
    return {"alpha": float(alpha), "beta": float(beta)}


def _epilogue(problem: Problem) -> dict[str, bool | float]:
    factors = _factors(problem)
    return {
        "HAS_C": factors["beta"] != 0.0,
        "HAS_BIAS": bool(problem.options.get("bias", False)),
        "SCALED": factors["alpha"] != 1.0,
        # Of the operands' kind: older Tritons cannot cast an integer to an 8-bit float.
        "ZERO": 0 if problem.dtypes["acc"] == "i32" else 0.0,
    }


def _common_constants(problem: Problem, config: dict[str, Any]) -> dict[str, Any]:
    import triton.language as tl

    return {
        "TA": problem.options["ta"] == "t",
        "TB": problem.options["tb"] == "t",
        **_epilogue(problem),
        **blocks_of(config),
        "ACC": tl.int32 if problem.dtypes["acc"] == "i32" else tl.float32,
    }


def _tiles(problem: Problem, config: dict[str, Any], split: int, per_part: int) -> KernelCall:
    from kernelmark.kernels.triton.gemm import gemm_tiles

    batch, m, n, k = gemm_sizes(problem)
    arguments = _operands(problem).pointer("parts", problem.dtypes["acc"], WORKSPACE)
    arguments.pointer("arrivals", "i32", ZEROED).integers(m=m, n=n, k=k, k_split=per_part)
    arguments.reals(**_factors(problem))
    constants = _common_constants(problem, config)
    constants |= {
        "EVEN_K": k % constants["BLOCK_K"] == 0,
        "SPLIT": split > 1,
        "FUSED": split if split > 1 and config.get("fused_sum") else 0,  # slices to sum
        "SWAP": bool(config.get("swap")),
        "PRECISION": "ieee",
        "XCDS": int(config.get("xcds", 1)),
        "CACHE": config.get("cache_modifier", ""),
    }
    tiles = ceil_div(m, constants["BLOCK_M"]) * ceil_div(n, constants["BLOCK_N"])
    return arguments.call(gemm_tiles, constants, compiler_options(config), (tiles, split, batch))


def _reduce(problem: Problem, split: int) -> KernelCall:
    from kernelmark.kernels.triton.gemm import gemm_reduce

    batch, m, n, _ = gemm_sizes(problem)
    c = problem.dtypes["c"]
    arguments = Arguments().pointer("parts", problem.dtypes["acc"], WORKSPACE)
    arguments.tensors(c=c, bias=c, d=c).integers(m=m, n=n).reals(**_factors(problem))
    block = power_of_two(m * n, 128, _REDUCE_BLOCK)
    constants = {**_epilogue(problem), "PARTS": split, "BLOCK": block}
    grid = (ceil_div(m * n, block), batch, 1)
    return arguments.call(gemm_reduce, constants, {"num_warps": 4}, grid)


def _persistent(problem: Problem, config: dict[str, Any], info: DeviceInfo) -> KernelCall:
    from kernelmark.kernels.triton.gemm import gemm_persistent

    batch, m, n, k = gemm_sizes(problem)
    constants = _common_constants(problem, config)
    block_m, block_n, block_k = (constants[f"BLOCK_{x}"] for x in "MNK")
    halves = _in_halves(problem)
    types = problem.dtypes
    # A batch is a row range of one tall matrix: one descriptor serves all batches.
    a = ((batch * k, m), (block_k, block_m)), ((batch * m, k), (block_m, block_k))
    b = ((batch * k, n), (block_k, block_n)), ((batch * n, k), (block_n, block_k))
    arguments = Arguments()
    arguments.blocks("a_tiles", types["a"], *_matrix("a", *a[problem.options["ta"] == "n"]))
    arguments.blocks("b_tiles", types["b"], *_matrix("b", *b[problem.options["tb"] == "t"]))
    arguments.tensors(c=types["c"], bias=types["c"])
    stored = (block_m, block_n // 2 if halves else block_n)
    arguments.blocks("d_tiles", types["c"], *_matrix("d", (batch * m, n), stored))
    arguments.integers(m=m, n=n, k=k, batches=batch).reals(**_factors(problem))
    tiles = batch * ceil_div(m, block_m) * ceil_div(n, block_n)
    # Two small tiles of 4 warps are resident at once; more registers than that has no SM.
    row_bits = (block_m + block_n) * dtype(types["a"]).bits
    used = staged_bytes(config, info, row_bits) + _waiting_bytes(problem, info, block_m, block_n)
    resident = 2 if 2 * (used + 1024) <= shared_bytes(info) and config["num_warps"] == 4 else 1
    programs = min(tiles, info.units * resident)
    constants["SPECIALIZE"] = bool(config.get("specialize"))
    constants |= {"HALVES": halves, "SWAP": bool(config.get("swap")), "PROGRAMS": programs}
    return arguments.call(gemm_persistent, constants, compiler_options(config), (programs, 1, 1))


def _matrix(
    name: str, shape: tuple[int, int], block: tuple[int, int]
) -> tuple[TensorBlocks, tuple[int, int]]:
    return TensorBlocks(tensor=name, shape=shape, strides=(shape[1], 1)), block
