"""Lowering configs for AMD GPUs: the space of tiles of a root op, and IREE's attributes for them.

`mma` is the matrix instruction, `tile` a workgroup's part of the result and its step along k in
elements, `subgroups` how many subgroups share it; the rest are options of the pipeline. Tiles need
not divide their dims: IREE then pads the operands. Lowerings that cannot fit into shared memory or
registers are not compiled.

A convolution is computed as a GEMM whose rows are pixels and whose columns are filters: `igemm`
makes its patches the k of the GEMM; without, the GEMM is of single taps, in a loop over them. A
matrix times a vector has no matrix instruction: lanes share its k, and add up in the end.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernelmark.backends.iree.spec import Lowering, Root
from kernelmark.core.errors import Unsupported
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue
from kernelmark.core.units import join_commas


class _Arch(NamedTuple):
    """Limits of a lowering. `mma` are the dense instructions that IREE 3.13 lists for the target
    (`iree-compile --compile-to=executable-sources`, attribute iree_gpu.target), without their
    `family`. A result may fill `result_registers`, half of a lane's 4-byte registers: operands,
    prefetched operands and addresses need the rest."""

    mma: str
    lds_bytes: int = 65536
    family: str = "MFMA"
    wave: int = 64
    result_registers: int = 256


_RDNA3 = _Arch(
    "F32_16x16x16_F16 F16_16x16x16_F16 F32_16x16x16_BF16 I32_16x16x16_I8",
    family="WMMAR3",
    wave=32,
    result_registers=128,
)
_RDNA4 = _RDNA3._replace(
    mma=f"{_RDNA3.mma} F32_16x16x16_F8E4M3FN F32_16x16x16_F8E5M2", family="WMMAR4"
)
_ARCHS: Mapping[str, _Arch] = {
    "gfx90a": _Arch(
        "F32_16x16x16_F16 F32_32x32x8_F16 F32_16x16x8_BF16 F32_32x32x4_BF16 "
        "F32_16x16x4_F32 F64_16x16x4_F64 I32_16x16x16_I8 I32_32x32x8_I8"
    ),
    "gfx942": _Arch(
        "F32_16x16x16_F16 F32_32x32x8_F16 F32_16x16x16_BF16 F32_32x32x8_BF16 "
        "F32_16x16x32_F8E4M3FNUZ F32_32x32x16_F8E4M3FNUZ F32_16x16x32_F8E5M2FNUZ "
        "F32_32x32x16_F8E5M2FNUZ F32_16x16x4_F32 F64_16x16x4_F64 I32_16x16x32_I8 I32_32x32x16_I8"
    ),
    "gfx950": _Arch(
        "F32_16x16x32_F16 F32_32x32x16_F16 F32_16x16x16_F16 F32_32x32x8_F16 "
        "F32_16x16x32_BF16 F32_32x32x16_BF16 F32_16x16x16_BF16 F32_32x32x8_BF16 "
        "F32_16x16x128_F8E4M3FN F32_32x32x64_F8E4M3FN F32_16x16x32_F8E4M3FN F32_32x32x16_F8E4M3FN "
        "F32_16x16x128_F8E5M2 F32_32x32x64_F8E5M2 F32_16x16x32_F8E5M2 F32_32x32x16_F8E5M2 "
        "F32_16x16x4_F32 F64_16x16x4_F64 I32_16x16x64_I8 I32_32x32x32_I8 "
        "I32_16x16x32_I8 I32_32x32x16_I8",
        lds_bytes=163840,
    ),
    "gfx1100": _RDNA3,
    "gfx1151": _RDNA3,
    "gfx1200": _RDNA4,
    "gfx1201": _RDNA4,
    "gfx1250": _Arch(
        "F32_16x16x32_F16 F16_16x16x32_F16 F32_16x16x32_BF16 F32_16x16x4_F32 "
        "F32_16x16x128_F8E4M3FN F32_16x16x64_F8E4M3FN F32_16x16x128_F8E5M2 F32_16x16x64_F8E5M2 "
        "I32_16x16x64_I8",
        lds_bytes=327680,
        family="WMMA",
        wave=32,
        result_registers=512,
    ),
}
_MAX_THREADS = 1024
# Padding of rows in shared memory against bank conflicts (IREE's GPUReduceBankConflicts).
_PAD_BYTES = 8
_LOAD_BYTES = 16
_SUBGROUPS = Reason("the subgroups do not divide the tile")
_SHARED_MEMORY = Reason("the tiles exceed shared memory")

_OPTIONS: Mapping[str, tuple[ConfigValue, ...]] = {
    "stages": (1, 2, 3),
    "pad_lds": (False, True),
    "transpose_grid": (False, True),
    "waves_per_eu": (0, 1, 2, 4),
}
_CONV_OPTIONS: Mapping[str, tuple[ConfigValue, ...]] = {
    "pipeline": ("TileAndFuse", "VectorDistribute"),
    "igemm": (True, False),
    "pad_conv": (False, True),
}
FREE = ("stages", "transpose_grid", "waves_per_eu")  # not used by any rule
# Searched only if a plan lists values: IREE itself always copies operands to shared memory first.
_PROMOTED: Mapping[str, str] = {"both": "[0, 1]", "left": "[0]", "right": "[1]", "none": "[]"}
_PROMOTED_ATTENTION: Mapping[str, tuple[str, str, str]] = {
    "all": ("[0, 1, 2]", "[0, 1]", "[1]"),
    "keys": ("[1, 2]", "[1]", "[1]"),
    "none": ("[]", "[]", "[]"),
}
# Names that configs from before them lack, with the value that these had.
LATER: Mapping[str, ConfigValue] = {"pipeline": "TileAndFuse", "igemm": True, "pad_conv": False}


class Mma(NamedTuple):
    """An instruction's result type, shape and operand type."""

    result: str
    m: int
    n: int
    k: int
    operand: str


