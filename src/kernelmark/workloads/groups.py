"""Groups: expand a `[[problems]]` table of a suite file into the parameters of its problems.

A group is one of three kinds.

    op = "gemm"                       listed: an op and its parameters; a list, or text such as
    m = [1, 2, 4]                     "[1024:8192:*2]", is an axis, and axes are multiplied.
    columns = ["n", "k"]              `rows` lists values that go together, named by `columns`
    rows = [[4096, 4096], [1024, 64]] and multiplied with the axes like another axis.

    model = "llama-3-70b"             derived: what a model's layers compute with `tp` ranks,
    tp = [1, 8]                       `m` tokens in a step, `prefill` lengths, `decode_batch` ×
    m = [1, 64]                       `context`; `op` and `layers` filter them.

    generator = "random"              drawn: `count` problems of an op from a `seed`, by
    op = "gemm"                       `categories`; or "grid", m × n × k in steps by `factor`;
    count = 100                       both between `low` and `high`.

`dtype`, one or a list, is set in a group or, as the default, in the file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.ops.base import Parameter
from kernelmark.workloads import axes, generate, models

Given = dict[str, Parameter]
Table = Mapping[str, Any]

_MODEL_KEYS = ("model", "tp", "m", "prefill", "decode_batch", "context", "op", "layers", "dtype")
_GENERATOR_KEYS = ("generator", "op", "low", "high", "categories")
_RANDOM_KEYS = ("count", "seed", "multiple")
_GRID_KEYS = ("factor",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One problem of a group, not yet validated by its op."""

    op: str
    given: Given


class GroupError(UsageError):
    """A group cannot be read; the message begins with its position in the file."""


def items(table: Table, dtypes: Sequence[str], where: str) -> Iterator[Item]:
    """Yield the problems of a group in order; `dtypes` is the default, `where` begins errors."""
    if "model" in table:
        yield from _derived(table, dtypes, where)
    elif "generator" in table:
        yield from _drawn(table, dtypes, where)
    elif "op" in table:
        yield from _listed(table, dtypes, where)
    else:
        raise GroupError(
            Reason("field-missing", where=where, name="op"),
            hint="write op = 'gemm', or model = '…'",
        )


def without(table: Table, name: str) -> Table:
    """Return the group without a parameter, which may be a key or a column."""
    rest = {key: value for key, value in table.items() if key != name}
    columns, rows = rest.get("columns"), rest.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or name not in columns:
        return rest
    if columns == [name]:
        return {key: value for key, value in rest.items() if key not in ("columns", "rows")}
    place = columns.index(name)
    kept = [r[:place] + r[place + 1 :] if isinstance(r, list) else r for r in rows]
    return {**rest, "columns": columns[:place] + columns[place + 1 :], "rows": kept}


def values(value: object, where: str) -> tuple[Parameter, ...]:
    """Return the values of an axis, given as a scalar, a list of scalars or the text of a range."""
    if isinstance(value, str) and value.startswith("["):
        return axes.parse_values(value, f"{where} = {value}")
    if isinstance(value, list):
        return tuple(_scalar(item, where) for item in _list(value, where))
    return (_scalar(value, where),)


def _listed(table: Table, dtypes: Sequence[str], where: str) -> Iterator[Item]:
    op = _word(table["op"], f"{where}: op")
    columns, rows = _rows(table, where)
    named = [
        axes.Axis(name=key, values=values(value, f"{where}: {key}"))
        for key, value in table.items()
        if key != "op" and (key not in ("columns", "rows") or _is_axis(key, table))
    ]
    names = [axis.name for axis in named]
    twice = [name for name in columns if name in names]
    if twice:
        cause = Reason("given-twice", what="axis", name=twice[0])
        raise GroupError(
            Reason("at", where=where, cause=cause), hint="name it as a column or as a key"
        )
    if "dtype" in names:
        named.insert(0, named.pop(names.index("dtype")))
    elif dtypes and "dtype" not in columns:
        named.insert(0, axes.Axis(name="dtype", values=tuple(dtypes)))
    total = len(rows)
    for axis in named:
        total *= len(axis.values)
    axes.check_count(total, where)
    # The dtype varies slowest if it is an axis, then the rows, then the other axes.
    slow = named[:1] if named and named[0].name == "dtype" else []
    for outer in axes.product(slow):
        for row in rows:
            for inner in axes.product(named[len(slow) :]):
                yield Item(op=op, given={**row, **inner, **outer})


def _is_axis(key: str, table: Table) -> bool:
    """Return whether the key `rows` or `columns` is a parameter of a user's op: the other key is
    absent, and the value is not a list of rows or names."""
    value = table.get(key)
    if not {"rows", "columns"} - set(table) or value is None:
        return False
    if not isinstance(value, list):
        return True
    return bool(value) and not isinstance(value[0], list if key == "rows" else str)


