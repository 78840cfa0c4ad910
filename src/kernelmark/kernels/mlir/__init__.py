"""MLIR of the ops, generated per problem: a `MlirSource` for each op, by its name."""

from __future__ import annotations

from collections.abc import Mapping

from kernelmark.kernels.mlir.base import MlirSource
from kernelmark.kernels.mlir.sources import (
    MlirAttention,
    MlirBatchedGemmQuant,
    MlirConv,
    MlirCopy,
    MlirGemm,
    MlirGemmEpilogue,
)

SOURCES: Mapping[str, MlirSource] = {
    "attention": MlirAttention(),
    "batched_gemm": MlirGemm(),
    "batched_gemm_quant": MlirBatchedGemmQuant(),
    "conv": MlirConv(),
    "copy": MlirCopy(),
    "gemm": MlirGemm(),
    "gemm_epilogue": MlirGemmEpilogue(),
}
