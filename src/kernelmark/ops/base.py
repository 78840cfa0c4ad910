"""Op: what an operation costs, what it reads and writes, and what the right answer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec, Tolerance
from kernelmark.numerics.generate import Inputs

Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The right answer at some positions: its value and the scale of its rounding errors.

    `magnitude` is the sum of the answer's absolute terms unless the op says otherwise;
    `Tolerance.per_magnitude` is a share of it.
    """

    value: NDArray[np.float64]
    magnitude: NDArray[np.float64]


class Op(ABC):
    """One operation. Flat positions count elements of the output in row-major order."""

    name: str
    summary: str  # one line for `kmark list ops`
    parameters: dict[str, str]  # parameter name -> one line of help, in the key's order

    @abstractmethod
    def problem(self, /, **given: Parameter) -> Problem:
        """A valid problem with every default written out, in canonical order.

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
        """The answer in float64 at flat output positions `where`."""

    @abstractmethod
    def tolerance(self, problem: Problem) -> Tolerance:
        """How far a correct kernel may be from the reference, derived from dtypes and lengths."""

    @abstractmethod
    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        """Flat output positions worth checking: corners, tile edges, random ones. Few enough
        that `reference` takes milliseconds."""

    def bytes(self, problem: Problem) -> int:
        """Each input read once, each output written once."""
        return sum(spec.nbytes for spec in self.tensors(problem))

    def output(self, problem: Problem) -> TensorSpec:
        return self.tensors(problem)[-1]
