"""Op: the cost, tensors, reference and tolerance of an operation; Parameters reads its problem."""

from __future__ import annotations

import difflib
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import prefixed
from kernelmark.core.tensor import Contraction, TensorSpec, Tolerance
from kernelmark.core.units import join_commas
from kernelmark.numerics.generate import Inputs
from kernelmark.ops._checks import spread_positions

Parameter = str | int | float | bool

# Backends index with 32-bit integers along an axis; no memory holds a tensor of 2^40 elements.
DIM_LIMIT = 2**31
TENSOR_LIMIT = 2**40
_EXAMPLE = 512
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
    # Whether every correct kernel needs all of `flops` and `bytes`.
    costs_are_least: bool = False
    # Whether `reference` computes on the measured device, where it would disturb a timed kernel.
    reference_on_device: bool = False

    @abstractmethod
    def problem(self, /, **parameters: Parameter) -> Problem:
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

    def positions(self, problem: Problem, seed: int) -> NDArray[np.int64]:
        """Return flat output positions to check: corners, tile edges, random ones. Few enough that
        `reference` takes milliseconds: an op whose outputs are long sums chooses fewer."""
        return spread_positions(self.output(problem).shape, seed)

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
        """Return the FLOPs that every correct kernel needs; 0 if unknown."""
        return self.flops(problem) if self.costs_are_least else 0

    def least_bytes(self, problem: Problem) -> int:
        """Return the bytes that every correct kernel reads or writes; 0 if unknown. An op that
        looks up rows of a table needs less than `bytes`."""
        return self.bytes(problem) if self.costs_are_least else 0

    def output(self, problem: Problem) -> TensorSpec:
        return self.tensors(problem)[-1]

    def checked_sizes(
        self, problem: Problem, tensors: Iterable[TensorSpec] | None = None
    ) -> Problem:
        """Return `problem`. Raise ProblemError if a tensor is larger than any memory."""
        for spec in self.tensors(problem) if tensors is None else tensors:
            if spec.count >= TENSOR_LIMIT:
                raise ProblemError(
                    f"{problem.op}: tensor {spec.name} ({join_commas(spec.shape)}) is too large",
                    hint="a tensor must have fewer than 2^40 elements",
                )
        return problem


class Parameters:
    """Reads the parameters of a problem, by type; refuses unknown names and impossible values.

    A parameter that is not given has its default; a shorthand fills in for those not given."""

    def __init__(self, op: Op, values: Mapping[str, Parameter]) -> None:
        self._op = op.name
        self._values = values
        names = list(op.parameters)
        for name in values:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                meant = f"did you mean {close[0]}? " if close else ""
                self.refuse(f"unknown parameter {name!r}", f"{meant}known: {', '.join(names)}")

    def refuse(self, cause: str, hint: str | None = None) -> NoReturn:
        """Raise ProblemError with a message that begins with the op's name."""
        raise ProblemError(prefixed(cause, f"{self._op}: "), hint=hint)

    def _refuse_type(
        self, name: str, value: object, expected: str, hint: str | None = None
    ) -> NoReturn:
        self.refuse(f"{name}={value!r} is not {expected}", hint)

    def _find(self, name: str, shorthand: str | None) -> tuple[str, Parameter | None]:
        if name not in self._values and shorthand is not None and shorthand in self._values:
            return shorthand, self._values[shorthand]
        return name, self._values.get(name)

    def dim(
        self, name: str, default: int | None = None, *, short: str | None = None, least: int = 1
    ) -> int:
        """Return an integer from `least` to below 2^31. Without a default it must be given."""
        written, value = self._find(name, short)
        if value is None:
            if default is None:
                self.refuse(
                    f"{name} is missing",
                    f"give {name}=…" + (f" or {short}=…" if short else "") + " (-a NAME=VALUE)",
                )
            value = default
        if type(value) is not int and isinstance(value, bool | str | float):
            whole = isinstance(value, float) and value.is_integer()
            hint = f"write {written}={value:.0f}" if whole else f"for example: {written}={_EXAMPLE}"
            self._refuse_type(written, value, "an integer", hint)
        size = operator.index(value)
        shown = f"{written}={size}" if size.bit_length() < 128 else written
        if size < least:
            self.refuse(f"{shown} must be at least {least}")
        if size >= DIM_LIMIT:
            self.refuse(f"{shown} is too large", "a dim must be below 2^31")
        return size

    def base_dtype(
        self, names: Sequence[str], allowed: Sequence[str], because: str = "", other: str = ""
    ) -> str:
        """Return the input dtype that determines the others: `dtype=`, else the first one given.
        `because` and `other` are those of `dtype`."""
        name = next((name for name in ("dtype", *names) if name in self._values), None)
        if name is None:
            hint = f"give dtype=… (--dtype DTYPE), one of {join_commas(allowed)}"
            self.refuse("dtype is missing", hint)
        return self._dtype(name, self._values[name], allowed, because, other)

    def dtype(
        self, name: str, default: str, allowed: Sequence[str], because: str = "", other: str = ""
    ) -> str:
        """Return one of `allowed`; `because` is the condition that limits the choice ("with f16
        inputs"), `other` an alternative with another parameter ("f4e2m1 with scale=mx")."""
        return self._dtype(name, self._values.get(name, default), allowed, because, other)

    def _dtype(
        self, name: str, value: object, allowed: Sequence[str], because: str, other: str
    ) -> str:
        if not isinstance(value, str):
            self._refuse_type(name, value, "a dtype", f"allowed: {', '.join(allowed)}")
        text = dtype(value).name
        if text not in allowed:
            also = f", or {other}" if other else ""
            self.refuse(
                f"{name}={text} is not possible" + (f" {because}" if because else ""),
                f"{name} may be {', '.join(allowed)}{also}",
            )
        return text

    def choice(self, name: str, allowed: Sequence[str], because: str = "") -> str:
        """Return one of `allowed`; the first is the default. `because` is the condition that limits
        the choice."""
        value = self._values.get(name, allowed[0])
        if value not in allowed:
            hint = f"{name} may be {' or '.join(allowed)}"
            if because:
                self.refuse(f"{name}={value} is not possible {because}", hint)
            self.refuse(f"{name}={value!r} is unknown", hint)
        return str(value)

    def flag(self, name: str) -> bool:
        """Return a boolean, False by default."""
        value = self._values.get(name, False)
        if value in ("yes", "no"):
            return value == "yes"
        if not isinstance(value, bool):
            self._refuse_type(name, value, "a truth value", f"write {name}=yes or {name}=no")
        return bool(value)

    def number(self, name: str, default: float) -> float:
        """Return a finite float; -0.0 becomes 0.0, so that equal problems have equal keys."""
        value = self._values.get(name, default)
        if type(value) is not float and (
            isinstance(value, bool) or not isinstance(value, int | float)
        ):
            self._refuse_type(name, value, "a number")
        try:
            real = float(value)
        except OverflowError:
            real = math.inf
        if not math.isfinite(real):
            self.refuse(f"{name}={value} is not finite")
        return real + 0.0
