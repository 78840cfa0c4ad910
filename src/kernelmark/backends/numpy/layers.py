"""Plans of attention, conv and moe with NumPy.

- attention: softmax(scale·Q·Kᵀ)·V, slab by slab. Scores and softmax are in the accumulator's dtype;
  probabilities are rounded to the inputs' dtype for the second GEMM, as in fused kernels.
- conv: one GEMM per image, over columns gathered into a workspace. Padding costs nothing in a
  launch: the workspace is zeroed once and only taps inside the image are copied. A 1×1 filter with
  stride 1 and no padding needs no columns.
- moe: expert by expert, two GEMMs over the rows of each. Gate, up and each expert's output are
  rounded to the inputs' dtype, as in kernels that store them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kernelmark.backends.numpy.gemms import MATMULS, Array, Plan, Step, types, workspace
from kernelmark.core.problem import Problem
from kernelmark.ops.attention import scale

# Scores are processed in slabs of about this size: larger ones leave the caches between steps.
SLAB_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Scores, one number per row of scores, the rounded probabilities and the causal mask."""

    scores: Array
    rows: Array
    rounded: Array | None
    mask: Array | None

    @property
    def nbytes(self) -> int:
        parts = (self.scores, self.rows, self.rounded, self.mask)
        return sum(part.nbytes for part in parts if part is not None)


