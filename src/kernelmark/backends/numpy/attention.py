"""attention with NumPy: softmax(scale·Q·Kᵀ)·V, slab by slab.

Scores and softmax are in the accumulator's dtype; probabilities are rounded to the inputs' dtype
for the second GEMM, as in fused kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kernelmark.backends.numpy.matmuls import MATMULS, Array, Plan, Step, types, workspace
from kernelmark.core.problem import Problem
from kernelmark.ops.attention import scale

# Scores are processed in slabs of about this size: larger ones leave the caches between steps.
SLAB_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Scores, one number per row of scores, the rounded probabilities and the causal mask."""

    scores: Array
    rows: Array
    rounded: Array | None
    mask: Array | None

    @property
    def nbytes(self) -> int:
        parts = (self.scores, self.rows, self.rounded, self.mask)
        return sum(part.nbytes for part in parts if part is not None)


def plan(problem: Problem, arrays: list[dict[str, Array]], free_bytes: int) -> Plan:
    """Plan all slabs of each argument set, in one shared workspace."""
    dims = problem.dims
    space = _workspace(problem, arrays[0]["q"].dtype, free_bytes)
    batches, heads = space.scores.shape[:2]
    launches: list[list[Step]] = []
    for held in arrays:
        views = [_by_head(held[name], problem) for name in ("q", "k", "v", "o")]
        steps: list[Step] = []
        for batch in range(0, dims["batch"], batches):
            for head in range(0, dims["heads_kv"], heads):
                part = slice(batch, batch + batches), slice(head, head + heads)
                steps += _slab_steps(problem, [view[part] for view in views], space)
        launches.append(steps)
    return Plan(name="numpy attention", launches=launches, workspace_bytes=space.nbytes)


def _workspace(problem: Problem, narrow: np.dtype[Any], free_bytes: int) -> Workspace:
    dims = problem.dims
    wide = np.dtype(np.float64 if problem.dtypes["acc"] == "f64" else np.float32)
    group = dims["heads_q"] // dims["heads_kv"]
    head_bytes = group * dims["seq_q"] * dims["seq_kv"] * wide.itemsize
    heads = min(dims["heads_kv"], max(1, SLAB_BYTES // head_bytes))
    fit = SLAB_BYTES // (head_bytes * heads) if heads == dims["heads_kv"] else 1
    shape = (min(dims["batch"], max(1, fit)), heads, group, dims["seq_q"], dims["seq_kv"])
    # The rounded copy and the mask are at most as large as the scores: check memory for all three.
    scores = workspace(shape, wide, free_bytes // 3)
    return Workspace(
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


def _slab_steps(problem: Problem, views: list[Array], space: Workspace) -> list[Step]:
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
