"""Tiles of a GEMM on a CPU: `tile` is a workgroup's part of the result, `cache` a part of that (0:
no such level), `vector` the part that is computed in registers at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelmark.backends.iree.spec import Lowering, Root
from kernelmark.core.errors import Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue

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
# Relative cost of a result element outside of full vectors: peeled loops compute it one by one
# along n and in shorter tiles along m and k.
_TAIL = {"m": 2.0, "n": 8.0, "k": 2.0}
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
        if root.kind != "contraction":  # a named convolution has other loops
            raise Unsupported("a convolution can be tuned only as im2col")
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

    def seeds(self, root: Root) -> Sequence[Config]:
        """Return the register tiles that a model of their tails ranks first, in two workgroup
        sizes: the largest, which reads least, and one that leaves work to other threads. With short
        registers, also the first tile with cache tiles."""
        values = self.values(root)
        large = {name: _large(_ints(values[name]), _size(root, name)) for name in _TILES}
        small = {name: _closest(values[name], to) for name, to in (("tile_m", 64), ("tile_n", 128))}
        best = self._ranked(root, values, large)
        none = dict.fromkeys(_CACHE, 0)
        order = [(v, tiles, none) for tiles in (large, small) for v in best[:2]]
        if self.vector_bytes <= _SHORT_BYTES and not root.prefix:
            order[1:1] = [(v, large, _SHORT_CACHE) for v in best[:1]]
        order += [(vector, large, none) for vector in best[2:]]
        made = []
        for vector, tiles, cache in order:
            config: dict[str, ConfigValue] = {**tiles, **dict(zip(_VECTOR, vector, strict=True))}
            if not root.prefix:
                config |= cache
            listed = all(config[name] in values[name] for name in config)
            if listed and config not in made and self.forbids(root, config) is None:
                made.append(config)
        return made[:_SEEDS]

    def _ranked(
        self, root: Root, values: Mapping[str, tuple[ConfigValue, ...]], tiles: Mapping[str, int]
    ) -> list[tuple[int, ...]]:
        """Return the register tiles of the space, the fastest within `tiles` first."""
        lanes = self._lanes(root)
        costs: dict[tuple[int, ...], float] = {}
        known = {False: (_BY_ROWS, _ALONG_K), True: (_SHORT_BY_ROWS, _SHORT_ALONG_K)}
        tables = known[self.vector_bytes <= _SHORT_BYTES]
        for rows, by, steps, speed in tables[_along_k(root)]:
            # Registers for the sums, a row of B and one element of A.
            if rows * by + by + 1 > self.registers:
                continue
            wanted = (rows, by * lanes, steps)
            vector = tuple(
                _closest(values[name], to) for name, to in zip(_VECTOR, wanted, strict=True)
            )
            cost = 1 / speed
            for name, size in zip(_VECTOR, vector, strict=True):
                whole = min(_size(root, name), tiles.get(f"tile_{name[-1]}", _size(root, name)))
                cost *= 1 + (_TAIL[name[-1]] - 1) * (whole % size) / whole
            costs[vector] = min(cost, costs.get(vector, cost))
        return sorted(costs, key=lambda vector: costs[vector])

    def forbids(self, root: Root, config: Config) -> str | None:
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

    def lowering(self, root: Root, config: Config) -> Lowering:
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


# Cached: every combination of a space is checked, and few differ in these values.
@functools.cache
def _unnested(dim: str, tile: int, cache: int, vector: int) -> Reason:
    return Reason(f"tile_{dim}={tile} ⊇ cache_{dim}={cache} ⊇ vector_{dim}={vector} must fit")


@functools.cache
def _undivided(cache_k: int, vector_k: int) -> Reason:
    return Reason(f"cache_k={cache_k} is not a multiple of vector_k={vector_k}")


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
