"""batched_gemm_quant: contractions of 8-bit operands, scaled afterwards, and of MXFP4.

`a8w8_group` quantises A first: a reduction finds the largest element of each group, and the groups
are then a batch of contractions, whose sums are scaled and added in f32. MXFP4 is one contraction
of elements with their groups' scales, in the form that IREE maps to matrix instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir.base import (
    Form,
    Graph,
    Source,
    Value,
    affine_map,
    is_float,
    tensor_type,
)
from kernelmark.kernels.mlir.gemm import mx_matmul
from kernelmark.numerics import floats

_FLOOR = 1e-10  # avoids a division by zero for a group of zeros, as in the op


class BatchedGemmQuant(Source):
    """D[i] = A[i] · B[i]ᵀ with scales."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        sums = {"a8w8": _sums, "a8w8_group": _grouped_sums}
        summed = sums.get(str(problem.options["scheme"]), _mxfp4_sums)(graph, problem)
        return graph.module(_finish(graph, problem, summed))

    def scratch_bytes(self, problem: Problem, form: Form) -> int:
        """Return the bytes of the sums of each group, which are stored completely."""
        d = problem.dims
        groups = -(-d["k"] // d["group"]) if "group" in d else 1
        return 4 * d["batch"] * d["m"] * d["n"] * groups


def _rows(problem: Problem) -> str:
    """Return the dims of A's rows in storage order."""
    return "i, b" if problem.options["a_order"] == "mbk" else "b, i"


def _contract(
    graph: Graph, a: Value, b: Value, maps: tuple[str, str, str], loops: str, shape: tuple[int, ...]
) -> Value:
    acc = "f32" if is_float(b.type) else "i32"
    written = ", ".join(affine_map(loops, item) for item in maps)
    start = graph.filled(0, shape, acc)
    return graph.named("linalg.contract", [a, b], start, before=f"indexing_maps = [{written}]")


def _sums(graph: Graph, problem: Problem) -> Value:
    d = problem.dims
    maps = (f"{_rows(problem)}, k", "b, j, k", "b, i, j")
    shape = (d["batch"], d["m"], d["n"])
    return _contract(graph, graph.inputs["a"], graph.inputs["b"], maps, "b, i, j, k", shape)


def _grouped_sums(graph: Graph, problem: Problem) -> Value:
    """Return the sum of each group's integers or 8-bit floats times the group's scale, in f32."""
    d, rows = problem.dims, _rows(problem)
    groups = -(-d["k"] // d["group"])
    a, b = (_split(graph, graph.inputs[name], groups, d["group"]) for name in "ab")
    loops = f"{rows}, g, k"
    lines = a.dims[:2]

    start = graph.filled(_FLOOR, (*lines, groups), "f32")
    top = dtype(problem.dtypes["b"]).max_value
    peaks = graph.each(loops, [(a, loops)], (start, f"{rows}, g"), _largest, reduced=("k",))

    def scaled(g: Graph, scalars: list[Value]) -> Value:
        return g.scalar("div", scalars[0], g.constant(top, "f32"))

    by_group = f"{rows}, g"
    empty = graph.empty((*lines, groups), "f32")
    scales = graph.each(by_group, [(peaks, by_group)], (empty, by_group), scaled)

    def quantised(g: Graph, scalars: list[Value]) -> Value:
        # The reciprocal first, then a product: the reference rounds both, so kernels have to.
        inverse = g.scalar("div", g.constant(1, "f32"), scalars[1])
        value = g.scalar("mul", g.cast(scalars[0], "f32"), inverse)
        value = g.scalar("minimum", value, g.constant(top, "f32"))
        value = g.scalar("maximum", value, g.constant(-top, "f32"))
        if not is_float(b.type):  # a conversion to integers truncates
            value = g.add(f"math.roundeven {value.name} : f32", None, "f32")
        return g.cast(value, b.type)

    out = graph.empty(a.dims, b.type)
    small = graph.each(loops, [(a, loops), (scales, by_group)], (out, loops), quantised)
    # Groups are a batch dim: IREE has no contraction that scales within its sum.
    shape = (d["batch"], groups, d["m"], d["n"])
    maps = (loops, "b, j, g, k", "b, g, i, j")
    parts = _contract(graph, small, b, maps, "b, g, i, j, k", shape)

    def added(g: Graph, scalars: list[Value]) -> Value:
        term = g.scalar("mul", g.cast(scalars[0], "f32"), scalars[1])
        return g.scalar("add", scalars[2], term)

    total = graph.filled(0, (d["batch"], d["m"], d["n"]), "f32")
    pairs = [(parts, "b, g, i, j"), (scales, by_group)]
    return graph.each("b, i, j, g", pairs, (total, "b, i, j"), added, reduced=("g",))


def _mxfp4_sums(graph: Graph, problem: Problem) -> Value:
    d, rows = problem.dims, _rows(problem)
    groups = d["k"] // floats.GROUP
    a, b = (_grouped(graph, graph.inputs[name], groups, floats.GROUP) for name in "ab")
    by_group = f"{rows}, g"
    a_scale = graph.inputs.get("a_scale")
    if a_scale is None:
        a, a_scale = _to_mxfp4(graph, a, by_group)

    operands = [(a, f"{by_group}, k"), (b, "b, j, g, k"), (a_scale, by_group)]
    operands.append((graph.inputs["b_scale"], "b, j, g"))
    shape = (d["batch"], d["m"], d["n"])
    return mx_matmul(graph, "b, i, j, g, k", operands, "b, i, j", shape)


def _to_mxfp4(graph: Graph, a: Value, by_group: str) -> tuple[Value, Value]:
    """Return A's elements and the scales of its groups, by the rule of `numerics.mxfp4`."""
    loops, lines = f"{by_group}, k", a.dims[:-1]
    start = graph.filled(0, lines, "f32")
    peaks = graph.each(loops, [(a, loops)], (start, by_group), _largest, reduced=("k",))

    def scale(g: Graph, scalars: list[Value]) -> Value:
        bits = g.add(f"arith.bitcast {scalars[0].name} : f32 to i32", None, "i32")
        # Adding to the bits rounds the significand: from 1.75 on it carries into the exponent.
        carried = g.scalar("add", bits, g.constant(int(floats.ROUND_UP), "i32"))
        exponent = g.scalar("shru", carried, g.constant(23, "i32"))
        code = g.scalar(
            "maxs", g.scalar("sub", exponent, g.constant(2, "i32")), g.constant(0, "i32")
        )
        # The exponent of infinity maps to the largest scale, without subtracting two.
        top, last = g.constant(floats.INFINITE, "i32"), g.constant(floats.INFINITE - 1, "i32")
        full = g.add(f"arith.cmpi uge, {exponent.name}, {top.name} : i32", None, "i1")
        code = g.add(f"arith.select {full.name}, {last.name}, {code.name} : i32", None, "i32")
        byte = g.cast(code, "i8")
        return g.add(f"arith.bitcast {byte.name} : i8 to f8E8M0FNU", None, "f8E8M0FNU")

    empty = graph.empty(lines, "f8E8M0FNU")
    scales = graph.each(by_group, [(peaks, by_group)], (empty, by_group), scale)

    def element(g: Graph, scalars: list[Value]) -> Value:
        value = g.scalar("mul", g.cast(scalars[0], "f32"), _inverse(g, scalars[1]))
        return g.cast(_on_f4_grid(g, value), "f4E2M1FN")

    out = graph.empty(a.dims, "f4E2M1FN")
    return graph.each(loops, [(a, loops), (scales, by_group)], (out, loops), element), scales


def _inverse(g: Graph, scale: Value) -> Value:
    """Return 1 / scale, from its bits, as the smallest scale is subnormal in f32."""
    byte = g.add(f"arith.bitcast {scale.name} : {scale.type} to i8", None, "i8")
    code = g.add(f"arith.extui {byte.name} : i8 to i32", None, "i32")
    exponent = g.scalar("sub", g.constant(floats.INFINITE - 1, "i32"), code)
    bits = g.scalar("shl", exponent, g.constant(23, "i32"))
    return g.add(f"arith.bitcast {bits.name} : i32 to f32", None, "f32")


def _on_f4_grid(g: Graph, value: Value) -> Value:
    """Return the nearest value of f4E2M1FN, ties to even, in f32.

    IREE 3.13's emulated conversion to that type maps 0.75 to 1 to 0; it is correct for values that
    the type represents.
    """
    size = g.add(f"math.absf {value.name} : f32", None, "f32")
    step = g.constant(0.5, "f32")
    for start in (2.0, 4.0):  # values are 0.5, 1 and 2 apart from 0, 2 and 4 on
        above = g.add(
            f"arith.cmpf oge, {size.name}, {g.constant(start, 'f32').name} : f32", None, "i1"
        )
        wider = g.constant(start / 2, "f32")
        step = g.add(f"arith.select {above.name}, {wider.name}, {step.name} : f32", None, "f32")
    count = g.scalar("div", size, step)
    even = g.add(f"math.roundeven {count.name} : f32", None, "f32")
    near = g.scalar("minimum", g.scalar("mul", even, step), g.constant(6, "f32"))
    return g.add(f"math.copysign {near.name}, {value.name} : f32", None, "f32")


def _largest(g: Graph, scalars: list[Value]) -> Value:
    wide = g.cast(scalars[0], "f32")
    size = g.add(f"math.absf {wide.name} : f32", None, "f32")
    return g.scalar("maximum", scalars[1], size)


def _split(graph: Graph, value: Value, groups: int, group: int) -> Value:
    """Return the last dim as (groups, group), padded with zeros to whole groups."""
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
    return _grouped(graph, value, groups, group)


def _grouped(graph: Graph, value: Value, groups: int, group: int) -> Value:
    """Return the last dim as (groups, group)."""
    return graph.reshape(value, [[0], [1], [2, 3]], (*value.dims[:2], groups, group))


def _finish(graph: Graph, problem: Problem, summed: Value) -> Value:
    """Scale, add the bias and round, in the output's order."""
    scales = {
        "a8w8": [("a_scale", _rows(problem)), ("b_scale", "b, j")],
        "a8w8_group": [("b_scale", "0")],
    }
    factors = scales.get(str(problem.options["scheme"]), [])
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
