"""Every algorithm of cuBLASLt that its capabilities list for a problem, not only the eight that its
heuristic offers.

On an H200, of 20 algorithms five compute a bf16 GEMM; one of them, 66, has 345 pairs of a tile and
a custom option, each with nine clusters and any split of k. The pairs are found with
`MatmulAlgoCheck`, 22 µs each; that clusters and splits can be combined with all pairs was checked
there, so only one pair is tried with each.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelmark.backends import _lt
from kernelmark.core.result import ConfigValue

# An algorithm's attributes in the order of the config's text: the number in
# cublasLtMatmulAlgoConfigAttributes_t, and the C type.
ATTRIBUTES: Mapping[str, tuple[int, Any]] = {
    "id": (0, ctypes.c_int32),
    "tile": (1, ctypes.c_uint32),
    "split_k": (2, ctypes.c_int32),
    "reduction": (3, ctypes.c_uint32),
    "swizzle": (4, ctypes.c_uint32),
    "custom": (5, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "inner": (7, ctypes.c_uint16),
    "cluster": (8, ctypes.c_uint16),
}
# cublasLtMatmulAlgoCapAttributes_t.
CAPABILITIES = {
    "SPLITK_SUPPORT": 0,
    "REDUCTION_SCHEME_MASK": 1,
    "CTA_SWIZZLING_SUPPORT": 2,
    "TILE_IDS": 6,
    "CUSTOM_OPTION_MAX": 7,
    "STAGES_IDS": 13,
}
REDUCE_IN_COMPUTE_TYPE = 2  # cublasLtReductionScheme_t: sums of a split k are not rounded to c
_SPLITS = (2, 3, 4, 6, 8, 12, 16)
_CUSTOMS = 8  # values of the custom option that are tried; 67 has 152, of which none was legal
_CLUSTERS = range(2, 21)  # cublasLtClusterShape_t; 0 is the library's choice
_MOST_IDS, _MOST_VALUES = 256, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The attributes of an algorithm, by the names of `ATTRIBUTES`."""

    id: int
    tile: int = 0
    split_k: int = 1
    reduction: int = 0
    swizzle: int = 0
    custom: int = 0
    stages: int = 0
    inner: int = 0
    cluster: int = 0

    @property
    def text(self) -> str:
        """The algorithm in the words of `describe`."""
        return " ".join(f"{name}={getattr(self, name)}" for name in ATTRIBUTES)


def every_algorithm(matmul: _lt.LtMatmul, types: Sequence[int]) -> Iterator[Algorithm]:
    """Yield the algorithms that support a problem. `types` are those that `MatmulAlgoInit` takes:
    compute, scale, A, B, C, D."""
    for number in _ids(matmul.library, types):
        yield from _Family(matmul, types, number).members()


def _ids(library: _lt.LtLibrary, types: Sequence[int]) -> list[int]:
    numbers, count = (ctypes.c_int * _MOST_IDS)(), ctypes.c_int()
    out = (_MOST_IDS, numbers, ctypes.byref(count))
    library.call("MatmulAlgoGetIds", library.handle, *types, *out)
    return list(numbers[: count.value])


