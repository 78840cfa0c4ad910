"""Problem: an op with all dims, dtypes and options, and its canonical text.

A key is `op name=value …`. The form of a value determines its kind, so that a key can be parsed
without the op: an integer is a dim, the name of a dtype is a dtype, everything else is an option
(`yes`/`no` are booleans, a number with a point or exponent is a float, anything else a word).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelmark.core.dtype import DTYPES
from kernelmark.core.errors import ProblemError
from kernelmark.core.immutable import FrozenDict

Option = str | float | bool

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_INT = re.compile(r"-?(0|[1-9][0-9]*)\Z")
# A comma separates a list, such as the sizes of a microbenchmark: 4096,8192.
_WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_.:/,-]*|[0-9][0-9a-z_.+-]*,[A-Za-z0-9_.:/,+-]*)\Z")
_LONGEST_INT = 40  # digits; far beyond any dim, far below what Python refuses to convert
_NOT_WORDS = frozenset({"yes", "no", "inf", "nan"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """An op with its dims, dtypes and options. `Op.problem` makes one, validated and in order."""

    op: str
    dims: Mapping[str, int]
    dtypes: Mapping[str, str]
    options: Mapping[str, Option] = field(default_factory=FrozenDict)
    _key: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        dims, dtypes = FrozenDict(self.dims), FrozenDict(self.dtypes)
        options = FrozenDict(self.options)
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "dtypes", dtypes)
        object.__setattr__(self, "options", options)
        # Plain dicts: a run of 20,000 problems makes their keys in half the time.
        names, types, choices = dict(dims.items()), dict(dtypes.items()), dict(options.items())
        _check_names(self.op, *names, *types, *choices)
        key = self.op
        for name, size in names.items():
            if type(size) is not int and (not isinstance(size, int) or isinstance(size, bool)):
                raise ProblemError(f"{name}={size!r} is not an integer")
            key += f" {name}={size}"
        for name, dtype_name in types.items():
            key += _dtype_word(name, dtype_name)
        for name, value in choices.items():
            key += _option_word(name, value)
        object.__setattr__(self, "_key", key)

    @property
    def key(self) -> str:
        """The canonical text; `parse_key(problem.key) == problem`."""
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.key


def parse_key(text: str) -> Problem:
    """Return the problem of a key, as written; `ops.parse` also validates it."""
    key_words = text.split()
    if not key_words:
        raise ProblemError("an empty problem", hint="write: gemm m=512 n=512 k=512 a=f32 …")
    dims: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    options: dict[str, Option] = {}
    kinds: dict[str, dict[str, Any]] = {"dim": dims, "dtype": dtypes, "option": options}
    for word in key_words[1:]:
        name, kind, value = _parse_word(word)
        if name in dims or name in dtypes or name in options:
            raise ProblemError(f"{name!r} is given twice in the problem")
        kinds[kind][name] = value
    return Problem(op=key_words[0], dims=dims, dtypes=dtypes, options=options)


# The problems of a run differ in few words. Reading 20,000 of them takes half the time.
@functools.lru_cache(maxsize=4096)
def _parse_word(word: str) -> tuple[str, str, int | Option]:
    name, equals, value = word.partition("=")
    if not equals or not value:
        raise ProblemError(f"{word!r} in the problem is not name=value")
    parsed = parse_value(value)
    if isinstance(parsed, str) and parsed in DTYPES:
        return name, "dtype", parsed
    if isinstance(parsed, int) and not isinstance(parsed, bool):
        return name, "dim", parsed
    return name, "option", parsed


def parse_value(text: str) -> int | Option:
    """Return the integer, float, boolean or word that a text has the form of."""
    if _INT.match(text):
        if len(text) > _LONGEST_INT:
            raise ProblemError(f"{text[:12]}… is too long for an integer")
        return int(text)
    if text in ("yes", "no"):
        return text == "yes"
    try:
        number = float(text)
    except ValueError:
        return text
    return number


def _dtype_word(name: str, dtype_name: str) -> str:
    if dtype_name not in DTYPES:
        raise ProblemError(
            f"{name}={dtype_name!r} is not a dtype", hint=f"known dtypes: {', '.join(DTYPES)}"
        )
    return f" {name}={dtype_name}"


@functools.lru_cache(maxsize=256)
def _check_names(op: str, *names: str) -> None:
    for name in (op, *names):
        if not isinstance(name, str) or not _NAME.match(name):
            raise ProblemError(f"{name!r} is not a name (a-z, 0-9, _)")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"{twice!r} is given twice in the problem")


def _option_word(name: str, value: Option) -> str:
    if type(value) is str:
        _check_word(name, value)
        return f" {name}={value}"
    if isinstance(value, bool):
        return f" {name}={'yes' if value else 'no'}"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ProblemError(f"{name}={value} is not finite")
        return f" {name}={value!r}"
    if not isinstance(value, str):
        raise ProblemError(f"{name}={value!r} is not a word, number or truth value")
    _check_word(name, value)
    return f" {name}={value}"


@functools.lru_cache(maxsize=1024)
def _check_word(name: str, value: str) -> None:
    if not _WORD.match(value):
        raise ProblemError(f"{name}={value!r} is not a word, number or truth value")
    if value in DTYPES or value.lower() in _NOT_WORDS or value.lower() in ("infinity", "true"):
        raise ProblemError(f"{name}={value!r} would read back as something else")
