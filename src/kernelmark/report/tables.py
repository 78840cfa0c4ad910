"""Tables whose columns are declared once: for people as text, Markdown and HTML, for programs as
CSV and JSON, for the dashboard, and for docs/fields.md.

`tabulate` makes a `Table` of text cells from rows and their columns; `record` and `csv_names` make
what CSV and JSON have. A `Table` that is too wide for a terminal is laid out without truncating
values: columns leave its grid. The row's name moves to a line above it, other columns to lines
below it. Lines break only between words, never between a number and its unit.
"""

from __future__ import annotations

import functools
import html
import math
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

from kernelmark.core.text import markdown_cell, printable
from kernelmark.core.units import bytes_text, time_text

NONE = "–"
# Minimum width to wrap a sentence inside its column; with less room it moves below its row.
_LEAST_ROOM = 28
_INDENT = 2
_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:[nµm]?s|%|×|MHz|[kKMGTP]?i?(?:B|FLOP)(?:/s)?|1/s|ago)(?![\w=]))"
)


def date_text(seconds: float) -> str:
    """Return `2026-11-18 21:05`, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "s": time_text,
    "µs": lambda value: time_text(value * 1e-6),
    "B": bytes_text,
    "date": date_text,
}


@functools.cache
def _attributes(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column, declared once for all outputs.

    `name` is its key in CSV and JSON, and its heading unless `title` is set; people do not see a
    column whose title is "". `value` is the plain value of a row: a function, or a path of
    attributes such as `measurement.median_s`, None if one on the way is None. Without `value` the
    column is for people only, and `in_files=False` keeps it out of CSV and JSON. People read
    `text`, by default the value in its unit; columns that are `last` come after all others.
    `type`, `unit` and `meaning` are for docs/fields.md; a type that ends with `?` may be null.

    `show` leaves the column out of a table for people if no row has `any` value, or if there are
    not `several` values. Where a narrow terminal moves the column to lines below its rows, its
    values follow `label` (None: the heading), and the value `usual` is left out. Columns to `keep`
    move only after all others. `page` is the column in the dashboard, as `key:kind`, one of the
    `KINDS` of web/pages/parts.py (default: by name and unit); "-" keeps it out.
    """

    name: str
    value: Callable[[Any], Any] | str | None = None
    meaning: str = ""
    type: str = "text"
    unit: str = ""
    _: KW_ONLY
    title: str | None = None
    text: Callable[[Any], str] | None = None
    in_files: bool = True
    show: Literal["always", "any", "several"] = "always"
    last: bool = False
    align: Literal["left", "right"] = "left"
    usual: str = ""
    label: str | None = None
    keep: bool = False
    page: str = ""

    def __post_init__(self) -> None:
        if self.type.startswith(("number", "integer")) and self.unit != "date":
            object.__setattr__(self, "align", "right")

    @property
    def heading(self) -> str:
        return self.name if self.title is None else self.title

    @property
    def is_written(self) -> bool:
        """Whether CSV and JSON have the column."""
        return self.in_files and self.value is not None

    def value_of(self, item: Any) -> Any:
        """Return the plain value of a row."""
        if callable(self.value):
            return self.value(item)
        for name in _attributes(self.value or ""):
            item = None if item is None else getattr(item, name)
        return item if self.value else None

    def cell(self, item: Any) -> str:
        """Return what people read in a row."""
        if self.text is not None:
            return self.text(item)
        value = self.value_of(item)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value))
        return NONE if value is None else _FORMATS.get(self.unit, str)(value)


def file_column(
    name: str, value: Callable[[Any], Any] | str, meaning: str, type: str = "text", unit: str = ""
) -> Column:
    """Return a column of CSV and JSON that people do not see."""
    return Column(name, value, meaning, type, unit, title="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text cells under named columns; every row has as many cells as `columns`. Cells may come from
    files and contain no control characters."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def __post_init__(self) -> None:
        rows = tuple(tuple(map(printable, row)) for row in self.rows)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "title", printable(self.title))


