"""gemm: one GEMM."""

from __future__ import annotations

from kernelmark.ops._matmul import Matmul


class Gemm(Matmul):
    """D = alpha·op(A)·op(B) + beta·C + bias."""

    name = "gemm"
    summary = "GEMM D = alpha·op(A)·op(B) + beta·C + bias"
    examples = (
        "gemm m=33 n=47 k=65 dtype=f64",
        "gemm m=33 n=47 k=65 dtype=f32",
        "gemm m=64 n=64 k=128 dtype=f16",
        "gemm m=64 n=48 k=128 dtype=bf16 tb=t",
        "gemm m=32 n=48 k=64 dtype=i8",
        "gemm m=32 n=48 k=64 dtype=f8e4m3 tb=t",
        "gemm m=32 n=48 k=64 dtype=f8e5m2fnuz",
        "gemm m=1 n=1 k=1 dtype=f32",
        "gemm m=1 n=64 k=300 dtype=f32 ta=t tb=t",
        "gemm m=16 n=1 k=70 dtype=f16 ta=t",
        "gemm m=33 n=47 k=65 dtype=f32 alpha=0.5 beta=2.0 bias=yes",
        "gemm m=33 n=47 k=65 dtype=f32 beta=1.0 tb=t",
        "gemm m=32 n=48 k=64 dtype=f16 alpha=0.7 beta=0.3",
        "gemm m=32 n=48 k=64 dtype=bf16 bias=yes",
        "gemm m=32 n=48 k=64 dtype=i8 alpha=2.0 beta=-3.0 bias=yes ta=t",
        "gemm m=32 n=48 k=64 dtype=f16 c=f32",
        "gemm m=32 n=48 k=64 dtype=f16 acc=f16",
    )


op = Gemm()
