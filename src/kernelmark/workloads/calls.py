"""LogReader: the interface of a format of calls, and readers of tables that several formats share.

A format describes how a line is recognised, which part of it identifies a call, and how that part
becomes a call. The rest is done by the engine in `counting` and `logs`: files, encodings, equal
lines, counts, positions, skipped lines and errors.
"""

from __future__ import annotations

import csv
import re
from abc import abstractmethod
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernelmark.core.formats import FormatFacts
from kernelmark.workloads import blas
from kernelmark.workloads.fields import BadLine, Fields, check_columns
from kernelmark.workloads.workload import BLAS_FIELDS, Call

LIST_DTYPE = "bf16"
ASSUMED_DTYPE = f"names no dtype: read as {LIST_DTYPE}; another: --dtype"
# hipblaslt-bench of 2022 and 2023 printed only d_type: with f32, inputs may be f16 or f32.
OUTPUT_ALONE = "only the type of the output is given: --dtype sets that of the inputs"
NO_DTYPE = "the call has no dtype: --dtype sets it"
_MARK = b"\0"
_PAIR = re.compile(r"(?<![^,])\([^()\"]*\)(?![^,])")
_SEPARATORS = ",;\t|"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Facts that the user gives because a log lacks them: the architecture, the dtype of lists that
    have only sizes, and the names of the values in an autotuner's key. "" is not given."""

    arch: str = ""
    dtype: str = ""
    key: str = ""

    @property
    def list_dtype(self) -> str:
        """The dtype for a list of sizes: the given one, or bf16."""
        return self.dtype or LIST_DTYPE


@dataclass(frozen=True, slots=True)
class Remark:
    """A note on a document: how it was interpreted, or what was not read."""

    text: str


# (kind of line, the part that identifies the call, number of calls)
Part = tuple[str, bytes, int]
# A line of the format that is not a call.
NOTHING: Part = ("", b"", 0)


class RowReader:
    """A reader of independent lines.

    `part` is called for every distinct line of a log, possibly a million times: it must be fast,
    and removes what differs from call to call (times, pointers, the chosen kernel). `calls` is
    called once for each distinct part.
    """

    # Whether the rows are a set: a call then counts once, however many rows it has.
    once = False

    def part(self, line: bytes) -> Part | None:
        """Return the part that identifies the call; None for a line of another format."""
        return None

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterable[Call]:
        """Return the calls of a part; raise BadLine or another UsageError if it cannot be read."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Return notes on a log with such lines: how they were interpreted, what was not read."""
        return ()


class LogReader(RowReader):
    """The reader of one format: of lines, of tables under a header, or of a document."""

    name: str
    summary: str  # one line
    facts: FormatFacts
    # Whether its lines are not distinctive: then only a file that begins with one is read.
    alone = False
    # Fields that the format does not have, and that are taken to be 1.
    absent: tuple[str, ...] = ()
    # Text in logs of this library that lack the sizes of calls, and how to log them.
    without_sizes: tuple[bytes, str] | None = None

    def notes(self) -> tuple[str, ...]:
        if not self.absent:
            return ()
        return (f"{self.name} logs have no {' or '.join(self.absent)}: read as 1",)

    def rows(self, line: bytes) -> RowReader | None:
        """Return the reader of a file that begins with this row, without a header; else None."""
        return None

    def table(self, line: bytes, file: str) -> RowReader | None:
        """Return the reader of the rows below this line of a file, if it is a header of the format;
        else None."""
        return None

    def is_document(self, head: bytes) -> bool:
        """Return whether a file with these first bytes is a document of the format."""
        return False

    def document(
        self, chunks: Iterable[bytes], options: LogOptions
    ) -> Iterator[tuple[int, Call | str | Remark]]:
        """Yield (line number, call) of a document. Instead of the call, a string is the reason why
        it cannot be read, and a remark is a note on the whole document."""
        return iter(())


