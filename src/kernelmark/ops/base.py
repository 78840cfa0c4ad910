"""Op: what an operation costs, what it reads and writes, and what the right answer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.contraction import Contraction
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs

Parameter = str | int | float | bool

# Positions of an output that are drawn independently. Each may need a row and a column of its own.
SCATTERED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The right answer at some positions: its value and the scale of its rounding errors.

    `magnitude` is the sum of the answer's absolute terms unless the op says otherwise;
    `Tolerance.per_magnitude` is a share of it.
    """

    value: NDArray[np.float64]
    magnitude: NDArray[np.float64]


class TensorHelp(NamedTuple):
    """One line about a tensor for `kmark list ops -o OP`.

    `shape` is in terms of dims (`m×(k//2)`); `dtype` is a dtype parameter or a fixed dtype; `when`
    lists the options and dtypes that it holds for: `ta=t`, `beta≠0`, `scheme=a8w8|a16wfp4`, joined
    by `, `. The op contract checks it against `Op.tensors`.
    """

    name: str
    shape: str
    dtype: str
    when: str = ""
    role: str = "in"


class Op(ABC):
    """One operation. Flat positions count elements of the output in row-major order."""

    name: str
    summary: str  # one line for `kmark list ops`
    parameters: dict[str, str]  # parameter name -> one line of help, in the key's order
    # Small problems, as text, that between them reach every path of a kernel: odd sizes, each
    # dtype, each option. The contract tests of every backend compute those that it supports.
    examples: tuple[str, ...] = ()
    tensor_help: tuple[TensorHelp, ...] = ()
    # Whether `reference` computes on the device that is measured, and would disturb a timed kernel.
    reference_on_device: bool = False

    @abstractmethod
    def problem(self, /, **given: Parameter) -> Problem:
        """Return a valid problem with every default written out, in canonical order.

        `dtype=` stands for all dtypes that the op derives from one. Illegal values raise
        `ProblemError`.
        """

    @abstractmethod
    def flops(self, problem: Problem) -> int:
        """Multiplications and additions the mathematics needs, each counted as one."""

    @abstractmethod
    def tensors(self, problem: Problem) -> tuple[TensorSpec, ...]:
        """Inputs in order, then the output."""

    @abstractmethod
    def reference(self, problem: Problem, inputs: Inputs, where: NDArray[np.int64]) -> Reference:
        """Return the answer in float64 at flat output positions `where`."""

    @abstractmethod
    def tolerance(self, problem: Problem) -> Tolerance:
        """Return how far a correct kernel may be from the reference, derived from dtypes and
        lengths."""

    @abstractmethod
    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        """Flat output positions worth checking: corners, tile edges, random ones. Few enough
        that `reference` takes milliseconds."""

    def scattered(self, problem: Problem, rng: np.random.Generator) -> NDArray[np.int64]:
        """Flat output positions drawn one by one over the whole output, where no contraction checks
        it: a kernel that computes a tenth of the output is right at all of 12 positions with a
        probability of 10⁻¹²."""
        return rng.integers(0, self.output(problem).count, SCATTERED)

    def contraction(self, problem: Problem) -> Contraction | None:
        """Return the output as sums of products, by which it is checked whole; None, the default,
        where it is none or where right values may overflow."""
        return None

    def bytes(self, problem: Problem) -> int:
        """Return each input read once, each output written once."""
        return sum(spec.nbytes for spec in self.tensors(problem))

    def least_flops(self, problem: Problem) -> int:
        """FLOPs that every right kernel needs; 0, the default, where that is not known."""
        return 0

    def least_bytes(self, problem: Problem) -> int:
        """Bytes that every right kernel reads or writes; 0, the default, where that is not known.
        An op that looks up rows of a table needs less than `bytes`."""
        return 0

    def output(self, problem: Problem) -> TensorSpec:
        return self.tensors(problem)[-1]
