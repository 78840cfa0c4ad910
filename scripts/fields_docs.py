"""docs/fields.md: every field of the JSON documents, and every column of the CSV files.

Value types, their fields and the columns of tables come from the code; units, meanings and other
objects from fields.toml. tests/docs/test_fields.py compares the page with what commands write.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import sys
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.immutable import OPTIONAL
from kernelmark.core.problem import Problem
from kernelmark.core.reason import CODES, Reason
from kernelmark.core.result import ResultSet

TEXTS = Path(__file__).with_name("fields.toml")
HEAD = """\
# Fields of JSON and CSV

<!-- Written by scripts/write-docs from the code and scripts/fields.toml. Do not edit. -->

Written with `--json` and `--csv` by `kmark run`, `show`, `export`, `micro`, `compare`, `history`,
`ab`, `roofs`, `doctor` and `list`. A date is seconds since 1970, UTC; fractions are between 0 and
1. A field marked *optional* is omitted if it has its default; null and an empty cell are a value
that is not there. `nan`, `inf` and `-inf` are text in JSON. A type that is a link is an object.

A JSON document begins with `kernelmark`, the kind of document (`results`, `compare`, `history`,
`ab`, `roof`, `doctor`), and `version`, which changes if a field is removed or changes its meaning;
new fields may be added. Where a field is a sentence, `reasons` next to it has the [code and
values](#reason) of that sentence.
"""
RESULTS = """
## JSON of a run

`kmark run`, `show`, `export`, `micro` and `micro show` write one [ResultSet](#resultset), which
`kmark import` reads; `kernelmark` is `results`.
"""
CODES_HEAD = """
## Codes of reasons

Every `code` of a [Reason](#reason). Files of older versions may have others.

| code | meaning |
|---|---|
"""
Row = tuple[str, str, str, str]


def fields() -> str:
    """The page."""
    texts = tomllib.loads(TEXTS.read_text(encoding="utf-8"))
    sections = texts["section"]
    parts = [HEAD]
    parts += [_section(one) for one in sections if one["group"] == "csv"]
    parts += [RESULTS, *_values(texts["values"])]
    parts += [_section({"level": 3, **one}) for one in sections if one["group"] == "run"]
    parts += [_section(one) for one in sections if one["group"] == "json"]
    parts += [CODES_HEAD, *(f"| `{code}` | {meaning} |\n" for code, meaning in CODES.items())]
    return "".join(parts)


def _section(section: Mapping[str, Any]) -> str:
    """A heading, a sentence and a table of the declared columns and of other fields."""
    about = section.get("about", "").strip()
    head = f"\n{'#' * section.get('level', 2)} {section['title']}\n"
    rows = [row for name in section.get("columns", "").split() for row in _columns(name, section)]
    rows += [(name, *text) for name, text in section.get("fields", {}).items()]
    return head + (f"\n{about}\n" if about else "") + _table(rows)


def _columns(name: str, section: Mapping[str, Any]) -> list[Row]:
    """The columns declared as MODULE:NAME. A cell of CSV has no null, which is an empty cell, and
    no true or false."""
    module, _, attribute = name.partition(":")
    rows = []
    for column in getattr(importlib.import_module(module), attribute):
        if not column.is_written:
            continue
        kind = column.type.removesuffix("?")
        if section["group"] == "csv":
            kind = kind.replace("true or false", "True or False")
        elif kind != column.type:
            kind += " or null"
        rows.append((column.name, kind, column.unit, column.meaning))
    return rows


def _values(texts: Mapping[str, Mapping[str, list[str]]]) -> Iterator[str]:
    """The value types that a ResultSet consists of."""
    todo: list[type] = [ResultSet]
    for kind in todo:
        hints, known = typing.get_type_hints(kind), dict(texts[kind.__name__])
        rows: list[Row] = []
        if kind is ResultSet:
            rows += [("kernelmark", "text", "", "`results`")]
            rows += [("version", "integer", "", "version of the format")]
        for field in dataclasses.fields(kind):
            unit, meaning, *given = known.pop(field.name)
            optional = " (*optional*)" if OPTIONAL in field.metadata else ""
            text = given[0] if given else _text(hints[field.name])
            rows.append((field.name, f"{text}{optional}", unit, meaning))
            found = _classes(hints[field.name])
            todo += [one for one in found if one not in todo]
        if coded := [name for name, hint in hints.items() if hint in (Reason, tuple[Reason, ...])]:
            names = " and ".join(f"`{name}`" for name in coded)
            linked = "object of [Reason](#reason)"
            linked += " lists" if hints[coded[0]] is not Reason else ""
            rows.append(("reasons", f"{linked} (*optional*)", "", f"codes of {names}"))
        if known:
            sys.exit(f"{TEXTS.name}: {kind.__name__} has no {next(iter(known))}")
        yield f"\n### {kind.__name__}\n\n{inspect.getdoc(kind)}\n" + _table(rows)
    if unused := texts.keys() - {kind.__name__ for kind in todo}:
        sys.exit(f"{TEXTS.name}: {min(unused)} is not part of a ResultSet")


def _classes(hint: Any) -> list[type]:
    """Value types in a type hint that are objects in JSON."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return [] if hint in (Problem, Reason) else [hint]
    return [one for part in typing.get_args(hint) for one in _classes(part)]


def _text(hint: Any) -> str:
    """A type as JSON has it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(map(_text, parts)))
    if origin is tuple:
        return f"list of {_text(parts[0])}"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object of {_text(parts[1])}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ", ".join(f"`{one.value}`" for one in hint)
    if dataclasses.is_dataclass(hint) and hint is not Problem:
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    plain = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "true or false",
        type(None): "null",
        Reason: "text",
        Problem: "text",
    }
    return plain.get(hint, "any value")


def _table(rows: list[Row]) -> str:
    if not rows:
        return ""
    head = "\n| field | type | unit | meaning |\n|---|---|---|---|\n"
    lines = (f"| `{name}` | {kind} | {unit} | {text} |\n" for name, kind, unit, text in rows)
    return head + "".join(lines)
