"""Tiles of a product on a CPU: `tile` is a workgroup's part of the result, `cache` a part of that
(0: no such level), `vector` what is computed in registers at once."""

from __future__ import annotations

from collections.abc import Mapping

from kernelmark.backends.iree.spec import Lowering, Root
from kernelmark.core.result import Config, ConfigValue

_VALUES: Mapping[str, tuple[int, ...]] = {
    "tile_m": (8, 16, 32, 64, 128, 256),
    "tile_n": (16, 32, 64, 128, 256),
    "vector_m": (1, 2, 4, 6, 8, 12, 14, 16),
    "vector_n": (8, 16, 32, 64),
    "vector_k": (1, 4, 8, 16),
}
_CACHE: Mapping[str, tuple[int, ...]] = {
    "cache_m": (0, 32),
    "cache_n": (0, 16, 32),
    "cache_k": (0, 64),
}
# Of one product among several: what is combined has to stay enumerable.
_FEW: Mapping[str, tuple[int, ...]] = {
    "tile_m": (32, 64, 128),
    "tile_n": (32, 64, 128),
    "vector_m": (4, 8, 12, 16),
    "vector_n": (16, 32, 64),
    "vector_k": (1, 8, 16),
}
# The compiler refuses vectors of this size. With a cache tile along k it keeps that tile of the
# result in one vector.
_VECTOR_BYTES = 8192
# The largest register file, of AVX-512 and SVE 512, has 32 × 64 bytes. Twice that spills all of
# the result at every step.
_REGISTER_BYTES = 4096
# All of a vector's multiplications are unrolled: more of them take the compiler many seconds.
_UNROLLED = 4096


class CpuTiles:
    """Lowerings for llvm-cpu by the pipeline of tiled products."""

    def values(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        listed = _FEW if root.prefix else {**_VALUES, **_CACHE}
        return {name: _clipped(values, _size(root, name)) for name, values in listed.items()}

    def start(self, root: Root) -> Config:
        """B that is read along k is transposed in registers, 16 × 16 elements at a time."""
        transposed = root.maps[1].endswith("j, k)>")
        vector = (16, 16, 16) if transposed else (8, 32, 1)
        names = ("vector_m", "vector_n", "vector_k")
        start = {"tile_m": 64, "tile_n": 128, **dict(zip(names, vector, strict=True))}
        return start if root.prefix else start | dict.fromkeys(_CACHE, 0)

    def forbids(self, root: Root, config: Config) -> str | None:
        t = {"cache_m": 0, "cache_n": 0, "cache_k": 0}
        for name in _FEW if root.prefix else (*_VALUES, *_CACHE):
            value = config.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                return f"{root.prefix}{name}={value!r} is not a size"
            if not value and name not in _CACHE:
                return f"{root.prefix}{name} must be at least 1"
            t[name] = value
        for dim in "mn":
            tile, cache, vector = (t[f"{level}_{dim}"] for level in ("tile", "cache", "vector"))
            if vector > tile or (cache and (cache % vector or tile % cache)):
                return f"tile_{dim}={tile} ⊇ cache_{dim}={cache} ⊇ vector_{dim}={vector} must fit"
        if bool(t["cache_m"]) != bool(t["cache_n"]) or (t["cache_k"] and not t["cache_m"]):
            return "cache_m and cache_n go together, and cache_k goes with them"
        if t["cache_k"] % t["vector_k"]:
            return f"cache_k={t['cache_k']} is not a multiple of vector_k={t['vector_k']}"
        width = int("".join(filter(str.isdecimal, root.types["output_type"]))) // 8
        vector = t["vector_m"] * t["vector_n"]
        if vector * width > _REGISTER_BYTES:
            return "vector_m × vector_n exceeds the registers"
        if vector * t["vector_k"] > _UNROLLED:
            return f"vector_m × vector_n × vector_k exceeds {_UNROLLED}"
        if t["cache_k"] and t["cache_m"] * t["cache_n"] * width >= _VECTOR_BYTES:
            return "cache_m × cache_n exceeds the compiler's largest vector"
        return None

    def lowering(self, root: Root, config: Config) -> Lowering:
        lead = [1] if root.sizes["batch"] else []
        t = {name: int(value) for name, value in config.items() if name != "data_tiling"}
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


def _size(root: Root, name: str) -> int:
    (size,) = root.sizes[name[-1]]
    return size


def _clipped(values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Values up to the first that covers the dim: one beyond is the same as any other."""
    enough = next((i for i, value in enumerate(values) if value >= size), len(values))
    return values[: enough + 1]
