"""Columns of lists of shapes: recognise their names, and parse their cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelmark.core.reason import Reason
from kernelmark.workloads.logs import blas_words, dtypes
from kernelmark.workloads.logs.base import ASSUMED_DTYPE, BadLine, Given
from kernelmark.workloads.logs.table import Table, header, whole
from kernelmark.workloads.workload import Call

# Possible column names of each field, the least ambiguous first.
Names = Mapping[str, Sequence[str]]
Cells = Mapping[str, str]

COUNT: Names = {
    "count": ("count", "calls", "call_count", "num_calls", "n_calls", "frequency", "occurrences")
}
DTYPE: Names = {
    "dtype": (
        *("dtype", "type", "data_type", "datatype", "precision"),
        *("in_dtype", "input_dtype", "input_type"),
    )
}
_TYPED = frozenset(("dtype", "a", "b", "problem"))
_ANY = ("", "any", "-")  # cells without a value
_YES = ("yes", "true", "1")
_NO = ("no", "false", "0", "none", "")
_BACKWARD = re.compile(r"bwd|backward|wrw|grad", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Header:
    """The names in a header, as written and in lower case with underscores."""

    written: tuple[str, ...]
    names: tuple[str, ...]
    separator: str

    @classmethod
    def of(cls, line: bytes) -> Header:
        written, separator = header(line)
        if not separator and not all(name.isidentifier() for name in written):
            written = []  # a sentence, not a header
        names = (re.sub(r"[\s.-]+", "_", name.lower()) for name in written)
        return cls(tuple(written), tuple(names), separator)

    def has(self, *names: str) -> bool:
        return set(names) <= set(self.names)

    def columns(self, known: Names) -> list[str]:
        """Return the field of each column, or "". If a name occurs twice, no column has a field:
        choosing one would be a guess."""
        found = [""] * len(self.names)
        for field, names in known.items():
            name = next((name for name in names if name in self.names), None)
            if name is None:
                continue
            if self.names.count(name) > 1:
                return [""] * len(self.names)
            if not found[at := self.names.index(name)]:
                found[at] = field
        return found


class ShapeTable(Table):
    """A reader of rows under a header with some known columns."""

    def __init__(self, top: Header, columns: Sequence[str]) -> None:
        super().__init__(columns, {name for name in columns if name}, top.separator)
        self._unread = [
            name for name, field in zip(top.written, columns, strict=True) if name and not field
        ]
        self._typed = not _TYPED.isdisjoint(columns)
        self._assumes_dtype = False

    def calls(self, kind: str, part: bytes, given: Given) -> Iterable[Call]:
        self._assumes_dtype = not self._typed and not given.dtype
        return super().calls(kind, part, given)

    def notes(self) -> tuple[str, ...]:
        notes = [ASSUMED_DTYPE] if self._assumes_dtype else []
        if self._unread:
            notes.append(Reason("columns-not-read", columns=self._unread))
        return tuple(notes)


def dtype(cells: Cells, name: str, given: Given) -> str:
    """Return the dtype in a cell; the given one if the cell has none."""
    text = cells.get(name, "")
    if is_open(text):
        text = given.list_dtype
    if text.endswith("_r"):
        return blas_words.dtype({name: text}, name, given.arch)
    return dtypes.named(text, given.arch)


def is_open(text: str) -> bool:
    """Return whether a cell has no value."""
    return text.lower() in _ANY


def flag(cells: Cells, name: str) -> bool:
    """Return a cell as a boolean; raise BadLine if it is neither yes nor no."""
    text = cells.get(name, "").lower()
    if text not in _YES and text not in _NO:
        raise BadLine(Reason("field-not-boolean", name=name, given=text[:24]))
    return text in _YES


def sizes(cells: Cells, *names: str) -> dict[str, int]:
    """Return the sizes in the cells that are not empty."""
    return {name: whole(cells, name) for name in names if cells.get(name)}


def count(cells: Cells) -> int:
    """Return the number of calls in the row."""
    if not cells.get("count"):
        return 1
    if not (times := whole(cells, "count")):
        raise BadLine(Reason("not-possible", name="count", value="0"))
    return times


def forward(cells: Cells) -> None:
    """Raise BadLine for a row of a backward pass."""
    op = cells.get("op", "")
    if _BACKWARD.search(op):
        raise BadLine(Reason("call-no-op", kind="backward pass", name=op[:40]))
