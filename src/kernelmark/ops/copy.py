"""copy: Y = X. A large copy measures memory traffic, a copy of one element the cost of a launch.
These kernels should never change in speed, so they serve as canaries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._error import POSITIONS
from kernelmark.ops._given import Given, checked_sizes
from kernelmark.ops._sampled import axis, rng_for
from kernelmark.ops._types import PRODUCTS, input_spec
from kernelmark.ops.base import Op, Parameter, Reference, TensorHelp

_DTYPES = tuple(PRODUCTS)
_PARAMETERS = {
    "n": "elements",
    "x": "dtype of X and Y",
    "dtype": "shorthand: X and Y",
}


class Copy(Op):
    """Y = X, element by element. No arithmetic: `flops` is 0."""

    name = "copy"
    summary = "Y = X: memory traffic alone, or, of one element, the cost of a launch"
    parameters = _PARAMETERS
    examples = (
        "copy n=1 dtype=f32",
        "copy n=100003 dtype=f16",
        "copy n=4099 dtype=i8",
    )
    tensor_help = (TensorHelp("x", "n", "x"), TensorHelp("y", "n", "x", role="out"))

    def problem(self, /, **given: Parameter) -> Problem:
        read = Given(self.name, given, self.parameters)
        dims = {"n": read.dim("n")}
        x = read.dtype("x", read.base_dtype(("x",), _DTYPES), _DTYPES)
        problem = Problem(op=self.name, dims=dims, dtypes={"x": x}, options={})
        return checked_sizes(problem, self.tensors(problem))

    def flops(self, problem: Problem) -> int:
        return 0

    def least_bytes(self, problem: Problem) -> int:
        return self.bytes(problem)

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        shape, x = (problem.dims["n"],), problem.dtypes["x"]
        return input_spec("x", shape, x), TensorSpec(name="y", shape=shape, dtype=x, role="out")

    def reference(self, problem: Problem, inputs: Inputs, where: NDArray[np.int64]) -> Reference:
        value = inputs.take("x", where)
        return Reference(value=value, magnitude=np.abs(value))

    def tolerance(self, problem: Problem) -> Tolerance:
        return Tolerance(per_magnitude=0.0, per_value=0.0, absolute=0.0, why="a copy is exact")

    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        return axis(problem.dims["n"], POSITIONS, rng_for(seed))


op = Copy()