@functools.cache
def _parse_mma(name: str) -> Mma:
    match = re.fullmatch(r"[A-Z]+[0-9]?_([FI]\d+)_(\d+)x(\d+)x(\d+)_(\w+)", name)
    assert match is not None, name
    m, n, k = (int(match[i]) for i in (2, 3, 4))
    return Mma(result=match[1], m=m, n=n, k=k, operand=match[5])


class _Loop(NamedTuple):
    """A loop of the GEMM that a root op is computed as: its role in it (b, m, n, k, or r for the
    taps of a filter, one at a time), its size, and the parameter of its tile. A loop without one
    has tiles of 1."""

    role: str
    size: int
    tile: str = ""


_GEMM_ROLES = {
    "batch": "b",
    "m": "m",
    "n": "n",
    "k": "k",
    "depth": "b",
    "image": "m",
    "channels": "n",
    "filter": "r",
    "terms": "k",
}


def _gemm_loops(root: Root, *, igemm: bool) -> tuple[_Loop, ...]:
    """Return the loops of a root op's GEMM in their order. With `igemm`, those that a convolution
    adds over are one loop."""
    pairs = tuple((root.roles[loop], size) for loop, size in root.iterations.items())
    return _loops_of(root.kind, pairs, igemm=igemm)


@functools.cache  # asked for every combination of a space
def _loops_of(kind: str, pairs: tuple[tuple[str, int], ...], *, igemm: bool) -> tuple[_Loop, ...]:
    conv = kind == "convolution"
    loops = [
        _Loop("m" if conv and role == "batch" else _GEMM_ROLES[role], size) for role, size in pairs
    ]
    if conv and igemm:
        summed = [loop.size for loop in loops if loop.role in "rk"]
        loops = [loop for loop in loops if loop.role not in "rk"]
        loops.append(_Loop("k", math.prod(summed)))
    rows = [at for at, loop in enumerate(loops) if loop.role == "m"]
    names = dict.fromkeys(rows, "tile_m") if len(rows) == 1 else {}
    names |= dict(zip(rows[-2:], ("tile_p", "tile_q"), strict=True)) if len(rows) > 1 else {}
    for role in "nk":
        names |= {at: f"tile_{role}" for at, loop in enumerate(loops) if loop.role == role}
    return tuple(loop._replace(tile=names.get(at, "")) for at, loop in enumerate(loops))


