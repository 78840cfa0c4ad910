"""gemm as one linalg.matmul with typed accumulators."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir import _matmul
from kernelmark.kernels.mlir.base import Form, Source


class Gemm(Source):
    """Two dims of output, one contraction."""

    def refuses(self, problem: Problem) -> str | None:
        return _matmul.refuses(problem)

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        return _matmul.text(problem, tensors, form)


source = Gemm()
