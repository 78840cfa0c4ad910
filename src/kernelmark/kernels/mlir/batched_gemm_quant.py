"""batched_gemm_quant: contractions of 8-bit operands, scaled afterwards.

`a8w8_group` quantises A first: a reduction finds the largest element of each group, and the groups
are then a batch of contractions, whose sums are scaled and added in f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir._matmul import refuses as refuses_types
from kernelmark.kernels.mlir.base import (
    Form,
    Graph,
    Source,
    Value,
    affine_map,
    is_float,
    tensor_type,
)

_FLOOR = 1e-10  # as in the op: a group of zeros is divided by this, not by zero


class BatchedGemmQuant(Source):
    """D[i] = A[i] · B[i]ᵀ with scales, for the schemes of 8 bits."""

    def refuses(self, problem: Problem) -> str | None:
        return refuses_types(problem)

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        grouped = problem.options["scheme"] == "a8w8_group"
        summed = _grouped_sums(graph, problem) if grouped else _sums(graph, problem)
        return graph.module(_finish(graph, problem, summed))

    def scratch_bytes(self, problem: Problem, form: Form) -> int:
        """The sums of each group, which are kept whole."""
        d = problem.dims
        groups = -(-d["k"] // d["group"]) if "group" in d else 1
        return 4 * d["batch"] * d["m"] * d["n"] * groups


def _rows(problem: Problem) -> str:
    """The dims of A's rows in the order that they are stored in."""
    return "i, b" if problem.options["a_order"] == "mbk" else "b, i"


def _contract(
    graph: Graph, a: Value, b: Value, maps: tuple[str, str, str], loops: str, shape: tuple[int, ...]
) -> Value:
    acc = "f32" if is_float(b.type) else "i32"
    written = ", ".join(affine_map(loops, one) for one in maps)
    start = graph.filled(0, shape, acc)
    return graph.named("linalg.contract", [a, b], start, before=f"indexing_maps = [{written}]")


def _sums(graph: Graph, problem: Problem) -> Value:
    d = problem.dims
    maps = (f"{_rows(problem)}, k", "b, j, k", "b, i, j")
    shape = (d["batch"], d["m"], d["n"])
    return _contract(graph, graph.inputs["a"], graph.inputs["b"], maps, "b, i, j, k", shape)


def _grouped_sums(graph: Graph, problem: Problem) -> Value:
    """Sum of each group's integers or 8-bit floats times the group's scale, in f32."""
    d, rows = problem.dims, _rows(problem)
    groups = -(-d["k"] // d["group"])
    a, b = (_split(graph, graph.inputs[name], groups, d["group"]) for name in "ab")
    loops = f"{rows}, g, k"
    lines = a.dims[:2]

    def largest(g: Graph, scalars: list[Value]) -> Value:
        wide = g.cast(scalars[0], "f32")
        size = g.add(f"math.absf {wide.name} : f32", None, "f32")
        return g.scalar("maximum", scalars[1], size)

    start = graph.filled(_FLOOR, (*lines, groups), "f32")
    top = dtype(problem.dtypes["b"]).max_value
    peaks = graph.each(loops, [(a, loops)], (start, f"{rows}, g"), largest, reduced=("k",))

    def scaled(g: Graph, scalars: list[Value]) -> Value:
        return g.scalar("div", scalars[0], g.constant(top, "f32"))

    by_group = f"{rows}, g"
    empty = graph.empty((*lines, groups), "f32")
    scales = graph.each(by_group, [(peaks, by_group)], (empty, by_group), scaled)

    def quantised(g: Graph, scalars: list[Value]) -> Value:
        inverse = g.scalar("div", g.constant(1, "f32"), scalars[1])
        value = g.scalar("mul", g.cast(scalars[0], "f32"), inverse)
        value = g.scalar("minimum", value, g.constant(top, "f32"))
        value = g.scalar("maximum", value, g.constant(-top, "f32"))
        if not is_float(b.type):  # a conversion to integers cuts off
            value = g.add(f"math.roundeven {value.name} : f32", None, "f32")
        return g.cast(value, b.type)

    out = graph.empty(a.dims, b.type)
    small = graph.each(loops, [(a, loops), (scales, by_group)], (out, loops), quantised)
    shape = (d["batch"], groups, d["m"], d["n"])
    maps = (loops, "b, j, g, k", "b, g, i, j")
    parts = _contract(graph, small, b, maps, "b, g, i, j, k", shape)

    def added(g: Graph, scalars: list[Value]) -> Value:
        term = g.scalar("mul", g.cast(scalars[0], "f32"), scalars[1])
        return g.scalar("add", scalars[2], term)

    total = graph.filled(0, (d["batch"], d["m"], d["n"]), "f32")
    pairs = [(parts, "b, g, i, j"), (scales, by_group)]
    return graph.each("b, i, j, g", pairs, (total, "b, i, j"), added, reduced=("g",))


def _split(graph: Graph, value: Value, groups: int, group: int) -> Value:
    """The last dim as (groups, group), with zeros where it ends inside a group."""
    *lines, k = value.dims
    shape = (*lines, groups * group)
    missing = shape[-1] - k
    if missing != 0:
        zero = graph.constant(0, value.type)
        value = graph.add(
            f"tensor.pad {value.name} low[0, 0, 0] high[0, 0, {graph.size(missing)}] {{ "
            f"^bb0(%at0: index, %at1: index, %at2: index): tensor.yield {zero.name} : {value.type} "
            f"}} : {value.text} to {tensor_type(shape, value.type)}",
            shape,
            value.type,
        )
    return graph.reshape(value, [[0], [1], [2, 3]], (*lines, groups, group))


def _finish(graph: Graph, problem: Problem, summed: Value) -> Value:
    """Scale, add the bias and round, in the output's order."""
    grouped = problem.options["scheme"] == "a8w8_group"
    factors = [("b_scale", "0")] if grouped else [("a_scale", _rows(problem)), ("b_scale", "b, j")]
    operands = [(summed, "b, i, j"), *((graph.inputs[name], where) for name, where in factors)]
    if problem.options["bias"]:
        operands.append((graph.inputs["bias"], "b, j"))

    def body(g: Graph, scalars: list[Value]) -> Value:
        total = g.cast(scalars[0], "f32")
        for factor in scalars[1 : 1 + len(factors)]:
            total = g.scalar("mul", total, factor)
        if problem.options["bias"]:
            total = g.scalar("add", total, g.cast(scalars[1 + len(factors)], "f32"))
        return g.cast(total, graph.output.type)

    order = "i, b, j" if problem.options["c_order"] == "mbn" else "b, i, j"
    out = graph.empty(graph.output.dims, graph.output.type)
    return graph.each("b, i, j", operands, (out, order), body)


source = BatchedGemmQuant()
