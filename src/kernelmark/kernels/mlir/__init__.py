"""MLIR of the ops, generated per problem: a `Source` for each op, by its name."""

from __future__ import annotations

from collections.abc import Mapping

from kernelmark.kernels.mlir.attention import Attention
from kernelmark.kernels.mlir.base import Source
from kernelmark.kernels.mlir.batched_gemm_quant import BatchedGemmQuant
from kernelmark.kernels.mlir.conv import Conv
from kernelmark.kernels.mlir.gemm import Copy, Gemm, GemmEpilogue

SOURCES: Mapping[str, Source] = {
    "attention": Attention(),
    "batched_gemm": Gemm(),
    "batched_gemm_quant": BatchedGemmQuant(),
    "conv": Conv(),
    "copy": Copy(),
    "gemm": Gemm(),
    "gemm_epilogue": GemmEpilogue(),
}
