"""Fields: a row of a table or an object of a JSON document, with typed access to its values.

Every error names the field and what was expected; the engines that read files add the file and the
line or position. So no format has code for positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from kernelmark.core.errors import UsageError

D = TypeVar("D")
_LONGEST_SIZE = 18  # digits of an integer: 64 bits
_QUOTED = 40
_YES = ("yes", "true", "1")
_NO = ("no", "false", "0", "none", "")


class BadLine(UsageError):
    """A line, row or object that cannot be read as what its format says."""


def unexpected(what: str, expected: str, value: object, hint: str | None = None) -> BadLine:
    """Return the error for a value that is not what is expected."""
    shown = "nothing" if value is None else repr(str(value)[:_QUOTED])
    return BadLine(f"{what}: expected {expected}, found {shown}", hint=hint)


def size_fault(text: str) -> str:
    """Return why a text is not a size or count; "" if it is one."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        return "is not a whole number"
    if digits != text:
        return "is negative"
    return "is too large" if len(text) > _LONGEST_SIZE else ""


def parse_number(value: object, what: str) -> float:
    """Parse a finite number. One with a comma is refused: it may be a decimal or a thousands
    separator."""
    if value is None or value == "":
        raise BadLine(f"{what} is missing", hint="is the file truncated?")
    try:
        number = float(str(value))
    except (ValueError, OverflowError):
        raise unexpected(what, "a number", value) from None
    if not math.isfinite(number):
        raise unexpected(what, "a finite number", value)
    return number


def parse_whole(value: object, what: str) -> int:
    """Parse a whole number of at least 0, which may be written as 384.0."""
    text = str(value).strip()
    if not size_fault(text):
        return int(text)
    number = parse_number(value, what)
    if not number.is_integer() or not 0 <= number < 2**53:
        raise unexpected(what, "a whole number of at least 0", value)
    return int(number)


def check_columns(names: Iterable[str], read: Iterable[str] | None = None) -> str:
    """Return why a header is ambiguous: a column that is read (default: any) occurs twice."""
    columns = [name for name in names if name]
    for name in columns if read is None else read:
        if columns.count(name) > 1:
            return f"the column {name!r} occurs twice"
    return ""


class Fields(Mapping[str, Any]):
    """The fields of a row or object; `where` is its position, which begins errors."""

    __slots__ = ("_values", "where")

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self.where = where

    @classmethod
    def of(cls, value: object, where: str) -> Fields:
        """Return a JSON object; raise BadLine for anything else."""
        if not isinstance(value, dict):
            raise unexpected(where, "an object", value)
        return cls(value, where)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def at(self, name: str) -> str:
        """Return the position of a field."""
        return f"{self.where}, {name}" if self.where else name

    def required(self, name: str) -> Any:
        """Return a field that may not be missing or empty."""
        value = self._values.get(name)
        if value is None or value == "":
            raise BadLine(f"{self.at(name)} is missing", hint="is the file truncated?")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._values.get(name)
        return default if value is None or value == "" else str(value)

    def number(self, name: str) -> float:
        return parse_number(self._values.get(name), self.at(name))

    @overload
    def whole(self, name: str) -> int: ...
    @overload
    def whole(self, name: str, default: D) -> int | D: ...
    def whole(self, name: str, default: Any = ...) -> Any:
        """Return a whole number of at least 0; the default if it is missing or empty."""
        value = self._values.get(name)
        if default is not ... and (value is None or value == ""):
            return default
        return parse_whole(value, self.at(name))

    def flag(self, name: str) -> bool:
        """Return a boolean; a missing one is False."""
        text = self.text(name).lower()
        if text not in _YES and text not in _NO:
            raise unexpected(self.at(name), "yes or no", text)
        return text in _YES

    def object(self, name: str) -> Fields:
        """Return an object; an empty one if it is missing."""
        value = self._values.get(name)
        return Fields.of({} if value is None else value, self.at(name))

    def list(self, name: str) -> list[Any]:
        """Return a list; an empty one if it is missing."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise unexpected(self.at(name), "a list", value)
        return value

    def objects(self, name: str) -> Iterator[Fields]:
        """Yield the objects in a list."""
        for number, value in enumerate(self.list(name), 1):
            yield Fields.of(value, f"{self.at(name)} {number}")
