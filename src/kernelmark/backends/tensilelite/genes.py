"""The space of a GEMM kernel in Tensile's own parameters, and its problem type.

The values are those of the tuned kernels in hipBLASLt's own logic files (2025-03), and -1 where
Tensile can choose. A checkout that lacks a parameter or a value never sees it, and Tensile's check
decides which combinations are legal. The rules here only repeat, for speed, refusals that reject
most random combinations; `LARGEST_TILE` spares kernels whose generation would overflow registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernelmark.core.dtype import dtype
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue

Parameters = Mapping[str, tuple[ConfigValue, ...]]

WAVE = 64  # lanes
# A lane has 512 registers, of which 256 hold sums; more never fit beside the operands.
LARGEST_TILE = 256
LDS_BYTES = 64 * 1024  # of a work group, on the smallest
_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
_WAVES = ("1x1", "2x1", "1x2", "4x1", "2x2", "1x4")
_LETTERS = {
    "f64": "D",
    "f32": "S",
    "f16": "H",
    "bf16": "B",
    "i8": "I8",
    "i32": "I",
    "f8e4m3": "F8",
    "f8e5m2": "B8",
    "f8e4m3fnuz": "F8N",
    "f8e5m2fnuz": "B8N",
}
_NARROW = ("F8", "B8", "F8N", "B8N")
# M×N×K of the matrix instructions by bytes of an element; gfx950 added those of twice the K.
_INSTRUCTIONS = {
    8: (("16x16x4",), ()),
    4: (("16x16x4", "32x32x2"), ()),
    2: (("16x16x16", "32x32x8"), ("16x16x32", "32x32x16")),
    1: (("16x16x32", "32x32x16"), ("16x16x128", "32x32x64")),
}
_CHOSEN = (-1,)  # by Tensile
_PADS = (*_CHOSEN, 0, 4, 8, 16)
_BLOCKS = (*_CHOSEN, 0, 128, 256, 512, 1024)
_FIXED: Mapping[str, Any] = FrozenDict({"ScheduleIterAlg": 3, "ExpandPointerSwap": 0})
# hipBLASLt may call any GEMM with these epilogues, which its own kernels therefore have.
_EPILOGUES = {
    "UseBias": 1,
    "Activation": True,
    "ActivationType": "hipblaslt_all",
    "UseScaleAlphaVec": 1,
    "SupportUserArgs": True,
}


def unsupported(problem: Problem, arch: str) -> Reason | None:
    """Return why there are no kernels for a problem, or None."""
    a, b, c = (problem.dtypes[name] for name in "abc")
    if arch not in ("gfx90a", "gfx942", "gfx950"):
        return Reason(f"tensilelite has a space for gfx90a, gfx942 and gfx950, not for {arch}")
    if a != b or a not in _LETTERS or c not in _LETTERS:
        return Reason(f"tensilelite has no space for a={a} b={b} c={c}")
    if problem.options.get("scale") == "mx":
        return Reason("tensilelite has no space for scale=mx")
    return None


def problem_type(problem: Problem) -> dict[str, Any]:
    """Return Tensile's problem type: that of hipBLASLt's own kernels for such a call. Tensile is
    column-major, so its A is our B."""
    letters = {name: _LETTERS[problem.dtypes[name]] for name in "abc"}
    options = problem.options
    acc = _LETTERS[problem.dtypes.get("acc", "f32")]
    kind: dict[str, Any] = {
        "OperationType": "GEMM",
        "DataType": letters["b"],
        "DestDataType": letters["c"],
        "ComputeDataType": acc,
        "HighPrecisionAccumulate": letters["b"] != acc,
        "TransposeA": options["tb"] == "t",
        "TransposeB": options["ta"] == "t",
        "UseBeta": True,
        "Batched": True,
        **_EPILOGUES,
    }
    if letters["b"] in _NARROW:
        # A kernel with scalar scales also runs calls without any; one with vectors does not.
        kind["UseScaleAB"] = "Vector" if options.get("scale") == "row" else "Scalar"
        kind["UseScaleCD"] = letters["c"] in _NARROW
        kind["BiasDataTypeList"] = ["S", "B" if letters["c"] == "B" else "H"]
    if acc in ("D", "I"):
        kind |= {"Activation": False, "ActivationType": "none", "UseBias": 0}
        kind["UseScaleAlphaVec"] = 0
    return kind


def parameters(problem: Problem, arch: str) -> Parameters:
    """Return the genes and their values. Numbers are in ascending order."""
    size = _bytes(problem)
    usual, newer = _INSTRUCTIONS[size]
    wide = tuple(width for width in (2, 4, 8, 16) if size <= width * size <= 16)
    direct = (0, 1) if arch == "gfx950" else (0,)  # 16 bytes straight to the LDS are new there
    return {
        "MatrixInstruction": (*usual, *(newer if arch == "gfx950" else ())),
        "MIWaveTileA": _TILES,
        "MIWaveTileB": _TILES,
        "MIWaveGroup": _WAVES,
        "DepthU": (8, 16, 32, 64, 128, 256, 512),
        "LocalSplitU": (1, 2, 4),
        "PrefetchGlobalRead": (1, 2),
        "PrefetchLocalRead": (0, 1, 2, 3),
        "ClusterLocalRead": (0, 1),
        "GlobalReadVectorWidthA": (*_CHOSEN, *wide),
        "GlobalReadVectorWidthB": (*_CHOSEN, *wide),
        "LocalReadVectorWidth": (*_CHOSEN, *(width for width in wide if width * size >= 8)),
        "VectorWidthA": (*_CHOSEN, 1, 2, 4, 8),
        "VectorWidthB": (*_CHOSEN, 1, 2, 4, 8),
        "TransposeLDS": (*_CHOSEN, 0, 1, 2),
        "LdsPadA": _PADS,
        "LdsPadB": _PADS,
        "LdsBlockSizePerPadA": _BLOCKS,
        "LdsBlockSizePerPadB": _BLOCKS,
        "1LDSBuffer": (*_CHOSEN, 0, 1),
        "DirectToLds": direct,
        "DirectToVgprA": (0, 1),
        "DirectToVgprB": (0, 1),
        "GlobalSplitU": (0, 1, 2, 3, 4, 5, 6, 8, 12, 16),
        "GlobalSplitUAlgorithm": ("MultipleBuffer", "MultipleBufferSingleKernel"),
        "StreamK": (0, 3),
        "SourceSwap": (0, 1),
        "StorePriorityOpt": (0, 1),
        "NumElementsPerBatchStore": (0, 8, 16),
        "NonTemporalA": (0, 4, 7),
        "NonTemporalB": (0, 4, 7),
        "NonTemporalC": (0, 4),
        "NonTemporalD": (0, 4, 7),
        "WaveSeparateGlobalReadA": (0, 1, 2),
        "WaveSeparateGlobalReadB": (0, 1, 2),
        "StaggerU": (0, 4, 8, 16, 32),
        "StaggerUStride": (128, 256, 512, 1024),
        "StaggerUMapping": (0, 1),
        "WorkGroupMapping": (1, 4, 8, 16, 32),
        "WorkGroupMappingXCC": (1, 4, 8, 16, 32),
    }


def seeds(values: Parameters, problem: Problem) -> list[Config]:
    """Return plain kernels, best guess first: the largest of those whose tiles occupy some 300 CUs,
    then smaller ones, then from the smallest on those whose tiles do not."""
    instruction = values["MatrixInstruction"][0]
    depth = 128 // _bytes(problem)
    plain = {name: options[0] for name, options in values.items()}
    plain |= {"MatrixInstruction": instruction, "ClusterLocalRead": 1, "PrefetchLocalRead": 1}
    plain |= {"GlobalSplitU": 1, "SourceSwap": 1, "WorkGroupMapping": 8, "StaggerU": 0}
    plain |= {"DepthU": depth, "PrefetchGlobalRead": 2, "MIWaveGroup": "2x2"}
    plain = {name: value for name, value in plain.items() if name in values}
    tiles = [(8, 8), (4, 8), (8, 4), (4, 4), (2, 4), (4, 2), (2, 2), (1, 1)]
    rows, columns = problem.dims["n"], problem.dims["m"]  # of the column-major GEMM

    def tiles_of(tile: tuple[int, int]) -> int:
        return math.ceil(rows / (32 * tile[0])) * math.ceil(columns / (32 * tile[1]))

    filling = [tile for tile in tiles if tiles_of(tile) >= 256]
    tiles = filling + [tile for tile in reversed(tiles) if tile not in filling]
    return [
        FrozenDict({**plain, "MIWaveTileA": a, "MIWaveTileB": b})
        for a, b in tiles
        if a in values["MIWaveTileA"]
    ]


def _bytes(problem: Problem) -> int:
    return dtype(problem.dtypes["a"]).bits // 8


def _shape(config: Config) -> tuple[int, int, int]:
    """Return the rows and columns of a tile, and the number of waves that compute it."""
    m, n, _ = map(int, str(config["MatrixInstruction"]).split("x"))
    down, across = map(int, str(config["MIWaveGroup"]).split("x"))
    rows = m * int(config["MIWaveTileA"]) * down
    return rows, n * int(config["MIWaveTileB"]) * across, down * across


def forbids(config: Config, problem: Problem, lds_bytes: int) -> str | None:
    """Return why Tensile would refuse a config, of the commonest reasons, or why it is the same as
    another one; None if neither is known."""
    for side in "AB":
        tile, width = int(config[f"MIWaveTile{side}"]), int(config.get(f"VectorWidth{side}", 1))
        if width > 0 and tile % width:
            return f"MIWaveTile{side} {tile} is no multiple of VectorWidth{side} {width}"
    rows, columns, waves = _shape(config)
    if rows * columns > LARGEST_TILE * WAVE * waves:
        return f"a tile of {rows}×{columns} needs more registers than {waves} waves have"
    staged = (rows + columns) * int(config["DepthU"]) * _bytes(problem)
    if staged > lds_bytes and not (config.get("DirectToVgprA") or config.get("DirectToVgprB")):
        return f"{staged} bytes of a step do not fit into {lds_bytes} of LDS"
    split = int(config.get("GlobalSplitU", 1))
    if bool(config.get("StreamK")) != (split == 0):
        return "GlobalSplitU is 0 with StreamK, which splits k itself, and only then"
    if config.get("StreamK") and (waves != 4 or config["LocalSplitU"] != 1):
        return "StreamK needs 4 waves"
    if split < 2 and config.get("GlobalSplitUAlgorithm", "") == "MultipleBufferSingleKernel":
        return "GlobalSplitUAlgorithm has no effect without a split"
    if not config.get("StaggerU", 1) and any(
        config.get(name, value) != value
        for name, value in (("StaggerUStride", 128), ("StaggerUMapping", 0))
    ):
        return "StaggerUStride and StaggerUMapping have no effect without StaggerU"
    return None


def tensile_parameters(config: Config) -> dict[str, Any]:
    """Return a config as Tensile's dictionary: the instruction, the tile and the waves are one list
    there, and the split of a work group along k is the third of its sizes."""
    given: dict[str, Any] = {**_FIXED, **config}
    m, n, k = map(int, given.pop("MatrixInstruction").split("x"))
    waves = map(int, given.pop("MIWaveGroup").split("x"))
    tile = given.pop("MIWaveTileA"), given.pop("MIWaveTileB")
    given["MatrixInstruction"] = [m, n, k, 1, 1, *tile, *waves]
    given["WorkGroup"] = [16, 16, given.pop("LocalSplitU")]
    return given
