"""gemm_epilogue: a contraction, and one elementwise op for scales, bias and activation.

IREE fuses the elementwise op into the contraction's dispatch. With MX operands, the contraction
itself also reads the block scales: in this form IREE maps it to scaled matrix instructions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir._matmul import contract, mx_matmul
from kernelmark.kernels.mlir._matmul import refuses as refuses_types
from kernelmark.kernels.mlir.base import DTYPE_OF, Form, Graph, Source, Value
from kernelmark.numerics.mxfp4 import GROUP


class GemmEpilogue(Source):
    """D = d_scale · act(a_scale · b_scale · op(A) · op(B) + bias)."""

    def refuses(self, problem: Problem) -> str | None:
        layout = problem.options.get("scale_layout", "linear")
        if layout != "linear":
            return f"MLIR's contractions read block scales row by row, not as scale_layout={layout}"
        return refuses_types(problem)

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        a, b = graph.inputs["a"], graph.inputs["b"]
        if problem.options["scale"] == "mx":
            blocks = problem.dims["k"] // GROUP
            a, b = (_in_blocks(graph, value, blocks) for value in (a, b))
            operands = [(a, "i, g, k"), (b, "j, g, k")]
            operands += [(graph.inputs["a_scale"], "i, g"), (graph.inputs["b_scale"], "j, g")]
            product = mx_matmul(graph, "i, j, g, k", operands, "i, j", graph.output.dims)
        else:
            transposed = problem.options["ta"] == "t", problem.options["tb"] == "t"
            product = contract(
                graph, a, b, transposed=transposed, shape=graph.output.dims, acc="f32"
            )
        return graph.module(_finish(graph, product, problem))


def _in_blocks(graph: Graph, value: Value, blocks: int) -> Value:
    """Split the last dim, k, into blocks that share a scale."""
    return graph.reshape(value, [[0], [1, 2]], (value.dims[0], blocks, GROUP))


def _finish(graph: Graph, product: Value, problem: Problem) -> Value:
    """Apply scales, bias and activation in f32, then saturate and cast to the output's dtype."""
    factors = ["a_scale", "b_scale"] if problem.options["scale"] == "tensor" else []
    names = [name for name in (*factors, "bias", "d_scale") if name in graph.inputs]
    operands = [(product, "i, j")]
    operands += [(graph.inputs[name], "j" if name == "bias" else "0") for name in names]

    def body(g: Graph, scalars: list[Value]) -> Value:
        extra = dict(zip(names, scalars[1:], strict=False))
        total = scalars[0]
        for name in factors:
            total = g.scalar("mul", total, extra[name])
        if "bias" in extra:
            total = g.scalar("add", total, g.cast(extra["bias"], "f32"))
        total = _activated(g, total, str(problem.options["act"]))
        if "d_scale" in extra:
            top = dtype(DTYPE_OF[graph.output.type]).max_value
            total = g.scalar("mul", total, extra["d_scale"])
            total = g.scalar("minimum", total, g.constant(top, "f32"))
            total = g.scalar("maximum", total, g.constant(-top, "f32"))
        return g.cast(total, graph.output.type)

    out = graph.empty(graph.output.dims, graph.output.type)
    return graph.each("i, j", operands, (out, "i, j"), body)


def _activated(g: Graph, x: Value, act: str) -> Value:
    one = g.constant(1, "f32")
    if act == "relu":
        return g.scalar("maximum", x, g.constant(0, "f32"))
    if act == "gelu":  # the tanh approximation
        cube = g.scalar("mul", g.scalar("mul", x, x), x)
        inner = g.scalar("add", x, g.scalar("mul", cube, g.constant(0.044715, "f32")))
        inner = g.scalar("mul", inner, g.constant(math.sqrt(2 / math.pi), "f32"))
        tanh = g.add(f"math.tanh {inner.name} : f32", None, "f32")
        half = g.scalar("mul", x, g.constant(0.5, "f32"))
        return g.scalar("mul", half, g.scalar("add", tanh, one))
    if act == "silu":
        negative = g.add(f"arith.negf {x.name} : f32", None, "f32")
        power = g.add(f"math.exp {negative.name} : f32", None, "f32")
        return g.scalar("div", x, g.scalar("add", power, one))
    return x


source = GemmEpilogue()