_SIZES = {
    "tile_p": (1, 2, 4, 8, 16),
    **dict.fromkeys(("tile_m", "tile_q", "tile_n", "tile_k"), (16, 32, 64, 128, 256)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdTiles:
    """Lowerings for one architecture."""

    arch: str

    @staticmethod
    def archs() -> tuple[str, ...]:
        return tuple(_ARCHS)

    def values(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        if root.kind == "attention":
            return self._attention_values(root)
        if _is_vector(root):
            return self._vector_values(root)
        loops = _gemm_loops(root, igemm=True)
        if reason := _not_a_gemm(root, loops):
            raise Unsupported(reason)
        mma = self._instructions(root)
        if not mma:
            raise Unsupported(self._no_instruction(root))
        tiles = {loop.tile: _padded(_SIZES[loop.tile], loop.size) for loop in loops if loop.tile}
        subgroups = {"subgroups_m": (1, 2, 4), "subgroups_n": (1, 2, 4)}
        more = dict(_CONV_OPTIONS)
        if root.kind != "convolution":
            more = {"pipeline": more["pipeline"]}
        elif not _channels_last(root):
            del more["pad_conv"]
        return {"mma": tuple(mma), **tiles, **subgroups, **more, **_OPTIONS}

    def opt_in(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        if root.kind == "attention":
            return {"promote": tuple(_PROMOTED_ATTENTION)}
        return {} if _is_vector(root) else {"promote": tuple(_PROMOTED)}

    def _no_instruction(self, root: Root) -> Reason:
        operands = dict.fromkeys(root.types[name] for name in _OPERANDS if name in root.types)
        fits = " and fits an attention" if root.kind == "attention" else ""
        return Reason(
            f"IREE has no matrix instruction of {self.arch} for {join_commas(operands)} that sums"
            f" in {root.types['output_type']}{fits}"
        )

    def seeds(self, root: Root) -> Sequence[Config]:
        """Return configs that IREE itself often chooses."""
        if root.kind == "attention":
            return self._attention_seeds(root)
        if _is_vector(root):
            return self._vector_seeds(root)
        loops = _gemm_loops(root, igemm=True)
        mma = next(iter(self._instructions(root)))
        deep = max(64, _parse_mma(mma).k)
        options = {"stages": 2, "pad_lds": True, "transpose_grid": False, "waves_per_eu": 0}
        seeds: list[Config] = []
        # Small images and few filters leave less to share: fewer subgroups then.
        for rows, columns, depth in ((64, 64, deep), (32, 32, deep), (16, 64, deep), (16, 16, 128)):
            for by_m, by_n in ((2, 2), (1, 2), (1, 1)):
                tiles = {"tile_m": rows, "tile_p": max(1, rows // 16), "tile_q": 32}
                tiles |= {"tile_n": columns, "tile_k": depth}
                config: dict[str, ConfigValue] = {"mma": mma}
                config |= {loop.tile: tiles[loop.tile] for loop in loops if loop.tile}
                config |= {"subgroups_m": by_m, "subgroups_n": by_n, "pipeline": "TileAndFuse"}
                if root.kind == "convolution":
                    config |= {"igemm": True}
                    config |= {"pad_conv": False} if _channels_last(root) else {}
                seeds.append(config | options)
        return seeds

    def forbids(self, root: Root, config: Config) -> str | None:
        if root.kind == "attention":
            return self._forbids_attention(root, config)
        if _is_vector(root):
            return self._forbids_vector(root, config)
        mma, options = _parse_mma(str(config["mma"])), {**LATER, **config}
        loops = _gemm_loops(root, igemm=bool(options["igemm"]))
        t = _numbers(config)
        rows, inner = t.get("tile_p", 1), t.get("tile_m") or t["tile_q"]
        if inner % mma.m or t["tile_n"] % mma.n or t["tile_k"] % mma.k:
            return "the instruction does not divide the tile"
        _, shared = _shared_rows(t)
        if inner // mma.m % shared or (t["tile_n"] // mma.n) % t["subgroups_n"]:
            return _SUBGROUPS
        unaligned = _unaligned(loops, t)
        if reason := _forbids_conv(root, options, unaligned=unaligned, rows=rows):
            return reason
        if options["pipeline"] == "VectorDistribute" and unaligned:
            return "only TileAndFuse pads what the tile does not divide"
        rows *= inner
        waves = t["subgroups_m"] * t["subgroups_n"]
        if reason := self._crowded(rows * t["tile_n"] * root.bits("output_type") // 8, waves):
            return reason
        width = _bytes(root)
        pad = _PAD_BYTES if config["pad_lds"] else 0
        if (rows + t["tile_n"]) * (t["tile_k"] * width + pad) > self._limits.lds_bytes:
            return _SHARED_MEMORY
        # Tiles are copied by whole loads, the same number in each thread.
        whole = waves * self._limits.wave * _LOAD_BYTES
        if any(side * t["tile_k"] * width % whole for side in (rows, t["tile_n"])):
            return "the threads do not divide the copy to shared memory"
        return None

    def lowering(self, root: Root, config: Config) -> Lowering:
        if root.kind == "attention":
            return _attention(root, config, self._limits)
        if _is_vector(root):
            return self._vector(root, config)
        mma, options, t = _parse_mma(str(config["mma"])), {**LATER, **config}, _numbers(config)
        igemm, pipeline = bool(options["igemm"]), str(options["pipeline"])
        loops = _gemm_loops(root, igemm=igemm)
        outer, inner = _shared_rows(t)
        subgroups = {"tile_p": outer, "tile_m": inner, "tile_q": inner, "tile_n": t["subgroups_n"]}
        instruction = {"tile_m": mma.m, "tile_q": mma.m, "tile_n": mma.n, "tile_k": mma.k}
        whole = [t.get(loop.tile, 1) for loop in loops]
        counted = [
            size // instruction.get(loop.tile, 1) // subgroups.get(loop.tile, 1)
            for loop, size in zip(loops, whole, strict=True)
        ]
        parts = {
            "mma_kind": f"#iree_gpu.mma_layout<{config['mma']}>",
            "promote_operands": _PROMOTED[str(config.get("promote", "both"))],
            "workgroup": _only(loops, "bmn", whole),
            "reduction": _only(loops, "rk", counted),
        }
        if pipeline == "VectorDistribute":
            counts = [subgroups.get(loop.tile, 1) for loop in loops]
            parts["subgroup_basis"] = f"[{counts}, {list(range(len(counts)))}]"
            parts["reduction"] = _only(loops, "rk", whole)
        else:
            parts["subgroup"] = _only(loops, "bmn", counted)
        if _unaligned(loops, t):
            # To whole tiles, in elements: `reduction` counts instructions.
            if igemm or root.kind == "contraction":
                parts["padding"] = str(whole)
            if not igemm:
                parts["padding_conv"] = _only(loops, "bmnk", whole)
            elif options["pad_conv"]:
                parts["padding_conv"] = _padded_conv(root, whole)
        return Lowering(
            config=_config(parts),
            translation=_translation(
                pipeline,
                t["subgroups_m"] * t["subgroups_n"],
                self._limits.wave,
                _pipeline_options(config, igemm=igemm and root.kind == "convolution"),
                _waves(config),
            ),
        )

    # -- a matrix times a vector

    def _vector_values(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        long, depth = _long(root), _depth(root)
        rows = tuple(value for value in (1, 2, 4, 8, 16, 32) if long.size % value == 0)
        widest = max(1, _LOAD_BYTES // _bytes(root))
        vectors = (1, 2, 4, 8, 16)
        return {
            long.tile: rows,
            "lanes_k": tuple(
                value for value in (1, 2, 4, 8, 16, 32, 64) if value <= self._limits.wave
            ),
            "vector_k": tuple(v for v in vectors if v <= widest and depth % v == 0),
            "subgroups_k": (1, 2, 4, 8),
            "waves_per_eu": _OPTIONS["waves_per_eu"],
        }

    def _vector_seeds(self, root: Root) -> Sequence[Config]:
        values, long = self._vector_values(root), _long(root)
        vectors = sorted(values["vector_k"], key=int, reverse=True)
        return [
            {long.tile: 8, "lanes_k": lanes, "vector_k": v, "subgroups_k": 1, "waves_per_eu": 0}
            for lanes in sorted(values["lanes_k"], key=int, reverse=True)
            for v in vectors
        ]

    def _forbids_vector(self, root: Root, config: Config) -> str | None:
        lanes, vector, subgroups = (int(config[f"{n}_k"]) for n in ("lanes", "vector", "subgroups"))
        if _depth(root) % (lanes * vector * subgroups):
            return "lanes_k × vector_k × subgroups_k does not divide k"
        return self._crowded(0, subgroups)

    def _vector(self, root: Root, config: Config) -> Lowering:
        long, loops = _long(root), _gemm_loops(root, igemm=True)
        lanes, vector, subgroups = (int(config[f"{n}_k"]) for n in ("lanes", "vector", "subgroups"))
        mapping = list(range(len(loops)))

        def of_k(value: int, rest: int) -> list[int]:
            return [value if loop.role == "k" else rest for loop in loops]

        tiles = [int(config[long.tile]) if loop == long else 1 for loop in loops]
        parts = {
            "lane_basis": f"[{of_k(lanes, 1)}, {mapping}]",
            "partial_reduction": str(of_k(lanes * vector * subgroups, 0)),
            "subgroup_basis": f"[{of_k(subgroups, 1)}, {mapping}]",
            "thread": str(of_k(vector, 0)),
            "workgroup": _only(loops, "bmn", tiles),
        }
        options = (
            "gpu_pipeline_options = #iree_gpu.pipeline_options<"
            "no_reduce_shared_memory_bank_conflicts = false, use_igemm_convolution = false>"
        )
        return Lowering(
            config=_config(parts),
            translation=_translation(
                "VectorDistribute", subgroups, self._limits.wave, options, _waves(config)
            ),
        )

    # -- attention

    def _attention_values(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        keys = (16, 32, 64, 128, 256)[: 5 if _bytes(root) == 1 else 4]
        steps = _dividing("tile_k", keys, root.size("k2"))
        pairs = self._attention_pairs(root)
        if not pairs:
            raise Unsupported(self._no_instruction(root))
        out = root.size("n")
        columns = tuple(value for value in (16, 32, 64, 128) if value < out and out % value == 0)
        return {
            "qk_mma": tuple(dict.fromkeys(qk for qk, _ in pairs)),
            "pv_mma": tuple(dict.fromkeys(pv for _, pv in pairs)),
            "tile_m": _padded((16, 32, 64, 128, 256), root.sizes["m"][-1]),
            "tile_n": (*columns, out),
            "tile_k": steps,
            "subgroups_m": (1, 2, 4, 8),
            "subgroups_n": (1, 2),
            "flush_denormals": (True, False),
            "stages": (0, 2),
            "waves_per_eu": _OPTIONS["waves_per_eu"],
        }

    def _attention_seeds(self, root: Root) -> Sequence[Config]:
        qk, pv = self._attention_pairs(root)[0]
        deep = max(64, _parse_mma(pv).k, _parse_mma(qk).n)
        common: Config = {"qk_mma": qk, "pv_mma": pv, "tile_n": root.size("n"), "subgroups_n": 1}
        options: Config = {"flush_denormals": True, "stages": 0, "waves_per_eu": 0}
        return [
            {**common, "tile_m": rows, "tile_k": keys, "subgroups_m": waves, **options}
            for rows, keys, waves in ((64, deep, 4), (64, 32, 2), (32, 16, 1), (16, 16, 1))
        ]

    def _attention_pairs(self, root: Root) -> list[tuple[str, str]]:
        """Return the instructions of both GEMMs of an attention that go together, by default the
        first pair: both have square results of one size.

        The result of the first GEMM is an operand of the second. It stays in registers if that
        reads it in its layout, as the k of f16 allows. Virtual instructions are two for twice the
        k, whose operands are read 8 elements at a time (f16), or one that reads its operand in the
        order of the result (f8e4m3fnuz). Others, and WMMA, pass it through shared memory, as IREE
        itself does."""
        plain = self._instructions(root)
        virtual = [name for name in _VIRTUAL if _VIRTUAL[name] in plain]
        first, second = [*virtual, *plain], [*plain, *virtual]
        if any(map(_reads_result, virtual)):
            first, second = second, first
        pairs = [
            (qk, pv) for pv in second for qk in first if _parse_mma(qk)[1:3] == _parse_mma(pv)[1:3]
        ]
        dims = root.size("k1"), root.size("k2"), root.size("n")
        return [
            (qk, pv)
            for qk, pv in pairs
            if not any(
                size % step
                for size, step in zip(
                    dims, (_parse_mma(qk).k, _parse_mma(pv).k, _parse_mma(pv).n), strict=True
                )
            )
        ]

    def _forbids_attention(self, root: Root, config: Config) -> str | None:
        qk, pv = (_parse_mma(str(config[name])) for name in ("qk_mma", "pv_mma"))
        if (qk.m, qk.n) != (pv.m, pv.n):
            return "qk_mma and pv_mma have results of different shapes"
        t = _numbers(config)
        rows, columns, keys = t["tile_m"], t["tile_n"], t["tile_k"]
        dim = root.size("k1")
        uneven = rows % (pv.m * t["subgroups_m"]) or columns % (pv.n * t["subgroups_n"])
        if uneven or keys % qk.n or keys % pv.k or dim % qk.k:
            return "the instruction does not divide the tile"
        waves = t["subgroups_m"] * t["subgroups_n"]
        if reason := self._crowded(rows * (columns + keys) * 4, waves):
            return reason
        lds_bytes = (rows * dim + keys * (dim + columns)) * _bytes(root)
        return _SHARED_MEMORY if lds_bytes > self._limits.lds_bytes else None

    def _instructions(self, root: Root) -> list[str]:
        operand = {root.types[n] for n in root.types if n in _OPERANDS}
        result = root.types["output_type"].upper()
        names = [f"{self._limits.family}_{name}" for name in self._limits.mma.split()]
        instructions = [n for n in names if {_parse_mma(n).operand} == {o.upper() for o in operand}]
        return [name for name in instructions if _parse_mma(name).result == result]

    def _crowded(self, result_bytes: int, waves: int) -> str | None:
        threads = waves * self._limits.wave
        if threads > _MAX_THREADS:
            return "the subgroups exceed a workgroup"
        if result_bytes > self._limits.result_registers * 4 * threads:
            return "the result exceeds the registers"
        return None

    @property
    def _limits(self) -> _Arch:
        return _ARCHS[self.arch]


def _numbers(config: Config) -> dict[str, int]:
    return {name: int(v) for name, v in config.items() if name.startswith(("tile", "subg"))}


def _only(loops: Sequence[_Loop], roles: str, sizes: Sequence[int]) -> str:
    """Return the list of the sizes of the loops with one of the roles, 0 for the others."""
    pairs = zip(loops, sizes, strict=True)
    return str([size if loop.role in roles else 0 for loop, size in pairs])


def _config(parts: Mapping[str, str]) -> str:
    text = ", ".join(f"{name} = {value}" for name, value in sorted(parts.items()))
    return f"#iree_gpu.lowering_config<{{{text}}}>"


def _is_vector(root: Root) -> bool:
    """Return whether one side of a GEMM is a vector, so that matrix instructions would mostly
    multiply zeros. A product of two vectors is left to them, as IREE itself does."""
    if root.kind != "contraction":
        return False
    ones = [math.prod(root.sizes[side]) == 1 for side in "mn"]
    return any(ones) and not all(ones) and bool(root.sizes["k"])


def _long(root: Root) -> _Loop:
    """Return the longest loop of the result of a matrix times a vector."""
    loops = [loop for loop in _gemm_loops(root, igemm=True) if loop.role in "mn"]
    return max(loops, key=lambda loop: (loop.size, loop.tile))


def _depth(root: Root) -> int:
    return math.prod(root.sizes["k"])


def _not_a_gemm(root: Root, loops: Sequence[_Loop]) -> Reason | None:
    """Return why matrix instructions cannot compute a root op, or None."""
    if {"m", "n", "k"} <= {loop.role for loop in loops}:
        return None
    return Reason(
        "matrix instructions need rows, columns and a sum:"
        f" {root.kind} ({root.loops}) lacks one of them"
    )


def _shared_rows(tiles: Mapping[str, int]) -> tuple[int, int]:
    """Return by how many subgroups tile_p and the innermost rows are shared."""
    outer = math.gcd(tiles["subgroups_m"], tiles.get("tile_p", 1))
    return outer, tiles["subgroups_m"] // outer


def _unaligned(loops: Sequence[_Loop], tiles: Mapping[str, int]) -> bool:
    """Return whether a tile does not divide its dim."""
    return any(loop.size % tiles[loop.tile] for loop in loops if loop.tile)


def _channels_last(root: Root) -> bool:
    """Return whether a convolution reads its input along the channels."""
    last = root.reads[0].rpartition(", ")[2]
    return root.kind == "convolution" and root.roles.get(last) == "terms"


def _forbids_conv(root: Root, options: Config, *, unaligned: bool, rows: int) -> str | None:
    if root.kind != "convolution":
        return None
    if options["igemm"]:
        if options["pad_conv"] and not unaligned:
            return "pad_conv has nothing to pad"
        if options["pipeline"] == "VectorDistribute":
            return "VectorDistribute has no igemm"
        return None
    if options["pad_conv"]:
        return "without igemm the input is always padded"
    if re.search(r"[pq] \*", root.reads[0]):
        return "strides need igemm"
    if options["pipeline"] == "VectorDistribute":
        dilated = re.search(r"[rs] \*", root.reads[0])
        if dilated or rows > 1 or root.sizes.get("depth") or not _channels_last(root):
            return "VectorDistribute computes one row of pixels in nhwc, without dilation or groups"
    return None


def _padded_conv(root: Root, whole: Sequence[int]) -> str:
    """Return what the loops of a convolution are padded to before they become those of a GEMM.

    Channels are padded only if the sum does not come out even, and are at least half of its step
    then; the GEMM pads the rest."""
    sizes, step, depth = iter(whole), whole[-1], 0
    roles, iterations = root.roles, root.iterations
    summed = [loop for loop, role in roles.items() if role in ("filter", "terms")]
    depth = math.prod(iterations[loop] for loop in summed)
    padded = []
    for loop, role in roles.items():
        small = role != "terms" or depth % step == 0 or step // iterations[loop] > 2
        padded.append((0 if small else step) if loop in summed else next(sizes))
    return str(padded)


_F8 = "f8E4M3FNUZ"
_OPERANDS = ("lhs_type", "rhs_type", "query_type", "key_type", "value_type")
# Virtual instructions, and those that they consist of.
_VIRTUAL = {
    "VMFMA_F32_16x16x32_F16": "MFMA_F32_16x16x16_F16",
    "VMFMA_F32_32x32x16_F16": "MFMA_F32_32x32x8_F16",
    "VMFMA_F32_16x16x32_F8E4M3FNUZ": "MFMA_F32_16x16x32_F8E4M3FNUZ",
    "VMFMA_F32_32x32x16_F8E4M3FNUZ": "MFMA_F32_32x32x16_F8E4M3FNUZ",
}


def _reads_result(name: str) -> bool:
    """Return whether an instruction reads an operand in the layout of a result."""
    mma = _parse_mma(name)
    return mma.operand == _F8.upper() if name in _VIRTUAL else mma.k == {16: 16, 32: 8}[mma.m]


def _attention(root: Root, config: Config, limits: _Arch) -> Lowering:
    t = _numbers(config)
    qk, pv = str(config["qk_mma"]), str(config["pv_mma"])
    lead = len((*root.sizes["batch"], *root.sizes["m"])) - 1  # index of the row loop
    ones, none = [1] * lead, [0] * lead
    counts = [*ones, t["subgroups_m"], t["subgroups_n"], 1, 1]
    m, n, k1, k2 = range(lead, lead + 4)
    # Both GEMMs then have transposed results, which the second reads as its right operand.
    order = ", col_major = true" if _reads_result(pv) and limits.family == "MFMA" else ""

    def gemm(mma: str, promoted: str, loops: Sequence[int]) -> str:
        basis = f"[{counts}, {[*range(lead), *loops]}]"
        layout = "virtual_mma_layout" if mma.startswith("V") else "mma_layout"
        return (
            f"{{lowering_config = #iree_gpu.lowering_config<{{mma_kind = #iree_gpu.{layout}<{mma}"
            f"{order}>, promote_operands = {promoted}, subgroup_basis = {basis}}}>}}"
        )

    whole, first, second = _PROMOTED_ATTENTION[str(config.get("promote", "all"))]
    stages = config["stages"]
    pipeline = f"gpu_pipeline_options = #iree_gpu.pipeline_options<prefetch_num_stages = {stages}>"
    flush = (
        'iree_codegen.denormal_fp_math_f32 = #iree_codegen.denormal_fp_math<"preserve-sign">'
        if config["flush_denormals"]
        else ""
    )
    return Lowering(
        config=f"#iree_gpu.lowering_config<{{promote_operands = {whole}, "
        f"reduction = {[*none, 0, 0, 0, t['tile_k']]}, "
        f"workgroup = {[*ones, t['tile_m'], t['tile_n'], 0, 0]}}}>",
        translation=_translation(
            "VectorDistribute",
            t["subgroups_m"] * t["subgroups_n"],
            limits.wave,
            pipeline if stages else "",
            flush,
            _waves(config),
        ),
        parts=f"{{pv_attrs = {gemm(pv, second, (m, n, k2))}, "
        f"qk_attrs = {gemm(qk, first, (m, k1, k2))}}}",
    )


def _translation(pipeline: str, waves: int, wave: int, *attributes: str) -> str:
    return (
        f"#iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<{pipeline}> "
        f"workgroup_size = [{waves * wave}, 1, 1] subgroup_size = {wave}, "
        f"{{{', '.join(filter(None, attributes))}}}>"
    )


def _pipeline_options(config: Config, *, igemm: bool) -> str:
    options = [
        f"prefetch_num_stages = {config['stages']}",
        f"no_reduce_shared_memory_bank_conflicts = {str(not config['pad_lds']).lower()}",
        f"use_igemm_convolution = {str(igemm).lower()}",
    ]
    if config["transpose_grid"]:
        options.append("reorder_workgroups_strategy = <Transpose>")
    return f"gpu_pipeline_options = #iree_gpu.pipeline_options<{', '.join(options)}>"


def _waves(config: Config) -> str:
    count = config["waves_per_eu"]
    return f'llvm_func_attrs = {{"amdgpu-waves-per-eu" = "{count}"}}' if count else ""


_MOST_PADDING = 1.25
_SMALL_TILE = 32


def _padded(values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the values that divide a dim or pad it a little; small ones in any case, which threads
    copy to shared memory without a rest."""
    least = min(_SMALL_TILE, values[1]) if values[0] > 1 else 1
    return tuple(
        value
        for value in values
        if value <= least or math.ceil(size / value) * value <= _MOST_PADDING * size
    )


def _dividing(tile: str, values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the values that divide a dim: copies of operands are not masked."""
    dividing = tuple(value for value in values if size % value == 0)
    if not dividing:
        dim = tile.removeprefix("tile_")
        raise Unsupported(f"{dim}={size} of its root op is not a multiple of {values[0]}")
    return dividing


def _bytes(root: Root) -> int:
    """Return the bytes per element of the operands."""
    return root.bits(next(name for name in _OPERANDS if name in root.types)) // 8
