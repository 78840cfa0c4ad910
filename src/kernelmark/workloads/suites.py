"""Suites: named lists of problems in TOML files, shipped with kernelmark or written by users.

name = "mine"                     default: the name of the file
why = "What our service runs."    one or two sentences
source = "profile of 2025-05-01"  origin of the sizes
dtype = ["bf16"]                  default for the groups

[[problems]]                      one or more groups, each of one of three kinds
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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.errors import KernelmarkError, ProblemError, UsageError, about
from kernelmark.core.files import load_toml, user_path
from kernelmark.core.problem import Problem
from kernelmark.core.reason import prefixed
from kernelmark.ops import registry
from kernelmark.ops.base import Parameter
from kernelmark.workloads import generate, models, select

Parameters = dict[str, Parameter]
Table = Mapping[str, Any]

# The suite of problems that should never change: if their times move, the machine changed. The name
# is older than the word, and stored.
CANARIES = "sentinels"
_FOLDER = Path(__file__).with_name("data")
_KEYS = ("name", "why", "source", "dtype", "problems")
_MODEL_KEYS = ("model", "tp", "m", "prefill", "decode_batch", "context", "op", "layers", "dtype")
_GENERATOR_KEYS = {
    "random": ("generator", "op", "low", "high", "categories", "count", "seed", "multiple"),
    "grid": ("generator", "op", "low", "high", "categories", "factor"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A named list of distinct problems, with the number of duplicates that were removed."""

    name: str
    why: str
    source: str
    problems: tuple[Problem, ...]
    duplicates: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteInfo:
    """The row of a suite in `kmark list suites`; `ops` counts its problems by op."""

    name: str
    why: str
    source: str
    count: int
    ops: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One problem of a group, not yet validated by its op."""

    op: str
    parameters: Parameters


class GroupError(UsageError):
    """A group cannot be read; the message begins with its position in the file."""


def names() -> list[str]:
    """Return the names of the suites that come with kernelmark, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


@about("suite-file")
def load(name_or_path: str | Path, dtypes: Sequence[str] = (), ops: Sequence[str] = ()) -> Suite:
    """Return a suite by its name, or from a TOML file; `dtypes` replaces its dtypes, `ops` filters
    its problems."""
    file = _open(str(name_or_path))
    problems: dict[Problem, None] = {}
    total = 0
    for where, item in _items(file, tuple(dtypes)):
        if ops and item.op not in ops:
            continue
        with _at(where):
            problems[registry.get(item.op).problem(**item.parameters)] = None
        total += 1
    return Suite(
        name=file.name,
        why=file.why,
        source=file.source,
        problems=tuple(problems),
        duplicates=total - len(problems),
    )


def describe() -> list[SuiteInfo]:
    """Return information on every suite that comes with kernelmark."""
    lines = []
    for name in names():
        # Counts without validating the problems, which takes most of the time of loading a suite.
        file = _open(name)
        distinct = {(item.op, frozenset(item.parameters.items())) for _, item in _items(file, ())}
        lines.append(_info(file, Counter(op for op, _ in distinct)))
    return lines


def info(suite: Suite) -> SuiteInfo:
    """Return the information on a suite."""
    return _info(suite, Counter(problem.op for problem in suite.problems))


