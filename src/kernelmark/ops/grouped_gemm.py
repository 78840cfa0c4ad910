"""grouped_gemm: the GEMMs of the experts of a MoE layer, over rows that are sorted by expert."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from kernelmark.core.problem import Problem
from kernelmark.core.tensor import (
    Axis,
    Contraction,
    GivenValues,
    TensorSpec,
    Tolerance,
    WeightedSum,
)
from kernelmark.numerics.floats import encode
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import (
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

_DTYPES = ("f32", "f16", "bf16")
_EXPERTS = 4096
_PARAMETERS = {
    "m": "rows of all groups: tokens × top_k",
    "n": "columns of the output",
    "k": "length of each sum",
    "e": "groups (experts), each with its own W",
    "x": "dtype of X, W and the output",
    "acc": "dtype of sums",
    "dtype": "shorthand: x",
    "split": "routed: a random expert for each row; even: as many rows for each expert",
}


class GroupedGemm(Op):
    """out[i] = X[i]·W[g]ᵀ for the rows i of group g, which end before ends[g].

    The sizes of the groups follow from m, e and `split`, so that all sets and rewrites have the
    same ones: libraries take them on the host. A group may be empty, and its W is not read.
    """

    name = "grouped_gemm"
    summary = "GEMMs of the experts of a MoE layer: each multiplies its own rows by its own matrix"
    parameters = _PARAMETERS
    examples = (
        "grouped_gemm m=1 n=16 k=32 e=4 dtype=f32",
        "grouped_gemm m=33 n=24 k=40 e=8 dtype=f32",
        "grouped_gemm m=64 n=48 k=64 e=4 split=even dtype=f16",
        "grouped_gemm m=40 n=32 k=48 e=3 split=even dtype=f32",
        "grouped_gemm m=70 n=32 k=64 e=16 dtype=f16",
        "grouped_gemm m=65 n=40 k=72 e=6 dtype=bf16",
    )
    tensor_help = (
        TensorHelp("x", "m×k", "x"),
        TensorHelp("w", "e×n×k", "x"),
        TensorHelp("ends", "e", "i32"),
        TensorHelp("out", "m×n", "x", role="out"),
    )
    costs_are_least = True

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        dims = {name: read.dim(name) for name in ("m", "n", "k", "e")}
        if dims["e"] > _EXPERTS:
            read.refuse(f"e={dims['e']} is too large", f"e must be at most {_EXPERTS}")
        kind = read.dtype("x", read.base_dtype(("x",), _DTYPES), _DTYPES)
        types = {"x": kind, "acc": read.dtype("acc", "f32", ("f32",))}
        options = {"split": read.choice("split", ("routed", "even"))}
        problem = Problem(op=self.name, dims=dims, dtypes=types, options=options)
        return self.checked_sizes(problem)

    def flops(self, problem: Problem) -> int:
        d = problem.dims
        return 2 * d["m"] * d["n"] * d["k"]

    def bytes(self, problem: Problem) -> int:
        sizes = {spec.name: spec.nbytes for spec in self.tensors(problem)}
        used = np.count_nonzero(np.diff(group_ends(problem), prepend=0))
        return sum(sizes.values()) - sizes["w"] + sizes["w"] // problem.dims["e"] * int(used)

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        m, n, k, e = (problem.dims[name] for name in ("m", "n", "k", "e"))
        kind = problem.dtypes["x"]
        ends = GivenValues(encode(group_ends(problem).astype(float), "i32"), rotates=False)
        return (
            input_spec("x", (m, k), kind),
            input_spec("w", (e, n, k), kind),
            TensorSpec(name="ends", shape=(e,), dtype="i32", low=0.0, high=float(m), given=ends),
            TensorSpec(name="out", shape=(m, n), dtype=kind, role="out"),
        )

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        n, k = problem.dims["n"], problem.dims["k"]
        row, col = np.divmod(where, n)
        # Those of the inputs: `assert_close` has a user's own.
        ends = inputs.take("ends", np.arange(problem.dims["e"]))
        group = np.searchsorted(ends, row, side="right")

        # `contract` passes consecutive t, which are contiguous in memory.
        def left(g: int, i: Ints, t: Ints) -> Floats:
            return inputs.runs("x", i.ravel() * k + t.ravel()[0], t.size)

        def right(g: int, j: Ints, t: Ints) -> Floats:
            return inputs.runs("w", (g * n + j.ravel()) * k + t.ravel()[0], t.size).T

        value, magnitude = contract((group, row, col), k, left, right)
        return Reference(value=value, magnitude=magnitude)

    def tolerance(self, problem: Problem) -> Tolerance:
        kind, acc = problem.dtypes["x"], problem.dtypes["acc"]
        return product_tolerance(terms=problem.dims["k"], inputs=kind, acc=acc, out=kind)

    def contraction(self, problem: Problem) -> Contraction | None:
        m, n, k, e = (problem.dims[name] for name in ("m", "n", "k", "e"))
        kind = problem.dtypes["x"]
        if not stays_finite(inputs=kind, out=kind, outputs=m * n, terms=k):
            return None
        ends = group_ends(problem).tolist()
        groups = [(g, a, b - a) for g, (a, b) in enumerate(itertools.pairwise([0, *ends])) if b > a]
        return Contraction(
            names=("row",),
            shape=(m,),
            cols=n,
            terms=k,
            projected=e * k,
            right=(
                WeightedSum(
                    tensor="w",
                    rows=(Axis(size=e, stride=n * k, result=k), Axis(size=k, stride=1, result=1)),
                    cols=n,
                    col_stride=k,
                ),
            ),
            left=tuple(
                WeightedSum(
                    tensor="x",
                    rows=(Axis(size=count, stride=k, result=1),),
                    cols=k,
                    col_stride=1,
                    start=first * k,
                    result_start=first,
                    weight_start=g * k,
                )
                for g, first, count in groups
            ),
            out=WeightedSum(
                tensor="out", rows=(Axis(size=m, stride=n, result=1),), cols=n, col_stride=1
            ),
        )

    def positions(self, problem: Problem, seed: int) -> Ints:
        m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
        rng = rng_for(seed)
        rows, cols = sides(m, n, k, 1)
        return grid((m, n), (axis(m, rows, rng), axis(n, cols, rng)))


def group_ends(problem: Problem) -> Ints:
    """Return the row before which each group ends."""
    d = problem.dims
    return _ends(d["m"], d["e"], even=problem.options["split"] == "even")


@functools.lru_cache(maxsize=64)
def _ends(rows: int, groups: int, *, even: bool) -> Ints:
    if even:
        ends = np.arange(1, groups + 1) * rows // groups
    else:
        rng = np.random.Generator(np.random.PCG64([rows, groups]))
        ends = np.cumsum(rng.multinomial(rows, np.full(groups, 1 / groups)))
    ends.flags.writeable = False
    return ends.astype(np.int64, copy=False)


op = GroupedGemm()
