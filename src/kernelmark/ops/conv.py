"""conv: two-dimensional convolution, forward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import Axis, Contraction, TensorSpec, Tolerance, WeightedSum
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import (
    F8_FNUZ,
    F8_OCP,
    PRODUCTS,
    Floats,
    Ints,
    axis,
    contract,
    grid,
    input_spec,
    product_tolerance,
    rng_for,
    sides,
    stays_finite,
)
from kernelmark.ops.base import Op, Parameter, Parameters, Reference, TensorHelp

_INPUTS = ("f64", "f32", "f16", "bf16", "i8", *F8_OCP, *F8_FNUZ)
_GROUPS = 4  # groups to check in a grouped convolution
_PARAMETERS = {
    "n": "images",
    "c": "input channels",
    "h": "input height",
    "w": "input width",
    "k": "output channels",
    "r": "filter height",
    "s": "filter width",
    "stride_h": "vertical step (1 unless given)",
    "stride_w": "horizontal step (1 unless given)",
    "pad_h": "rows of zeros above and below (0 unless given)",
    "pad_w": "columns of zeros left and right (0 unless given)",
    "dilation_h": "vertical spacing of taps (1 unless given)",
    "dilation_w": "horizontal spacing of taps (1 unless given)",
    "groups": "groups of channels; divides c and k (1 unless given)",
    "x": "dtype of X and W",
    "y": "dtype of Y",
    "acc": "dtype that products are summed in",
    "layout": "nchw (W kcrs) or nhwc (W krsc)",
    "stride": "shorthand: stride_h and stride_w",
    "pad": "shorthand: pad_h and pad_w",
    "dilation": "shorthand: dilation_h and dilation_w",
    "dtype": "shorthand: X and W, and Y and acc that follow from it",
}
_P = "((h+2·pad_h-dilation_h·(r-1)-1)//stride_h+1)"
_Q = "((w+2·pad_w-dilation_w·(s-1)-1)//stride_w+1)"


class Conv(Op):
    """Y = X ∗ W, a cross-correlation, as usual in machine learning.

    Layout nchw: X (n, c, h, w), W (k, c/groups, r, s), Y (n, k, p, q); layout nhwc: X (n, h, w, c),
    W (k, r, s, c/groups), Y (n, p, q, k). Each group of k/groups filters has its own c/groups
    channels. `flops` counts 2·n·k·p·q·(c/groups)·r·s: taps that fall on padding are counted, as in
    other tools.
    """

    name = "conv"
    summary = "2-D convolution, forward (stride, padding, dilation, groups; NCHW or NHWC)"
    parameters = _PARAMETERS
    examples = (
        "conv n=2 c=6 h=9 w=10 k=8 r=3 s=3 pad=1 dtype=f32",
        "conv n=2 c=6 h=9 w=8 k=4 r=3 s=2 stride=2 pad=1 dilation=2 groups=2 layout=nhwc dtype=f32",
        "conv n=1 c=6 h=11 w=10 k=4 r=3 s=2 stride_h=2 pad_w=2 groups=2 dtype=f32",
        "conv n=2 c=8 h=6 w=6 k=16 r=1 s=1 dtype=f32 layout=nhwc",
        "conv n=1 c=64 h=5 w=5 k=8 r=3 s=3 pad=1 dtype=f16",
        "conv n=1 c=32 h=5 w=5 k=8 r=3 s=3 pad=1 dtype=bf16 layout=nhwc",
        "conv n=2 c=8 h=6 w=6 k=8 r=3 s=3 dtype=i8",
        "conv n=1 c=32 h=5 w=5 k=16 r=3 s=3 pad=1 dtype=f8e4m3 layout=nhwc",
        "conv n=1 c=32 h=5 w=5 k=16 r=3 s=3 dtype=f8e5m2fnuz y=f32",
    )
    tensor_help = (
        TensorHelp("x", "n×c×h×w", "x", "layout=nchw"),
        TensorHelp("x", "n×h×w×c", "x", "layout=nhwc"),
        TensorHelp("w", "k×(c//groups)×r×s", "x", "layout=nchw"),
        TensorHelp("w", "k×r×s×(c//groups)", "x", "layout=nhwc"),
        TensorHelp("y", f"n×k×{_P}×{_Q}", "y", "layout=nchw", role="out"),
        TensorHelp("y", f"n×{_P}×{_Q}×k", "y", "layout=nhwc", role="out"),
    )

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        dims = {name: read.dim(name) for name in ("n", "c", "h", "w", "k", "r", "s")}
        for short, default in (("stride", 1), ("pad", 0), ("dilation", 1)):
            for name in (f"{short}_h", f"{short}_w"):
                dims[name] = read.dim(name, default, short=short, least=default)
        dims["groups"] = read.dim("groups", 1)
        x = read.base_dtype(("x",), _INPUTS)
        x = read.dtype("x", x, _INPUTS)
        rule = PRODUCTS[x]
        acc = read.dtype("acc", rule.acc[0], rule.acc, f"with {x} inputs")
        fitting = tuple(name for name in rule.out if 8 < dtype(name).bits <= dtype(acc).bits)
        y = read.dtype("y", rule.out[0], fitting, f"with {x} inputs summed in {acc}")
        problem = Problem(
            op=self.name,
            dims=dims,
            dtypes={"x": x, "y": y, "acc": acc},
            options={"layout": read.choice("layout", ("nchw", "nhwc"))},
        )
        _check(read, problem)
        return self.checked_sizes(problem)

    def flops(self, problem: Problem) -> int:
        d = problem.dims
        return 2 * d["n"] * d["k"] * math.prod(output_size(problem)) * _terms(problem)

    def least_bytes(self, problem: Problem) -> int:
        # No least FLOPs: Winograd and FFT algorithms need fractions of `flops`. A filter that steps
        # over pixels (1×1 with stride 2) leaves most of X unread.
        d = problem.dims
        steps = ("stride_h", "stride_w", "dilation_h", "dilation_w")
        if all(d[name] == 1 for name in steps) and d["r"] <= d["h"] and d["s"] <= d["w"]:
            return self.bytes(problem)
        return self.output(problem).nbytes

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        d, types = problem.dims, problem.dtypes
        p, q = output_size(problem)
        depth = d["c"] // d["groups"]
        if problem.options["layout"] == "nhwc":
            shapes = (
                (d["n"], d["h"], d["w"], d["c"]),
                (d["k"], d["r"], d["s"], depth),
                (d["n"], p, q, d["k"]),
            )
        else:
            shapes = (
                (d["n"], d["c"], d["h"], d["w"]),
                (d["k"], depth, d["r"], d["s"]),
                (d["n"], d["k"], p, q),
            )
        return (
            input_spec("x", shapes[0], types["x"]),
            input_spec("w", shapes[1], types["x"]),
            TensorSpec(name="y", shape=shapes[2], dtype=types["y"], role="out"),
        )

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        d, nhwc = problem.dims, problem.options["layout"] == "nhwc"
        p, q = output_size(problem)
        if nhwc:
            pixel, filters = np.divmod(where, d["k"])
        else:
            plane, spot = np.divmod(where, p * q)
            image, filters = np.divmod(plane, d["k"])
            pixel = image * (p * q) + spot
        taps = _Taps(problem)

        def left(g: int, pixels: Ints, t: Ints) -> Floats:
            where_x, inside = taps.of_input(g, pixels, t)
            return np.where(inside, inputs.take("x", where_x), 0.0)

        def right(g: int, k: Ints, t: Ints) -> Floats:
            return inputs.take("w", k * _terms(problem) + t)

        group = filters // (d["k"] // d["groups"])
        value, magnitude = contract((group, pixel, filters), _terms(problem), left, right)
        return Reference(value=value, magnitude=magnitude)

    def tolerance(self, problem: Problem) -> Tolerance:
        types = problem.dtypes
        return product_tolerance(
            terms=_terms(problem), inputs=types["x"], acc=types["acc"], out=types["y"]
        )

    def contraction(self, problem: Problem) -> Contraction | None:
        d, types = problem.dims, problem.dtypes
        p, q = output_size(problem)
        outputs = d["n"] * d["k"] * p * q
        terms = _terms(problem)
        if not stays_finite(inputs=types["x"], out=types["y"], outputs=outputs, terms=terms):
            return None
        nhwc = problem.options["layout"] == "nhwc"
        image, pixel, channel = (p * q * d["k"], d["k"], 1) if nhwc else (p * q * d["k"], 1, p * q)
        rows = (
            Axis(size=d["n"], stride=image, result=p * q),
            Axis(size=p * q, stride=pixel, result=1),
        )
        # A row is an output pixel with the filters of all groups: with one row per group, a
        # depthwise convolution would have as many rows as outputs.
        return Contraction(
            names=("image", "row", "column"),
            shape=(d["n"], p, q),
            cols=d["k"],
            terms=terms * d["groups"],
            projected=d["r"] * d["s"] * d["c"],
            right=(_projected_filters(problem),),
            left=tuple(_taps_of_input(problem)),
            out=WeightedSum(tensor="y", rows=rows, cols=d["k"], col_stride=channel),
            unit="pixel",
        )

    def positions(self, problem: Problem, seed: int) -> Ints:
        d, rng = problem.dims, rng_for(seed)
        p, q = output_size(problem)
        groups = axis(d["groups"], _GROUPS, rng)
        depth = d["k"] // d["groups"]
        pixels, filters = sides(d["n"] * p * q, depth, _terms(problem), len(groups))
        images = axis(d["n"], 2 if pixels >= 8 else 1, rng)
        side = max(2, math.isqrt(pixels // len(images)))
        rows = axis(p, side, rng)
        cols = axis(q, max(2, pixels // (len(images) * len(rows))), rng)
        some = (groups[:, None] * depth + axis(depth, filters, rng)[None, :]).ravel()
        if problem.options["layout"] == "nhwc":
            return grid((d["n"], p, q, d["k"]), (images, rows, cols, some))
        return grid((d["n"], d["k"], p, q), (images, some, rows, cols))


def output_size(problem: Problem) -> tuple[int, int]:
    """Return (height, width) of the output."""
    d = problem.dims
    return (
        _extent(d["h"], d["r"], d["stride_h"], d["pad_h"], d["dilation_h"]),
        _extent(d["w"], d["s"], d["stride_w"], d["pad_w"], d["dilation_w"]),
    )


def _extent(size: int, taps: int, stride: int, pad: int, dilation: int) -> int:
    return (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1


def _terms(problem: Problem) -> int:
    """Return the number of products in one output, which is the size of a filter."""
    d = problem.dims
    return d["c"] // d["groups"] * d["r"] * d["s"]


def _projected_filters(problem: Problem) -> WeightedSum:
    """Return the sums over the filters of each group, ordered by tap, then by channel."""
    d, terms = problem.dims, _terms(problem)
    depth, filters, taps = d["c"] // d["groups"], d["k"] // d["groups"], d["r"] * d["s"]
    tap, channel = (depth, 1) if problem.options["layout"] == "nhwc" else (1, taps)
    return WeightedSum(
        tensor="w",
        rows=(
            Axis(size=d["groups"], stride=filters * terms, result=depth),
            Axis(size=taps, stride=tap, result=d["c"]),
            Axis(size=depth, stride=channel, result=1),
        ),
        cols=filters,
        col_stride=terms,
        group_weight=filters,
    )


def _taps_of_input(problem: Problem) -> Iterator[WeightedSum]:
    """Yield, for each tap, the sums over the channels of the input pixels under it, added to the
    output pixels whose tap does not fall on padding: these form a box."""
    d = problem.dims
    p, q = output_size(problem)
    if problem.options["layout"] == "nhwc":
        line, pixel, channel = d["w"] * d["c"], d["c"], 1
    else:
        line, pixel, channel = d["w"], 1, d["h"] * d["w"]
    for r, s in itertools.product(range(d["r"]), range(d["s"])):
        y, x = r * d["dilation_h"] - d["pad_h"], s * d["dilation_w"] - d["pad_w"]
        rows, cols = _inside(y, d["stride_h"], d["h"], p), _inside(x, d["stride_w"], d["w"], q)
        if rows and cols:
            top, left = y + rows[0] * d["stride_h"], x + cols[0] * d["stride_w"]
            yield WeightedSum(
                tensor="x",
                rows=(
                    Axis(size=d["n"], stride=d["c"] * d["h"] * d["w"], result=p * q),
                    Axis(size=len(rows), stride=d["stride_h"] * line, result=q),
                    Axis(size=len(cols), stride=d["stride_w"] * pixel, result=1),
                ),
                cols=d["c"],
                col_stride=channel,
                start=top * line + left * pixel,
                result_start=rows[0] * q + cols[0],
                weight_start=(r * d["s"] + s) * d["c"],
            )


def _inside(first: int, stride: int, size: int, count: int) -> range:
    """Return the indices of positions first, first + stride, … that are in [0, size)."""
    return range(max(0, -(first // stride)), min(count, -((first - size) // stride)))


def _check(read: Parameters, problem: Problem) -> None:
    d = problem.dims
    for name in ("c", "k"):
        if d[name] % d["groups"]:
            groups = d["groups"]
            read.refuse(f"{name}={d[name]} is not a multiple of groups={groups}")
    for side, taps, out in (("h", "r", 0), ("w", "s", 1)):
        if output_size(problem)[out] < 1:
            reach = d[f"dilation_{side}"] * (d[taps] - 1) + 1
            read.refuse(
                f"a filter that spans {reach} does not fit {side}={d[side]} with pad_"
                f"{side}={d[f'pad_{side}']}",
                "the output would be empty",
            )


class _Taps:
    """The position in X of tap t of an output pixel; t counts through a filter in memory order."""

    def __init__(self, problem: Problem) -> None:
        self._d = problem.dims
        self._nhwc = problem.options["layout"] == "nhwc"
        self._size = output_size(problem)

    def of_input(self, group: int, pixel: Ints, t: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Return flat positions in X (clipped to its range) and whether each is inside."""
        d = self._d
        depth = d["c"] // d["groups"]
        if self._nhwc:
            tap, channel = np.divmod(t, depth)
        else:
            channel, tap = np.divmod(t, d["r"] * d["s"])
        image, spot = np.divmod(pixel, self._size[0] * self._size[1])
        row, col = np.divmod(spot, self._size[1])
        y = row * d["stride_h"] - d["pad_h"] + tap // d["s"] * d["dilation_h"]
        x = col * d["stride_w"] - d["pad_w"] + tap % d["s"] * d["dilation_w"]
        inside = (y >= 0) & (y < d["h"]) & (x >= 0) & (x < d["w"])
        y, x = np.clip(y, 0, d["h"] - 1), np.clip(x, 0, d["w"] - 1)
        channel = channel + group * depth
        if self._nhwc:
            return ((image * d["h"] + y) * d["w"] + x) * d["c"] + channel, inside
        return ((image * d["c"] + channel) * d["h"] + y) * d["w"] + x, inside


op = Conv()
