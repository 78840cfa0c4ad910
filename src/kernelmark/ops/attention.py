"""attention: softmax(scale·Q·Kᵀ)·V, forward, for MHA, GQA and MQA.

A causal mask is aligned to the bottom right: the last query attends to every key, query i to the
first seq_kv - seq_q + i + 1. This is correct for prefill, decode and extend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from kernelmark.core.dtype import DType, dtype
from kernelmark.core.problem import Option, Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import (
    F8_FNUZ,
    F8_OCP,
    GATHER,
    POSITIONS,
    SIGMAS,
    Floats,
    Ints,
    accumulation,
    axis,
    grid,
    input_spec,
    largest,
    rng_for,
    trend,
)
from kernelmark.ops.base import Op, Parameter, Parameters, Reference, TensorHelp

_CHUNK = 2**20
Kind = Literal["prefill", "decode", "extend", "cross"]

_F8 = (*F8_OCP, *F8_FNUZ)
_OUT: dict[str, tuple[str, ...]] = {
    "f64": ("f64",),
    "f32": ("f32",),
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    **dict.fromkeys(_F8, ("bf16", "f16", "f32")),
}
_LAYOUTS = ("bhsd", "bshd")
_HEADS = 4  # (batch, head) pairs to check
_LINES = 16  # queries and output columns to check per pair
_PARAMETERS = {
    "batch": "sequences (1 unless given)",
    "heads_q": "query heads",
    "heads_kv": "key and value heads; divides heads_q (heads_q unless given)",
    "seq_q": "queries a sequence",
    "seq_kv": "keys a sequence",
    "dim_qk": "length of a query and of a key",
    "dim_v": "length of a value (dim_qk unless given)",
    "q": "dtype of Q",
    "kv": "dtype of K and V: as Q, or an 8-bit float beside a 16-bit Q",
    "o": "dtype of O",
    "acc": "dtype of sums and of the softmax",
    "causal": "yes: a query does not see the keys after it (aligned at the last query)",
    "scale": "factor of the scores; auto is 1/√dim_qk",
    "layout": "bhsd: batch, heads, seq, dim; bshd: batch, seq, heads, dim",
    "heads": "shorthand: heads_q and heads_kv",
    "seq": "shorthand: seq_q and seq_kv",
    "dim": "shorthand: dim_qk and dim_v",
    "dtype": "shorthand: Q, K and V, and O and acc that follow from it",
}


class Attention(Op):
    """O = softmax(scale·Q·Kᵀ)·V for each batch and head; query heads share key-value heads in
    groups of heads_q / heads_kv.

    `flops` counts two GEMMs, 2·(dim_qk + dim_v) for each pair of a query and a key that it attends
    to; the pairs of a causal mask are counted exactly, not halved. The softmax is not counted.
    """

    name = "attention"
    summary = "scaled dot-product attention, forward (MHA, GQA, MQA; prefill, decode, extend)"
    parameters = _PARAMETERS
    costs_are_least = True
    examples = (
        "attention batch=2 heads=3 seq=40 dim=16 dtype=f32",
        "attention batch=2 heads_q=4 heads_kv=2 seq_q=24 seq_kv=40 dim=16 dtype=f32 causal=yes",
        "attention heads_q=4 heads_kv=1 seq_q=1 seq_kv=65 dim=32 dtype=f16 causal=yes",
        "attention batch=2 heads=2 seq=48 dim=32 dtype=f16 causal=yes layout=bshd",
        "attention heads_q=4 heads_kv=2 seq_q=16 seq_kv=48 dim=32 dtype=bf16 causal=yes",
        "attention heads=2 seq=32 dim_qk=24 dim_v=16 dtype=f32 scale=0.25 layout=bshd",
        "attention heads=2 seq=32 dim_qk=24 dim_v=16 dtype=bf16",
        "attention heads=2 seq=32 dim=32 dtype=f8e4m3",
    )
    tensor_help = (
        TensorHelp("q", "batch×heads_q×seq_q×dim_qk", "q", "layout=bhsd"),
        TensorHelp("q", "batch×seq_q×heads_q×dim_qk", "q", "layout=bshd"),
        TensorHelp("k", "batch×heads_kv×seq_kv×dim_qk", "kv", "layout=bhsd"),
        TensorHelp("k", "batch×seq_kv×heads_kv×dim_qk", "kv", "layout=bshd"),
        TensorHelp("v", "batch×heads_kv×seq_kv×dim_v", "kv", "layout=bhsd"),
        TensorHelp("v", "batch×seq_kv×heads_kv×dim_v", "kv", "layout=bshd"),
        TensorHelp("o", "batch×heads_q×seq_q×dim_v", "o", "layout=bhsd", role="out"),
        TensorHelp("o", "batch×seq_q×heads_q×dim_v", "o", "layout=bshd", role="out"),
    )

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        heads_q = read.dim("heads_q", short="heads")
        dim_qk = read.dim("dim_qk", short="dim")
        dims = {
            "batch": read.dim("batch", 1),
            "heads_q": heads_q,
            "heads_kv": read.dim("heads_kv", heads_q, short="heads"),
            "seq_q": read.dim("seq_q", short="seq"),
            "seq_kv": read.dim("seq_kv", short="seq"),
            "dim_qk": dim_qk,
            "dim_v": read.dim("dim_v", dim_qk, short="dim"),
        }
        options: dict[str, Option] = {
            "causal": read.flag("causal"),
            "scale": "auto"
            if parameters.get("scale", "auto") == "auto"
            else read.number("scale", 0),
            "layout": read.choice("layout", _LAYOUTS),
        }
        problem = Problem(op=self.name, dims=dims, dtypes=_dtypes(read), options=options)
        _check(read, problem)
        return self.checked_sizes(problem)

    def flops(self, problem: Problem) -> int:
        d = problem.dims
        return 2 * d["batch"] * d["heads_q"] * pairs(problem) * (d["dim_qk"] + d["dim_v"])

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        d, types = problem.dims, problem.dtypes

        def shape(heads: str, seq: str, dim: str) -> tuple[int, ...]:
            if problem.options["layout"] == "bshd":
                return d["batch"], d[seq], d[heads], d[dim]
            return d["batch"], d[heads], d[seq], d[dim]

        return (
            input_spec("q", shape("heads_q", "seq_q", "dim_qk"), types["q"]),
            input_spec("k", shape("heads_kv", "seq_kv", "dim_qk"), types["kv"]),
            input_spec("v", shape("heads_kv", "seq_kv", "dim_v"), types["kv"]),
            TensorSpec(
                name="o", shape=shape("heads_q", "seq_q", "dim_v"), dtype=types["o"], role="out"
            ),
        )

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        d = problem.dims
        query, column = np.divmod(where, d["dim_v"])
        outer, inner = np.divmod(query, self.output(problem).shape[2])
        batch, middle = np.divmod(outer, self.output(problem).shape[1])
        head, row = (inner, middle) if problem.options["layout"] == "bshd" else (middle, inner)
        value, magnitude = np.empty(len(where)), np.empty(len(where))
        pair = batch * d["heads_q"] + head
        for item in np.unique(pair):
            chosen = np.flatnonzero(pair == item)
            b, h = divmod(int(item), d["heads_q"])
            rows, row_index = np.unique(row[chosen], return_inverse=True)
            cols, col_index = np.unique(column[chosen], return_inverse=True)
            output = _head(problem, inputs, (b, h), rows, cols)
            value[chosen] = output.value[row_index, col_index]
            magnitude[chosen] = output.magnitude[row_index, col_index]
        return Reference(value=value, magnitude=magnitude)

    def tolerance(self, problem: Problem) -> Tolerance:
        """Return the tolerance; `_reference` defines the magnitude."""
        types = problem.dtypes
        out, acc = dtype(types["o"]), dtype(types["acc"])
        rounded = _weight_type(problem).unit_roundoff
        keys, narrow = problem.dims["seq_kv"], _narrow_type(problem)
        # second GEMM, divisor, division
        sums = trend(keys, narrow, acc) + trend(keys, acc, acc) + 2 * acc.unit_roundoff
        return Tolerance(
            per_magnitude=rounded * (1 + out.unit_roundoff),
            per_value=out.unit_roundoff + rounded + sums,
            absolute=out.smallest_step / 2,
            why=(
                f"weights rounded to {_weight_type(problem)} before the second GEMM "
                f"({rounded:.2g}, independent for each key, plus a share common to all), "
                f"sums over {problem.dims['dim_qk']} and {problem.dims['seq_kv']} terms in "
                f"{acc}, then one rounding to {out}: {out.unit_roundoff:.2g} of the value"
            ),
        )

    def positions(self, problem: Problem, seed: int) -> Ints:
        d, rng = problem.dims, rng_for(seed)
        pairs_ = max(1, min(_HEADS, GATHER // (d["seq_kv"] * (d["dim_qk"] + _LINES))))
        batch = axis(d["batch"], 2 if pairs_ >= 4 else 1, rng)
        head = axis(d["heads_q"], max(1, pairs_ // len(batch)), rng)
        checked = len(batch) * len(head)
        spare = POSITIONS // (checked * min(d["seq_q"], 4 * _LINES))
        cols = axis(d["dim_v"], max(_LINES, min(spare, GATHER // (checked * d["seq_kv"]))), rng)
        lines = min(4 * _LINES, POSITIONS // (checked * len(cols)))
        rows = axis(d["seq_q"], max(1, min(lines, 4 * GATHER // d["seq_kv"])), rng)
        if problem.options["layout"] == "bshd":
            return grid(self.output(problem).shape, (batch, rows, head, cols))
        return grid(self.output(problem).shape, (batch, head, rows, cols))


def pairs(problem: Problem) -> int:
    """Return the number of pairs of a query and a key that it attends to, per head and sequence."""
    queries, keys = problem.dims["seq_q"], problem.dims["seq_kv"]
    hidden = queries * (queries - 1) // 2 if problem.options["causal"] else 0
    return queries * keys - hidden


def kind(problem: Problem) -> Kind:
    """Return the phase of a model that has this problem: one new token is decode, all tokens new is
    prefill, some tokens new is extend; more queries than keys is cross-attention."""
    queries, keys = problem.dims["seq_q"], problem.dims["seq_kv"]
    if queries == 1:
        return "decode"
    if queries == keys:
        return "prefill"
    return "extend" if queries < keys else "cross"


def _dtypes(read: Parameters) -> dict[str, str]:
    base = read.base_dtype(("q", "kv"), tuple(_OUT))
    q = read.dtype("q", base, tuple(_OUT))
    partners = (q, *_F8) if q in ("f16", "bf16") else (q,)
    kv = read.dtype("kv", q, partners, f"with q={q}")
    o = read.dtype("o", _OUT[q][0], _OUT[q], f"with q={q}")
    acc = "f64" if q == "f64" else "f32"
    return {"q": q, "kv": kv, "o": o, "acc": read.dtype("acc", acc, (acc,), f"with q={q}")}


def _check(read: Parameters, problem: Problem) -> None:
    d = problem.dims
    if d["heads_q"] % d["heads_kv"]:
        read.refuse(
            f"heads_q={d['heads_q']} is not a multiple of heads_kv={d['heads_kv']}",
            "query heads share key-value heads in equal groups",
        )
    if problem.options["causal"] and d["seq_q"] > d["seq_kv"]:
        why = f"with seq_q={d['seq_q']} > seq_kv={d['seq_kv']}: queries would have no keys"
        read.refuse(
            f"causal=yes is not possible {why}", "use causal=no, or seq_kv of at least seq_q"
        )
    factor = scale(problem)
    if factor <= 0:
        read.refuse(f"scale={factor} must be positive")
    if factor * math.sqrt(d["dim_qk"]) > 64:
        # Beyond this, exp of a score's rounding error is no longer near 1.
        read.refuse(
            f"scale={factor} is too large",
            f"scale·√dim_qk must be at most 64 (here {factor * math.sqrt(d['dim_qk']):.3g})",
        )


# -- the reference: one head at some queries and columns, with the error of kernels


def scale(problem: Problem) -> float:
    """Return the factor of the scores as a number."""
    value = problem.options["scale"]
    return 1 / math.sqrt(problem.dims["dim_qk"]) if value == "auto" else float(value)


def _weight_type(problem: Problem) -> DType:
    """Return the dtype in which softmax weights are multiplied: the wider one of Q's and V's."""
    return max((dtype(problem.dtypes[name]) for name in ("q", "kv")), key=lambda t: t.digits)


def _narrow_type(problem: Problem) -> DType:
    """Return the narrower dtype of Q and K, V, which determines the possible matrix unit."""
    return min((dtype(problem.dtypes[name]) for name in ("q", "kv")), key=lambda t: t.bits)


def _head(
    problem: Problem, inputs: Inputs, head_q: tuple[int, int], rows: Ints, cols: Ints
) -> Reference:
    """Return the output of the query head (batch, head) at `rows` × `cols`, and its error scale."""
    d = problem.dims
    head_kv = head_q[0], head_q[1] // (d["heads_q"] // d["heads_kv"])
    hidden = d["seq_kv"] - d["seq_q"] + 1
    keys = int(rows[-1]) + hidden if problem.options["causal"] else d["seq_kv"]
    dim = np.arange(d["dim_qk"])
    at = _Locator(problem)
    width = d["dim_qk"]
    q = inputs.take("q", at("q", head_q, rows, dim))
    scores = np.empty((len(rows), keys))
    step = max(1, _CHUNK // d["dim_qk"])
    for start in range(0, keys, step):
        some = np.arange(start, min(start + step, keys))
        starts = at("k", head_kv, some, dim[:1]).ravel()
        if len(starts) == 1 or starts[1] - starts[0] == width:
            k = inputs.run("k", int(starts[0]), len(some) * width).reshape(-1, width)
        else:
            k = inputs.runs("k", starts, width)
        scores[:, some[0] : some[-1] + 1] = q @ k.T
    scores *= scale(problem)
    if problem.options["causal"]:
        scores[np.arange(keys)[None, :] >= (rows + hidden)[:, None]] = -np.inf
    every = np.arange(keys)
    v = inputs.take("v", at("v", head_kv, every, cols))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    scores[np.isinf(scores)] = 0.0
    return _reference(problem, q, scores, weights, v)


def _reference(
    problem: Problem, q: Floats, scores: Floats, weights: Floats, v: Floats
) -> Reference:
    """Return the output, and the largest error of a correct kernel, in units of the weights' unit
    roundoff u.

    With weights w_j = exp(s_j - max), l = Σw_j and p_j = w_j / l, to first order:

    - flash kernels round w_j to the input dtype: an error of at most u·w_j, or half the smallest
      step where w_j is tiny, independent for each key (σ at most u/√3):
      SIGMAS·u/√3·√(Σ max(w_j, smallest normal number)²·v_j²) / l;
    - an error ε_j of score s_j moves the output by p_j·ε_j·(v_j - value). Independent for each
      key: the sum over dim_qk terms (`accumulation` of Σ|q·k|·scale, with |k| ≤ 1 where
      it is drawn, and `trend`), and Q·scale rounded to the input dtype (u/√3·‖q‖₂·scale, with a
      variance of 1/3 of a drawn k). Common to
      all keys: the rounding of scale, of s_j and of s_j - max (4·u_acc·max|s|) and that of exp
      (4·u_acc);
    - the second GEMM sums terms p_j·v_j, and flash kernels rescale the sum as often.

    The rest (the divisor l, a rounding common to all weights, the output) is a fraction of the
    value and is part of the tolerance.
    """
    types = problem.dtypes
    acc, rounded = dtype(types["acc"]), _weight_type(problem)
    narrow = _narrow_type(problem)
    u = rounded.unit_roundoff
    total = weights.sum(axis=1, keepdims=True)
    value = (weights @ v) / total
    probability = weights / total
    size = probability @ np.abs(v)
    floor = 2.0**rounded.min_exponent
    coarse = np.where(weights > 0, np.maximum(weights, floor), 0.0) / total
    from_weights = SIGMAS / math.sqrt(3) * np.sqrt(coarse**2 @ v**2)

    squares = probability**2
    apart = squares @ v**2 - 2 * value * (squares @ v) + value**2 * squares.sum(1, keepdims=True)
    peak = np.abs(scores).max(axis=1, keepdims=True)
    summed = accumulation(q.shape[1], narrow, acc) * np.abs(q).sum(1, keepdims=True)
    summed *= largest("k", 1.0)
    scaled = (
        u / math.sqrt(3) * largest("k", 1 / math.sqrt(3)) * np.sqrt((q**2).sum(1, keepdims=True))
    )
    straight = trend(q.shape[1], narrow, acc) * peak
    one_score = (scale(problem) * (summed + scaled) + straight) / u
    from_scores = SIGMAS * one_score * np.sqrt(np.maximum(apart, 0.0))

    common = 4 * acc.unit_roundoff / u * (1 + peak) * (size + np.abs(value))
    seen = (weights > 0).sum(axis=1)
    factors = [accumulation(int(keys), narrow, acc) for keys in seen]
    second = 2 / u * np.array(factors)[:, None] * size
    return Reference(value=value, magnitude=from_weights + from_scores + common + second)


class _Locator:
    """Computes flat positions of rows × columns of one head, in the problem's layout."""

    _DIMS: ClassVar[Mapping[str, tuple[str, str, str]]] = {
        "q": ("heads_q", "seq_q", "dim_qk"),
        "k": ("heads_kv", "seq_kv", "dim_qk"),
        "v": ("heads_kv", "seq_kv", "dim_v"),
    }

    def __init__(self, problem: Problem) -> None:
        self._dims = problem.dims
        self._bshd = problem.options["layout"] == "bshd"

    def __call__(self, tensor: str, position: tuple[int, int], rows: Ints, cols: Ints) -> Ints:
        """Return the positions in a head of `tensor`, which is at (batch, head)."""
        head_count, length, width = (self._dims[name] for name in self._DIMS[tensor])
        batch, head = position
        if self._bshd:
            line = (batch * length + rows) * head_count + head
        else:
            line = (batch * head_count + head) * length + rows
        return np.asarray(line[:, None] * width + cols[None, :])


op = Attention()
