"""Size: a dim that is dynamic for the compiler, and expressions of such dims.

An op's tensors and its MLIR are derived from the problem's dims by integer arithmetic. With a Size
instead of an integer dim, the same arithmetic also records how the function computes each size from
its arguments, so that one description of an op serves static and dynamic dims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec

# The name of a dim, or an arith op with its two operands.
Term = str | tuple[str, "Term | int", "Term | int"]


class Size(int):
    """As an integer, the size in the measured problem; `term` is what the compiled code computes.

    Equal only to a size with the same term: where the text depends on a size, as for a filter of
    one tap, a dynamic dim takes the general form, whatever its value in this problem.
    """

    term: Term

    def __new__(cls, value: int, term: Term) -> Size:
        made = super().__new__(cls, value)
        made.term = term
        return made

    def __add__(self, other: int) -> int:
        return _computed("addi", self, other)

    def __radd__(self, other: int) -> int:
        return _computed("addi", other, self)

    def __sub__(self, other: int) -> int:
        return _computed("subi", self, other)

    def __rsub__(self, other: int) -> int:
        return _computed("subi", other, self)

    def __mul__(self, other: int) -> int:
        return _computed("muli", self, other)

    def __rmul__(self, other: int) -> int:
        return _computed("muli", other, self)

    def __floordiv__(self, other: int) -> int:
        return _computed("floordivsi", self, other)

    def __rfloordiv__(self, other: int) -> int:
        return _computed("floordivsi", other, self)

    def __neg__(self) -> int:
        return 0 - self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.term == other.term

    # int defines its own, which compares values.
    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.term)


_VALUES: dict[str, Any] = {
    "addi": int.__add__,
    "subi": int.__sub__,
    "muli": int.__mul__,
    "floordivsi": int.__floordiv__,
}
# Neutral second operands.
_NEUTRAL = {"addi": 0, "subi": 0, "muli": 1, "floordivsi": 1}


def _computed(op: str, left: int, right: int) -> int:
    if right == _NEUTRAL[op]:
        return left
    if op in ("addi", "muli") and left == _NEUTRAL[op]:
        return right
    value = _VALUES[op](int(left), int(right))
    return Size(value, (op, _operand(left), _operand(right)))


def _operand(size: int) -> Term | int:
    return size.term if isinstance(size, Size) else size


def dynamic_dims(problem: Problem) -> tuple[str, ...]:
    """Return the dims that are also a dim of an argument, where the code reads them."""
    tensors = ops.registry.get(problem.op).tensors(with_dynamic(problem, problem.dims))
    sizes = [size for one in tensors for size in argument_shape(one)]
    found = {size.term for size in sizes if isinstance(size, Size)}
    return tuple(name for name in problem.dims if name in found)


def argument_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of a tensor as an argument: sub-byte elements are passed as whole bytes."""
    per_byte = 8 // min(8, spec.type.bits)
    return (*spec.shape[:-1], spec.shape[-1] // per_byte)


def with_dynamic(problem: Problem, names: Collection[str]) -> Problem:
    """Return the problem with the named dims dynamic for the compiler."""
    dims = {
        name: Size(value, name) if name in names else value for name, value in problem.dims.items()
    }
    return dataclasses.replace(problem, dims=dims)
