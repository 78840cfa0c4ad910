"""Shared code of GEMMs: the contraction, and the epilogue of a plain GEMM."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir.base import Form, Graph, Source, Value, affine_map, element_type


def refuses(problem: Problem) -> str | None:
    """Return why MLIR has no such tensor, or None."""
    for name, dtype_name in problem.dtypes.items():
        if element_type(dtype_name) is None:
            return f"MLIR has no tensor of {dtype_name} ({name})"
    return None


class Gemm(Source):
    """D = alpha · op(A) · op(B) + beta · C + bias, with a leading batch dim if D has three."""

    def refuses(self, problem: Problem) -> str | None:
        return refuses(problem)

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
