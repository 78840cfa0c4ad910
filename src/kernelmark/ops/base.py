"""Op: the cost, tensors, reference and tolerance of an operation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.problem import Problem
from kernelmark.core.tensor import Contraction, TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs

Parameter = str | int | float | bool

# Output positions drawn independently. Each may need its own row and column of the inputs.
SCATTERED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The correct values at some positions, and the scale of their rounding errors.

    `magnitude` is the sum of a value's absolute terms unless the op defines another;
    `Tolerance.per_magnitude` is a fraction of it.
    """

    value: NDArray[np.float64]
    magnitude: NDArray[np.float64]


class TensorHelp(NamedTuple):
    """One line about a tensor for `kmark list ops -o OP`.

    `shape` is in terms of dims (`m×(k//2)`); `dtype` is a dtype parameter or a fixed dtype; `when`
    lists the options and dtypes for which the tensor exists: `ta=t`, `beta≠0`,
    `scheme=a8w8|a16wfp4`, joined by `, `. The op contract checks it against `Op.tensors`.
    """

    name: str
    shape: str
    dtype: str
    when: str = ""
    role: str = "in"


class Op(ABC):
    """An operation. Flat positions count elements of the output in row-major order."""

    name: str
    summary: str  # one line for `kmark list ops`
    parameters: dict[str, str]  # parameter name -> one line of help, in the key's order
    # Small problems, as text, that together cover every path of a kernel: odd sizes, each dtype,
    # each option. The contract tests of every backend compute those that it supports.
    examples: tuple[str, ...] = ()
    tensor_help: tuple[TensorHelp, ...] = ()
    # Whether `reference` computes on the measured device, where it would disturb a timed kernel.
    reference_on_device: bool = False

    @abstractmethod
    def problem(self, /, **given: Parameter) -> Problem:
        """Return a valid problem with all defaults filled in, in canonical order.

        `dtype=` stands for all dtypes that the op derives from one. Raise `ProblemError` for
        invalid values.
        """

    @abstractmethod
    def flops(self, problem: Problem) -> int:
        """Return the multiplications and additions of the definition, each counted as one."""

    @abstractmethod
    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        """Return the inputs in order, then the output."""

    @abstractmethod
    def reference(self, problem: Problem, inputs: Inputs, where: NDArray[np.int64]) -> Reference:
        """Return the result in float64 at flat output positions `where`."""

    @abstractmethod
    def tolerance(self, problem: Problem) -> Tolerance:
        """Return the allowed error of a correct kernel, derived from dtypes and sum lengths."""

    @abstractmethod
    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        """Return flat output positions to check: corners, tile edges, random ones. Few enough that
        `reference` takes milliseconds."""

    def scattered(self, problem: Problem, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return random flat positions over the whole output, used if it has no contraction: a
        kernel that computes a tenth of the output is correct at 12 positions with probability
        10⁻¹²."""
        return rng.integers(0, self.output(problem).count, SCATTERED)

    def contraction(self, problem: Problem) -> Contraction | None:
        """Return the output as sums of products, which allows to check it as a whole. None, the
        default, if the op is not a sum of products or if correct values may overflow."""
        return None

    def bytes(self, problem: Problem) -> int:
        """Return the bytes of all inputs and outputs, each read or written once."""
        return sum(spec.nbytes for spec in self.tensors(problem))

    def least_flops(self, problem: Problem) -> int:
        """Return the FLOPs that every correct kernel needs; 0, the default, if unknown."""
        return 0

    def least_bytes(self, problem: Problem) -> int:
        """Return the bytes that every correct kernel reads or writes; 0, the default, if unknown.
        An op that looks up rows of a table needs less than `bytes`."""
        return 0

    def output(self, problem: Problem) -> TensorSpec:
        return self.tensors(problem)[-1]
