"""batched_gemm: many GEMMs of one shape, with matrices contiguous in memory."""

from __future__ import annotations

from kernelmark.ops.gemm import Matmul


class BatchedGemm(Matmul):
    """D[i] = alpha·op(A[i])·op(B[i]) + beta·C[i] + bias; the bias is the same for every i."""

    name = "batched_gemm"
    summary = "strided batch of GEMMs of one shape"
    examples = (
        "batched_gemm batch=3 m=17 n=19 k=23 dtype=f32",
        "batched_gemm batch=3 m=17 n=19 k=23 dtype=f32 ta=t tb=t alpha=0.5 beta=-1.5 bias=yes",
        "batched_gemm batch=2 m=16 n=32 k=48 dtype=f16",
        "batched_gemm batch=2 m=16 n=32 k=48 dtype=bf16 tb=t bias=yes",
        "batched_gemm batch=2 m=16 n=32 k=48 dtype=i8",
    )
    batch_dims = ("batch",)


op = BatchedGemm()
