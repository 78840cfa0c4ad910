"""Lines and tables of text files that may be truncated."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.workloads.importers.base import text_of

CUT = "the file was cut: give it whole, or without that line"
EACH = "import each table in a file of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of a file; `ended` is whether the last one ends with a newline."""

    texts: tuple[str, ...]
    ended: bool

    def doubt(self, line: int) -> Reason:
        """Return the reason if the line with this number, from 1, may be truncated: it is the last
        one and has no newline. Many tools write files like that, too."""
        return NO_REASON if self.ended or line < len(self.texts) else Reason("may-be-cut")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table: cells by column name. `place`, file and line, begins errors about it."""

    cells: Mapping[str, str]
    place: str
    doubt: Reason


def lines_of(path: Path) -> Lines:
    text = text_of(path)
    return Lines(texts=tuple(text.splitlines()), ended=text.endswith(("\n", "\r")))


def table_of(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Return the header of a CSV file, and its rows."""
    lines = lines_of(path)
    reader = csv.DictReader(lines.texts)
    return list(reader.fieldnames or ()), _rows(path, lines, reader)


def header_of(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def printed_rows(
    path: Path, lines: Lines, span: range, header: list[str], least: int
) -> Iterator[Row]:
    """Yield the rows of a table within the output of a tool; a row has at least `least` values.
    Empty lines and lines that begin with == are not part of the table."""
    # Strict: an unclosed quote means that the file is truncated.
    reader = csv.reader(lines.texts[span.start : span.stop], strict=True)
    try:
        for row in reader:
            line = span.start + reader.line_num
            if not row or row[0].startswith("=="):
                continue
            if not least <= len(row) <= len(header):
                raise uneven_row(f"{path}: line {line}", len(row), len(header))
            cells = dict(zip(header, row, strict=False))
            yield Row(cells=cells, place=f"{path}: line {line}", doubt=lines.doubt(line))
    except csv.Error as error:
        reason = Reason("table-damaged", file=str(path), error=str(error))
        raise UsageError(reason, hint=CUT) from None


def uneven_row(place: str, cells: int, columns: int) -> UsageError:
    """Return the error for a row with fewer or more cells than columns."""
    return UsageError(
        Reason("row-cells", where=place, cells=cells, columns=columns),
        hint=CUT if cells < columns else "a value with the separator in it must be in quotes",
    )


def _rows(path: Path, lines: Lines, reader: csv.DictReader[str]) -> Iterator[Row]:
    for row in reader:
        place = f"{path}: line {reader.line_num}"
        # In a truncated row, the last number may be truncated too.
        if None in row.values():
            values = [value for value in row.values() if value is not None]
            raise uneven_row(place, len(values), len(row))
        yield Row(cells=row, place=place, doubt=lines.doubt(reader.line_num))
