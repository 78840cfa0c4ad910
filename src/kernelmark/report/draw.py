"""Layout of tables as lines of text that fit a terminal without truncating values.

If a table is too wide, columns leave its grid: the row's name moves to a line above it, other
columns to lines below it. Lines break only between words, never between a number and its unit.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernelmark.report.tables import NONE, Column, Table

# Minimum width to wrap a sentence inside its column; with less room it moves below its row.
_LEAST_ROOM = 28
_INDENT = 2
_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:[nµm]?s|%|×|MHz|[kKMGTP]?i?(?:B|FLOP)(?:/s)?|1/s|ago)(?![\w=]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a laid-out table. `row` is the index of the table row it belongs to."""

    text: str
    kind: Literal["title", "head", "name", "row"] = "row"
    row: int = -1


def draw(table: Table, width: float = math.inf) -> list[Line]:
    """Lay out a table. A line is wider than `width` only if a single word is."""
    grid = _fitting(table, width)
    lines = [Line(text=one, kind="title") for one in _wrapped(table.title, width)]
    if grid.inside:
        head = [column.name for column in table.columns]
        rule = ["-" * one for one in grid.widths]
        lines += [Line(text=grid.line(cells), kind="head") for cells in (head, rule)]
    before: list[str] = []
    for at, row in enumerate(table.rows):
        names = [row[one] for one in grid.above]
        made = _wrapped(names[0], width) if names[:1] != before[:1] else []
        made += _packed(names[1:], width, _INDENT) if names != before else []
        lines += [Line(text=one, kind="name", row=at) for one in made]
        lines += [Line(text=one, row=at) for one in grid.row(row)]
        before = names
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """The columns `inside` the grid with their widths, and those `above` or `below` the row."""

    table: Table
    width: float
    widths: tuple[int, ...]
    inside: tuple[int, ...]
    above: tuple[int, ...] = ()
    below: tuple[int, ...] = ()

    @property
    def room(self) -> float:
        """Characters left on a line; negative if the grid does not fit."""
        used = sum(self.widths[at] for at in self.inside) + 2 * (len(self.inside) - 1)
        return self.width - used - len(self.indent)

    @property
    def indent(self) -> str:
        return " " * _INDENT if self.above else ""

    def without(self, at: int) -> _Grid:
        """Return the grid without one column. The first text column moves above the rows that share
        its value, followed by text columns before the first number, which also name a row; others
        move below."""
        inside = tuple(one for one in self.inside if one != at)
        sides = [column.align for column in self.table.columns]
        first = sides.index("left") if "left" in sides else len(sides)
        if at == first or (self.above and "right" not in sides[first:at]):
            return replace(self, inside=inside, above=tuple(sorted((*self.above, at))))
        return replace(self, inside=inside, below=tuple(sorted((*self.below, at))))

    def with_last_wrapped(self) -> _Grid | None:
        """Return the grid with its last column wrapped, or None if there is too little room."""
        last = self.inside[-1]
        room = self.room + self.widths[last]
        cells = [self.table.columns[last].name, *(row[last] for row in self.table.rows)]
        longest = max(len(word) for cell in cells for word in _words(cell))
        if self.table.columns[last].align == "right" or room < max(_LEAST_ROOM, longest):
            return None
        return replace(self, widths=(*self.widths[:last], int(room), *self.widths[last + 1 :]))

    def line(self, cells: Sequence[str]) -> str:
        """Return one line of the grid."""
        parts = []
        for at in self.inside:
            right = self.table.columns[at].align == "right"
            parts.append((cells[at].rjust if right else cells[at].ljust)(self.widths[at]))
        return f"{self.indent}{'  '.join(parts)}".rstrip()

    def row(self, cells: Sequence[str]) -> list[str]:
        """Return the lines of a row: as many as its tallest cell, then the columns below."""
        parts = {at: _wrapped(cells[at], self.widths[at], hang=0) for at in self.inside}
        lines = []
        for nth in range(max(map(len, parts.values()), default=0)):
            shown = {at: part[nth] if nth < len(part) else "" for at, part in parts.items()}
            lines.append(self.line([shown.get(at, "") for at in range(len(cells))]))
        below = [(self.table.columns[at], cells[at]) for at in self.below]
        pairs = [_labelled(c, cell) for c, cell in below if cell not in ("", NONE, c.usual)]
        return [*lines, *_packed(pairs, self.width, 2 * _INDENT)]


def _fitting(table: Table, width: float) -> _Grid:
    """Return the grid that fits `width` with the fewest columns moved out."""
    widths = tuple(
        max([len(column.name), *(len(one) for row in table.rows for one in row[at].splitlines())])
        for at, column in enumerate(table.columns)
    )
    grid = _Grid(table=table, width=width, widths=widths, inside=tuple(range(len(widths))))
    while grid.inside and grid.room < 0:
        wrapped = grid.with_last_wrapped()
        if wrapped is not None:
            return wrapped
        free = [at for at in grid.inside if not table.columns[at].keep] or grid.inside
        text = [at for at in free if table.columns[at].align == "left"]
        # A column whose usual value needs no line below its row costs nothing to move.
        cheap = [at for at in text if table.columns[at].usual and grid.without(at).room >= 0]
        grid = grid.without(max(cheap or text, key=lambda at: widths[at], default=free[-1]))
    return grid


def _labelled(column: Column, cell: str) -> str:
    label = column.name if column.label is None else column.label
    return f"{label}: {cell}" if label else cell


def _packed(cells: Sequence[str], width: float, indent: int) -> list[str]:
    """Return lines, each packed with as many cells as fit."""
    lines: list[str] = []
    for cell in filter(None, cells):
        if lines and indent + len(lines[-1]) + 3 + len(cell) <= width:
            lines[-1] += f"   {cell}"
        else:
            lines.append(cell)
    return [one for line in lines for one in _wrapped(line, width, indent=indent)]


def _wrapped(text: str, width: float, *, indent: int = 0, hang: int = _INDENT) -> list[str]:
    """Return `text` wrapped to `width`; continuation lines are indented by `hang` more."""
    lines: list[str] = []
    for line in text.splitlines():
        if indent + len(line) <= width:
            lines.append(" " * indent + line)
            continue
        made = textwrap.wrap(
            _BEFORE_UNIT.sub("\xa0", line),
            int(width),
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hang),
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [one.replace("\xa0", " ") for one in made]
    return lines


def _words(text: str) -> list[str]:
    return _BEFORE_UNIT.sub("\xa0", text).split(" ")
