"""batched_gemm as one linalg.batch_matmul with typed accumulators."""

from __future__ import annotations

from kernelmark.kernels.mlir._matmul import Gemm

source = Gemm()
