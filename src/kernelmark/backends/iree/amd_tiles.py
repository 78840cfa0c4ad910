"""Lowerings for AMD's matrix instructions: `mma` is the instruction, `tile` a workgroup's part of
the result and its step along k in elements, `subgroups` how many subgroups share it; the rest are
options of the pipeline. Lowerings that cannot fit into shared memory or registers are not
compiled."""

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
    "gfx1100": _Arch(
        "F32_16x16x16_F16 F16_16x16x16_F16 F32_16x16x16_BF16 I32_16x16x16_I8",
        family="WMMAR3",
        wave=32,
        result_registers=128,
    ),
}
_MAX_THREADS = 1024
# Padding of rows in shared memory against bank conflicts (IREE's GPUReduceBankConflicts).
_PAD_BYTES = 8
_LOAD_BYTES = 16
_SUBGROUPS = Reason("the subgroups do not divide the tile")
_SHARED_MEMORY = Reason("the tiles exceed shared memory")

_OPTIONS: Mapping[str, tuple[ConfigValue, ...]] = {
    "stages": (1, 2),
    "pad_lds": (False, True),
    "transpose_grid": (False, True),
    "waves_per_eu": (0, 1, 2, 4),
}
FREE = ("pipeline", "stages", "transpose_grid", "waves_per_eu")  # not used by any rule


class Mma(NamedTuple):
    """An instruction's result type, shape and operand type."""

    result: str
    m: int
    n: int
    k: int
    operand: str