class _Family:
    """The algorithms with one id."""

    def __init__(self, matmul: _lt.LtMatmul, types: Sequence[int], number: int) -> None:
        self._matmul = matmul
        self._library = matmul.library
        self._number = number
        self._algorithm = ctypes.create_string_buffer(self._library.table.algo_bytes)
        self._result = ctypes.create_string_buffer(self._library.table.heuristic_bytes)
        arguments = (self._library.handle, *types, number, self._algorithm)
        self._exists = not self._library.code("MatmulAlgoInit", *arguments)

    def members(self) -> Iterator[Algorithm]:
        if not self._exists:
            return
        pairs = next(filter(None, map(self._pairs, (0, _CLUSTERS[0]))), [])
        if not pairs:
            return
        first = pairs[0]
        clusters = [first.cluster]
        if first.cluster:
            clusters = [c for c in _CLUSTERS if self._is_legal(replace(first, cluster=c))]
        splits = [(1, 0)]
        if self._number_of("SPLITK_SUPPORT") and self._reduces():
            parts = [(split, REDUCE_IN_COMPUTE_TYPE) for split in _SPLITS]
            splits += [
                (s, r) for s, r in parts if self._is_legal(replace(first, split_k=s, reduction=r))
            ]
        swizzles = (0, 1) if self._number_of("CTA_SWIZZLING_SUPPORT") else (0,)
        for pair, cluster, split, swizzle in itertools.product(pairs, clusters, splits, swizzles):
            yield replace(
                pair, cluster=cluster, split_k=split[0], reduction=split[1], swizzle=swizzle
            )

    def _reduces(self) -> bool:
        return bool(self._number_of("REDUCTION_SCHEME_MASK") & REDUCE_IN_COMPUTE_TYPE)

    def _pairs(self, cluster: int) -> list[Algorithm]:
        """Return the legal tiles, stages and custom options with this cluster."""
        tiles = self._numbers_of("TILE_IDS") or [0]
        stages = self._numbers_of("STAGES_IDS") or [0]
        customs = range(min(self._number_of("CUSTOM_OPTION_MAX"), _CUSTOMS - 1) + 1)
        every = (
            Algorithm(id=self._number, tile=t, stages=s, custom=c, cluster=cluster)
            for t, s, c in itertools.product(tiles, stages, customs)
        )
        return [algorithm for algorithm in every if self._is_legal(algorithm)]

    def _is_legal(self, algorithm: Algorithm) -> bool:
        for name, (attribute, kind) in ATTRIBUTES.items():
            if name != "id":
                value = _lt.reference_to(kind(getattr(algorithm, name)))
                self._library.code(
                    "MatmulAlgoConfigSetAttribute", self._algorithm, attribute, *value
                )
        matmul = self._matmul
        described = (matmul.desc, matmul.a, matmul.b, matmul.c, matmul.d)
        arguments = (self._library.handle, *described, self._algorithm, self._result)
        return not self._library.code("MatmulAlgoCheck", *arguments)

    def _number_of(self, capability: str) -> int:
        return next(iter(self._numbers_of(capability, 1)), 0)

    def _numbers_of(self, capability: str, most: int = _MOST_VALUES) -> list[int]:
        values, written = (ctypes.c_uint32 * most)(), ctypes.c_size_t()
        attribute = CAPABILITIES[capability]
        out = (values, ctypes.sizeof(values), ctypes.byref(written))
        if self._library.code("MatmulAlgoCapGetAttribute", self._algorithm, attribute, *out):
            return []
        return list(values[: written.value // ctypes.sizeof(ctypes.c_uint32)])


@functools.cache
def tile_sizes() -> tuple[tuple[int, int], ...]:
    """Return rows and columns of the library's tiles by their id, cublasLtMatmulTile_t: the first
    36 by hand, then products of multiples of 8 and of 64 that were not listed before."""
    first = (
        *((0, 0), (8, 8), (8, 16), (16, 8), (8, 32), (16, 16), (32, 8), (8, 64), (16, 32)),
        *((32, 16), (64, 8), (32, 32), (32, 64), (64, 32), (32, 128), (64, 64), (128, 32)),
        *((64, 128), (128, 64), (64, 256), (128, 128), (256, 64), (64, 512), (128, 256)),
        *((256, 128), (512, 64), (64, 96), (96, 64), (96, 128), (128, 160), (160, 128)),
        *((192, 128), (128, 192), (128, 96), (32, 256), (256, 32)),
    )
    tall = ((m, n) for m in range(8, 769, 8) for n in range(64, 769, 64) if m * n <= 49152)
    wide = ((m, n) for m in range(64, 769, 64) for n in range(8, 769, 8) if m * n <= 65536)
    return tuple(dict.fromkeys((*first, *tall, *wide)))


def traits(text: ConfigValue) -> tuple[float, ...]:
    """Return the numbers of an algorithm's text that a model of its time may learn from: rows and
    columns of its tile in place of the tile's id."""
    numbers = {name: int(value) for name, value in (w.split("=") for w in str(text).split())}
    tile, sizes = numbers.get("tile", 0), tile_sizes()
    rows, columns = sizes[tile] if tile < len(sizes) else (0, 0)
    others = (numbers.get(name, 0) for name in ATTRIBUTES if name != "tile")
    return (rows, columns, rows * columns, *others)
