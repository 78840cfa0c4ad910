"""Sources of the ops: contractions, elementwise ops that IREE fuses into them, attention, conv.

gemm, batched_gemm, gemm_epilogue and copy: a contraction, and one elementwise op for scales, bias
and activation. With MX operands, the contraction itself also reads the block scales: in this form
IREE maps it to scaled matrix instructions.

batched_gemm_quant: contractions of 8-bit operands, scaled afterwards, and of MXFP4. `a8w8_group`
quantises A first: a reduction finds the largest element of each group, and the groups are then a
batch of contractions, whose sums are scaled and added in f32.

attention: on CPUs, IREE lowers `iree_linalg_ext.attention` to code that is many times slower than
the three separate steps, so CPUs get the steps. GPUs get the op, whose lowering is made for them,
except for f64, which it does not support.

conv: a named linalg convolution, the one of nhwc images and hwcf filters after transposes, patches
times filters (im2col), or GEMMs (1 × 1, nchw).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir.base import (
    DTYPE_OF,
    Form,
    Graph,
    MlirSource,
    Size,
    Value,
    affine_map,
    element_type,
    is_float,
    tensor_type,
)
from kernelmark.numerics import floats
from kernelmark.numerics.floats import GROUP
from kernelmark.ops.attention import scale
from kernelmark.ops.conv import op, output_size


class MlirGemm(MlirSource):
    """D = alpha · op(A) · op(B) + beta · C + bias, with a leading batch dim if D has three."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        product = contract(
            graph,
            graph.inputs["a"],
            graph.inputs["b"],
            graph.filled(0, graph.output.dims, element_type(problem.dtypes["acc"]) or ""),
            transposed=(problem.options["ta"] == "t", problem.options["tb"] == "t"),
        )
        return graph.module(_finish(graph, product, problem))


def contract(
    graph: Graph, a: Value, b: Value, start: Value, *, transposed: tuple[bool, bool]
) -> Value:
    """Return op(A) · op(B) added to `start`, accumulated in its type; narrower operands are upcast
    first."""
    batched = len(start.dims) == 3
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
        "linalg.batch_matmul" if batched else "linalg.matmul", [a, b], start, before=maps
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


class MlirGemmEpilogue(MlirSource):
    """D = d_scale · act(a_scale · b_scale · op(A) · op(B) + bias)."""

    def refuses(self, problem: Problem) -> str | None:
        if problem.options["scale"] == "block":
            return "MLIR's contractions have no factors for blocks of 128 elements"
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
            start = graph.filled(0, graph.output.dims, "f32")
            product = contract(graph, a, b, start, transposed=transposed)
        return graph.module(_epilogue(graph, product, problem))


def _in_blocks(graph: Graph, value: Value, blocks: int) -> Value:
    """Split the last dim, k, into blocks that share a scale."""
    return graph.reshape(value, [[0], [1, 2]], (value.dims[0], blocks, GROUP))


def _epilogue(graph: Graph, product: Value, problem: Problem) -> Value:
    """Apply scales, bias and activation in f32, then saturate and cast to the output's dtype."""
    scale, place = problem.options["scale"], {"bias": "j"}
    factors = ["a_scale", "b_scale"] if scale in ("tensor", "row") else []
    if scale == "row":
        place |= {"a_scale": "i", "b_scale": "j"}
    names = [name for name in (*factors, "bias", "d_scale") if name in graph.inputs]
    operands = [(product, "i, j")]
    operands += [(graph.inputs[name], place.get(name, "0")) for name in names]

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
    unit = g.constant(1, "f32")
    if act == "relu":
        return g.scalar("maximum", x, g.constant(0, "f32"))
    if act == "gelu":
        # GELU by tanh, as the epilogues of the BLAS libraries compute it, not by erf.
        cube = g.scalar("mul", g.scalar("mul", x, x), x)
        inner = g.scalar("add", x, g.scalar("mul", cube, g.constant(0.044715, "f32")))
        inner = g.scalar("mul", inner, g.constant(math.sqrt(2 / math.pi), "f32"))
        tanh = g.add(f"math.tanh {inner.name} : f32", None, "f32")
        half = g.scalar("mul", x, g.constant(0.5, "f32"))
        return g.scalar("mul", half, g.scalar("add", tanh, unit))
    if act == "silu":
        # x / (1 + exp(-x)): for large -x the exponential is infinite and the quotient 0.
        negative = g.add(f"arith.negf {x.name} : f32", None, "f32")
        power = g.add(f"math.exp {negative.name} : f32", None, "f32")
        return g.scalar("div", x, g.scalar("add", power, unit))
    return x


