"""The tensors of an op in terms of its parameters, as its own `tensors` makes them.

Nothing is written down twice: the sizes and dtypes of a problem from a suite are replaced by values
that remember how they came about, and each option is changed in turn.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from kernelmark import ops
from kernelmark.core.errors import ProblemError
from kernelmark.core.problem import Option, Problem
from kernelmark.ops.base import Op, Parameter
from kernelmark.report.tables import Column, Table
from kernelmark.workloads import suites

# Role, shape and dtype of each tensor by its name.
_Told = dict[str, tuple[str, str, str]]


def tensors_table(name: str) -> Table | None:
    """One row a tensor, and one for each option that changes it; None for an op that is in no
    suite, of which no problem is known."""
    op = ops.registry.get(name)
    problems = [p for suite in suites.names() for p in suites.load(suite, ops=[name]).problems]
    usual = next(filter(None, (_with(op, problem, {}) for problem in problems)), None)
    if usual is None:
        return None
    base = _told(op, usual)
    changes = {
        text: _told(op, problem)
        for option in usual.options
        for text, problem in _variants(op, usual, option, problems)
    }
    columns = ("tensor", "role", "shape", "dtype", "when")
    return Table(
        title="tensors",
        columns=tuple(Column(name=column) for column in columns),
        rows=tuple(_rows(base, changes)),
    )


def _rows(base: _Told, changes: dict[str, _Told]) -> Iterator[tuple[str, ...]]:
    every = {**base, **{name: told for one in changes.values() for name, told in one.items()}}
    for name in sorted(every, key=lambda name: every[name][0] == "out"):  # the output is the last
        if name in base:
            lacking = ", ".join(text for text, one in changes.items() if name not in one)
            yield name, *base[name], f"not with {lacking}" if lacking else ""
        others: dict[tuple[str, str, str], list[str]] = {}
        for text, one in changes.items():
            if name in one and one[name] != base.get(name):
                others.setdefault(one[name], []).append(text)
        for told, texts in others.items():
            yield name, *told, ", ".join(texts)


def _variants(
    op: Op, usual: Problem, option: str, problems: list[Problem]
) -> Iterator[tuple[str, Problem]]:
    """Problems that differ from the usual one in this option, each with how that is written."""
    value = usual.options[option]
    if isinstance(value, float):
        others: list[tuple[str, Option]] = [(f"{option}≠{value:g}", value + 1)]
    elif isinstance(value, bool):
        others = [(f"{option}={'no' if value else 'yes'}", not value)]
    else:
        seen = [problem.options.get(option) for problem in problems]
        words = dict.fromkeys([*_allowed(op, usual, option), *seen])
        others = [(f"{option}={word}", word) for word in words if isinstance(word, str)]
    for text, other in others:
        problem = _with(op, usual, {option: other}) if other != value else None
        if problem is not None:
            yield text, problem


def _allowed(op: Op, usual: Problem, option: str) -> tuple[str, ...]:
    """Words that an option may be, as the refusal of another one has them."""
    try:
        op.problem(**usual.dims, **usual.dtypes, **{option: "no_such_word"})
    except ProblemError as error:
        return error.allowed
    return ()


def _with(op: Op, like: Problem, options: dict[str, Option]) -> Problem | None:
    """A problem of the same sizes with only these options; of the same dtypes if it may be."""
    first = next(iter(like.dtypes.values()), "")
    kinds: list[dict[str, Parameter]] = [dict(like.dtypes), {"dtype": first}, {}]
    for dtypes in kinds:
        try:
            return op.problem(**like.dims, **dtypes, **options)
        except ProblemError:
            continue
    return None


def _told(op: Op, problem: Problem) -> _Told:
    named = dataclasses.replace(
        problem,
        dims={name: _Size(size, name) for name, size in problem.dims.items()},
        dtypes={name: _Kind(kind, name) for name, kind in problem.dtypes.items()},
    )
    found: _Told = {}
    for spec in op.tensors(named):
        sizes = list(map(_factor, spec.shape))
        if spec.type.bits < 8:
            sizes[-1] = f"({sizes[-1]}//{8 // spec.type.bits})"  # as many share a byte
        shape = "×".join(sizes)
        kind = f"{spec.dtype.parameter}=…" if isinstance(spec.dtype, _Kind) else spec.dtype
        found[spec.name] = spec.role, shape, kind
    return found


class _Kind(str):
    """A dtype that remembers which parameter it is."""

    parameter: str

    def __new__(cls, kind: str, parameter: str) -> _Kind:
        made = super().__new__(cls, kind)
        made.parameter = parameter
        return made


class _Size(int):
    """A size that remembers how it was computed."""

    text: str

    def __new__(cls, value: int, text: str) -> _Size:
        made = super().__new__(cls, value)
        made.text = text
        return made

    def __add__(self, other: int) -> _Size:
        return _Size(int(self) + int(other), f"{_text(self)}+{_text(other)}")

    def __radd__(self, other: int) -> _Size:
        return _Size(int(other) + int(self), f"{_text(other)}+{_text(self)}")

    def __sub__(self, other: int) -> _Size:
        return _Size(int(self) - int(other), f"{_text(self)}-{_term(other)}")

    def __mul__(self, other: int) -> _Size:
        return _Size(int(self) * int(other), f"{_factor(self)}·{_factor(other)}")

    def __rmul__(self, other: int) -> _Size:
        return _Size(int(other) * int(self), f"{_factor(other)}·{_factor(self)}")

    def __floordiv__(self, other: int) -> _Size:
        return _Size(int(self) // int(other), f"{_factor(self)}//{_factor(other)}")


def _text(size: int) -> str:
    return size.text if isinstance(size, _Size) else str(size)


def _term(size: int) -> str:
    """In brackets where it is a sum."""
    text = _text(size)
    return f"({text})" if re.search(r"[+-]", re.sub(r"\([^()]*\)", "", text)) else text


def _factor(size: int) -> str:
    """In brackets unless it is one word."""
    text = _text(size)
    return text if re.fullmatch(r"\w+", text) else f"({text})"
