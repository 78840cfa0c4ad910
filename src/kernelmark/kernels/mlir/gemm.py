"""gemm, batched_gemm, gemm_epilogue and copy: a contraction, and one elementwise op.

IREE fuses the elementwise op, for scales, bias and activation, into the contraction's dispatch.
With MX operands, the contraction itself also reads the block scales: in this form IREE maps it to
scaled matrix instructions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir.base import (
    DTYPE_OF,
    Form,
    Graph,
    Source,
    Value,
    affine_map,
    element_type,
)
from kernelmark.numerics.floats import GROUP


class Gemm(Source):
    """D = alpha · op(A) · op(B) + beta · C + bias, with a leading batch dim if D has three."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        product = contract(
            graph,
            graph.inputs["a"],
            graph.inputs["b"],
            transposed=(problem.options["ta"] == "t", problem.options["tb"] == "t"),
            shape=graph.output.dims,
            acc=element_type(problem.dtypes["acc"]) or "",
        )
        return graph.module(_finish(graph, product, problem))


def contract(
    graph: Graph,
    a: Value,
    b: Value,
    *,
    transposed: tuple[bool, bool],
    shape: tuple[int, ...],
    acc: str,
    start: Value | None = None,
) -> Value:
    """Return op(A) · op(B) accumulated in `acc`, added to `start` if given; operands narrower than
    `acc` are upcast first."""
    batched = len(shape) == 3
    lead = "b, " if batched else ""
    # Without maps linalg.matmul is m×k by k×n; with them it reads transposed operands in place.
    maps = ""
    if any(transposed):
        loops = f"{lead}i, j, k"
        a_map = lead + ("k, i" if transposed[0] else "i, k")
        b_map = lead + ("j, k" if transposed[1] else "k, j")
        written = ", ".join(affine_map(loops, m) for m in (a_map, b_map, f"{lead}i, j"))
        maps = f"indexing_maps = [{written}]"
    return graph.named(
        "linalg.batch_matmul" if batched else "linalg.matmul",
        [a, b],
        start or graph.filled(0, shape, acc),
        before=maps,
    )


def mx_matmul(
    graph: Graph,
    loops: str,
    operands: Sequence[tuple[Value, str]],
    result: str,
    shape: tuple[int, ...],
) -> Value:
    """Return the GEMM of A and B with a scale per block `g` of `k` elements, summed in f32.
    `operands` are A, B and their scales, each with its indices."""

    # arith.scaling_extf in a contraction is what IREE maps to scaled matrix instructions.
    def body(g: Graph, scalars: list[Value]) -> Value:
        left, right, left_scale, right_scale, total = scalars
        factors = _scaled(g, left, left_scale), _scaled(g, right, right_scale)
        return g.scalar("add", total, g.scalar("mul", *factors))

    total = graph.filled(0, shape, "f32")
    return graph.each(loops, operands, (total, result), body, reduced=("g", "k"))


def _scaled(g: Graph, value: Value, scale: Value) -> Value:
    """Return an element times its block's scale."""
    types = f"{value.type}, {scale.type} to f32"
    return g.add(f"arith.scaling_extf {value.name}, {scale.name} : {types}", None, "f32")


def _finish(graph: Graph, product: Value, problem: Problem) -> Value:
    """Scale, add and round in one elementwise op, which is left out if it would do nothing."""
    alpha, beta = float(problem.options["alpha"]), float(problem.options["beta"])
    out = graph.output.type
    added = [(name, graph.inputs[name]) for name in ("c", "bias") if name in graph.inputs]
    if alpha == 1 and not added and product.type == out:
        return product
    loops = "b, i, j" if len(graph.output.dims) == 3 else "i, j"
    # The bias has only the column's index: it is read again for every row, from the cache.
    whole = [(product, loops)]
    whole += [(value, loops if name == "c" else "j") for name, value in added]

    def body(g: Graph, scalars: list[Value]) -> Value:
        total = scalars[0]
        if alpha != 1:
            total = g.scalar("mul", total, g.constant(alpha, product.type))
        for (name, _), scalar in zip(added, scalars[1:], strict=False):
            term = g.cast(scalar, product.type)
            if name == "c" and beta != 1:
                term = g.scalar("mul", term, g.constant(beta, product.type))
            total = g.scalar("add", total, term)
        return g.cast(total, out)

    return graph.each(loops, whole, (graph.empty(graph.output.dims, out), loops), body)


class GemmEpilogue(Source):
    """D = d_scale · act(a_scale · b_scale · op(A) · op(B) + bias)."""

    def refuses(self, problem: Problem) -> str | None:
        layout = problem.options.get("scale_layout", "linear")
        if layout != "linear":
            return f"MLIR's contractions read block scales row by row, not as scale_layout={layout}"
        return super().refuses(problem)

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
        return graph.module(_epilogue(graph, product, problem))


def _in_blocks(graph: Graph, value: Value, blocks: int) -> Value:
    """Split the last dim, k, into blocks that share a scale."""
    return graph.reshape(value, [[0], [1, 2]], (value.dims[0], blocks, GROUP))


def _epilogue(graph: Graph, product: Value, problem: Problem) -> Value:
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
            # A cast beyond the largest 8-bit float gives NaN or infinity; libraries saturate.
            total = g.scalar("minimum", total, g.constant(top, "f32"))
            total = g.scalar("maximum", total, g.constant(-top, "f32"))
        return g.cast(total, graph.output.type)

    out = graph.empty(graph.output.dims, graph.output.type)
    return graph.each("i, j", operands, (out, "i, j"), body)


def _activated(g: Graph, x: Value, act: str) -> Value:
    one = g.constant(1, "f32")
    if act == "relu":
        return g.scalar("maximum", x, g.constant(0, "f32"))
    if act == "gelu":
        # GELU by tanh, as the epilogues of the BLAS libraries compute it, not by erf.
        cube = g.scalar("mul", g.scalar("mul", x, x), x)
        inner = g.scalar("add", x, g.scalar("mul", cube, g.constant(0.044715, "f32")))
        inner = g.scalar("mul", inner, g.constant(math.sqrt(2 / math.pi), "f32"))
        tanh = g.add(f"math.tanh {inner.name} : f32", None, "f32")
        half = g.scalar("mul", x, g.constant(0.5, "f32"))
        return g.scalar("mul", half, g.scalar("add", tanh, one))
    if act == "silu":
        # x / (1 + exp(-x)): for large -x the exponential is infinite and the quotient 0.
        negative = g.add(f"arith.negf {x.name} : f32", None, "f32")
        power = g.add(f"math.exp {negative.name} : f32", None, "f32")
        return g.scalar("div", x, g.scalar("add", power, one))
    return x


class Copy(Source):
    """Y = X."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        out = graph.empty(graph.output.dims, graph.output.type)
        return graph.module(
            graph.each("i", [(graph.inputs["x"], "i")], (out, "i"), lambda g, scalars: scalars[0])
        )
