"""Base class of gemm and batched_gemm: D = alpha·op(A)·op(B) + beta·C + bias."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from kernelmark.core.dtype import dtype
from kernelmark.core.problem import Option, Problem
from kernelmark.core.tensor import Contraction, TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import (
    F8_FNUZ,
    F8_OCP,
    PRODUCTS,
    SIGMAS,
    Element,
    Floats,
    Ints,
    axis,
    contract,
    grid,
    input_spec,
    is_int,
    largest,
    matmul_contraction,
    product_tolerance,
    rng_for,
    sides,
)
from kernelmark.ops.base import TENSOR_LIMIT, Op, Parameter, Parameters, Reference, TensorHelp

_BATCHES = 4  # matrices to check in a batched GEMM
_HELP = {
    "m": "rows of D",
    "n": "columns of D",
    "k": "length of each sum",
    "a": "dtype of A",
    "b": "dtype of B (differs from A only among 8-bit floats of one family)",
    "c": "dtype of C, bias and D",
    "acc": "dtype that products are summed in",
    "ta": "n: A is stored m×k; t: k×m",
    "tb": "n: B is stored k×n; t: n×k",
    "alpha": "factor of A·B, not 0",
    "beta": "factor of C; C is an input only if it is not 0",
    "bias": "yes: add a row of n elements to every row of D",
    "dtype": "shorthand: A and B, and C and acc that follow from it",
}


class Matmul(Op):
    """A GEMM, or a strided batch of GEMMs.

    `flops` counts 2·m·n·k per GEMM, as other tools do; alpha, beta and bias, at most 4·m·n more,
    are not counted. An 8-bit float output saturates, as in the libraries.
    """

    batch_dims: tuple[str, ...] = ()
    # Two levels of Strassen's algorithm save 23 %, which is within the margin of `impossible`.
    costs_are_least = True

    def __init__(self) -> None:
        self.parameters = dict.fromkeys(self.batch_dims, "independent GEMMs") | _HELP
        batch = "".join(f"{name}×" for name in self.batch_dims)
        self.tensor_help = (
            TensorHelp("a", f"{batch}m×k", "a", "ta=n"),
            TensorHelp("a", f"{batch}k×m", "a", "ta=t"),
            TensorHelp("b", f"{batch}k×n", "b", "tb=n"),
            TensorHelp("b", f"{batch}n×k", "b", "tb=t"),
            TensorHelp("c", f"{batch}m×n", "c", "beta≠0"),
            TensorHelp("bias", "n", "c", "bias=yes"),
            TensorHelp("d", f"{batch}m×n", "c", role="out"),
        )

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        dims = {name: read.dim(name) for name in (*self.batch_dims, "m", "n", "k")}
        rest = {name: value for name, value in parameters.items() if name not in dims}
        try:
            # With the types: True == 1.0, and only one of them is a factor.
            dtypes, options = _rest(self, tuple((n, type(v), v) for n, v in rest.items()))
        except TypeError:  # a value that cannot be hashed, and is refused
            dtypes, options = _dtypes(read), _options(read)
        problem = Problem(op=self.name, dims=dims, dtypes=dtypes, options=options)
        _check_factors(read, problem)
        if math.prod(dims.values()) < TENSOR_LIMIT:  # and so is every tensor
            return problem
        return self.checked_sizes(problem)

    def flops(self, problem: Problem) -> int:
        return 2 * math.prod(problem.dims.values())

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
        batch = tuple(problem.dims[name] for name in self.batch_dims)
        types, options = problem.dtypes, problem.options
        a = (k, m) if options["ta"] == "t" else (m, k)
        b = (n, k) if options["tb"] == "t" else (k, n)
        specs = [
            input_spec("a", (*batch, *a), types["a"]),
            input_spec("b", (*batch, *b), types["b"]),
        ]
        if options["beta"] != 0:
            specs.append(input_spec("c", (*batch, m, n), types["c"]))
        if options["bias"]:
            specs.append(input_spec("bias", (n,), types["c"]))
        specs.append(TensorSpec(name="d", shape=(*batch, m, n), dtype=types["c"], role="out"))
        return tuple(specs)

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        line, col = np.divmod(where, problem.dims["n"])
        batch, row = np.divmod(line, problem.dims["m"])
        value, magnitude = contract(
            (batch, row, col), problem.dims["k"], *elements(problem, inputs)
        )
        value *= float(problem.options["alpha"])
        magnitude *= abs(float(problem.options["alpha"]))
        extra = []
        if problem.options["beta"] != 0:
            extra.append(float(problem.options["beta"]) * inputs.take("c", where))
        if problem.options["bias"]:
            extra.append(inputs.take("bias", col))
        for term in extra:
            value += term
            magnitude += np.abs(term)
        return Reference(value=saturated(value, problem.dtypes["c"]), magnitude=magnitude)

    def tolerance(self, problem: Problem) -> Tolerance:
        options = problem.options
        # alpha·, + beta·C (two operations), + bias
        epilogue = (options["alpha"] != 1) + 2 * (options["beta"] != 0) + bool(options["bias"])
        tolerance = product_tolerance(
            terms=problem.dims["k"],
            inputs=problem.dtypes["a"],
            acc=problem.dtypes["acc"],
            out=problem.dtypes["c"],
            epilogue=int(epilogue),
        )
        if not options["bias"]:
            return tolerance
        # Libraries without a fused bias for a shape (cuBLASLt, for odd n) add it to the result
        # already rounded to c. That result is at most |value| + |bias|.
        again = dtype(problem.dtypes["c"]).unit_roundoff
        return dataclasses.replace(
            tolerance,
            per_value=tolerance.per_value + again,
            absolute=tolerance.absolute + again * largest("bias", 1.0),
            why=f"{tolerance.why}; the bias may be added after a rounding of its own",
        )

    def contraction(self, problem: Problem) -> Contraction | None:
        batch = math.prod(problem.dims[name] for name in self.batch_dims)
        return matmul_contraction(problem, batch)

    def positions(self, problem: Problem, seed: int) -> Ints:
        m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
        rng = rng_for(seed)
        batches = math.prod(problem.dims[name] for name in self.batch_dims)
        batch = axis(batches, _BATCHES, rng)
        rows, cols = sides(m, n, k, len(batch))
        return grid((batches, m, n), (batch, axis(m, rows, rng), axis(n, cols, rng)))


def elements(problem: Problem, inputs: Inputs) -> tuple[Element, Element]:
    """Return op(A) and op(B) as the functions that `contract` takes."""
    m, n, k = (problem.dims[name] for name in ("m", "n", "k"))
    ta, tb = problem.options["ta"] == "t", problem.options["tb"] == "t"

    # `contract` passes consecutive t: where these are contiguous in memory, read whole runs.
    def left(g: int, i: Ints, t: Ints) -> Floats:
        if ta:
            return inputs.take("a", g * m * k + t * m + i)
        return inputs.runs("a", (g * m + i.ravel()) * k + t.ravel()[0], t.size)

    def right(g: int, j: Ints, t: Ints) -> Floats:
        if not tb:
            return inputs.take("b", g * k * n + t * n + j)
        return inputs.runs("b", (g * n + j.ravel()) * k + t.ravel()[0], t.size).T

    return left, right


# The problems of an axis differ in sizes only: 20,000 are planned in two thirds of the time.
@functools.lru_cache(maxsize=256)
def _rest(
    op: Matmul, given: tuple[tuple[str, type, Parameter], ...]
) -> tuple[dict[str, str], dict[str, Option]]:
    """Return the dtypes and options that parameters other than sizes name."""
    read = Parameters(op, {name: value for name, _, value in given})
    return _dtypes(read), _options(read)


def _options(read: Parameters) -> dict[str, Option]:
    return {
        "ta": read.choice("ta", ("n", "t")),
        "tb": read.choice("tb", ("n", "t")),
        "alpha": read.number("alpha", 1.0),
        "beta": read.number("beta", 0.0),
        "bias": read.flag("bias"),
    }


def _dtypes(read: Parameters) -> dict[str, str]:
    base = read.base_dtype(("a", "b"), tuple(PRODUCTS))
    a = read.dtype("a", base, tuple(PRODUCTS))
    rule = PRODUCTS[a]
    b = read.dtype("b", base, rule.partners, f"with a={a}")
    acc = read.dtype("acc", rule.acc[0], rule.acc, f"with {a} inputs")
    fitting = tuple(name for name in rule.out if dtype(name).bits <= dtype(acc).bits)
    c = read.dtype("c", rule.out[0], fitting, f"with {a} inputs summed in {acc}")
    return {"a": a, "b": b, "c": c, "acc": acc}


def _check_factors(read: Parameters, problem: Problem) -> None:
    """Reject factors that make the result trivial, inexact in integers, or overflow."""
    alpha, beta = float(problem.options["alpha"]), float(problem.options["beta"])
    out = dtype(problem.dtypes["c"])
    if alpha == 0:
        read.refuse("alpha=0 is not possible", "alpha must not be 0")
    if out.kind == "int":
        for name, factor in (("alpha", alpha), ("beta", beta)):
            if not factor.is_integer():
                read.refuse(f"{name}={factor} is not an integer", f"c={out} requires integers")
    top = 128.0 if is_int(problem.dtypes["a"]) else 1.0
    # A product of two uniform numbers has variance at most top²·top²/8 as a sub-Gaussian.
    largest = abs(alpha) * SIGMAS * math.sqrt(problem.dims["k"] / 8) * top**2
    largest += (abs(beta) + bool(problem.options["bias"])) * top
    if out.bits > 8 and largest > out.max_value:
        read.refuse(
            f"values of the output would overflow {out.name} (up to {largest:.2g})",
            "use a smaller alpha, beta or k, or a wider c",
        )


def saturated(value: Floats, out: str) -> Floats:
    """Clip values to the largest of an 8-bit float, as the libraries do."""
    if out in (*F8_OCP, *F8_FNUZ):
        top = dtype(out).max_value
        return np.clip(value, -top, top)
    return value


class Gemm(Matmul):
    """D = alpha·op(A)·op(B) + beta·C + bias."""

    name = "gemm"
    summary = "GEMM D = alpha·op(A)·op(B) + beta·C + bias"
    examples = (
        "gemm m=33 n=47 k=65 dtype=f64",
        "gemm m=33 n=47 k=65 dtype=f32",
        "gemm m=64 n=64 k=128 dtype=f16",
        "gemm m=64 n=48 k=128 dtype=bf16 tb=t",
        "gemm m=32 n=48 k=64 dtype=i8",
        "gemm m=32 n=48 k=64 dtype=f8e4m3 tb=t",
        "gemm m=32 n=48 k=64 dtype=f8e5m2fnuz",
        "gemm m=1 n=1 k=1 dtype=f32",
        "gemm m=1 n=64 k=300 dtype=f32 ta=t tb=t",
        "gemm m=16 n=1 k=70 dtype=f16 ta=t",
        "gemm m=33 n=47 k=65 dtype=f32 alpha=0.5 beta=2.0 bias=yes",
        "gemm m=33 n=47 k=65 dtype=f32 beta=1.0 tb=t",
        "gemm m=32 n=48 k=64 dtype=f16 alpha=0.7 beta=0.3",
        "gemm m=32 n=48 k=64 dtype=bf16 bias=yes",
        "gemm m=32 n=48 k=64 dtype=i8 alpha=2.0 beta=-3.0 bias=yes ta=t",
        "gemm m=32 n=48 k=64 dtype=f16 c=f32",
        "gemm m=32 n=48 k=64 dtype=f16 acc=f16",
    )


op = Gemm()