@functools.cache
def _parse_mma(name: str) -> Mma:
    found = re.fullmatch(r"[A-Z]+[0-9]?_([FI]\d+)_(\d+)x(\d+)x(\d+)_(\w+)", name)
    assert found is not None, name
    m, n, k = (int(found[i]) for i in (2, 3, 4))
    return Mma(result=found[1], m=m, n=n, k=k, operand=found[5])


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdTiles:
    """Lowerings for one architecture."""

    arch: str

    @staticmethod
    def archs() -> tuple[str, ...]:
        return tuple(_ARCHS)

    def values(self, root: Root) -> Mapping[str, tuple[ConfigValue, ...]]:
        mma = self._instructions(root)
        if not mma:
            raise Unsupported(self._no_instruction(root))
        tiles = {name: _dividing(name, *one) for name, one in self._tiles(root).items()}
        if root.kind == "attention":
            more = {"subgroups_m": (1, 2, 4, 8), "waves_per_eu": _OPTIONS["waves_per_eu"]}
            return {"mma": tuple(mma), **tiles, **more}
        subgroups = {"subgroups_m": (1, 2, 4), "subgroups_n": (1, 2, 4)}
        pipelines = {"pipeline": ("TileAndFuse", "VectorDistribute")}
        if root.kind == "convolution":
            pipelines = {}
        return {"mma": tuple(mma), **tiles, **subgroups, **pipelines, **_OPTIONS}

    def _tiles(self, root: Root) -> Mapping[str, tuple[tuple[int, ...], int]]:
        """Return the sizes that a tile may have, and the size of the dim that it must divide."""
        if root.kind == "attention":
            keys = (16, 32, 64, 128, 256)[: 5 if _bytes(root) == 1 else 4]
            return {
                "tile_m": ((32, 64, 128, 256), root.sizes["m"][-1]),
                "tile_k": (keys, root.size("k2")),
            }
        if root.kind == "convolution":
            rows, columns = root.sizes["image"]
            return {
                "tile_p": ((1, 2, 4, 8, 16), rows),
                "tile_q": ((16, 32, 64, 128), columns),
                "tile_n": ((32, 64, 128, 256), root.size("channels")),
                "tile_k": ((16, 32, 64, 128, 256), self._depth(root)),
            }
        return {f"tile_{dim}": ((16, 32, 64, 128, 256), root.size(dim)) for dim in "mnk"}

    def _no_instruction(self, root: Root) -> Reason:
        operands = dict.fromkeys(root.types[name] for name in _OPERANDS if name in root.types)
        fits = " and fits an attention" if root.kind == "attention" else ""
        return Reason(
            f"IREE has no matrix instruction of {self.arch} for {join_commas(operands)} that sums"
            f" in {root.types['output_type']}{fits}"
        )

    def seeds(self, root: Root) -> Sequence[Config]:
        """Return configs that IREE itself often chooses."""
        return [self._start(root)]

    def _start(self, root: Root) -> Config:
        mma = next(iter(self._instructions(root)))
        common: dict[str, ConfigValue] = {"mma": mma, "subgroups_m": 2, "waves_per_eu": 0}
        if root.kind == "attention":
            deep = max(64, _parse_mma(mma).k)
            return common | {"tile_m": 64, "tile_k": deep, "subgroups_m": 4}
        rows = {"tile_m": 64} if root.kind == "contraction" else {"tile_p": 4, "tile_q": 32}
        pipeline = {"pipeline": "TileAndFuse"} if root.kind == "contraction" else {}
        options = {"stages": 2, "pad_lds": True, "transpose_grid": False}
        sizes = {"tile_n": 64, "tile_k": max(64, _parse_mma(mma).k), "subgroups_n": 2}
        return common | rows | pipeline | sizes | options

    def forbids(self, root: Root, config: Config) -> str | None:
        mma = _parse_mma(str(config["mma"]))
        if root.kind == "attention":
            return self._forbids_attention(root, config, mma)
        t = {name: int(v) for name, v in config.items() if name.startswith(("tile", "subg"))}
        rows = t["tile_m"] if root.kind == "contraction" else t["tile_p"] * t["tile_q"]
        along_m = t.get("tile_m", t.get("tile_q", 0))
        if along_m % mma.m or t["tile_n"] % mma.n or t["tile_k"] % mma.k:
            return "the instruction does not divide the tile"
        if (rows // mma.m) % t["subgroups_m"] or (t["tile_n"] // mma.n) % t["subgroups_n"]:
            return _SUBGROUPS
        if root.kind == "convolution" and t["tile_p"] % t["subgroups_m"]:
            return "the subgroups do not divide tile_p"
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

    def _forbids_attention(self, root: Root, config: Config, mma: Mma) -> str | None:
        rows, keys, waves = (int(config[n]) for n in ("tile_m", "tile_k", "subgroups_m"))
        dim, out = root.size("k1"), root.size("n")
        if rows % (mma.m * waves) or keys % mma.m or keys % mma.k or dim % mma.k or out % mma.n:
            return "the instruction does not divide the tile"
        if reason := self._crowded(rows * (out + keys) * 4, waves):
            return reason
        held = (rows * dim + keys * (dim + out)) * _bytes(root)
        return _SHARED_MEMORY if held > self._limits.lds_bytes else None

    def lowering(self, root: Root, config: Config) -> Lowering:
        mma = _parse_mma(str(config["mma"]))
        if root.kind == "attention":
            return _attention(root, config, mma, self._limits)
        t = {name: int(v) for name, v in config.items() if name.startswith(("tile", "subg"))}
        lead = [1] if root.sizes["batch"] else []
        none = [0 for _ in lead]
        parts = t["tile_n"] // mma.n // t["subgroups_n"]
        if root.kind == "convolution":
            # IREE converts it to a GEMM: the loops of r, s and c become one.
            tile = [1, t["tile_p"], t["tile_q"], t["tile_n"], 0]
            steps = [0, 0, 0, 0, t["tile_k"] // mma.k]
            shared = [1, t["tile_p"] // t["subgroups_m"], t["tile_q"] // mma.m, parts, 0]
        else:
            tile = [*lead, t["tile_m"], t["tile_n"], 0]
            steps = [*none, 0, 0, t["tile_k"] // mma.k]
            shared = [*lead, t["tile_m"] // mma.m // t["subgroups_m"], parts, 0]
        if config.get("pipeline") == "VectorDistribute":
            steps[-1] = t["tile_k"]
            counts = [*lead, t["subgroups_m"], t["subgroups_n"], 1]
            share = f"subgroup_basis = [{counts}, {list(range(len(counts)))}]"
        else:
            share = f"subgroup = {shared}"
        return Lowering(
            config="#iree_gpu.lowering_config<{"
            f"mma_kind = #iree_gpu.mma_layout<{config['mma']}>, promote_operands = [0, 1], "
            f"reduction = {steps}, {share}, workgroup = {tile}}}>",
            translation=_translation(
                str(config.get("pipeline", "TileAndFuse")),
                t["subgroups_m"] * t["subgroups_n"],
                self._limits.wave,
                _pipeline_options(config, igemm=root.kind == "convolution"),
                _waves(config),
            ),
        )

    def _instructions(self, root: Root) -> list[str]:
        operand = {root.types[n] for n in root.types if n in _OPERANDS}
        result = root.types["output_type"].upper()
        names = [f"{self._limits.family}_{name}" for name in self._limits.mma.split()]
        wanted = [n for n in names if {_parse_mma(n).operand} == {o.upper() for o in operand}]
        if root.kind == "attention":
            # The result of the first GEMM stays in registers and is an operand of the second, which
            # has to read it in that layout. Shapes with square results and the k of f16 allow that.
            # For f8e4m3fnuz, IREE has a virtual instruction that reads the second's operand in that
            # order. WMMA of gfx11 passes it through shared memory, as IREE itself does.
            fits = _ATTENTION_SHAPES.get(min(operand), ((16, 16, 16), (32, 32, 8)))
            wanted = [n for n in wanted if _parse_mma(n)[1:4] in fits]
        return [name for name in wanted if _parse_mma(name).result == result]

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

    def _depth(self, root: Root) -> int:
        return math.prod(root.sizes["filter"]) * root.size("terms")


_F8 = "f8E4M3FNUZ"
_OCP_F8 = "f8E4M3FN"
_ATTENTION_SHAPES = {
    _F8: ((16, 16, 32), (32, 32, 16)),
    # Through shared memory instead of registers, as IREE itself does: any shape fits.
    _OCP_F8: ((16, 16, 128), (32, 32, 64), (16, 16, 32), (32, 32, 16)),
}
_OPERANDS = ("lhs_type", "rhs_type", "query_type", "key_type", "value_type")


def _attention(root: Root, config: Config, mma: Mma, limits: _Arch) -> Lowering:
    waves = int(config["subgroups_m"])
    lead = len((*root.sizes["batch"], *root.sizes["m"])) - 1  # index of the row loop
    ones, none = [1] * lead, [0] * lead
    counts = [*ones, waves, 1, 1, 1]
    m, n, k1, k2 = range(lead, lead + 4)

    def gemm(kind: str, promoted: str, loops: Sequence[int]) -> str:
        basis = f"[{counts}, {[*range(lead), *loops]}]"
        return (
            f"{{lowering_config = #iree_gpu.lowering_config<{{mma_kind = {kind}, "
            f"promote_operands = {promoted}, subgroup_basis = {basis}}}>}}"
        )

    def virtual(k: int) -> str:
        name = f"VMFMA_{mma.result}_{mma.m}x{mma.n}x{k}_{mma.operand}"
        return f"#iree_gpu.virtual_mma_layout<{name}, col_major = true>"

    plain = f"#iree_gpu.mma_layout<{config['mma']}, col_major = true>"
    first = second = plain
    if mma.operand == _OCP_F8.upper() or limits.family != "MFMA":
        first = second = f"#iree_gpu.mma_layout<{config['mma']}>"
    elif mma.operand == "F16":
        # Two instructions for twice the k: the operands are then read 8 elements at a time.
        first = virtual(2 * mma.k)
    elif mma.operand == _F8.upper():
        second = virtual(mma.k)
    return Lowering(
        config="#iree_gpu.lowering_config<{promote_operands = [0, 1, 2], "
        f"reduction = {[*none, 0, 0, 0, config['tile_k']]}, "
        f"workgroup = {[*ones, config['tile_m'], root.size('n'), 0, 0]}}}>",
        translation=_translation(
            "VectorDistribute",
            waves,
            limits.wave,
            'iree_codegen.denormal_fp_math_f32 = #iree_codegen.denormal_fp_math<"preserve-sign">',
            _waves(config),
        ),
        parts=f"{{pv_attrs = {gemm(second, '[1]', (m, n, k2))}, "
        f"qk_attrs = {gemm(first, '[0, 1]', (m, k1, k2))}}}",
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


def _dividing(tile: str, values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the values that divide a dim: copies of operands are not masked."""
    found = tuple(value for value in values if size % value == 0)
    if not found:
        dim = tile.removeprefix("tile_")
        raise Unsupported(f"{dim}={size} of its root op is not a multiple of {values[0]}")
    return found


def _bytes(root: Root) -> int:
    """Return the bytes per element of the operands."""
    return root.bits(next(name for name in _OPERANDS if name in root.types)) // 8