def _rows(table: Table, where: str) -> tuple[list[str], list[Given]]:
    if _is_axis("rows", table) or _is_axis("columns", table):
        return [], [{}]
    _check_both(table, "rows", "columns", where)
    if "rows" not in table:
        return [], [{}]
    columns = _words(_list(table["columns"], f"{where}: columns"), f"{where}: columns")
    for name in columns:
        if columns.count(name) > 1:
            cause = Reason("given-twice", what="axis", name=name)
            raise GroupError(Reason("at", where=f"{where}: columns", cause=cause))
    rows: list[Given] = []
    for number, row in enumerate(_list(table["rows"], f"{where}: rows"), start=1):
        place = f"{where}: row {number}"
        cells = [_scalar(cell, place) for cell in _list(row, place)]
        if len(cells) != len(columns):
            raise GroupError(
                Reason("row-cells", where=place, cells=len(cells), columns=len(columns)),
                hint=f"columns: {', '.join(columns)}",
            )
        rows.append(dict(zip(columns, cells, strict=True)))
    return columns, rows


def _derived(table: Table, dtypes: Sequence[str], where: str) -> Iterator[Item]:
    _refuse_unknown(table, _MODEL_KEYS, where)
    names = _words(table["model"], f"{where}: model")
    types = _words(table["dtype"], f"{where}: dtype") if "dtype" in table else list(dtypes)
    ops = _words(table["op"], f"{where}: op") if "op" in table else []
    layers = _words(table["layers"], f"{where}: layers") if "layers" in table else []
    _check_both(table, "decode_batch", "context", where)
    sweep = models.Sweep(
        tokens=_integers(table, "m", where),
        prefill=_integers(table, "prefill", where),
        decode_batch=_integers(table, "decode_batch", where),
        context=_integers(table, "context", where),
    )
    known: set[str] = set()
    for dtype in types or [""]:
        for name in names:
            for tp in _integers(table, "tp", where) or (1,):
                for call in models.calls(models.model(name), tp, sweep):
                    known.add(call.layer)
                    if (not ops or call.op in ops) and (not layers or call.layer in layers):
                        yield Item(op=call.op, given=_typed(call.given, dtype))
    absent = [layer for layer in layers if layer not in known]
    if absent:
        cause = Reason("unknown-name", what="layer", name=absent[0])
        raise GroupError(
            Reason("at", where=where, cause=cause), hint=f"layers: {', '.join(sorted(known))}"
        )


def _drawn(table: Table, dtypes: Sequence[str], where: str) -> Iterator[Item]:
    kind = _word(table["generator"], f"{where}: generator")
    if kind not in ("random", "grid"):
        cause = Reason("unknown-name", what="generator", name=kind)
        raise GroupError(Reason("at", where=where, cause=cause), hint="known: random, grid")
    own = (*_GENERATOR_KEYS, *(_RANDOM_KEYS if kind == "random" else _GRID_KEYS))
    if "op" not in table:
        raise GroupError(Reason("field-missing", where=where, name="op"), hint="write op = 'gemm'")
    op = _word(table["op"], f"{where}: op")
    names = _words(table["categories"], f"{where}: categories") if "categories" in table else []
    numbers = {
        key: _integer(table[key], f"{where}: {key}")
        for key in own
        if key in table and key not in ("generator", "op", "categories")
    }
    bounds = {key: numbers.pop(key) for key in ("low", "high", "multiple") if key in numbers}
    fixed = {k: _scalar(v, f"{where}: {k}") for k, v in table.items() if k not in (*own, "dtype")}
    types = _words(table["dtype"], f"{where}: dtype") if "dtype" in table else list(dtypes)
    for dtype in types or [""]:
        extra, sizes = _typed(fixed, dtype), generate.Sizes(**bounds)
        if kind == "random":
            count, seed = numbers.get("count", 100), numbers.get("seed", 1)
            made = generate.draw(op, count=count, seed=seed, names=names, sizes=sizes, fixed=extra)
        else:
            factor = numbers.get("factor", 2)
            made = generate.grid(op, factor=factor, names=names, sizes=sizes, fixed=extra)
        yield from (Item(op=op, given=given) for given in made)


def _typed(given: Given, dtype: str) -> Given:
    return {**given, "dtype": dtype} if dtype else dict(given)


def _refuse_unknown(table: Table, known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise GroupError(
                Reason("field-unknown", where=where, name=key),
                hint=f"{meant}known: {', '.join(known)}",
            )


def _check_both(table: Table, one: str, other: str, where: str) -> None:
    if (one in table) != (other in table):
        missing = other if one in table else one
        raise GroupError(
            Reason("field-missing", where=where, name=missing),
            hint=f"{one} and {other} are only given together",
        )


def _integers(table: Table, key: str, where: str) -> tuple[int, ...]:
    if key not in table:
        return ()
    place = f"{where}: {key}"
    return tuple(_integer(value, place) for value in values(table[key], place))


def _integer(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unexpected("an integer", value, where)
    return value


def _words(value: object, where: str) -> list[str]:
    return [_word(item, where) for item in (value if isinstance(value, list) else [value])]


def _word(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise _unexpected("a name", value, where)
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list) or not value:
        raise _unexpected("a list with at least one item", value, where)
    return value


def _scalar(value: object, where: str) -> Parameter:
    if isinstance(value, bool | int | float | str):
        return value
    raise _unexpected("a number, a word or true/false", value, where)


def _unexpected(expected: str, value: object, where: str) -> GroupError:
    found = repr(value)[:60]
    return GroupError(Reason("field-expected", where=where, expected=expected, found=found))