def plan_attention(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan all slabs of each argument set, in one shared workspace."""
    dims = problem.dims
    space = _workspace(problem, arrays[0]["q"].dtype, free_bytes)
    batches, heads = space.scores.shape[:2]
    launches: list[list[Step]] = []
    for tensors in arrays:
        views = [_by_head(tensors[name], problem) for name in ("q", "k", "v", "o")]
        steps: list[Step] = []
        for batch in range(0, dims["batch"], batches):
            for head in range(0, dims["heads_kv"], heads):
                part = slice(batch, batch + batches), slice(head, head + heads)
                steps += _slab_steps(problem, [view[part] for view in views], space)
        launches.append(steps)
    return Plan(name="numpy attention", launches=launches, workspace_bytes=space.nbytes)


def _workspace(problem: Problem, narrow: np.dtype[Any], free_bytes: int) -> _Scores:
    dims = problem.dims
    wide = np.dtype(np.float64 if problem.dtypes["acc"] == "f64" else np.float32)
    group = dims["heads_q"] // dims["heads_kv"]
    head_bytes = group * dims["seq_q"] * dims["seq_kv"] * wide.itemsize
    heads = min(dims["heads_kv"], max(1, SLAB_BYTES // head_bytes))
    fit = SLAB_BYTES // (head_bytes * heads) if heads == dims["heads_kv"] else 1
    shape = (min(dims["batch"], max(1, fit)), heads, group, dims["seq_q"], dims["seq_kv"])
    # The rounded copy and the mask are at most as large as the scores: check memory for all three.
    scores = workspace(shape, wide, free_bytes // 3)
    return _Scores(
        scores=scores,
        rows=np.zeros((*shape[:-1], 1), wide),
        rounded=None if narrow == wide else np.zeros(shape, narrow),
        mask=_causal_mask(problem, wide),
    )


def _causal_mask(problem: Problem, wide: np.dtype[Any]) -> Array | None:
    """Return 0 where a query attends to a key, -inf elsewhere; the last query attends to every
    key."""
    seq_q, seq_kv = problem.dims["seq_q"], problem.dims["seq_kv"]
    if not problem.options["causal"] or seq_q == 1:
        return None
    mask = np.zeros((seq_q, seq_kv), wide)
    mask[~np.tri(seq_q, seq_kv, seq_kv - seq_q, dtype=bool)] = -np.inf
    return mask


def _by_head(x: Array, problem: Problem) -> Array:
    """Return a view (batch, heads_kv, query heads per key head or 1, seq, dim) of any layout."""
    heads_first = x.transpose(0, 2, 1, 3) if problem.options["layout"] == "bshd" else x
    batch, heads, seq, dim = heads_first.shape
    each = heads // problem.dims["heads_kv"]
    by_batch, by_head, by_row, by_column = heads_first.strides
    return np.lib.stride_tricks.as_strided(
        heads_first,
        (batch, heads // each, each, seq, dim),
        (by_batch, by_head * each, by_head, by_row, by_column),
    )


def _slab_steps(problem: Problem, views: list[Array], space: _Scores) -> list[Step]:
    q, k, v, o = views
    inputs, acc, out = types(problem)
    # The last slab may be smaller than the workspace.
    part = slice(q.shape[0]), slice(q.shape[1])
    scores, rows = space.scores[part], space.rows[part]
    steps: list[Step] = [
        partial(MATMULS[inputs, acc, acc], q, k.swapaxes(-1, -2), scores),
        partial(np.multiply, scores, scores.dtype.type(scale(problem)), scores),
    ]
    if space.mask is not None:
        steps.append(partial(np.add, scores, space.mask, scores))
    steps += [
        partial(np.max, scores, axis=-1, keepdims=True, out=rows),
        partial(np.subtract, scores, rows, scores),
        partial(np.exp, scores, scores),
        partial(np.sum, scores, axis=-1, keepdims=True, out=rows),
        partial(np.divide, scores, rows, scores),
    ]
    if space.rounded is None:
        probabilities = scores
    else:
        probabilities = space.rounded[part]
        steps.append(partial(np.copyto, probabilities, scores, casting="same_kind"))
    steps.append(partial(MATMULS[inputs, acc, out], probabilities, v, o))
    return steps


Slices = tuple[slice, slice]  # outputs that a filter tap contributes to, inputs that it reads


def plan_conv(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan images one after the other, with all groups of an image in one GEMM."""
    nchw = problem.options["layout"] == "nchw"
    image_steps = _nchw_steps if nchw else _nhwc_steps
    columns: Array | None = None
    launches: list[list[Step]] = []
    for tensors in arrays:
        x, weights, y = tensors.values()
        if columns is None and not _is_pointwise(problem):
            columns = _columns(problem, x, y[0], free_bytes)
        steps: list[Step] = []
        for image in range(problem.dims["n"]):
            steps += image_steps(problem, x[image], weights, y[image], columns)
        launches.append(steps)
    workspace_bytes = 0 if columns is None else columns.nbytes
    return Plan(name="numpy conv by columns", launches=launches, workspace_bytes=workspace_bytes)


def _is_pointwise(problem: Problem) -> bool:
    dims = problem.dims
    ones = ("r", "s", "stride_h", "stride_w")
    return all(dims[name] == 1 for name in ones) and dims["pad_h"] == dims["pad_w"] == 0


def _columns(problem: Problem, x: Array, y: Array, free_bytes: int) -> Array:
    dims, groups = problem.dims, problem.dims["groups"]
    each = dims["c"] // groups
    if problem.options["layout"] == "nchw":
        shape = (groups, each, dims["r"], dims["s"], *y.shape[1:])
    else:
        shape = (groups, *y.shape[:2], dims["r"], dims["s"], each)
    return workspace(shape, x.dtype, free_bytes)


def _nchw_steps(
    problem: Problem, x: Array, weights: Array, y: Array, columns: Array | None
) -> list[Step]:
    """Return the steps of filters (groups, k, taps) times columns (groups, taps, pixels)."""
    groups = problem.dims["groups"]
    source = x.reshape(groups, -1, *x.shape[1:])
    steps: list[Step] = []
    if columns is not None:
        for r, (p, h) in enumerate(_taps(problem, "h", "r", y.shape[1])):
            for s, (q, w) in enumerate(_taps(problem, "w", "s", y.shape[2])):
                steps.append(partial(np.copyto, columns[:, :, r, s, p, q], source[:, :, h, w]))
        source = columns
    pixels = y.shape[1] * y.shape[2]
    filters = weights.reshape(groups, y.shape[0] // groups, -1)
    multiply = MATMULS[types(problem)]
    matrix, out = source.reshape(groups, -1, pixels), y.reshape(groups, -1, pixels)
    return [*steps, partial(multiply, filters, matrix, out)]


def _nhwc_steps(
    problem: Problem, x: Array, weights: Array, y: Array, columns: Array | None
) -> list[Step]:
    """Return the steps of columns (groups, pixels, taps) times filters (groups, taps, k)."""
    groups = problem.dims["groups"]
    height, width, channels = x.shape
    # Groups are adjacent within a pixel: view them as the leading dimension.
    source = x.reshape(height, width, groups, channels // groups).transpose(2, 0, 1, 3)
    pixels = y.shape[0] * y.shape[1]
    matrix = x.reshape(height * width, groups, -1).swapaxes(0, 1)
    steps: list[Step] = []
    if columns is not None:
        for r, (p, h) in enumerate(_taps(problem, "h", "r", y.shape[0])):
            for s, (q, w) in enumerate(_taps(problem, "w", "s", y.shape[1])):
                steps.append(partial(np.copyto, columns[:, p, q, r, s], source[:, h, w]))
        matrix = columns.reshape(groups, pixels, -1)
    filters = weights.reshape(groups, y.shape[2] // groups, -1).swapaxes(1, 2)
    out = y.reshape(pixels, groups, -1).swapaxes(0, 1)
    return [*steps, partial(MATMULS[types(problem)], matrix, filters, out)]


def _taps(problem: Problem, axis: str, taps: str, outputs: int) -> list[Slices]:
    """Return, for each filter tap along an axis, the outputs whose input lies inside the image."""
    dims = problem.dims
    size, stride, pad = dims[axis], dims[f"stride_{axis}"], dims[f"pad_{axis}"]
    found: list[Slices] = []
    for tap in range(dims[taps]):
        shift = tap * dims[f"dilation_{axis}"] - pad
        first = max(0, -(shift // stride))
        last = min(outputs - 1, (size - 1 - shift) // stride)
        count = max(0, last - first + 1)
        start = first * stride + shift if count else 0
        stop = start + (count - 1) * stride + 1 if count else 0
        found.append((slice(first, first + count), slice(start, stop, stride)))
    return found


def plan_moe(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan one step per set: the rows of an expert are known only at launch."""
    m, n, k, top_k = (problem.dims[name] for name in ("m", "n", "k", "top_k"))
    kind, wide = arrays[0]["x"].dtype, np.dtype(np.float32)

    def room(width: int, dtype: np.dtype[np.generic] = kind, rows: int = m) -> Array:
        return workspace((rows, width), dtype, free_bytes // 6)

    # Rows of one expert, at most all tokens; `parts` has a row for each choice.
    space = {"x": room(k), "both": room(2 * n), "silu": room(n, wide), "hidden": room(n)}
    space |= {"out": room(k), "parts": room(k, wide, m * top_k)}
    return Plan(
        name="numpy moe by experts",
        launches=[[partial(_launch_moe, problem, tensors, space)] for tensors in arrays],
        workspace_bytes=sum(array.nbytes for array in space.values()),
    )


def _launch_moe(problem: Problem, tensors: dict[str, Array], space: dict[str, Array]) -> None:
    n, top_k = problem.dims["n"], problem.dims["top_k"]
    multiply = MATMULS[types(problem)]
    ids, weights = tensors["ids"].ravel(), tensors["weights"].reshape(-1, 1)
    order = np.argsort(ids, kind="stable")
    ends = np.searchsorted(ids[order], np.arange(problem.dims["e"] + 1)).tolist()
    for expert, (start, end) in enumerate(itertools.pairwise(ends)):
        rows, count = order[start:end], end - start
        if not count:
            continue
        x, both, silu = space["x"][:count], space["both"][:count], space["silu"][:count]
        np.take(tensors["x"], rows // top_k, axis=0, out=x)
        multiply(x, tensors["w1"][expert].T, both)
        gate, up = both[:, :n], both[:, n:]
        np.negative(gate, out=silu)
        with np.errstate(over="ignore"):  # exp of a large number: silu is 0
            np.exp(silu, out=silu)
        np.add(silu, np.float32(1), out=silu)
        np.divide(gate, silu, out=silu)
        np.multiply(silu, up, out=space["hidden"][:count], casting="same_kind")
        multiply(space["hidden"][:count], tensors["w2"][expert].T, space["out"][:count])
        space["parts"][rows] = space["out"][:count] * weights[rows]
    shape = (problem.dims["m"], top_k, problem.dims["k"])
    np.sum(space["parts"].reshape(shape), axis=1, out=tensors["out"], dtype=np.float32)
