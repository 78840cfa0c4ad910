"""attention: the attention op for GPU targets, matmul + softmax + matmul for CPUs.

On CPUs, IREE lowers `iree_linalg_ext.attention` to code that is many times slower than the three
separate steps, so CPUs get the steps. GPUs get the op, whose lowering is made for them, except for
f64, which it does not support.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir.base import Form, Graph, Size, Source, Value, affine_map, element_type
from kernelmark.kernels.mlir.gemm import contract
from kernelmark.ops.attention import scale


class Attention(Source):
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


def _heads_first(graph: Graph, value: Value, problem: Problem) -> Value:
    """Return (batch · heads_kv, rows, dim), with a group's rows of Q contiguous."""
    batch, heads_kv = problem.dims["batch"], problem.dims["heads_kv"]
    if problem.options["layout"] == "bshd":
        b, s, h, d = value.dims
        value = _transpose(graph, value, (b, h, s, d))
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
    return _transpose(graph, back, graph.output.dims) if whole != graph.output.dims else back


def _transpose(graph: Graph, value: Value, shape: tuple[int, ...]) -> Value:
    """Return the tensor with heads and positions exchanged."""
    empty = graph.empty(shape, value.type)
    operands = f"ins({value.name} : {value.text}) outs({empty.name} : {empty.text})"
    return graph.add(f"linalg.transpose {operands} permutation = [0, 2, 1, 3]", shape, value.type)


def _steps(graph: Graph, problem: Problem, qkv: tuple[Value, Value, Value], acc: str) -> Value:
    q, k, v = qkv
    heads, rows, _ = q.dims
    shape = (heads, rows, k.dims[1])
    raw = contract(graph, q, k, transposed=(False, True), shape=shape, acc=acc)
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
    mixed = contract(
        graph, weights, v, transposed=(False, False), shape=(heads, rows, v.dims[2]), acc=acc
    )
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
        one = g.add("arith.constant true", None, "i1")
        return g.add(f"arith.xori {hidden.name}, {one.name} : i1", None, "i1")

    return graph.each("i, j", [], (graph.empty(shape, "i1"), "i, j"), body)