def _info(named: Suite | _File, ops: Counter[str]) -> SuiteInfo:
    return SuiteInfo(
        name=named.name,
        why=named.why,
        source=named.source,
        count=ops.total(),
        ops=dict(sorted(ops.items())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A suite file with its top level checked and its groups not yet expanded."""

    shown: str  # its name in errors
    name: str
    why: str
    source: str
    dtypes: tuple[str, ...]
    groups: tuple[Table, ...]


def _open(name_or_path: str) -> _File:
    path, shown = _find(name_or_path)
    missing = "'kmark list suites' lists built-in ones"
    document = load_toml(path, missing=missing, hint="is the file cut short?", shown=shown)
    _refuse_unknown(document, _KEYS, shown)
    tables = document.get("problems", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables) or not tables:
        raise UsageError(f"{shown} has no problems", hint="begin a group with [[problems]]")
    texts = {"name": path.stem, "why": "", "source": ""}
    for key in texts:
        texts[key] = document.get(key, texts[key])
        if not isinstance(texts[key], str):
            raise _unexpected("text", texts[key], f"{shown}: {key}")
    default = values(document["dtype"], f"{shown}: dtype") if "dtype" in document else ()
    return _File(shown=shown, dtypes=tuple(map(str, default)), groups=tuple(tables), **texts)


def _find(name_or_path: str) -> tuple[Path, str]:
    """Return the file, and its name in errors."""
    if name_or_path in names():
        return _FOLDER / f"{name_or_path}.toml", f"{name_or_path}.toml"
    path = user_path(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path, str(path)
    raise UsageError(
        f"unknown suite {name_or_path!r}",
        hint=f"{_meant(name_or_path, names())}'kmark list suites' lists them; "
        "a file of your own is named ./mine.toml",
    )


def _items(file: _File, dtypes: Sequence[str]) -> Iterator[tuple[str, Item]]:
    """Yield the problems of every group in order, with their position for errors."""
    total = 0
    for number, table in enumerate(file.groups, start=1):
        where = f"{file.shown}: problems {number}"
        before = total
        with _at(where):
            kept = _without_dtype(table) if dtypes else table
            for item in items(kept, dtypes or file.dtypes, where):
                total += 1
                select.check_count(total, file.shown)
                yield where, item
        if total == before:
            raise UsageError(f"{where}: the group holds no problem")


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Prefix errors with the position in the file."""
    try:
        yield
    except GroupError:
        raise
    except KernelmarkError as error:
        kind = ProblemError if isinstance(error, ProblemError) else UsageError
        raise kind(prefixed(error.message, f"{where}: "), hint=error.hint) from None


def items(table: Table, dtypes: Sequence[str], where: str) -> Iterator[Item]:
    """Yield the problems of a group in order; `dtypes` is the default, `where` begins errors."""
    kinds = {"model": _derived, "generator": _drawn, "op": _listed}
    kind = next((key for key in kinds if key in table), None)
    if kind is None:
        raise GroupError(
            f"{where}: field 'op' is missing", hint="write op = 'gemm', or model = '…'"
        )
    yield from kinds[kind](table, dtypes, where)


def _without_dtype(table: Table) -> Table:
    """Return the group without its dtype, which may be a key or a column."""
    rest = {key: value for key, value in table.items() if key != "dtype"}
    columns, rows = rest.get("columns"), rest.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or "dtype" not in columns:
        return rest
    if columns == ["dtype"]:
        return {key: value for key, value in rest.items() if key not in ("columns", "rows")}
    at = columns.index("dtype")
    kept = [r[:at] + r[at + 1 :] if isinstance(r, list) else r for r in rows]
    return {**rest, "columns": columns[:at] + columns[at + 1 :], "rows": kept}


def values(value: object, where: str) -> tuple[Parameter, ...]:
    """Return the values of an axis, given as a scalar, a list of scalars or the text of a range."""
    if isinstance(value, str) and value.startswith("["):
        return select.parse_values(value, f"{where} = {value}")
    if isinstance(value, list):
        return tuple(_scalar(item, where) for item in _list(value, where))
    return (_scalar(value, where),)


def _listed(table: Table, dtypes: Sequence[str], where: str) -> Iterator[Item]:
    op = _word(table["op"], f"{where}: op")
    columns, rows = _rows(table, where)
    named = [
        select.ProblemAxis(name=key, values=values(value, f"{where}: {key}"))
        for key, value in table.items()
        if key != "op" and (key not in ("columns", "rows") or _is_axis(key, table))
    ]
    keys = [axis.name for axis in named]
    _refuse_twice([*columns, *(key for key in keys if key in columns)], where)
    # The dtype varies slowest if it is an axis, then the rows, then the other axes.
    slow = [axis for axis in named if axis.name == "dtype"]
    fast = [axis for axis in named if axis.name != "dtype"]
    if dtypes and not slow and "dtype" not in columns:
        slow = [select.ProblemAxis(name="dtype", values=tuple(dtypes))]
    total = len(rows)
    for axis in (*slow, *fast):
        total *= len(axis.values)
    select.check_count(total, where)
    for outer in select.product(slow):
        for row in rows:
            for inner in select.product(fast):
                yield Item(op=op, parameters={**row, **inner, **outer})


def _is_axis(key: str, table: Table) -> bool:
    """Return whether the key `rows` or `columns` is a parameter of a user's op: the other key is
    absent, and the value is not a list of rows or names."""
    value = table.get(key)
    if not {"rows", "columns"} - set(table) or value is None:
        return False
    if not isinstance(value, list):
        return True
    return bool(value) and not isinstance(value[0], list if key == "rows" else str)


def _rows(table: Table, where: str) -> tuple[list[str], list[Parameters]]:
    if _is_axis("rows", table) or _is_axis("columns", table):
        return [], [{}]
    _check_both(table, "rows", "columns", where)
    if "rows" not in table:
        return [], [{}]
    columns = _words(_list(table["columns"], f"{where}: columns"), f"{where}: columns")
    _refuse_twice(columns, f"{where}: columns")
    rows: list[Parameters] = []
    for number, row in enumerate(_list(table["rows"], f"{where}: rows"), start=1):
        at = f"{where}: row {number}"
        cells = [_scalar(cell, at) for cell in _list(row, at)]
        if len(cells) != len(columns):
            raise GroupError(
                f"{at} has {len(cells)} cells for {len(columns)} columns",
                hint=f"columns: {', '.join(columns)}",
            )
        rows.append(dict(zip(columns, cells, strict=True)))
    return columns, rows


def _derived(table: Table, dtypes: Sequence[str], where: str) -> Iterator[Item]:
    _refuse_unknown(table, _MODEL_KEYS, where)
    ops, layers = _named(table, "op", where), _named(table, "layers", where)
    _check_both(table, "decode_batch", "context", where)
    sweep = models.Sweep(
        tokens=_integers(table, "m", where),
        prefill=_integers(table, "prefill", where),
        decode_batch=_integers(table, "decode_batch", where),
        context=_integers(table, "context", where),
    )
    defined: set[str] = set()
    for dtype in _named(table, "dtype", where) or dtypes or [""]:
        for name in _named(table, "model", where):
            for tp in _integers(table, "tp", where) or (1,):
                for call in models.calls(models.model(name), tp, sweep):
                    defined.add(call.layer)
                    if (not ops or call.op in ops) and (not layers or call.layer in layers):
                        yield Item(op=call.op, parameters=_typed(call.parameters, dtype))
    for layer in layers:
        if layer not in defined:
            raise _unknown("layer", layer, sorted(defined), where)


def _drawn(table: Table, dtypes: Sequence[str], where: str) -> Iterator[Item]:
    kind = _word(table["generator"], f"{where}: generator")
    if kind not in _GENERATOR_KEYS:
        raise _unknown("generator", kind, _GENERATOR_KEYS, where)
    keys = _GENERATOR_KEYS[kind]
    if "op" not in table:
        raise GroupError(f"{where}: field 'op' is missing", hint="write op = 'gemm'")
    op, names = _word(table["op"], f"{where}: op"), _named(table, "categories", where)
    numbers = {
        key: _integer(table[key], f"{where}: {key}")
        for key in keys
        if key in table and key not in ("generator", "op", "categories")
    }
    bounds = {key: numbers.pop(key) for key in ("low", "high", "multiple") if key in numbers}
    fixed = {k: _scalar(v, f"{where}: {k}") for k, v in table.items() if k not in (*keys, "dtype")}
    for dtype in _named(table, "dtype", where) or dtypes or [""]:
        extra, sizes = _typed(fixed, dtype), generate.Sizes(**bounds)
        if kind == "random":
            count, seed = numbers.get("count", 100), numbers.get("seed", 1)
            drawn = generate.draw(op, count=count, seed=seed, names=names, sizes=sizes, fixed=extra)
        else:
            factor = numbers.get("factor", 2)
            drawn = generate.grid(op, factor=factor, names=names, sizes=sizes, fixed=extra)
        yield from (Item(op=op, parameters=parameters) for parameters in drawn)


def _typed(parameters: Parameters, dtype: str) -> Parameters:
    return {**parameters, "dtype": dtype} if dtype else dict(parameters)


def _meant(name: str, choices: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f"did you mean {close[0]}? " if close else ""


def _unknown(what: str, name: str, choices: Iterable[str], where: str) -> GroupError:
    hint = f"{_meant(name, choices)}known: {', '.join(choices)}"
    return GroupError(f"{where}: unknown {what} {name!r}", hint=hint)


def _refuse_unknown(table: Table, keys: Sequence[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise GroupError(
                f"{where}: unknown field {key!r}",
                hint=f"{_meant(key, keys)}known: {', '.join(keys)}",
            )


def _refuse_twice(columns: Sequence[str], where: str) -> None:
    for name in columns:
        if columns.count(name) > 1:
            raise GroupError(
                f"{where}: axis {name!r} is given twice", hint="name it once, as a column or a key"
            )


def _check_both(table: Table, first: str, second: str, where: str) -> None:
    if (first in table) != (second in table):
        raise GroupError(
            f"{where}: field {(second if first in table else first)!r} is missing",
            hint=f"{first} and {second} are only given together",
        )


def _integers(table: Table, key: str, where: str) -> tuple[int, ...]:
    if key not in table:
        return ()
    at = f"{where}: {key}"
    return tuple(_integer(value, at) for value in values(table[key], at))


def _integer(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unexpected("an integer", value, where)
    return value


def _named(table: Table, key: str, where: str) -> list[str]:
    """Return the names in a key, one or a list; an empty list without the key."""
    return _words(table[key], f"{where}: {key}") if key in table else []


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
    text = repr(value)[:60]
    return GroupError(f"{where}: expected {expected}, found {text}")


def canary_keys(name_or_path: str = CANARIES) -> list[str]:
    """Return the problem keys of a suite of canaries; none for an empty name."""
    return [problem.key for problem in load(name_or_path).problems] if name_or_path else []


def added_canaries(suite: str) -> frozenset[str]:
    """Return the problem keys of the canaries that were added to the other suites of a run."""
    names = suite.split(",")
    return frozenset(canary_keys()) if CANARIES in names and len(names) > 1 else frozenset()
