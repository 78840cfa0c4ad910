"""moe: a mixture of experts as inference engines run it, after the router.

Token t is sent to `top_k` experts with a weight each; out = Σ weight · W2·(silu(Wg·x) ⊙ Wu·x). Wg
(gate) and Wu (up) are the two halves of an expert's w1. With scale, the weights have 8 bits and
factors, and kernels quantise the activations before each GEMM.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import GivenValues, TensorSpec, Tolerance
from kernelmark.numerics.floats import encode
from kernelmark.numerics.generate import POOL, Inputs
from kernelmark.ops._checks import (
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
    weight_bound,
)
from kernelmark.ops.base import SCATTERED, Op, Parameter, Parameters, Reference, TensorHelp
from kernelmark.ops.batched_gemm_quant import group_rounded

_DTYPES = ("f32", "f16", "bf16")
_EXPERTS = 4096
# Tokens whose experts are drawn; longer batches repeat them. With this many, the balance of load
# over the experts hardly changes any more.
_ROUTED = 1 << 14
# Limit of the multiplications of a check, about 1 ns each. One token needs those of all its
# experts, 10^8 in large models: then one token per inspected set is checked.
_WORK = 1 << 25
_PARAMETERS = {
    "m": "tokens",
    "n": "intermediate size of an expert, after the split of tensor parallelism",
    "k": "hidden size",
    "e": "experts",
    "top_k": "experts that a token is sent to",
    "x": "dtype of the hidden states, the weights and the output",
    "acc": "dtype of sums",
    "dtype": "shorthand: x",
    "w": "dtype of the weights: x, or with scale f8e4m3, f8e4m3fnuz or i8 (scale=row)",
    "scale": "none; tensor: a factor for each expert's matrix; row: one for each of its rows; "
    "block: one for every 128×128 elements. Kernels quantise tokens to w, with a factor for each, "
    "or with scale=block for every 128 elements",
    "w_order": "rows: weights by rows; tiled: in aiter's tiles of 16 rows (shuffle_weight)",
}
# The tiles of aiter's kernels for 2-byte floats: rows of a tile, columns of a tile, and those that
# a thread loads at once.
_ROWS, _COLUMNS, _VECTOR = 16, 32, 8
_SCALES = ("none", "tensor", "row", "block")
_SCALED = ("f8e4m3", "f8e4m3fnuz", "i8")
SCALE_GROUP = 128  # elements along each side of a block


class Moe(Op):
    """out[t] = Σ_s weights[t, s] · w2[e] · (silu(w1[e][:n] · x[t]) ⊙ w1[e][n:] · x[t]), with e =
    ids[t, s].

    Each token's experts are uniformly random without repetition and independent of those of other
    tokens, as in vLLM's benchmark. `flops` counts the three GEMMs. `bytes` counts the weights of
    the expected number of experts that any token chooses.
    """

    name = "moe"
    summary = "fused mixture of experts: two GEMMs an expert, silu-gated, summed by router weight"
    parameters = _PARAMETERS
    examples = (
        "moe m=1 n=16 k=32 e=4 top_k=2 dtype=f32",
        "moe m=33 n=24 k=40 e=8 top_k=2 dtype=f32",
        "moe m=7 n=48 k=64 e=16 top_k=8 dtype=f16",
        "moe m=40 n=32 k=48 e=3 top_k=3 dtype=f16",
        "moe m=5 n=64 k=64 e=8 top_k=1 dtype=bf16",
        "moe m=65 n=40 k=72 e=6 top_k=4 dtype=bf16",
        "moe m=9 n=32 k=64 e=4 top_k=2 dtype=bf16 w_order=tiled",
        "moe m=33 n=40 k=96 e=8 top_k=2 dtype=f16 w=f8e4m3 scale=tensor",
        "moe m=33 n=40 k=96 e=8 top_k=2 dtype=bf16 w=f8e4m3fnuz scale=row",
        "moe m=20 n=48 k=64 e=4 top_k=2 dtype=bf16 w=i8 scale=row",
        "moe m=20 n=128 k=256 e=4 top_k=2 dtype=bf16 w=f8e4m3 scale=block",
    )
    tensor_help = (
        TensorHelp("x", "m×k", "x"),
        TensorHelp("w1", "e×(2·n)×k", "x", "scale=none"),
        TensorHelp("w1", "e×(2·n)×k", "w", "scale=tensor|row|block"),
        TensorHelp("w2", "e×k×n", "x", "scale=none"),
        TensorHelp("w2", "e×k×n", "w", "scale=tensor|row|block"),
        TensorHelp("w1_scale", "e", "f32", "scale=tensor"),
        TensorHelp("w2_scale", "e", "f32", "scale=tensor"),
        TensorHelp("w1_scale", "e×(2·n)", "f32", "scale=row"),
        TensorHelp("w2_scale", "e×k", "f32", "scale=row"),
        TensorHelp("w1_scale", "e×(2·n//128)×(k//128)", "f32", "scale=block"),
        TensorHelp("w2_scale", "e×(k//128)×(n//128)", "f32", "scale=block"),
        TensorHelp("weights", "m×top_k", "f32"),
        TensorHelp("ids", "m×top_k", "i32"),
        TensorHelp("out", "m×k", "x", role="out"),
    )

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        dims = {name: read.dim(name) for name in ("m", "n", "k", "e", "top_k")}
        if dims["top_k"] > dims["e"]:
            reason = f"top_k={dims['top_k']} is not possible with e={dims['e']}"
            read.refuse(reason, "top_k must be at most e, the number of experts")
        if dims["e"] > _EXPERTS:
            reason = f"e={dims['e']} is too large"
            read.refuse(reason, f"e must be at most {_EXPERTS}")
        kind = read.dtype("x", read.base_dtype(("x",), _DTYPES), _DTYPES)
        types = {"x": kind, "acc": read.dtype("acc", "f32", ("f32",))}
        scale = read.choice("scale", _SCALES)
        if scale == "none":
            read.dtype("w", kind, (kind,), f"with scale=none and x={kind}")
        elif kind == "f32":
            read.refuse(f"scale={scale} is not possible with x=f32", "x may be f16 or bf16")
        else:
            allowed = _SCALED if scale == "row" else _SCALED[:2]
            types["w"] = read.dtype("w", "f8e4m3", allowed, f"with scale={scale}")
        if scale == "block" and (dims["n"] % SCALE_GROUP or dims["k"] % SCALE_GROUP):
            read.refuse(
                "scale=block is not possible", f"n and k must be multiples of {SCALE_GROUP}"
            )
        # Only in the problem if it is not the default, as older results have no order.
        order = read.choice("w_order", ("rows", "tiled"))
        if order == "tiled" and (kind == "f32" or dims["n"] % _COLUMNS or dims["k"] % _COLUMNS):
            hint = f"n and k must be multiples of {_COLUMNS}, and x f16 or bf16"
            read.refuse("w_order=tiled is not possible", hint)
        if order == "tiled" and scale != "none":
            read.refuse(f"w_order=tiled is not possible with scale={scale}")
        options = {} if order == "rows" else {"w_order": order}
        options |= {} if scale == "none" else {"scale": scale}
        problem = Problem(op=self.name, dims=dims, dtypes=types, options=options)
        return self.checked_sizes(problem, self._tensors(problem, None))

    def flops(self, problem: Problem) -> int:
        d = problem.dims
        return 6 * d["m"] * d["top_k"] * d["n"] * d["k"]

    def least_flops(self, problem: Problem) -> int:
        return self.flops(problem)

    def bytes(self, problem: Problem) -> int:
        d = problem.dims
        expected = d["e"] * (1 - (1 - d["top_k"] / d["e"]) ** d["m"])
        return self._bytes(problem, max(d["top_k"], round(expected)))

    def least_bytes(self, problem: Problem) -> int:
        return self._bytes(problem, problem.dims["top_k"])  # if all tokens have the same experts

    def _bytes(self, problem: Problem, experts: int) -> int:
        sizes = {spec.name: spec.nbytes for spec in self._tensors(problem, None)}
        tables = sum(
            sizes.pop(name) for name in [*sizes] if name.startswith("w") and name != "weights"
        )
        return sum(sizes.values()) + tables // problem.dims["e"] * experts

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        return self._tensors(problem, routing(problem.dims["e"], problem.dims["top_k"]))

    def _tensors(self, problem: Problem, ids: GivenValues | None) -> tuple[TensorSpec, ...]:
        d, kind = problem.dims, problem.dtypes["x"]
        m, n, k, e, top_k = (d[name] for name in ("m", "n", "k", "e", "top_k"))
        first, second = weight_bound(k), weight_bound(n)
        shape = (m, top_k)
        weights = [("w1", (e, 2 * n, k), first), ("w2", (e, k, n), second)]
        specs = [TensorSpec(name="x", shape=(m, k), dtype=kind)]
        if "w" in problem.dtypes:
            specs += [input_spec(name, size, problem.dtypes["w"]) for name, size, _ in weights]
            specs += [_factors_spec(problem, *weight) for weight in weights]
        else:
            specs += [
                TensorSpec(name=name, shape=size, dtype=kind, low=-bound, high=bound)
                for name, size, bound in weights
            ]
        return (
            *specs,
            # The sum is about 1, as for a softmax over the chosen experts.
            TensorSpec(name="weights", shape=shape, dtype="f32", low=0.0, high=2.0 / top_k),
            TensorSpec(name="ids", shape=shape, dtype="i32", low=0.0, high=float(e), given=ids),
            TensorSpec(name="out", shape=(m, k), dtype=kind, role="out"),
        )

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        token, column = np.divmod(where, problem.dims["k"])
        value, magnitude = np.empty(len(where)), np.empty(len(where))
        for item in np.unique(token):
            chosen = np.flatnonzero(token == item)
            columns, index = np.unique(column[chosen], return_inverse=True)
            output = _token(problem, inputs, int(item), columns)
            value[chosen], magnitude[chosen] = output.value[index], output.magnitude[index]
        return Reference(value=value, magnitude=magnitude)

    def tolerance(self, problem: Problem) -> Tolerance:
        """Return the tolerance; `_token` defines the magnitude."""
        kind = dtype(problem.dtypes["x"])
        quantised = f", silu(gate)·up to {problem.dtypes['w']}" if "w" in problem.dtypes else ""
        return Tolerance(
            per_magnitude=kind.unit_roundoff,
            per_value=kind.unit_roundoff,
            absolute=kind.smallest_step / 2,
            why=(
                f"gate, up, silu, their product and each expert's output rounded to {kind} "
                f"({kind.unit_roundoff:.2g}), independently{quantised}; sums over "
                f"{problem.dims['k']} and {problem.dims['n']} terms in {problem.dtypes['acc']}; "
                f"experts summed in {kind}"
            ),
        )

    def positions(self, problem: Problem, seed: int) -> Ints:
        d, rng = problem.dims, rng_for(seed)
        tokens = axis(d["m"], _tokens(problem), rng)
        spare = 2 * GATHER // (len(tokens) * d["top_k"] * d["n"])
        columns = axis(d["k"], max(16, min(POSITIONS // len(tokens), spare)), rng)
        return grid((d["m"], d["k"]), (tokens, columns))

    def scattered(self, problem: Problem, rng: np.random.Generator) -> Ints:
        """Return one position in each of half as many random tokens as `positions` has; none if
        that is one, as `positions` then draws a random token."""
        tokens = rng.integers(0, problem.dims["m"], _tokens(problem) // 2)
        return tokens * problem.dims["k"] + rng.integers(0, problem.dims["k"], len(tokens))


@functools.lru_cache(maxsize=16)
def routing(experts: int, top_k: int) -> GivenValues:
    """Return the expert ids of many tokens: `top_k` different ones each, uniformly random."""
    rng = np.random.Generator(np.random.PCG64([experts, top_k]))
    ids = np.empty((_ROUTED, top_k))
    step = max(1, (1 << 20) // experts)
    for start in range(0, _ROUTED, step):
        order = rng.random((min(step, _ROUTED - start), experts))
        # Shuffled, as the order that argpartition leaves is not random.
        some = np.argpartition(order, top_k - 1, axis=1)[:, :top_k]
        ids[start : start + step] = rng.permuted(some, axis=1)
    return GivenValues(encode(ids.ravel(), "i32"), row=top_k)


def _tokens(problem: Problem) -> int:
    """Return the number of tokens to check."""
    d = problem.dims
    return max(1, min(d["m"], SCATTERED, _WORK // (2 * d["top_k"] * d["n"] * d["k"])))


def _token(problem: Problem, inputs: Inputs, token: int, columns: Ints) -> Reference:
    """Return the output of one token at some columns, and its error in units of u, x's unit
    roundoff.

    With g, p the sums of gate and up, h = silu(g)·p and y an expert's output, to first order:

    - g and p have their sums' error (`accumulation` of Σ|x|·max|w|, and `trend`) and, if they are
      stored between two kernels, u each; silu(g) and h are rounded to u as well. That is δ_j for
      h_j, independent for each j: SIGMAS/√3·√(Σ δ_j²·w2_j²);
    - with quantised weights, x̂ is x quantised as the kernel does it, bit for bit; h is quantised
      too, from a value that no two kernels compute alike: its rounding is one more error of h_j;
    - the second sum adds `accumulation` of Σ|h·w2| and `trend`;
    - r·y is rounded to u for each expert, and their sum after each one, in any order: independent
      roundings of at most u·Σ|r·y|, but never more than all of them together.
    """
    d = problem.dims
    n, k, top_k = d["n"], d["k"], d["top_k"]
    kind, acc = dtype(problem.dtypes["x"]), dtype(problem.dtypes["acc"])
    small = problem.dtypes.get("w")
    # Sums of integer products are exact; those of groups are added in f32.
    summed_as = kind if small is None else dtype("f32" if small == "i8" else small)
    u, floor = kind.unit_roundoff, 2.0**kind.min_exponent
    tiled = problem.options.get("w_order") == "tiled"
    slots = token * top_k + np.arange(top_k)
    ids = inputs.take("ids", slots).astype(np.int64).tolist()
    x = inputs.take("x", token * k + np.arange(k))
    top_w1 = largest("w1", weight_bound(k))
    if small is not None:
        top_w1 = largest("w1_scale", weight_bound(k)) * largest("w1", 1.0)
        x, steps = _quantised(problem, x)
        # A division that is not correctly rounded may move one element to its neighbour.
        summed = 2 * steps.max() * top_w1
    else:
        summed = 0.0
    summed += accumulation(k, summed_as, acc) * top_w1 * np.abs(x).sum()
    outputs, errors = np.empty((top_k, len(columns))), np.zeros(len(columns))
    for slot, (expert, r) in enumerate(zip(ids, inputs.take("weights", slots), strict=True)):
        rows = np.arange(2 * n * expert, 2 * n * (expert + 1))
        if small is None:
            both = _rows_times(inputs, "w1", 2 * n * expert, 2 * n, x, tiled=tiled)
        else:
            both = _scaled_rows_times(problem, inputs, rows, x)
        gate, up = np.split(both, 2)
        sigmoid = 1 / (1 + np.exp(-gate))
        silu = gate * sigmoid
        h = silu * up
        slope = np.abs(up * sigmoid * (1 + gate * (1 - sigmoid)))
        rounding = u + trend(k, summed_as, acc)
        delta = slope * (summed + rounding * np.abs(gate))
        delta += np.abs(silu) * (summed + rounding * np.abs(up))
        delta += 2 * u * np.maximum(np.abs(h), floor)
        delta += 4 * acc.unit_roundoff * (1 + np.abs(gate)) * np.abs(h)
        if small is not None:
            delta += _quantised(problem, h)[1]
        squares, sizes = np.empty(len(columns)), np.empty(len(columns))
        step = max(1, GATHER // n)
        for start in range(0, len(columns), step):
            some = slice(start, start + step)
            rows = expert * k + columns[some]
            w2 = _tiled_rows(inputs, rows, n) if tiled else inputs.runs("w2", rows * n, n)
            if small is not None:
                w2 = w2 * _factors_of(problem, inputs, "w2", rows)
            outputs[slot, some] = r * (w2 @ h)
            squares[some] = w2**2 @ delta**2
            sizes[some] = np.abs(w2) @ np.abs(h)
        errors += r * SIGMAS / math.sqrt(3) * np.sqrt(squares)
        errors += r * accumulation(n, summed_as, acc) * sizes
        errors += (trend(n, summed_as, acc) + 2 * acc.unit_roundoff) * np.abs(outputs[slot])
    total = np.abs(outputs).sum(axis=0)
    apart = np.sqrt((outputs**2).sum(axis=0) + (top_k - 1) * total**2)
    errors += u * np.minimum(SIGMAS / math.sqrt(3) * apart, top_k * total)
    return Reference(value=outputs.sum(axis=0), magnitude=errors / u)


def _factors_spec(
    problem: Problem, name: str, shape: tuple[int, int, int], bound: float
) -> TensorSpec:
    """Return the factors of a matrix of each expert, with which its elements are below `bound`."""
    experts, rows, columns = shape
    sizes = {
        "tensor": (experts,),
        "row": (experts, rows),
        "block": (experts, rows // SCALE_GROUP, columns // SCALE_GROUP),
    }
    top = bound / (128 if problem.dtypes["w"] == "i8" else 1)
    size = sizes[str(problem.options["scale"])]
    # A range of 8: a factor of another expert, row or block is noticed beside the quantisation.
    return TensorSpec(name=f"{name}_scale", shape=size, dtype="f32", low=top / 8, high=top)


def _quantised(problem: Problem, values: Floats) -> tuple[Floats, Floats]:
    """Return activations of a token after their quantisation, and the largest error of each."""
    to, whole = problem.dtypes["w"], len(values)
    group = SCALE_GROUP if problem.options["scale"] == "block" else whole
    rounded = group_rounded(values[None, :], group, to)[0]
    small = dtype(to)
    scale = np.abs(values.reshape(-1, group)).max(axis=1).repeat(group) / small.max_value
    if small.kind == "int":
        return rounded, scale / 2
    floor = 2.0**small.min_exponent * scale
    return rounded, small.unit_roundoff * np.maximum(np.abs(values), floor)


def _factors_of(problem: Problem, inputs: Inputs, name: str, lines: Ints) -> Floats:
    """Return the factors of rows of the matrices of all experts, as columns to multiply with."""
    d = problem.dims
    height, width = (2 * d["n"], d["k"]) if name == "w1" else (d["k"], d["n"])
    match problem.options["scale"]:
        case "tensor":
            return inputs.take(f"{name}_scale", lines // height)[:, None]
        case "row":
            return inputs.take(f"{name}_scale", lines)[:, None]
    blocks = width // SCALE_GROUP
    where = (lines // SCALE_GROUP)[:, None] * blocks + np.arange(blocks)
    factors = inputs.take(f"{name}_scale", where.ravel()).reshape(where.shape)
    return factors.repeat(SCALE_GROUP, axis=1)


def _scaled_rows_times(problem: Problem, inputs: Inputs, rows: Ints, x: Floats) -> Floats:
    """Return rows of w1 with their factors, times x."""
    parts = np.array_split(rows, -(-len(rows) * len(x) // POOL))
    return np.concatenate(
        [
            (inputs.runs("w1", some * len(x), len(x)) * _factors_of(problem, inputs, "w1", some))
            @ x
            for some in parts
        ]
    )


def _rows_times(
    inputs: Inputs, name: str, first: int, rows: int, x: Floats, *, tiled: bool
) -> Floats:
    """Return rows of a matrix times x, in pieces that are contiguous in the generator's pool. Tiles
    of as many rows are contiguous too."""
    width = len(x)
    step = max(1, POOL // width)
    if tiled:
        step = max(_ROWS, step // _ROWS * _ROWS)
    return np.concatenate(
        [
            _by_rows(
                inputs.run(name, (first + at) * width, min(step, rows - at) * width),
                width,
                tiled=tiled,
            )
            @ x
            for at in range(0, rows, step)
        ]
    )


def _by_rows(values: Floats, width: int, *, tiled: bool) -> Floats:
    """Return stored elements as rows."""
    if not tiled:
        return values.reshape(-1, width)
    shape = (-1, width // _COLUMNS, _COLUMNS // _VECTOR, _ROWS, _VECTOR)
    return values.reshape(shape).transpose(0, 3, 1, 2, 4).reshape(-1, width)


def _tiled_rows(inputs: Inputs, rows: Ints, width: int) -> Floats:
    """Return rows of w2, which is stored in tiles."""
    tile, row = np.divmod(rows, _ROWS)
    vectors = np.arange(width // _VECTOR) * (_ROWS * _VECTOR)
    starts = tile * (_ROWS * width) + row * _VECTOR
    where = starts[:, None, None] + vectors[:, None] + np.arange(_VECTOR)
    return inputs.take("w2", where.reshape(-1)).reshape(-1, width)


op = Moe()
