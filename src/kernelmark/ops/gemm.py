"""gemm: one matrix product."""

from __future__ import annotations

from kernelmark.ops._matmul import Matmul


class Gemm(Matmul):
    """D = alpha·op(A)·op(B) + beta·C + bias."""

    name = "gemm"
    summary = "matrix product D = alpha·op(A)·op(B) + beta·C + bias"


op = Gemm()
