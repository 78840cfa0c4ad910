"""conv: a named linalg convolution, patches times filters (im2col), or GEMMs (1 × 1, nchw)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.kernels.mlir.base import (
    Form,
    Graph,
    Source,
    Value,
    affine_map,
    element_type,
    tensor_type,
)
from kernelmark.kernels.mlir.gemm import contract
from kernelmark.ops.conv import op, output_size


class Conv(Source):
    """Several forms of a convolution; `form.im2col` applies to ungrouped ones."""

    def text(self, problem: Problem, tensors: Sequence[TensorSpec], form: Form) -> str:
        graph = Graph(tensors)
        x = _padded(graph, problem, graph.inputs["x"])
        if form.im2col and problem.dims["groups"] == 1:
            summed = _im2col(graph, problem, x, None)
        elif form.gpu and _one_tap(problem) and not _nhwc(problem):
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
    d = problem.dims
    steps = ", ".join(
        f"{name}s = dense<[{d[f'{name}_h']}, {d[f'{name}_w']}]> : tensor<2xi64>"
        for name in ("dilation", "stride")
    )
    start = graph.filled(0, out, _acc(problem))
    summed = graph.named(name, [x, w], start, attributes=f"{{{steps}}}")
    return graph.reshape(summed, _regrouped(channel), graph.output.dims)


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


def im2col_function(problem: Problem, name: str) -> str:
    """Return the function (x, w, y) -> y + x * w of a convolution by im2col, for a padded x, with
    the operands and the result of the named op."""
    d = problem.dims
    h, w = d["h"] + 2 * d["pad_h"], d["w"] + 2 * d["pad_w"]
    padded = replace(problem, dims={**d, "h": h, "w": w, "pad_h": 0, "pad_w": 0})
    *inputs, y = op.tensors(padded)
    start = replace(y, name="start", role="in", dtype=problem.dtypes["acc"])
    graph = Graph([*inputs, start])
    summed = _im2col(graph, padded, graph.inputs["x"], graph.inputs["start"])
    return graph.function(name, summed)


def _im2col(graph: Graph, problem: Problem, x: Value, start: Value | None) -> Value:
    """Return Y = patches · Wᵀ for nhwc and W · patches for nchw, one GEMM over all taps, added to
    `start` if given."""
    d, out = problem.dims, graph.output.dims
    terms, acc = d["c"] * d["r"] * d["s"], _acc(problem)

    def begun(groups: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Value | None:
        return graph.reshape(start, groups, shape) if start else None

    # Reshapes of dense tensors cost nothing: W's taps and channels are one dim in memory.
    w = graph.reshape(graph.inputs["w"], [[0], [1, 2, 3]], (d["k"], terms))
    patches = x if _pointwise(problem) else _patches(graph, problem, x)
    last = len(patches.dims) - 1
    if _nhwc(problem):
        rows = math.prod(out[:3])
        flat = graph.reshape(patches, [[0, 1, 2], [*range(3, last + 1)]], (rows, terms))
        shape = (rows, d["k"])
        begin = begun([[0, 1, 2], [3]], shape)
        # Filters are stored krsc, so Bᵀ is read along k as it lies in memory.
        product = contract(
            graph, flat, w, transposed=(False, True), shape=shape, acc=acc, start=begin
        )
        return graph.reshape(product, [[0, 1, 2], [3]], out)
    spots = out[2] * out[3]
    middle = [*range(1, last - 1)]
    flat = graph.reshape(patches, [[0], middle, [last - 1, last]], (d["n"], terms, spots))
    if d["n"] == 1:
        # Without the batch dim it is a plain GEMM, which IREE compiles better.
        one = graph.reshape(flat, [[0, 1], [2]], (terms, spots))
        shape = (d["k"], spots)
        begin = begun([[0, 1], [2, 3]], shape)
        plain = contract(
            graph, w, one, transposed=(False, False), shape=shape, acc=acc, start=begin
        )
        return graph.reshape(plain, [[0, 1], [2, 3]], out)
    batch = (d["n"], d["k"], spots)
    begin = begun([[0], [1], [2, 3]], batch) or graph.filled(0, batch, acc)
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
