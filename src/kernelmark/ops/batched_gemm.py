"""batched_gemm: many matrix products of one shape, matrices stored one after the other."""

from __future__ import annotations

from kernelmark.ops._matmul import Matmul


class BatchedGemm(Matmul):
    """D[i] = alpha·op(A[i])·op(B[i]) + beta·C[i] + bias; the bias is the same for every i."""

    name = "batched_gemm"
    summary = "strided batch of matrix products of one shape"
    batch_dims = ("batch",)


op = BatchedGemm()