def tabulate(
    columns: Iterable[Column],
    items: Sequence[Any],
    *,
    title: str = "",
    texts: Mapping[str, Sequence[str]] | None = None,
    titles: Mapping[str, str] | None = None,
) -> Table:
    """Return the table that people read, one row per item. By the name of a column, `texts` are
    cells that depend on all rows, and `titles` are other headings."""
    shown: list[Column] = []
    cells: list[Sequence[str]] = []
    for column in sorted(columns, key=lambda column: column.last):
        if not column.heading:
            continue
        cell_texts = (texts or {}).get(column.name)
        values = list(map(column.cell, items)) if cell_texts is None else cell_texts
        if column.show == "any" and all(value in ("", NONE) for value in values):
            continue
        if column.show == "several" and len(set(values)) < 2:
            continue
        heading = (titles or {}).get(column.name, column.heading)
        shown.append(replace(column, name=heading, title=None))
        cells.append(values)
    return Table(columns=tuple(shown), rows=tuple(zip(*cells, strict=True)), title=title)


def record(columns: Iterable[Column], item: Any) -> dict[str, Any]:
    """Return the values of a row by column, as CSV and JSON have them."""
    return {column.name: column.value_of(item) for column in columns if column.is_written}


def csv_names(columns: Iterable[Column]) -> list[str]:
    """Return the header of a CSV file with these columns."""
    return [column.name for column in columns if column.is_written]


def text(table: Table) -> str:
    """Return aligned columns for a pipe or a file; cells of several lines stay in their column."""
    return "".join(f"{line.text}\n" for line in draw(table))


def printed(table: Table) -> str:
    """Return a table for `print`, folded to the terminal's width if stdout is a terminal."""
    terminal = getattr(sys.stdout, "isatty", lambda: False)()
    width = shutil.get_terminal_size().columns if terminal else math.inf
    return "".join(f"{line.text}\n" for line in draw(table, width))


def markdown(table: Table) -> str:
    """Return a GitHub Markdown table."""
    rule = ["---:" if column.align == "right" else "---" for column in table.columns]
    lines = [f"### {markdown_cell(table.title)}", ""] if table.title else []
    lines += [_pipes([column.name for column in table.columns]), _pipes(rule)]
    lines += [_pipes(row) for row in table.rows]
    return "\n".join(lines) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def html_table(table: Table) -> str:
    """Return an HTML table element with escaped cells."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} style="text-align:{column.align}">{html.escape(value)}</{tag}>'
            for column, value in zip(table.columns, values, strict=True)
        )

    head = cells("th", [column.name for column in table.columns])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    caption = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_list(items: Sequence[str]) -> str:
    """Return an HTML list element with escaped items; "" without items."""
    escaped = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<ul>{escaped}</ul>" if escaped else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a laid-out table. `row` is the index of the table row it belongs to."""

    text: str
    kind: Literal["title", "head", "name", "row"] = "row"
    row: int = -1


def draw(table: Table, width: float = math.inf) -> list[Line]:
    """Lay out a table. A line is wider than `width` only if a single word is."""
    grid = _fitting(table, width)
    lines = [Line(text=item, kind="title") for item in _wrapped(table.title, width)]
    if grid.inside:
        head = [column.name for column in table.columns]
        rule = ["-" * item for item in grid.widths]
        lines += [Line(text=grid.line(cells), kind="head") for cells in (head, rule)]
    before: list[str] = []
    for at, row in enumerate(table.rows):
        names = [row[item] for item in grid.above]
        head_lines = _wrapped(names[0], width) if names[:1] != before[:1] else []
        head_lines += _packed(names[1:], width, _INDENT) if names != before else []
        lines += [Line(text=item, kind="name", row=at) for item in head_lines]
        lines += [Line(text=item, row=at) for item in grid.row(row)]
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
        inside = tuple(item for item in self.inside if item != at)
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
        longest = max(len(word) for cell in cells for word in _split_words(cell))
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
        max([len(column.name), *(len(line) for row in table.rows for line in row[at].splitlines())])
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
    return [item for line in lines for item in _wrapped(line, width, indent=indent)]


def _wrapped(text: str, width: float, *, indent: int = 0, hang: int = _INDENT) -> list[str]:
    """Return `text` wrapped to `width`; continuation lines are indented by `hang` more."""
    lines: list[str] = []
    for line in text.splitlines():
        if indent + len(line) <= width:
            lines.append(" " * indent + line)
            continue
        wrapped = textwrap.wrap(
            _BEFORE_UNIT.sub("\xa0", line),
            int(width),
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hang),
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [item.replace("\xa0", " ") for item in wrapped]
    return lines


def _split_words(text: str) -> list[str]:
    return _BEFORE_UNIT.sub("\xa0", text).split(" ")
