"""copy as one elementwise op."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir._matmul import refuses as refuses_types
from kernelmark.kernels.mlir.base import Form, Graph, Source


class Copy(Source):
    """Y = X."""

    def refuses(self, problem: Problem) -> str | None:
        return refuses_types(problem)

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        out = graph.empty(graph.output.dims, graph.output.type)
        return graph.module(
            graph.each("i", [(graph.inputs["x"], "i")], (out, "i"), lambda g, scalars: scalars[0])
        )


source = Copy()