class MlirCopy(MlirSource):
    """Y = X."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        out = graph.empty(graph.output.dims, graph.output.type)
        return graph.module(
            graph.each("i", [(graph.inputs["x"], "i")], (out, "i"), lambda g, scalars: scalars[0])
        )


_FLOOR = 1e-10  # avoids a division by zero for a group of zeros, as in the op


class MlirBatchedGemmQuant(MlirSource):
    """D[i] = A[i] · B[i]ᵀ with scales."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        sums = {"a8w8": _sums, "a8w8_group": _grouped_sums}
        summed = sums.get(str(problem.options["scheme"]), _mxfp4_sums)(graph, problem)
        return graph.module(_scale_and_add(graph, problem, summed))

    def scratch_bytes(self, problem: Problem, form: Form) -> int:
        """Return the bytes of the sums of each group, which are stored completely."""
        d = problem.dims
        groups = -(-d["k"] // d["group"]) if "group" in d else 1
        return 4 * d["batch"] * d["m"] * d["n"] * groups


def _rows(problem: Problem) -> str:
    """Return the dims of A's rows in storage order."""
    return "i, b" if problem.options["a_order"] == "mbk" else "b, i"


def _contract(
    graph: Graph,
    loops: str,
    operands: Sequence[tuple[Value, str]],
    result: str,
    shape: tuple[int, ...],
) -> Value:
    """Return the contraction of two `operands`, each with its indices."""
    a, b = (value for value, _ in operands)
    start = graph.filled(0, shape, "f32" if is_float(b.type) else "i32")
    indices = (*(indices for _, indices in operands), result)
    written = ", ".join(affine_map(loops, item) for item in indices)
    return graph.named("linalg.contract", [a, b], start, before=f"indexing_maps = [{written}]")


def _sums(graph: Graph, problem: Problem) -> Value:
    d = problem.dims
    operands = [(graph.inputs["a"], f"{_rows(problem)}, k"), (graph.inputs["b"], "b, j, k")]
    return _contract(graph, "b, i, j, k", operands, "b, i, j", (d["batch"], d["m"], d["n"]))


def _grouped_sums(graph: Graph, problem: Problem) -> Value:
    """Return the sum of each group's integers or 8-bit floats times the group's scale, in f32."""
    d, rows = problem.dims, _rows(problem)
    groups = -(-d["k"] // d["group"])
    a, b = (_split_last(graph, graph.inputs[name], groups, d["group"]) for name in "ab")
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
    operands = [(small, loops), (b, "b, j, g, k")]
    parts = _contract(graph, "b, g, i, j, k", operands, "b, g, i, j", shape)

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


def _split_last(graph: Graph, value: Value, groups: int, group: int) -> Value:
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


def _scale_and_add(graph: Graph, problem: Problem, summed: Value) -> Value:
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


class MlirAttention(MlirSource):
    """softmax(scale · Q · Kᵀ + mask) · V, where groups of Q's heads share heads of K and V."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        acc = element_type(problem.dtypes["acc"]) or ""
        q, k, v = (_heads_first(graph, graph.inputs[name], problem) for name in "qkv")
        steps = _fused if _has_op(problem, form) else _steps
        # q: (batch · heads_kv, group · seq_q, dim); k, v: (batch · heads_kv, seq_kv, dim)
        result = steps(graph, problem, (q, k, v), acc)
        return graph.module(_heads_back(graph, result, problem))

    def scratch_bytes(self, problem: Problem, form: Form) -> int:
        """Return the bytes of the scores and of the weights, which the steps store completely."""
        if _has_op(problem, form):
            return 0
        d = problem.dims
        count = d["batch"] * d["heads_q"] * d["seq_q"] * d["seq_kv"]
        return dtype(problem.dtypes["acc"]).nbytes(count) + _weight_type(problem).nbytes(count)


def _has_op(problem: Problem, form: Form) -> bool:
    """Return whether the attention op is used: its lowering sums in f32 in any case."""
    return form.gpu and problem.dtypes["acc"] != "f64"


def _weight_type(problem: Problem) -> DType:
    """Return the dtype of the weights in the second GEMM: the inputs' type, as in fused kernels."""
    return max((dtype(problem.dtypes[name]) for name in ("q", "kv")), key=lambda t: t.digits)


_HEADS_OR_POSITIONS = (0, 2, 1, 3)  # exchanges the two


def _heads_first(graph: Graph, value: Value, problem: Problem) -> Value:
    """Return (batch · heads_kv, rows, dim), with a group's rows of Q contiguous."""
    batch, heads_kv = problem.dims["batch"], problem.dims["heads_kv"]
    if problem.options["layout"] == "bshd":
        value = _transpose(graph, value, _HEADS_OR_POSITIONS)
    rows = math.prod(value.dims[1:3]) // heads_kv
    dim = value.dims[3]
    # Through one dim: heads are split differently in the two shapes.
    flat = graph.reshape(value, [[0, 1, 2], [3]], (math.prod(value.dims[:3]), dim))
    return graph.reshape(flat, [[0, 1], [2]], (batch * heads_kv, rows, dim))


def _heads_back(graph: Graph, value: Value, problem: Problem) -> Value:
    """Return the result in the output's layout."""
    d = problem.dims
    whole = (d["batch"], d["heads_q"], d["seq_q"], d["dim_v"])
    # The reverse of `_heads_first`, through one dim for the same reason.
    flat = graph.reshape(value, [[0, 1], [2]], (math.prod(whole[:3]), whole[3]))
    back = graph.reshape(flat, [[0, 1, 2], [3]], whole)
    same = whole == graph.output.dims
    return back if same else _transpose(graph, back, _HEADS_OR_POSITIONS)


def _transpose(graph: Graph, value: Value, order: Sequence[int]) -> Value:
    """Return the tensor with its dims in another order."""
    shape = tuple(value.dims[dim] for dim in order)
    empty = graph.empty(shape, value.type)
    operands = f"ins({value.name} : {value.text}) outs({empty.name} : {empty.text})"
    text = f"linalg.transpose {operands} permutation = {list(order)}"
    return graph.add(text, shape, value.type)


def _steps(graph: Graph, problem: Problem, qkv: tuple[Value, Value, Value], acc: str) -> Value:
    q, k, v = qkv
    heads, rows, _ = q.dims
    shape = (heads, rows, k.dims[1])
    raw = contract(graph, q, k, graph.filled(0, shape, acc), transposed=(False, True))
    scores = _masked(graph, problem, raw)
    out = graph.empty(shape, acc)
    # A named softmax: IREE tiles its reductions together with the elementwise part.
    soft = graph.add(
        f"linalg.softmax dimension(2) ins({scores.name} : {scores.text}) "
        f"outs({out.name} : {out.text}) -> {out.text}",
        shape,
        acc,
    )
    # Rounded before the second GEMM, which then runs on the matrix unit of the inputs' type.
    weights = graph.convert(soft, element_type(_weight_type(problem).name) or acc, "b, i, j")
    start = graph.filled(0, (heads, rows, v.dims[2]), acc)
    mixed = contract(graph, weights, v, start, transposed=(False, False))
    return graph.convert(mixed, graph.output.type, "b, i, j")


def _masked(graph: Graph, problem: Problem, scores: Value) -> Value:
    """Return scores times the scale; minus infinity where position j is after query i."""
    acc = scores.type
    factor = _scale(graph, problem, acc)

    def body(g: Graph, scalars: list[Value]) -> Value:
        scaled = g.scalar("mul", scalars[0], factor)
        if not problem.options["causal"]:
            return scaled
        hidden = _is_hidden(g, problem, rows=g.index(1), column=g.index(2))
        low = g.constant(-math.inf, acc)
        # -inf and not a large negative number: a masked key has a weight of exactly 0.
        names = f"{hidden.name}, {low.name}, {scaled.name}"
        return g.add(f"arith.select {names} : {acc}", None, acc)

    out = graph.empty(scores.dims, acc)
    return graph.each("b, i, j", [(scores, "b, i, j")], (out, "b, i, j"), body)


def _scale(graph: Graph, problem: Problem, acc: str) -> Value:
    """Return the factor of the scores: a constant, or computed if it depends on a dynamic dim."""
    length = problem.dims["dim_qk"]
    if not isinstance(length, Size) or problem.options["scale"] != "auto":
        return graph.constant(scale(problem), acc)
    wide = "f64" if acc == "f64" else "f32"
    whole = graph.add(f"arith.index_cast {graph.size(length)} : index to i32", None, "i32")
    root = graph.add(f"math.sqrt {graph.cast(whole, wide).name} : {wide}", None, wide)
    return graph.cast(graph.scalar("div", graph.constant(1, wide), root), acc)


def _is_hidden(g: Graph, problem: Problem, *, rows: Value, column: Value) -> Value:
    """Return whether a key is masked. Causal, aligned at the last position: query i attends to keys
    up to i + seq_kv − seq_q."""
    d = problem.dims
    query = rows
    if d["heads_q"] != d["heads_kv"]:
        size = g.constant(d["seq_q"], "index")
        query = g.add(f"arith.remui {rows.name}, {size.name} : index", None, "index")
    shift = g.constant(d["seq_kv"] - d["seq_q"], "index")
    last = g.add(f"arith.addi {query.name}, {shift.name} : index", None, "index")
    return g.add(f"arith.cmpi ugt, {column.name}, {last.name} : index", None, "i1")


def _fused(graph: Graph, problem: Problem, qkv: tuple[Value, Value, Value], acc: str) -> Value:
    """Return one attention op; a causal mask is a boolean operand."""
    q, k, v = qkv
    heads, rows, _ = q.dims
    loops = "b, m, n, c, d"  # c: the dim of Q and K, d: positions of K and V
    operands = [(q, "b, m, c"), (k, "b, d, c"), (v, "b, d, n"), (_scale(graph, problem, acc), "")]
    if problem.options["causal"]:
        operands.append((_mask(graph, problem, (rows, k.dims[1])), "m, d"))
    out = graph.empty((heads, rows, v.dims[2]), graph.output.type)
    maps = ", ".join(affine_map(loops, m) for m in [*(m for _, m in operands), "b, m, n"])
    names = ", ".join(value.name for value, _ in operands)
    types = ", ".join(value.text for value, _ in operands)
    return graph.add(
        f"iree_linalg_ext.attention <{{indexing_maps = [{maps}]}}> ins({names} : {types}) "
        f"outs({out.name} : {out.text}) {{ ^bb0(%score: {acc}): "
        f"iree_linalg_ext.yield %score : {acc} }} -> {out.text}",
        out.dims,
        out.type,
    )


def _mask(graph: Graph, problem: Problem, shape: tuple[int, ...]) -> Value:
    """Return a mask that is true where a query attends to a key."""

    def body(g: Graph, scalars: list[Value]) -> Value:
        hidden = _is_hidden(g, problem, rows=g.index(0), column=g.index(1))
        true = g.add("arith.constant true", None, "i1")
        return g.add(f"arith.xori {hidden.name}, {true.name} : i1", None, "i1")

    return graph.each("i, j", [], (graph.empty(shape, "i1"), "i, j"), body)


class MlirConv(MlirSource):
    """Several forms of a convolution; `form.im2col` and `form.hwcf` apply to ungrouped ones."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        x = _padded(graph, problem, graph.inputs["x"])
        if form.im2col and problem.dims["groups"] == 1:
            summed = _im2col(graph, problem, x, None)
        elif form.hwcf and problem.dims["groups"] == 1:
            summed = _by_hwcf(graph, problem, x, None, bands=form.bands)
        elif form.gpu and not form.named and _one_tap(problem) and not _nhwc(problem):
            summed = _contracted(graph, problem, x)
        else:
            summed = _direct(graph, problem, x)
        return graph.module(graph.convert(summed, graph.output.type, "a, b, c, d"))

    def scratch_bytes(self, problem: Problem, form: Form) -> int:
        """Return the bytes of the patches, if they are written to memory."""
        if not form.im2col or problem.dims["groups"] > 1 or _pointwise(problem):
            return 0
        d = problem.dims
        count = d["n"] * math.prod(output_size(problem)) * d["c"] * d["r"] * d["s"]
        return dtype(problem.dtypes["x"]).nbytes(count)


def _nhwc(problem: Problem) -> bool:
    return problem.options["layout"] == "nhwc"


def _acc(problem: Problem) -> str:
    return element_type(problem.dtypes["acc"]) or ""


def _one_tap(problem: Problem) -> bool:
    return problem.dims["r"] * problem.dims["s"] == 1


def _pointwise(problem: Problem) -> bool:
    """Return whether the filter has one tap and no stride: the input is its own patches."""
    return _one_tap(problem) and problem.dims["stride_h"] * problem.dims["stride_w"] == 1


def _direct(graph: Graph, problem: Problem, x: Value) -> Value:
    """Return the named convolution, with groups as a separate dim, which needs no copy."""
    nhwc, groups = _nhwc(problem), problem.dims["groups"]
    w, out = graph.inputs["w"], graph.output.dims
    name = "linalg.conv_2d_nhwc_fhwc" if nhwc else "linalg.conv_2d_nchw_fchw"
    channel = 3 if nhwc else 1
    if groups > 1:
        name = "linalg.conv_2d_nhwgc_gfhwc" if nhwc else "linalg.conv_2d_ngchw_gfchw"
        x, w = _split(graph, x, channel, groups), _split(graph, w, 0, groups)
        out = (*out[:channel], groups, out[channel] // groups, *out[channel + 1 :])
    start = graph.filled(0, out, _acc(problem))
    summed = graph.named(name, [x, w], start, attributes=_steps_attribute(problem))
    return graph.reshape(summed, _regrouped(channel), graph.output.dims)


def _steps_attribute(problem: Problem) -> str:
    steps = ", ".join(
        f"{name}s = dense<[{problem.dims[f'{name}_h']}, {problem.dims[f'{name}_w']}]>"
        " : tensor<2xi64>"
        for name in ("dilation", "stride")
    )
    return f"{{{steps}}}"


def _by_hwcf(
    graph: Graph,
    problem: Problem,
    x: Value,
    start: Value | None,
    *,
    bands: int = 1,
    transpose: bool = True,
) -> Value:
    """Return the convolution of nhwc images and hwcf filters, added to `start` if given; without
    `transpose`, the filters are in this order. Its inner loops run over channels of the result,
    along which filters and result then lie in memory; IREE 3.13 compiles filters in the order of
    the op to code that is over 10 times slower on AVX-512. The barriers keep IREE from folding the
    transposes into the convolution.

    The rows of one image are split into `bands` of rows, as if they were several images: IREE drops
    the tiles that a spec sets for a convolution of one image."""
    nhwc, d = _nhwc(problem), problem.dims
    rows, columns = output_size(problem)
    out = (d["n"] * bands, rows // bands, columns, d["k"])
    w = graph.inputs["w"]
    if transpose:
        w = _barrier(graph, _transpose(graph, w, _HWCF["krsc" if nhwc else "kcrs"]))
    if bands > 1:
        x = _barrier(graph, _banded(graph, problem, x, out[1]))
    elif not nhwc:
        x = _barrier(graph, _transpose(graph, x, _CHANNELS_LAST))
    if start is None:
        begin = graph.filled(0, out, _acc(problem))
    else:
        begin = start if nhwc else _transpose(graph, start, _CHANNELS_LAST)
        begin = _resplit(graph, begin, out)
    summed = graph.named(
        "linalg.conv_2d_nhwc_hwcf", [x, w], begin, attributes=_steps_attribute(problem)
    )
    summed = _resplit(graph, summed, (d["n"], rows, columns, d["k"]))
    return summed if nhwc else _transpose(graph, _barrier(graph, summed), _CHANNELS_FIRST)


def _banded(graph: Graph, problem: Problem, x: Value, rows: int) -> Value:
    """Return one padded image as nhwc images, each with what `rows` rows of the result read."""
    d = problem.dims
    _, *sizes = x.dims
    image = graph.reshape(x, [[0, 1], [2], [3]], tuple(sizes))
    channels, _, width = sizes if not _nhwc(problem) else (sizes[2], sizes[0], sizes[1])
    height = (rows - 1) * d["stride_h"] + (d["r"] - 1) * d["dilation_h"] + 1
    row = f"b * {rows * d['stride_h']} + h"
    read = f"{row}, w, c" if _nhwc(problem) else f"c, {row}, w"
    empty = graph.empty((output_size(problem)[0] // rows, height, width, channels), x.type)
    loops = "b, h, w, c"
    return graph.each(loops, [(image, read)], (empty, loops), lambda g, scalars: scalars[0])


def _resplit(graph: Graph, value: Value, shape: tuple[int, ...]) -> Value:
    """Return an nhwc tensor with its images and rows in other bands."""
    if value.dims == shape:
        return value
    groups = [[0, 1], [2], [3]]
    flat = graph.reshape(value, groups, (shape[0] * shape[1], *shape[2:]))
    return graph.reshape(flat, groups, shape)


def _barrier(graph: Graph, value: Value) -> Value:
    text = f"util.optimization_barrier {value.name} : {value.text}"
    return graph.add(text, value.dims, value.type)


_HWCF = {"krsc": (1, 2, 3, 0), "kcrs": (2, 3, 1, 0)}
_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def _contracted(graph: Graph, problem: Problem, x: Value) -> Value:
    """Return an nchw convolution of one tap as W · X for every image and group.

    The named convolution has X as its left operand. IREE 3.13 lowers that to NVIDIA matrix
    instructions with a transposed result layout: half of the sums were wrong on an H200.
    """
    d, out = problem.dims, graph.output.dims
    groups, spots = d["groups"], out[2] * out[3]
    terms, filters = d["c"] // groups, d["k"] // groups
    w = graph.reshape(graph.inputs["w"], [[0], [1, 2, 3]], (d["k"], terms))
    w = graph.reshape(w, [[0, 1], [2]], (groups, filters, terms))
    # A stride over single taps only drops pixels: the rest is one GEMM per image and group.
    x = _stepped(graph, x, out[2:], (d["stride_h"], d["stride_w"]))
    x = graph.reshape(x, [[0], [1], [2, 3]], (d["n"], d["c"], spots))
    x = graph.reshape(x, [[0], [1, 2], [3]], (d["n"], groups, terms, spots))
    start = graph.filled(0, (d["n"], groups, filters, spots), _acc(problem))
    loops = "n, g, i, j, k"
    maps = ", ".join(affine_map(loops, m) for m in ("g, i, k", "n, g, k, j", "n, g, i, j"))
    product = graph.named("linalg.contract", [w, x], start, before=f"indexing_maps = [{maps}]")
    # Before the reshapes, or it becomes a separate kernel.
    product = graph.convert(product, graph.output.type, "a, b, c, d")
    product = graph.reshape(product, [[0], [1, 2], [3]], (d["n"], d["k"], spots))
    return graph.reshape(product, [[0], [1], [2, 3]], out)


def _stepped(graph: Graph, x: Value, size: Sequence[int], steps: tuple[int, int]) -> Value:
    """Return an nchw tensor subsampled by `steps` in rows and columns."""
    shape = (*x.dims[:2], *size)
    if shape == x.dims:
        return x
    sizes = ", ".join(map(graph.size, shape))
    where = f"[0, 0, 0, 0] [{sizes}] [1, 1, {steps[0]}, {steps[1]}]"
    result = tensor_type(shape, x.type)
    text = f"tensor.extract_slice {x.name}{where} : {x.text} to {result}"
    return graph.add(text, shape, x.type)


def conv_function(problem: Problem, name: str, form: Form, *, hwcf: bool = False) -> str:
    """Return the function (x, w, y) -> y + x * w of a convolution in a form, for a padded x, with
    the operands and the result of the named op; with `hwcf`, of that with such filters."""
    d = problem.dims
    h, w = d["h"] + 2 * d["pad_h"], d["w"] + 2 * d["pad_w"]
    padded = replace(problem, dims={**d, "h": h, "w": w, "pad_h": 0, "pad_w": 0})
    x, filters, y = op.tensors(padded)
    if hwcf:
        filters = replace(filters, shape=tuple(filters.shape[dim] for dim in _HWCF["krsc"]))
    start = replace(y, name="start", role="in", dtype=problem.dtypes["acc"])
    graph = Graph([x, filters, start])
    image, begin = graph.inputs["x"], graph.inputs["start"]
    if form.hwcf:
        result = _by_hwcf(graph, padded, image, begin, bands=form.bands, transpose=not hwcf)
        return graph.function(name, result)
    if hwcf:
        back = _transpose(graph, graph.inputs["w"], (3, 0, 1, 2))
        graph.inputs["w"] = _barrier(graph, back)
    return graph.function(name, _im2col(graph, padded, image, begin))


def _im2col(graph: Graph, problem: Problem, x: Value, start: Value | None) -> Value:
    """Return Y = patches · Wᵀ for nhwc and W · patches for nchw, one GEMM over all taps, added to
    `start` if given."""
    d, out = problem.dims, graph.output.dims
    terms, acc = d["c"] * d["r"] * d["s"], _acc(problem)

    def begun(groups: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Value:
        return graph.reshape(start, groups, shape) if start else graph.filled(0, shape, acc)

    # Reshapes of dense tensors cost nothing: W's taps and channels are one dim in memory.
    w = graph.reshape(graph.inputs["w"], [[0], [1, 2, 3]], (d["k"], terms))
    patches = x if _pointwise(problem) else _patches(graph, problem, x)
    last = len(patches.dims) - 1
    if _nhwc(problem):
        rows = math.prod(out[:3])
        flat = graph.reshape(patches, [[0, 1, 2], [*range(3, last + 1)]], (rows, terms))
        begin = begun([[0, 1, 2], [3]], (rows, d["k"]))
        # Filters are stored krsc, so Bᵀ is read along k as it lies in memory.
        product = contract(graph, flat, w, begin, transposed=(False, True))
        return graph.reshape(product, [[0, 1, 2], [3]], out)
    spots = out[2] * out[3]
    middle = [*range(1, last - 1)]
    flat = graph.reshape(patches, [[0], middle, [last - 1, last]], (d["n"], terms, spots))
    if d["n"] == 1:
        # Without the batch dim it is a plain GEMM, which IREE compiles better.
        image = graph.reshape(flat, [[0, 1], [2]], (terms, spots))
        begin = begun([[0, 1], [2, 3]], (d["k"], spots))
        plain = contract(graph, w, image, begin, transposed=(False, False))
        return graph.reshape(plain, [[0, 1], [2, 3]], out)
    batch = (d["n"], d["k"], spots)
    begin = begun([[0], [1], [2, 3]], batch)
    loops = "b, i, j, k"
    maps = ", ".join(affine_map(loops, m) for m in ("i, k", "b, k, j", "b, i, j"))
    product = graph.named(
        "linalg.batch_matmul", [w, flat], begin, before=f"indexing_maps = [{maps}]"
    )
    return graph.reshape(product, [[0], [1], [2, 3]], out)


def _patches(graph: Graph, problem: Problem, x: Value) -> Value:
    """Return every tap of every output pixel: (n, p, q, r, s, c); nchw: (n, c, r, s, p, q)."""
    d = problem.dims
    p, q = output_size(problem)
    row = f"p * {d['stride_h']} + r * {d['dilation_h']}"
    column = f"q * {d['stride_w']} + s * {d['dilation_w']}"
    if _nhwc(problem):
        loops, read = "n, p, q, r, s, c", f"n, {row}, {column}, c"
        shape = (d["n"], p, q, d["r"], d["s"], d["c"])
    else:
        loops, read = "n, c, r, s, p, q", f"n, c, {row}, {column}"
        shape = (d["n"], d["c"], d["r"], d["s"], p, q)
    out = graph.empty(shape, x.type)
    return graph.each(loops, [(x, read)], (out, loops), lambda g, scalars: scalars[0])


def _padded(graph: Graph, problem: Problem, x: Value) -> Value:
    """Return X with zeros around its height and width."""
    pad_h, pad_w = problem.dims["pad_h"], problem.dims["pad_w"]
    if not pad_h and not pad_w:
        return x
    pads = [0, pad_h, pad_w, 0] if _nhwc(problem) else [0, 0, pad_h, pad_w]
    shape = tuple(size + 2 * pad for size, pad in zip(x.dims, pads, strict=True))
    # An explicit pad: named convolutions of linalg have no padding.
    zero = graph.constant(0, x.type)
    indices = ", ".join(f"%at{i}: index" for i in range(4))
    return graph.add(
        f"tensor.pad {x.name} low{pads} high{pads} {{ ^bb0({indices}): "
        f"tensor.yield {zero.name} : {x.type} }} : {x.text} to {tensor_type(shape, x.type)}",
        shape,
        x.type,
    )


def _split(graph: Graph, value: Value, dim: int, groups: int) -> Value:
    """Return the tensor with dim `dim` as (groups, rest)."""
    shape = value.dims
    new = (*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :])
    return graph.reshape(value, _regrouped(dim), new)


def _regrouped(dim: int) -> list[list[int]]:
    """Return the reassociation of five dims to four that joins `dim` and the next one."""
    return [[i if i < dim else i + 1] if i != dim else [i, i + 1] for i in range(4)]
