"""One head of attention at some queries and columns in float64, with the error of kernels."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.problem import Problem
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._error import SIGMAS, accumulation, trend
from kernelmark.ops.base import Reference

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_CHUNK = 2**20


def scale(problem: Problem) -> float:
    given = problem.options["scale"]
    return 1 / math.sqrt(problem.dims["dim_qk"]) if given == "auto" else float(given)


def weight_type(problem: Problem) -> DType:
    """Return the dtype in which softmax weights are multiplied: the wider one of Q's and V's."""
    return max((dtype(problem.dtypes[name]) for name in ("q", "kv")), key=lambda t: t.digits)


def narrow_type(problem: Problem) -> DType:
    """Return the narrower dtype of Q and K, V, which determines the possible matrix unit."""
    return min((dtype(problem.dtypes[name]) for name in ("q", "kv")), key=lambda t: t.bits)


def head(
    problem: Problem, inputs: Inputs, batch: int, head_q: int, rows: Ints, cols: Ints
) -> Reference:
    """Return the output of one query head at `rows` × `cols`, and its error scale."""
    d = problem.dims
    head_kv = head_q // (d["heads_q"] // d["heads_kv"])
    hidden = d["seq_kv"] - d["seq_q"] + 1
    keys = int(rows[-1]) + hidden if problem.options["causal"] else d["seq_kv"]
    dim = np.arange(d["dim_qk"])
    at = _Locator(problem)
    width = d["dim_qk"]
    q = inputs.take("q", at("heads_q", "seq_q", "dim_qk", batch, head_q, rows, dim))
    scores = np.empty((len(rows), keys))
    step = max(1, _CHUNK // d["dim_qk"])
    for start in range(0, keys, step):
        some = np.arange(start, min(start + step, keys))
        starts = at("heads_kv", "seq_kv", "dim_qk", batch, head_kv, some, dim[:1]).ravel()
        if len(starts) == 1 or starts[1] - starts[0] == width:
            k = inputs.run("k", int(starts[0]), len(some) * width).reshape(-1, width)
        else:
            k = inputs.runs("k", starts, width)
        scores[:, some[0] : some[-1] + 1] = q @ k.T
    scores *= scale(problem)
    if problem.options["causal"]:
        scores[np.arange(keys)[None, :] >= (rows + hidden)[:, None]] = -np.inf
    every = np.arange(keys)
    v = inputs.take("v", at("heads_kv", "seq_kv", "dim_v", batch, head_kv, every, cols))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    value = (weights @ v) / weights.sum(axis=1, keepdims=True)
    scores[np.isinf(scores)] = 0.0
    return Reference(value=value, magnitude=error(problem, q, scores, weights, v, value))


def error(
    problem: Problem, q: Floats, scores: Floats, weights: Floats, v: Floats, value: Floats
) -> Floats:
    """Return the largest error of a correct kernel, in units of the weights' unit roundoff u.

    With weights w_j = exp(s_j - max), l = Σw_j and p_j = w_j / l, to first order:

    - flash kernels round w_j to the input dtype: an error of at most u·w_j, or half the smallest
      step where w_j is tiny, independent for each key (σ at most u/√3):
      SIGMAS·u/√3·√(Σ max(w_j, smallest normal number)²·v_j²) / l;
    - an error ε_j of score s_j moves the output by p_j·ε_j·(v_j - value). Independent for each
      key: the sum over dim_qk terms (`accumulation` of Σ|q·k|·scale, with |k| ≤ 1, and `trend`),
      and Q·scale rounded to the input dtype (u/√3·‖q‖₂·scale, k having variance 1/3). Common to
      all keys: the rounding of scale, of s_j and of s_j - max (4·u_acc·max|s|) and that of exp
      (4·u_acc);
    - the second GEMM sums terms p_j·v_j, and flash kernels rescale the sum as often.

    The rest (the divisor l, a rounding common to all weights, the output) is a fraction of the
    value and is part of the tolerance.
    """
    types = problem.dtypes
    acc, rounded = dtype(types["acc"]), weight_type(problem)
    narrow = narrow_type(problem)
    u = rounded.unit_roundoff
    total = weights.sum(axis=1, keepdims=True)
    probability = weights / total
    size = probability @ np.abs(v)
    floor = 2.0**rounded.min_exponent
    coarse = np.where(weights > 0, np.maximum(weights, floor), 0.0) / total
    from_weights = SIGMAS / math.sqrt(3) * np.sqrt(coarse**2 @ v**2)

    squares = probability**2
    apart = squares @ v**2 - 2 * value * (squares @ v) + value**2 * squares.sum(1, keepdims=True)
    largest = np.abs(scores).max(axis=1, keepdims=True)
    summed = accumulation(q.shape[1], narrow, acc) * np.abs(q).sum(1, keepdims=True)
    scaled = u / 3 * np.sqrt((q**2).sum(1, keepdims=True))
    straight = trend(q.shape[1], narrow, acc) * largest
    one_score = (scale(problem) * (summed + scaled) + straight) / u
    from_scores = SIGMAS * one_score * np.sqrt(np.maximum(apart, 0.0))

    common = 4 * acc.unit_roundoff / u * (1 + largest) * (size + np.abs(value))
    seen = (weights > 0).sum(axis=1)
    factors = [accumulation(int(keys), narrow, acc) for keys in seen]
    second = 2 / u * np.array(factors)[:, None] * size
    return np.asarray(from_weights + from_scores + common + second)


class _Locator:
    """Computes flat positions of rows × columns of one head, in the problem's layout."""

    def __init__(self, problem: Problem) -> None:
        self._dims = problem.dims
        self._bshd = problem.options["layout"] == "bshd"

    def __call__(
        self, heads: str, seq: str, dim: str, batch: int, head: int, rows: Ints, cols: Ints
    ) -> Ints:
        head_count, length, width = self._dims[heads], self._dims[seq], self._dims[dim]
        if self._bshd:
            line = (batch * length + rows) * head_count + head
        else:
            line = (batch * head_count + head) * length + rows
        return np.asarray(line[:, None] * width + cols[None, :])
