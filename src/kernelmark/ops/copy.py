"""copy: Y = X. A large copy measures memory traffic, a copy of one element the cost of a launch.
These kernels should never change in speed, so they serve as canaries."""

from __future__ import annotations

import numpy as np

from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import PRODUCTS, Ints, input_spec
from kernelmark.ops.base import Op, Parameter, Parameters, Reference, TensorHelp

_DTYPES = tuple(PRODUCTS)
_PARAMETERS = {"n": "elements", "x": "dtype of X and Y", "dtype": "shorthand: X and Y"}


class Copy(Op):
    """Y = X, element by element. No arithmetic: `flops` is 0."""

    name = "copy"
    summary = "Y = X: memory traffic alone, or, of one element, the cost of a launch"
    parameters = _PARAMETERS
    costs_are_least = True
    examples = ("copy n=1 dtype=f32", "copy n=100003 dtype=f16", "copy n=4099 dtype=i8")
    tensor_help = (TensorHelp("x", "n", "x"), TensorHelp("y", "n", "x", role="out"))

    def problem(self, /, **parameters: Parameter) -> Problem:
        read = Parameters(self, parameters)
        dims = {"n": read.dim("n")}
        x = read.dtype("x", read.base_dtype(("x",), _DTYPES), _DTYPES)
        problem = Problem(op=self.name, dims=dims, dtypes={"x": x}, options={})
        return self.checked_sizes(problem)

    def flops(self, problem: Problem) -> int:
        return 0

    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        shape, x = (problem.dims["n"],), problem.dtypes["x"]
        return input_spec("x", shape, x), TensorSpec(name="y", shape=shape, dtype=x, role="out")

    def reference(self, problem: Problem, inputs: Inputs, where: Ints) -> Reference:
        value = inputs.take("x", where)
        return Reference(value=value, magnitude=np.abs(value))

    def tolerance(self, problem: Problem) -> Tolerance:
        return Tolerance(per_magnitude=0.0, per_value=0.0, absolute=0.0, why="a copy is exact")


op = Copy()