class Table(RowReader):
    """A reader of rows in which the columns in `read` identify the call. Without a separator,
    cells are separated by spaces.

    A column in `read` that occurs twice makes every row unreadable. Other columns are named in a
    note, unless they are `harmless`.
    """

    def __init__(
        self,
        columns: Sequence[str],
        read: Iterable[str],
        separator: str = ",",
        harmless: Container[str] | None = None,
    ) -> None:
        self._columns = [name.strip().strip('"') for name in columns]
        self._separator = separator
        read = frozenset(read)
        self._kept = [i for i, name in enumerate(self._columns) if name in read]
        self._twice = check_columns(self._columns, sorted(read))
        self._unread = [
            name
            for name in self._columns
            if harmless is not None and name and name not in read and name not in harmless
        ]

    def notes(self) -> tuple[str, ...]:
        if not self._unread:
            return ()
        return (f"columns that were not read: {', '.join(dict.fromkeys(self._unread))}",)

    def part(self, line: bytes) -> Part | None:
        if self._separator == "|" and not line.strip(b"|:- \r"):
            return NOTHING
        cells = self._cells(line)
        if len(cells) < 2:
            return None
        if self._twice:
            return "twice", b"", 1
        if len(cells) != len(self._columns):
            return "cells", str(len(cells)).encode(), 1
        return "row", _MARK.join(cells[i].strip() for i in self._kept), 1

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterable[Call]:
        if kind == "twice":
            raise BadLine(self._twice)
        if kind == "cells":
            raise BadLine(f"{int(part)} values for {len(self._columns)} columns")
        texts = part.decode("utf-8", "replace").split(_MARK.decode())
        names = [self._columns[i] for i in self._kept]
        return self.row(Fields(dict(zip(names, texts, strict=True))), options)

    @abstractmethod
    def row(self, cells: Fields, options: LogOptions) -> Iterable[Call]:
        """Return the calls of one row."""

    def _cells(self, line: bytes) -> list[bytes]:
        line = line.replace(_MARK, b" ")
        # With tabs as separators, a tab at the end of a row is an empty cell.
        line = line.strip(b" \r\n") if self._separator == "\t" else line.strip()
        if not self._separator:
            return line.split()
        if b'"' in line:
            return _quoted(line.decode("latin-1"), self._separator)
        if b"(" in line and self._separator == ",":  # a complex factor is (1,0)
            return _quoted(_PAIR.sub(r'"\g<0>"', line.decode("latin-1")), ",")
        return line.split(self._separator.encode())


def header(line: bytes) -> tuple[list[str], str]:
    """Return the cells of a line, and its most frequent separator; "" for spaces."""
    text = line.strip(b" \r\n").decode("latin-1")
    separator = max(_SEPARATORS, key=text.count)
    separated = separator in text
    cells = _quoted(text, separator) if separated else line.split()
    names = [cell.decode("utf-8", "replace").strip() for cell in cells]
    return names, separator if separated else ""


def _quoted(text: str, separator: str) -> list[bytes]:
    try:
        cells = next(csv.reader([text], delimiter=separator), [])
        return [cell.encode("latin-1") for cell in cells]
    except csv.Error:
        return []


class BlasTable(Table):
    """A reader of rows of BLAS fields, as printed by the libraries' benchmark clients."""

    def __init__(self, columns: Sequence[str], harmless: Container[str] | None = None) -> None:
        extras = ("M", "N", "K", "swizzle_a", "swizzle_b", "bias_source")
        types = ("input_type", "output_type")
        super().__init__(columns, (*BLAS_FIELDS, *blas.EXTRAS, *extras, *types), ",", harmless)

    def row(self, cells: Fields, options: LogOptions) -> Iterable[Call]:
        fields = {name: text for name, text in cells.items() if not name.endswith("put_type")}
        if source := cells.text("input_type"):
            fields |= {"a_type": source, "b_type": source}
        if target := cells.text("output_type"):
            fields |= {"c_type": target, "d_type": target}
        if not fields.get("a_type") and fields.get("d_type"):
            if not options.dtype:
                raise BadLine(OUTPUT_ALONE)
            fields["a_type"] = blas.token(blas.dtype_named(options.dtype, options.arch))
        yield blas.call(fields, options.arch)
