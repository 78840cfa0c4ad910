"""Building blocks of pages: tables, forms, facts and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kernelmark.core.environment import Environment, difference
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.report import figures, micro
from kernelmark.report.tables import Column, Table
from kernelmark.report.vega import Spec

PAGE_ROWS = 50  # a browser takes about a millisecond to lay out a row
_ALL_ROWS = 100_000
_WIDTH = 1160  # figure width in pixels on a wide page
_WIDTHS = (figures.WIDTH, micro.WIDTH)  # widths of figures that fill a row
_OWN = ("$schema", "config", "title")  # keys of a stand-alone figure, not of an embedded one
_PATH = ("run_id", "case_id", "name", "fingerprint")  # path parameters, in front of "?"

Params = Mapping[str, str]  # path and query parameters of a request
Page = dict[str, Any]
Section = dict[str, Any]
Values = dict[str, Any]


class Urls(Protocol):
    """A function that returns the URL of a page; None if there is none, as on a static site."""

    def __call__(self, page: str, *parts: str, **query: str) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A query parameter of a page."""

    name: str
    help: str
    choices: tuple[str, ...] = ()
    whole: bool = False


Q = Field(name="q", help="Words that the text must contain")
OP = Field(name="op", help="Op")
BACKEND = Field(name="backend", help="Backend")
TABLE_FIELDS = (
    Field(name="sort", help="Key of the column to sort by"),
    Field(name="order", help="Direction of sorting", choices=("asc", "desc")),
    Field(name="offset", help="Rows to skip", whole=True),
    Field(name="rows", help="all: every row instead of a page", choices=("all",)),
)


# Of a column: what its cells are drawn as (web/rendering.py).
KINDS = (
    *("text", "name", "code", "state", "spark", "date", "right"),
    *("time", "duration", "number", "count", "value", "change", "interval", "ratio"),
    *("share", "width"),
)


@dataclass(frozen=True, slots=True)
class PageColumn:
    """A column of a table section."""

    key: str
    kind: str = "text"
    title: str = ""  # default: the key

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"column {self.key} has the unknown kind {self.kind!r}")

    @classmethod
    def parse(cls, text: str) -> PageColumn:
        """Parse `key`, `key:kind` or `key:kind:title`."""
        key, kind, title = f"{text}::".split(":")[:3]
        return cls(key, kind or "text", title)


def table(
    columns: Sequence[str | PageColumn],
    rows: Sequence[Any],
    *,
    title: str = "",
    empty: str = "Nothing here",
    sortable: bool = True,
) -> Section:
    """Return a table section; a column may be the text of one, and "" is skipped."""
    parsed = [PageColumn.parse(c) if isinstance(c, str) else c for c in columns if c]
    return {
        "title": title,
        "columns": [{"key": c.key, "title": c.title or c.key, "kind": c.kind} for c in parsed],
        "rows": list(rows),
        "empty": empty,
        "sortable": sortable,
    }


def page_columns(columns: Iterable[Column], rows: Sequence[Any]) -> list[PageColumn]:
    """Return the declared columns that the dashboard shows, for `table`; states come first."""
    shown = []
    for column in columns:
        if not column.heading or column.page == "-":
            continue
        if column.show != "always":
            values = {column.value_of(row) for row in rows} - {None, ""}
            if len(values) < (2 if column.show == "several" else 1):
                continue
        key, kind = _key_and_kind(column)
        shown.append(PageColumn(key, kind, column.heading))
    return sorted(shown, key=lambda column: column.kind != "state")


def page_values(columns: Iterable[Column], row: Any) -> Values:
    """Return the values of a row by the key of the column: numbers and states as they are, all
    else as people read it."""
    values: Values = {}
    for column in columns:
        if column.heading and column.page != "-":
            key, kind = _key_and_kind(column)
            is_text = column.value is None or (column.type.startswith("text") and kind != "state")
            value = column.cell(row) if is_text else column.value_of(row)
            values[key] = finite(value) if isinstance(value, float) else value
    return values


def _key_and_kind(column: Column) -> tuple[str, str]:
    key, _, kind = (column.page or column.name).partition(":")
    if not kind and column.type.startswith("number"):
        kind = {"s": "time", "date": "date"}.get(column.unit, "number")
    return key, kind or ("count" if column.type.startswith("integer") else "text")


def text_table(of: Table) -> Section:
    """Return a section with the text cells of a table."""
    keys = [column.name for column in of.columns]
    columns = [PageColumn(c.name, "right" if c.align == "right" else "text") for c in of.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in of.rows]
    return table(columns, rows, title=of.title, sortable=False)


