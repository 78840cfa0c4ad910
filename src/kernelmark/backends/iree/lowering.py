"""Lowering configs of a problem: its root ops, the space of their tiles (for GEMMs on a CPU; those
for AMD GPUs are in `amd`), the spec's entries.

CPU: `tile` is a workgroup's part of the result, `cache` a part of that (0: no such level), `vector`
the part that is computed in registers at once. Convolutions of nhwc images and hwcf filters have
`direct_tile_p` rows of a workgroup, and `direct_vector_q/f/c`: columns and channels of the result
and channels of the image.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelmark.backends.iree.amd import FREE, AmdTiles
from kernelmark.backends.iree.spec import (
    Lowering,
    Rewrite,
    Root,
    RootEntry,
    function_name,
    loop_roles,
)
from kernelmark.backends.iree.targets import Target
from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue, Space
from kernelmark.core.units import join_commas
from kernelmark.kernels.mlir.base import Form, element_type
from kernelmark.kernels.mlir.sources import conv_function
from kernelmark.ops.conv import output_size

_TILES: Mapping[str, tuple[int, ...]] = {
    "tile_m": (8, 16, 32, 64, 128, 256),
    "tile_n": (16, 32, 64, 128, 256),
}
_CACHE: Mapping[str, tuple[int, ...]] = {
    "cache_m": (0, 32),
    "cache_n": (0, 16, 32),
    "cache_k": (0, 64),
}
_VECTOR_M = (1, 2, 4, 6, 8, 10, 12, 14, 16)
_VECTOR_K = (1, 4, 8, 16)
# For one of several GEMMs: the product of their spaces must stay enumerable.
_FEW: Mapping[str, tuple[int, ...]] = {
    "tile_m": (64, 256),
    "tile_n": (64, 256),
    "vector_m": (4, 6, 8, 16),
    "vector_k": (1, 4, 16),
}
_VECTOR = ("vector_m", "vector_n", "vector_k")
# The compiler refuses a vector larger than this many registers, and a contraction of vectors with
# more multiplications than that. With a cache tile along k it keeps that tile of the result in one
# vector.
_VECTOR_REGISTERS = 512
# All multiplications of a vector are unrolled: more than this take the compiler many seconds.
_UNROLLED = 4096

# Register tiles as rows × registers along n × steps along k, with their speed relative to the best
# one on sizes that they divide, from f32 GEMMs on one AVX-512 core: with B by rows the best reached
# 114 GFLOP/s (OpenBLAS: 94 to 111, IREE's default: 75), with B along k, which is transposed in
# registers, 71 (default: 53).
_BY_ROWS = (
    *((6, 4, 1, 1.0), (4, 4, 1, 0.95), (14, 2, 1, 0.93), (8, 2, 4, 0.92), (10, 2, 1, 0.9)),
    *((8, 2, 1, 0.89), (8, 1, 16, 0.86), (6, 2, 1, 0.84), (16, 1, 1, 0.82), (4, 2, 1, 0.8)),
    *((12, 1, 1, 0.76), (8, 1, 1, 0.72)),
)
_ALONG_K = (
    *((16, 1, 16, 1.0), (8, 2, 4, 0.95), (12, 1, 16, 0.88), (8, 1, 16, 0.8), (8, 1, 4, 0.75)),
    *((4, 2, 4, 0.7), (4, 1, 4, 0.6)),
)
# The same from one Neoverse N1 core, with registers of 16 bytes: steps along k make one load of A
# serve several of them (fmla by element). B by rows: 27.5 GFLOP/s (OpenBLAS: 34, IREE's default:
# 24.5), and 29 with cache tiles; along k: 27 (default: 25.4).
_SHORT_BY_ROWS = (
    *((4, 4, 4, 1.0), (4, 4, 16, 0.98), (8, 2, 8, 0.92), (8, 2, 4, 0.9), (6, 4, 4, 0.88)),
    *((12, 2, 4, 0.82), (4, 2, 16, 0.8), (10, 2, 1, 0.7), (4, 4, 1, 0.68), (8, 2, 1, 0.66)),
)
_SHORT_ALONG_K = (
    *((12, 1, 16, 1.0), (8, 2, 4, 0.95), (8, 1, 16, 0.94), (8, 2, 16, 0.8), (8, 2, 1, 0.7)),
)
_SHORT_BYTES = 16
_SHORT_CACHE = {"cache_m": 32, "cache_n": 32, "cache_k": 64}
# Relative cost of a result element outside of full vectors. Peeled loops compute the rest in
# shorter tiles, along n only if a register holds it, and one by one otherwise: on an AVX-512 core,
# 240³ takes 0.21 ms with 14 × 32 (a rest of 16) and 2.4 ms with 4 × 64 (48).
_TAIL = {"m": 2.0, "n": 8.0, "k": 2.0}
_LONG_TAIL = 30.0
_SEEDS = 8
_CACHE_LEVELS = Reason("cache_m and cache_n go together, and cache_k goes with them")
_LARGE_VECTOR = Reason("vector_m × vector_n × vector_k exceeds the compiler's largest vector")
_LARGE_CACHE_TILE = Reason("cache_m × cache_n exceeds the compiler's largest vector")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTiles:
    """Lowerings for llvm-cpu by the pipeline of tiled GEMMs."""

    vector_bytes: int
    registers: int

    def values(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        if root.kind == "convolution":
            return _conv_values(root, self._lanes(root), self.registers)
        lanes = self._lanes(root)
        listed: dict[str, tuple[int, ...]] = {}
        for name in ("tile_m", "tile_n"):
            size = _size(root, name)
            tiles = (_FEW if root.prefix else _TILES)[name]
            listed[name] = tuple(sorted({*_clipped(tiles, size), *_even_tile(size)}))
        listed["vector_m"] = _FEW["vector_m"] if root.prefix else _VECTOR_M
        listed["vector_n"] = tuple(lanes * by // 2 for by in (1, 2, 4, 8) if lanes * by > 1)
        if root.prefix:
            listed["vector_n"] = listed["vector_n"][-3:]
        listed["vector_k"] = _FEW["vector_k"] if root.prefix else _VECTOR_K
        for name in _VECTOR:
            listed[name] = _clipped(listed[name], _size(root, name))
        if not root.prefix:
            listed |= {name: _clipped(v, _size(root, name)) for name, v in _CACHE.items()}
        return dict(listed)

    def opt_in(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        return {}

    def seeds(self, root: Root) -> Sequence[Config]:
        """Return the register tiles that a model of their tails ranks first, in two workgroup
        sizes: the largest, which reads least, and one that leaves work to other threads. With short
        registers, also the first tile with cache tiles."""
        values = self.values(root)
        if root.kind == "convolution":
            return self._conv_seeds(root, values)
        large = {name: _large(_ints(values[name]), _size(root, name)) for name in _TILES}
        small = {name: _closest(values[name], to) for name, to in (("tile_m", 64), ("tile_n", 128))}
        best = self._ranked(root, values, large)
        none = dict.fromkeys(_CACHE, 0)
        order = [(v, tiles, none) for tiles in (large, small) for v in best[:2]]
        if self.vector_bytes <= _SHORT_BYTES and not root.prefix:
            order[1:1] = [(v, large, _SHORT_CACHE) for v in best[:1]]
        order += [(vector, large, none) for vector in best[2:]]
        seeds = []
        for vector, tiles, cache in order:
            config: dict[str, ConfigValue] = {**tiles, **dict(zip(_VECTOR, vector, strict=True))}
            if not root.prefix:
                config |= cache
            listed = all(config[name] in values[name] for name in config)
            if listed and config not in seeds and self.forbids(root, config) is None:
                seeds.append(config)
        return seeds[:_SEEDS]

    def _conv_seeds(
        self, root: Root, values: Mapping[str, tuple[ConfigValue, ...]]
    ) -> list[Config]:
        """Return tiles with many sums in full registers, for four threads and in one piece. On an
        AVX-512 core, 28 × 28 × 64 → 64 channels takes 0.42 ms with 28 registers of sums and 0.81 ms
        with IREE's 7; 17 × 17 × 48 → 72 at stride 2 takes 0.57 ms instead of 2.29 ms."""
        lanes, rows, steps = self._lanes(root), _ints(values["tile_p"]), values["vector_c"]
        options = itertools.product(_ints(values["vector_q"]), _ints(values["vector_f"]))

        def speed(option: tuple[int, int]) -> float:
            columns, channels = option
            vectors = math.ceil(channels / lanes)
            if columns * vectors > self.registers - 2:
                return 0.0
            # Filled lanes, sums that hide the latency of a multiply-add, and multiplications per
            # load of an image or a filter.
            loads = 1 / columns + 1 / vectors
            # Vectors of 11 elements are slower than those of 8 (0.30 and 0.28 ms, 10 columns).
            filled = channels / (lanes * vectors) * (1.0 if channels % _SHORTEST == 0 else 0.7)
            return filled * min(1.0, columns * vectors / 10, 0.5 / loads)

        best = sorted(options, key=lambda option: (-speed(option), -option[0]))[:4]
        split = max(row for row in rows if row <= max(rows[0], rows[-1] // 4))
        order = [(split, 4, item) for item in best]
        order[2:2] = [(rows[-1], 8, best[0]), (split, 1, best[0])]
        return [
            {"tile_p": row, "vector_q": q, "vector_f": f, "vector_c": _closest(steps, to)}
            for row, to, (q, f) in order
        ]

    def _ranked(
        self, root: Root, values: Mapping[str, tuple[ConfigValue, ...]], tiles: Mapping[str, int]
    ) -> list[tuple[int, ...]]:
        """Return the register tiles of the space, the fastest within `tiles` first."""
        lanes = self._lanes(root)
        costs: dict[tuple[int, ...], float] = {}
        ranking = {False: (_BY_ROWS, _ALONG_K), True: (_SHORT_BY_ROWS, _SHORT_ALONG_K)}
        short = self.vector_bytes <= _SHORT_BYTES
        for rows, by, steps, speed in ranking[short][_along_k(root)]:
            # Registers for the sums, a row of B and one element of A.
            if rows * by + by + 1 > self.registers:
                continue
            # With A along m, several steps would transpose it in registers: on an AVX-512 core,
            # 240³ takes 0.27 ms with 14 × 32 × 1 and 0.50 ms with 8 × 16 × 16.
            if steps > 1 and not short and _along_m(root) and not _along_k(root):
                continue
            ideal = (rows, by * lanes, steps)
            vector = tuple(
                _closest(values[name], to) for name, to in zip(_VECTOR, ideal, strict=True)
            )
            cost = 1 / speed
            for name, size in zip(_VECTOR, vector, strict=True):
                whole = min(_size(root, name), tiles.get(f"tile_{name[-1]}", _size(root, name)))
                rest, tail = whole % size, _TAIL[name[-1]]
                if name == "vector_n" and not short and rest >= lanes:
                    tail = _LONG_TAIL if rest > lanes else 1.0
                cost *= 1 + (tail - 1) * rest / whole
            costs[vector] = min(cost, costs.get(vector, cost))
        return sorted(costs, key=lambda vector: costs[vector])

    def forbids(self, root: Root, config: Config) -> str | None:
        if root.kind == "convolution":
            return self._forbids_conv(root, config)
        t = {"cache_m": 0, "cache_n": 0, "cache_k": 0}
        for name in (*_TILES, *_VECTOR, *(() if root.prefix else _CACHE)):
            value = config.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                return Reason(f"{root.prefix}{name}={value!r} is not a size")
            if not value and name not in _CACHE:
                return Reason(f"{root.prefix}{name}={value} must be positive")
            t[name] = value
        for dim in "mn":
            tile, cache, vector = (t[f"{level}_{dim}"] for level in ("tile", "cache", "vector"))
            if vector > tile or (cache and (cache % vector or tile % cache)):
                return _unnested(dim, tile, cache, vector)
        if bool(t["cache_m"]) != bool(t["cache_n"]) or (t["cache_k"] and not t["cache_m"]):
            return _CACHE_LEVELS
        if t["cache_k"] % t["vector_k"]:
            return _undivided(t["cache_k"], t["vector_k"])
        width, largest = root.bits("output_type") // 8, _VECTOR_REGISTERS * self.vector_bytes
        vector = t["vector_m"] * t["vector_n"]
        # Above twice the register file, the whole result spills at every step.
        if vector * width > 2 * self.registers * self.vector_bytes:
            return "vector_m × vector_n exceeds the registers"
        if vector * t["vector_k"] > _UNROLLED:
            return f"vector_m × vector_n × vector_k exceeds {_UNROLLED}"
        if vector * t["vector_k"] * width >= largest:
            return _LARGE_VECTOR
        if t["cache_k"] and t["cache_m"] * t["cache_n"] * width >= largest:
            return _LARGE_CACHE_TILE
        return None

    def _forbids_conv(self, root: Root, config: Config) -> str | None:
        for name, size in zip(_CONV_TILES, _tiled_sizes(root), strict=True):
            value = config.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or size % value:
                return Reason(f"{root.prefix}{name}={value!r} does not divide {size}")
        q, f, c = (int(config[name]) for name in _CONV_TILES[1:])
        registers = q * math.ceil(f / self._lanes(root))
        if registers > self.registers:
            return "direct_vector_q × direct_vector_f exceeds the registers"
        return f"the vectors exceed {_UNROLLED}" if q * f * c > _UNROLLED * 4 else None

    def lowering(self, root: Root, config: Config) -> Lowering:
        if root.kind == "convolution":
            return _conv_lowering(root, config)
        lead = [1] if root.sizes["batch"] else []
        t = {name: int(config[name]) for name in (*_TILES, *_VECTOR, *_CACHE) if name in config}
        levels = [("distribution", [*lead, t["tile_m"], t["tile_n"], 0])]
        if t.get("cache_m"):
            levels.append(("cache_parallel", [*lead, t["cache_m"], t["cache_n"], 0]))
        if t.get("cache_k"):
            levels.append(("cache_reduction", [*(0 for _ in lead), 0, 0, t["cache_k"]]))
        levels.append(("vector_common_parallel", [*lead, t["vector_m"], t["vector_n"], 0]))
        levels.append(("vector_reduction", [*(0 for _ in lead), 0, 0, t["vector_k"]]))
        written = ", ".join(f"{name} = {sizes}" for name, sizes in sorted(levels))
        return Lowering(
            config=f"#iree_cpu.lowering_config<{written}>",
            # Peeled loops: without them, sizes that a tile does not divide are computed element by
            # element (100 × 100 × 100 on AVX-512: 4 times slower).
            translation="#iree_codegen.translation_info<"
            "pipeline = #iree_cpu.pipeline<DoubleTilingExpert>, {enable_loop_peeling}>",
        )

    def _lanes(self, root: Root) -> int:
        """Return the elements of the result per register."""
        return max(1, 8 * self.vector_bytes // root.bits("output_type"))


_SHORTEST = 4  # elements of the shortest vector
_CONV_TILES = ("tile_p", "vector_q", "vector_f", "vector_c")


def _tiled_sizes(root: Root) -> tuple[int, int, int, int]:
    """Return the sizes of the dims that the tiles of a convolution divide."""
    rows, columns = root.sizes["image"]
    return rows, columns, root.size("channels"), root.size("terms")


def _conv_values(root: Root, lanes: int, registers: int) -> Mapping[str, tuple[ConfigValue, ...]]:
    """Return divisors: with others, IREE 3.13 computes a convolution element by element (17 × 17
    outputs with 8 columns at once: 15 ms, with 17: 0.57)."""
    if root.size("batch") == 1:
        raise Unsupported("IREE drops the tiles of a convolution of one image")
    most = (max(_tiled_sizes(root)), registers, 4 * lanes, 16)
    values = {
        name: tuple(v for v in range(1, min(size, limit) + 1) if size % v == 0)
        for name, size, limit in zip(_CONV_TILES, _tiled_sizes(root), most, strict=True)
    }
    # Neither does it vectorise 22 or 44 channels on AVX-512 (1.3 ms; 8 channels: 0.28).
    whole = (f for f in values["vector_f"] if f <= lanes or f % lanes == 0)
    return {**values, "vector_f": tuple(whole)}


def _conv_lowering(root: Root, config: Config) -> Lowering:
    p, q, f, c = (int(config[name]) for name in _CONV_TILES)
    _, columns, channels, _ = _tiled_sizes(root)
    return Lowering(
        config=f"#iree_cpu.lowering_config<distribution = {[1, p, columns, channels, 0, 0, 0]}, "
        f"vector_common_parallel = {[1, 1, q, f, 0, 0, 0]}, "
        f"vector_reduction = {[0, 0, 0, 0, 1, 1, c]}>",
        translation="#iree_codegen.translation_info<"
        "pipeline = #iree_cpu.pipeline<ConvTileAndDecomposeExpert>>",
    )


# Cached: every combination of a space is checked, and few differ in these values.
@functools.cache
def _unnested(dim: str, tile: int, cache: int, vector: int) -> Reason:
    return Reason(f"tile_{dim}={tile} ⊇ cache_{dim}={cache} ⊇ vector_{dim}={vector} must fit")


@functools.cache
def _undivided(cache_k: int, vector_k: int) -> Reason:
    return Reason(f"cache_k={cache_k} is not a multiple of vector_k={vector_k}")


def _along_m(root: Root) -> bool:
    """Return whether A is read along m."""
    return root.reads[0].endswith("k, i")


def _along_k(root: Root) -> bool:
    """Return whether B is read along k, and so transposed in registers."""
    return root.reads[1].endswith("j, k")


def _size(root: Root, name: str) -> int:
    return root.size(name[-1])


def _clipped(values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the values up to the first that covers the dim: larger ones are equivalent."""
    enough = next((i for i, value in enumerate(values) if value >= size), len(values))
    return values[: enough + 1]


def _even_tile(size: int) -> tuple[int, ...]:
    """Return the largest multiple of 16 that divides a dim into several tiles without a tail."""
    return tuple(t for t in range(256, 31, -16) if t < size and size % t == 0)[:1]


def _large(values: Sequence[int], size: int) -> int:
    """Return the tile that covers a dim; for a longer dim, the largest that divides it evenly."""
    covering = [value for value in values if value >= size]
    even = [value for value in values if size % value == 0 and value > 64]
    return min(covering) if covering else max(even or values)


def _closest(values: Sequence[ConfigValue], to: int) -> int:
    return min(_ints(values), key=lambda item: abs(item - to))


def _ints(values: Sequence[ConfigValue]) -> list[int]:
    return [int(value) for value in values]


# Loops of a named convolution, and how its operands are indexed; g are groups.
_CONV_LOOPS: Mapping[tuple[str, bool], tuple[str, str, str]] = {
    ("nhwc", False): ("n, p, q, f, r, s, c", "n, row, column, c", "f, r, s, c"),
    ("nhwc", True): ("n, p, q, g, f, r, s, c", "n, row, column, g, c", "g, f, r, s, c"),
    ("nchw", False): ("n, f, p, q, c, r, s", "n, c, row, column", "f, c, r, s"),
    ("nchw", True): ("n, g, f, p, q, c, r, s", "n, g, c, row, column", "g, f, c, r, s"),
    ("hwcf", False): ("n, p, q, f, r, s, c", "n, row, column, c", "r, s, c, f"),
}


class Tiles(Protocol):
    """The lowerings for one kind of device."""

    def values(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        """Return the parameters with their values; raise Unsupported if there is nothing to try."""

    def opt_in(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        """Return the parameters that are searched only if a plan lists values."""

    def seeds(self, root: Root) -> Sequence[Config]:
        """Return combinations to begin with, first one that is rarely bad; their sizes need not be
        among the values."""

    def forbids(self, root: Root, config: Config) -> str | None:
        """Return why a combination cannot be compiled or cannot be fast, or None."""

    def lowering(self, root: Root, config: Config) -> Lowering:
        """Return IREE's attributes for a combination."""


def space(problem: Problem, form: Form, target: Target, *, seeded: bool = True) -> Space:
    """Return the configs that can be tried; raise Unsupported if there are none. Without seeds the
    space has no default, and is built in half the time: enough to check a config."""
    tiles, root_ops = _tiles(target), roots(problem, form)
    listed = {root.prefix: tiles.values(root) for root in root_ops}
    parameters = {p + name: v for p, values_of in listed.items() for name, v in values_of.items()}
    reasons: dict[tuple[ConfigValue, ...], str | None] = {}

    def forbids(config: Config) -> str | None:
        for root in root_ops:
            # A listed space has few combinations of the names that the rule uses in each root.
            key = (root.prefix, *(config.get(name, "") for name in names[root.prefix]))
            if key not in reasons:
                reasons[key] = tiles.forbids(root, _own(config, root))
            if reasons[key]:
                return reasons[key]
        return None

    names = {
        p: [p + name for name in values_of if name not in FREE] for p, values_of in listed.items()
    }
    every = _seeds(tiles, root_ops, listed) if seeded else []
    seeds = [item for item in every if forbids(item) is None]
    return Space(
        parameters=parameters,
        default=seeds[0] if seeds else FrozenDict(),
        forbids=forbids,
        seeds=tuple(seeds[1:]),
        opt_in={
            r.prefix + name: values for r in root_ops for name, values in tiles.opt_in(r).items()
        },
    )


def _seeds(
    tiles: Tiles,
    root_ops: Sequence[Root],
    listed: Mapping[str, Mapping[str, tuple[ConfigValue, ...]]],
) -> list[Config]:
    """Return the first seeds of all roots combined, then the second ones, and so on; a shorter list
    repeats its last seed."""
    each = {root.prefix: tiles.seeds(root) for root in root_ops}
    count = max(map(len, each.values())) if all(each.values()) else 0
    seed_points = [
        FrozenDict(
            {
                prefix + name: _nearest(value, listed[prefix][name])
                for prefix, seeds in each.items()
                for name, value in seeds[min(number, len(seeds) - 1)].items()
            }
        )
        for number in range(count)
    ]
    return list(dict.fromkeys(seed_points))


def entries(
    problem: Problem, form: Form, target: Target, config: Config, *, packed: bool = False
) -> tuple[RootEntry, ...]:
    """Return the spec's entries for a config of the space; an empty config leaves the tiles to the
    compiler, with or without `packed` operands."""
    tiles, rewrites = _tiles(target), _rewrites(problem, form)
    return tuple(
        RootEntry(
            root=root,
            lowering=tiles.lowering(root, _own(config, root))
            if config
            else Lowering(packed=packed),
            rewrites=rewrites,
        )
        for root in roots(problem, form)
    )


def _rewrites(problem: Problem, form: Form) -> tuple[Rewrite, ...]:
    """Return how the named convolutions of a model are rewritten as the tuned op: that of the
    problem's layout and, for nhwc images, that of hwcf filters, unless it is the tuned op."""
    if not _is_rewritten(problem, form):
        return ()
    named, by_hwcf = _named_conv(problem), _hwcf_root(problem, 1)
    rewritten = [(named, False)]
    if problem.options["layout"] == "nhwc" and (form.im2col or form.bands > 1):
        rewritten.append((by_hwcf, True))
    return tuple(
        Rewrite(root=root, function=conv_function(problem, function_name(root), form, hwcf=hwcf))
        for root, hwcf in rewritten
    )


def _is_rewritten(problem: Problem, form: Form) -> bool:
    return problem.op == "conv" and not form.gpu and (form.im2col or form.hwcf)


def _tiles(target: Target) -> Tiles:
    if not target.gpu:
        return CpuTiles(vector_bytes=target.vector_bytes, registers=target.registers)
    arch = target.name.removeprefix("rocm ")
    if arch not in AmdTiles.archs():
        raise Unsupported(
            f"kernelmark has lowering configs for CPUs and for {join_commas(AmdTiles.archs())} only"
        )
    return AmdTiles(arch=arch)


def _own(config: Config, root: Root) -> dict[str, ConfigValue]:
    """Return the part of a config that applies to this root, without its prefix."""
    begin = root.prefix
    return {name[len(begin) :]: v for name, v in config.items() if name.startswith(begin)}


def _nearest(value: ConfigValue, values: tuple[ConfigValue, ...]) -> ConfigValue:
    if value in values or not isinstance(value, int):
        return value if value in values else values[0]
    return min(values, key=lambda item: abs(int(item) - value))


# -- root ops, in IREE's form when it applies a spec


def roots(problem: Problem, form: Form) -> tuple[Root, ...]:
    """Return the ops that dominate a problem's time; raise Unsupported if IREE's form of them is
    not known.

    IREE folds away a loop of one iteration, and then the matcher's op no longer exists: on a CPU,
    of an attention and of im2col. It keeps those of a GEMM on a GPU."""
    if problem.op in ("gemm", "batched_gemm"):
        root_ops = _gemm_roots(problem)
    elif problem.op == "conv" and form.im2col:
        root_ops = _im2col_roots(problem)
    elif problem.op == "conv" and form.hwcf:
        root_ops = (_hwcf_root(problem, form.bands),)
    elif problem.op == "conv" and form.gpu:
        root_ops = (_folded_conv(problem),)
    elif problem.op == "conv" and problem.dims["groups"] > 1:
        raise Unsupported("kernelmark has no lowering configs for grouped convolutions on a CPU")
    elif problem.op == "conv":
        raise Unsupported("a convolution can be tuned only as im2col or hwcf")
    elif problem.op == "attention" and not form.gpu:
        root_ops = _two_gemm_roots(problem)
    elif problem.op == "attention":
        root_ops = _attention_roots(problem)
    else:
        raise Unsupported(f"kernelmark has no lowering configs for {problem.op}")
    folds = not form.gpu or problem.op == "attention" or form.im2col
    for root in root_ops:
        for loop, sizes in root.sizes.items() if folds else ():
            if 1 in sizes and (loop, form.hwcf) != ("batch", True):
                raise Unsupported(
                    f"a loop of its root op has one iteration ({root.prefix + loop}): IREE"
                    " folds it away, and a tuning spec would not match"
                )
    return root_ops


def model_roots(problem: Problem, form: Form) -> tuple[Root, ...]:
    """Return the root ops of a problem as a model has it, which may be rewritten as others."""
    return (_named_conv(problem),) if _is_rewritten(problem, form) else roots(problem, form)


def _gemm_roots(problem: Problem) -> tuple[Root, ...]:
    d, o = problem.dims, problem.options
    types = (_type(problem, "a"), _type(problem, "b"), _type(problem, "acc"))
    sizes = (d.get("batch", 0), d["m"], d["n"], d["k"])
    return (_contraction(sizes, types, ta=o["ta"] == "t", tb=o["tb"] == "t"),)


def _im2col_roots(problem: Problem) -> tuple[Root, ...]:
    """Return the GEMM of a convolution's patches and filters."""
    d = problem.dims
    spots, terms = math.prod(output_size(problem)), d["c"] * d["r"] * d["s"]
    x, acc = _type(problem, "x"), _type(problem, "acc")
    if problem.options["layout"] == "nhwc":
        return (_contraction((0, d["n"] * spots, d["k"], terms), (x, x, acc), tb=True),)
    if d["n"] == 1:
        return (_contraction((0, d["k"], spots, terms), (x, x, acc)),)
    raise Unsupported(
        f"kernelmark has no lowering configs for {problem.op} in the layout nchw"
        " with several images, but for nhwc"
    )


def _two_gemm_roots(problem: Problem) -> tuple[Root, ...]:
    """Return both GEMMs of an attention that is not a single IREE op."""
    d = problem.dims
    heads = d["batch"] * d["heads_kv"]
    rows = d["seq_q"] * d["heads_q"] // d["heads_kv"]
    q, kv, acc = (_type(problem, name) for name in ("q", "kv", "acc"))
    if q != kv:
        raise Unsupported(
            f"kernelmark has no lowering configs for an attention whose q is {q}"
            f" and whose kv is {kv}"
        )
    qk, pv = (heads, rows, d["seq_kv"], d["dim_qk"]), (heads, rows, d["dim_v"], d["seq_kv"])
    return (
        _contraction(qk, (q, kv, acc), tb=True, prefix="qk_"),
        _contraction(pv, (q, kv, acc), prefix="pv_"),
    )


def _contraction(
    sizes: tuple[int, int, int, int],
    types: tuple[str, str, str],
    *,
    ta: bool = False,
    tb: bool = False,
    prefix: str = "",
) -> Root:
    """Return the root op of a GEMM; `sizes` are batch (0: none), m, n and k."""
    lead = "b, " if sizes[0] else ""
    reads = (lead + ("k, i" if ta else "i, k"), lead + ("j, k" if tb else "k, j"), f"{lead}i, j")
    loops = dict(zip("bijk", sizes, strict=True))
    return _root({n: size for n, size in loops.items() if size}, reads, types, prefix=prefix)


def _root(
    loops: Mapping[str, int], reads: tuple[str, ...], types: Sequence[str], *, prefix: str = ""
) -> Root:
    """Return the root op over `loops`: a convolution if its left operand is read by windows."""
    kind = "convolution" if "+" in reads[0] else "contraction"
    listed = ", ".join(loops)
    roles = loop_roles(kind, listed, reads)
    names = ("batch", "m", "n", "k")
    if kind == "convolution":
        depth = ("depth",) if "depth" in roles.values() else ()
        names = ("batch", "image", "channels", "filter", "terms", *depth)
    return Root(
        kind=kind,
        types=dict(zip(("lhs_type", "rhs_type", "output_type"), types, strict=True)),
        loops=listed,
        reads=reads,
        sizes={n: tuple(loops[loop] for loop in loops if roles[loop] == n) for n in names},
        prefix=prefix,
    )


def _named_conv(problem: Problem) -> Root:
    """Return the named op of a convolution."""
    return _conv_root(problem, _conv_sizes(problem))


def _hwcf_root(problem: Problem, bands: int) -> Root:
    """Return the convolution of nhwc images, each in bands of rows, and hwcf filters."""
    sizes = _conv_sizes(problem)
    split = {**sizes, "n": sizes["n"] * bands, "p": sizes["p"] // bands}
    return _conv_root(problem, split, "hwcf", prefix="direct_")


def _folded_conv(problem: Problem) -> Root:
    """Return a convolution as IREE has it when it applies a spec to dispatches for a GPU: without
    loops of one iteration. One with a single tap is a contraction of the pixels that its strides
    leave; without strides, those that are adjacent in memory are one loop."""
    d, sizes = problem.dims, _conv_sizes(problem)
    if any(sizes[out] == 1 < sizes[tap] for out, tap in ("pr", "qs")):
        raise Unsupported(
            "kernelmark has no lowering configs for a convolution with a filter as tall or as wide"
            " as its input"
        )
    sizes = {loop: size for loop, size in sizes.items() if size > 1}
    steps = {"p": d["stride_h"], "q": d["stride_w"]}
    if d["r"] * d["s"] == 1 and all(steps[loop] == 1 for loop in steps if loop in sizes):
        pixels = "npq" if problem.options["layout"] == "nhwc" else "pq"
        adjacent = [loop for loop in pixels if loop in sizes]
        if adjacent:
            sizes[adjacent[-1]] = math.prod(sizes.pop(loop) for loop in adjacent)
    return _conv_root(problem, sizes)


def _conv_sizes(problem: Problem) -> dict[str, int]:
    """Return the iterations of every loop of a convolution."""
    d, (p, q) = problem.dims, output_size(problem)
    groups = d["groups"]
    sizes = {"n": d["n"], "p": p, "q": q, "g": groups, "f": d["k"] // groups}
    return sizes | {"r": d["r"], "s": d["s"], "c": d["c"] // groups}


def _conv_root(
    problem: Problem, sizes: Mapping[str, int], layout: str = "", *, prefix: str = ""
) -> Root:
    """Return the root op of a convolution over the loops in `sizes`; `layout` is by default that of
    the problem."""
    d = problem.dims
    loops, x, w = _CONV_LOOPS[layout or str(problem.options["layout"]), d["groups"] > 1]
    windows = {
        "row": _window("p", "r", (d["stride_h"], d["dilation_h"]), sizes),
        "column": _window("q", "s", (d["stride_w"], d["dilation_w"]), sizes),
    }
    kept = {loop: sizes[loop] for loop in loops.split(", ") if loop in sizes}

    def read(operand: str) -> str:
        parts = (windows.get(part, part if part in kept else "") for part in operand.split(", "))
        return ", ".join(filter(None, parts))

    result = ", ".join(loop for loop in kept if loop not in "rsc")
    element, acc = _type(problem, "x"), _type(problem, "acc")
    return _root(kept, (read(x), read(w), result), (element, element, acc), prefix=prefix)


def _window(out: str, tap: str, steps: tuple[int, int], loops: Container[str]) -> str:
    """Return the index of a row or column by the loops that there are, "" for none; without taps,
    strides are applied before."""
    if tap not in loops:
        return out if out in loops else ""
    pairs = zip((out, tap), steps, strict=True)
    return " + ".join(name if factor == 1 else f"{name} * {factor}" for name, factor in pairs)


def _attention_roots(problem: Problem) -> tuple[Root, ...]:
    """Return the attention op. Its loops: batch, rows (m), n, the dim of Q and K (c), and positions
    of K and V (d)."""
    d = problem.dims
    if problem.dtypes["acc"] != "f32":
        raise Unsupported(f"IREE's attention op sums in f32, not in {problem.dtypes['acc']}")
    batch, rows, q, kv = _attention_loops(problem)
    # IREE stores the booleans of a mask as bytes.
    mask = {"mask_type": "i8"} if problem.options["causal"] else {}
    sums = [*batch, *rows]
    reads = [[*q, "c"], [*kv, "c"], [*kv, "n"], [], *([[*rows, "d"]] * len(mask))]
    reads += [[*sums, "n"], sums, sums]
    key = _type(problem, "kv")
    types = {"query_type": _type(problem, "q"), "key_type": key, "value_type": key, **mask}
    wide = ("scale_type", "output_type", "max_type", "sum_type")
    return (
        Root(
            kind="attention",
            types=types | dict.fromkeys(wide, "f32"),
            loops=", ".join([*sums, "n", "c", "d"]),
            reads=tuple(map(", ".join, reads)),
            sizes={
                "batch": tuple(batch.values()),
                "m": tuple(rows.values()),
                "n": (d["dim_v"],),
                "k1": (d["dim_qk"],),
                "k2": (d["seq_kv"],),
            },
        ),
    )


def _attention_loops(
    problem: Problem,
) -> tuple[dict[str, int], dict[str, int], list[str], list[str]]:
    """Return the batch and row loops with their sizes, and the loops that index Q and K.

    IREE folds the transposes of bshd into the reads. If several heads of Q share one of K, it does
    not, and transposes Q first; but if K has a single head, Q's heads become a separate loop. A
    batch loop of one iteration is folded away."""
    d = problem.dims
    batch, heads, group = d["batch"], d["heads_kv"], d["heads_q"] // d["heads_kv"]
    lead = {"b": batch} if batch > 1 else {}
    rows = {"m": d["seq_q"] * group}
    if problem.options["layout"] == "bshd" and heads > 1:
        query = ["m", "h"] if group == 1 else ["h", "m"]
        return {**lead, "h": heads}, rows, [*lead, *query], [*lead, "d", "h"]
    if problem.options["layout"] == "bshd" and group > 1 and d["seq_q"] > 1:
        return lead, {"h": group, "m": d["seq_q"]}, [*lead, "m", "h"], [*lead, "d"]
    flat = {"b": batch * heads} if batch * heads > 1 else {}
    return flat, rows, [*flat, "m"], [*flat, "d"]


def _type(problem: Problem, name: str) -> str:
    return element_type(problem.dtypes[name]) or ""
