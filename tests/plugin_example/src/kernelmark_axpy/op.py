"""axpy: z = alpha·x + y."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs
from kernelmark.ops.base import Op, Parameter, Reference


class Axpy(Op):
    name = "axpy"
    summary = "z = alpha·x + y for vectors"
    parameters = {  # noqa: RUF012
        "n": "elements",
        "dtype": "f32 or f64",
        "alpha": "factor of x (2 unless given)",
    }
    examples = ("axpy n=1 dtype=f32", "axpy n=1000 dtype=f64 alpha=-0.5")

    def problem(self, **given: Parameter) -> Problem:
        unknown = sorted(given.keys() - self.parameters.keys())
        if unknown:
            raise ProblemError(
                f"axpy: unknown parameter {unknown[0]!r}", hint="known: n dtype alpha"
            )
        n, kind, alpha = given.get("n"), given.get("dtype"), given.get("alpha", 2.0)
        if type(n) is not int or not 0 < n < 2**31:
            raise ProblemError(f"axpy: n={n!r} is not a whole number from 1 to 2^31-1")
        if kind not in ("f32", "f64"):
            raise ProblemError(f"axpy: dtype={kind!r} is neither f32 nor f64")
        if type(alpha) not in (int, float):
            raise ProblemError(f"axpy: alpha={alpha!r} is not a number")
        return Problem(
            op="axpy", dims={"n": n}, dtypes={"dtype": kind}, options={"alpha": float(alpha)}
        )

    def flops(self, problem: Problem) -> int:
        return 2 * problem.dims["n"]

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        shape, kind = (problem.dims["n"],), problem.dtypes["dtype"]
        return (
            TensorSpec(name="x", shape=shape, dtype=kind),
            TensorSpec(name="y", shape=shape, dtype=kind),
            TensorSpec(name="z", shape=shape, dtype=kind, role="out"),
        )

    def reference(self, problem: Problem, inputs: Inputs, where: NDArray[np.int64]) -> Reference:
        product = float(problem.options["alpha"]) * inputs.take("x", where)
        added = inputs.take("y", where)
        return Reference(value=product + added, magnitude=np.abs(product) + np.abs(added))

    def tolerance(self, problem: Problem) -> Tolerance:
        kind = dtype(problem.dtypes["dtype"])
        return Tolerance(
            per_magnitude=2 * kind.unit_roundoff,
            per_value=0.0,
            absolute=kind.smallest_step,
            why="alpha and the product are rounded, then the sum",
        )

    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        n = problem.dims["n"]
        some = np.random.default_rng(seed).integers(0, n, 64)
        return np.unique(np.concatenate([[0, n - 1], some])).astype(np.int64)


op = Axpy()