def paged(
    of: Section,
    params: Params,
    urls: Urls,
    page: str,
    *parts: str,
    first: str = "",
    make: Callable[[Any], Values] = lambda row: row,
    more: Callable[[Any], Values] = lambda row: {},
) -> Section:
    """Return one page of a table, sorted by the `sort` parameter, or else by `first` descending.

    `make` turns an item of the table into a row: all items if the table is sorted, otherwise only
    those on the page. `more` returns what is added to the rows on the page and never sorted by.
    """
    rows, keys = of["rows"], [column["key"] for column in of["columns"]]
    key = params.get("sort") or first
    order = params.get("order") or ("asc" if params.get("sort") else "desc")
    if key and key not in (*keys, first):
        raise UsageError(f"unknown column {key[:40]!r}", hint=f"columns: {', '.join(keys)}")
    rendered = {id(item): make(item) for item in rows} if key else {}
    if key:
        sortable = [item for item in rows if _sort_value(rendered[id(item)], key) is not None]
        sortable.sort(
            key=lambda item: _sort_value(rendered[id(item)], key), reverse=order == "desc"
        )
        rows = sortable + [item for item in rows if _sort_value(rendered[id(item)], key) is None]
    offset, query = offset_of(params), _query(params)
    kept = {name: value for name, value in query.items() if name not in ("offset", "sort", "order")}
    columns = [
        {**column, "href": urls(page, *parts, **kept, sort=name, order=_other(name, key, order))}
        for column in of["columns"]
        for name in [column["key"]]
    ]
    within = rows[offset : offset + most_rows(params)]
    shown = [(rendered.get(id(item)) or make(item)) | more(item) for item in within]
    section = {**of, "columns": columns, "rows": shown, "sort": key, "order": order}
    return section | pager(len(rows), params, urls, page, *parts)


def _other(name: str, key: str, order: str) -> str:
    return "desc" if name == key and order == "asc" else "asc"


def _sort_value(row: Mapping[str, Any], key: str) -> Any:
    value = row.get(key)
    if isinstance(value, list):
        return len(value)
    return value.lower() if isinstance(value, str) else value


def pager(total: int, params: Params, urls: Urls, page: str, *parts: str) -> Values:
    """Return links to the previous and next rows."""
    query, offset = _query(params), offset_of(params)
    values: Values = {"total": total, "offset": offset}
    if offset > 0:
        earlier = {**query, "offset": str(max(offset - PAGE_ROWS, 0))}
        values["previous"] = urls(page, *parts, **earlier)
    if offset + most_rows(params) < total:
        values["next"] = urls(page, *parts, **{**query, "offset": str(offset + PAGE_ROWS)})
    return values


def _query(params: Params) -> dict[str, str]:
    """Return the query parameters, without path parameters."""
    return {name: value for name, value in params.items() if value and name not in _PATH}


def device_query(device: str) -> str:
    """Return the `device` parameter of a result's URL; "" for the CPU."""
    return "" if device == "cpu" else device


def offset_of(params: Params) -> int:
    return int(params.get("offset") or 0)


def most_rows(params: Params) -> int:
    """Return the number of rows shown at once."""
    return _ALL_ROWS if params.get("rows") == "all" else PAGE_ROWS


def choice(
    name: str,
    params: Params,
    choices: Sequence[str | tuple[str, str]] | None = None,
    *,
    label: str = "",
    required: bool = False,
    unset: str = "All",
) -> Values:
    """Return a form field: free text, or a choice among values or (value, text) pairs. `unset` is
    the text for no choice."""
    pairs = [item if isinstance(item, tuple) else (item, item) for item in choices or () if item]
    return {
        "name": name,
        "label": label or name.capitalize(),
        "value": params.get(name, ""),
        "choices": None if choices is None else pairs,
        "required": required,
        "unset": unset,
    }


def search_box(params: Params) -> Values:
    return choice("q", params, label="Search")


def has_words(text: str, params: Params) -> bool:
    """Return whether `text` contains all search words."""
    return all(word in text.lower() for word in params.get("q", "").lower().split())


def facts(*pairs: tuple[str, str]) -> list[list[str]]:
    return [[name, value] for name, value in pairs if value]


def actions(*pairs: tuple[str, str | None]) -> list[dict[str, str]]:
    return [{"text": text, "href": href} for text, href in pairs if href]


def changes(base: Environment, head: Environment) -> list[list[str]]:
    """Return the differences between two environments."""
    return [[what, old or "–", new or "–"] for what, old, new in difference(base, head)]


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def figure(title: str, make: Callable[[], Spec]) -> list[Section]:
    """Return a list of one figure; [] if there is nothing to draw."""
    try:
        spec = {name: part for name, part in make().items() if name not in _OWN}
        description = str(spec.pop("description", ""))
        themed = figures.themed(_fitted(spec), inline=True)
        return [{"title": title, "words": description, "spec": themed}]
    except KernelmarkError:
        return []


def _fitted(spec: Any) -> Any:
    """Return the spec in page width, without view titles, which the page shows itself."""
    if isinstance(spec, list):
        return [_fitted(item) for item in spec]
    if not isinstance(spec, dict):
        return spec
    titled = "layer" in spec or "vconcat" in spec
    fitted_spec = {
        name: _fitted(member) for name, member in spec.items() if not (titled and name == "title")
    }
    if fitted_spec.get("width") in _WIDTHS and fitted_spec.get("columns", 1) == 1:
        fitted_spec["width"] = _WIDTH
    return fitted_spec
