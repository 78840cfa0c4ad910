"""Validation of the parameters given to an op."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from kernelmark.core.dtype import dtype
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.tensor import TensorSpec
from kernelmark.ops.base import Parameter

# Backends index with 32-bit integers along an axis; no memory holds a tensor of 2^40 elements.
DIM_LIMIT = 2**31
TENSOR_LIMIT = 2**40
_EXAMPLE = 512


class Given:
    """The parameters given to `op`; a shorthand fills in only parameters that are not given."""

    def __init__(self, op: str, given: Mapping[str, Parameter], known: Iterable[str]) -> None:
        self._op = op
        self._given = given
        known = list(known)
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                meant = f"did you mean {close[0]}? " if close else ""
                self.refuse(
                    Reason("unknown-name", what="parameter", name=name),
                    f"{meant}known: {', '.join(known)}",
                )

    def refuse(self, cause: Reason, hint: str | None = None) -> NoReturn:
        """Raise ProblemError with a message that begins with the op's name."""
        raise ProblemError(Reason("of-op", op=self._op, cause=cause), hint=hint)

    def _refuse_type(
        self, name: str, value: object, wanted: str, hint: str | None = None
    ) -> NoReturn:
        self.refuse(Reason("argument-type", name=name, given=repr(value), wanted=wanted), hint)

    def _find(self, name: str, shorthand: str | None) -> tuple[str, Parameter | None]:
        if name not in self._given and shorthand is not None and shorthand in self._given:
            return shorthand, self._given[shorthand]
        return name, self._given.get(name)

    def dim(
        self, name: str, default: int | None = None, *, short: str | None = None, least: int = 1
    ) -> int:
        """Return an integer from `least` to below 2^31. Without a default it must be given."""
        said, value = self._find(name, short)
        if value is None:
            if default is None:
                self.refuse(
                    Reason("parameter-missing", name=name),
                    Reason("give-parameter", name=name, short=short or ""),
                )
            value = default
        if isinstance(value, bool | str | float):
            whole = isinstance(value, float) and value.is_integer()
            hint = f"write {said}={value:.0f}" if whole else f"for example: {said}={_EXAMPLE}"
            self._refuse_type(said, value, "an integer", hint)
        size = operator.index(value)
        shown = f"{said}={size}" if size.bit_length() < 128 else said
        if size < least:
            self.refuse(Reason("dim-below", name=said, given=shown, least=least))
        if size >= DIM_LIMIT:
            self.refuse(Reason("dim-too-large", name=said, given=shown), "a dim must be below 2^31")
        return size

    def base_dtype(
        self, names: Sequence[str], allowed: Sequence[str], because: str = "", other: str = ""
    ) -> str:
        """Return the input dtype that determines the others: `dtype=`, else the first one given.
        `because` and `other` are those of `dtype`."""
        name = next((name for name in ("dtype", *names) if name in self._given), None)
        if name is None:
            hint = Reason("give-dtype", allowed=tuple(allowed))
            self.refuse(Reason("parameter-missing", name="dtype"), hint)
        return self._one_dtype(name, self._given[name], allowed, because, other)

    def dtype(
        self, name: str, default: str, allowed: Sequence[str], because: str = "", other: str = ""
    ) -> str:
        """Return one of `allowed`; `because` is the condition that limits the choice ("with f16
        inputs"), `other` an alternative with another parameter ("f4e2m1 with scale=mx")."""
        return self._one_dtype(name, self._given.get(name, default), allowed, because, other)

    def _one_dtype(
        self, name: str, value: object, allowed: Sequence[str], because: str, other: str
    ) -> str:
        if not isinstance(value, str):
            self._refuse_type(name, value, "a dtype", f"allowed: {', '.join(allowed)}")
        text = dtype(value).name
        if text not in allowed:
            also = f", or {other}" if other else ""
            self.refuse(
                Reason("not-possible", name=name, value=text, why=because),
                f"{name} may be {', '.join(allowed)}{also}",
            )
        return text

    def word(self, name: str, allowed: Sequence[str], because: str = "") -> str:
        """Return one of `allowed`; the first is the default. `because` is the condition that limits
        the choice."""
        value = self._given.get(name, allowed[0])
        if value not in allowed:
            hint = f"{name} may be {' or '.join(allowed)}"
            if because:
                self.refuse(Reason("not-possible", name=name, value=str(value), why=because), hint)
            self.refuse(Reason("field-unknown-value", name=name, given=repr(value)), hint)
        return str(value)

    def flag(self, name: str) -> bool:
        """Return a boolean, False by default."""
        value = self._given.get(name, False)
        if value in ("yes", "no"):
            return value == "yes"
        if not isinstance(value, bool):
            self._refuse_type(name, value, "a truth value", f"write {name}=yes or {name}=no")
        return bool(value)

    def number(self, name: str, default: float) -> float:
        """Return a finite float; -0.0 becomes 0.0, so that equal problems have equal keys."""
        value = self._given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse_type(name, value, "a number")
        try:
            real = float(value)
        except OverflowError:
            real = math.inf
        if not math.isfinite(real):
            self.refuse(Reason("not-finite", name=name, value=value))
        return real + 0.0


def checked_sizes(problem: Problem, tensors: Iterable[TensorSpec]) -> Problem:
    """Return `problem`. Raise ProblemError if a tensor is larger than any memory."""
    for spec in tensors:
        if spec.count >= TENSOR_LIMIT:
            cause = Reason("tensor-too-large", tensor=spec.name, shape=spec.shape)
            raise ProblemError(
                Reason("of-op", op=problem.op, cause=cause),
                hint="a tensor must have fewer than 2^40 elements",
            )
    return problem
