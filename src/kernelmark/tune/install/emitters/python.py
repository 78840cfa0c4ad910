"""python: a Python file with a dict of configs and a function that looks one up.

The file imports nothing, not even kernelmark:

    from tuned import lookup
    found = lookup("gemm", ("bf16", "bf16", "bf16", "f32"), "nt", 16, 4096, 4096, arch="sm_90")
    config = triton.Config(**found) if found else my_default
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelmark import backends
from kernelmark.core.errors import UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.tune.install.emitters.base import (
    Change,
    Edit,
    Emitter,
    Entry,
    Fields,
    Wanted,
    kept_answers,
    required_text,
    settle,
    text_at,
)
from kernelmark.tune.records.outcome import Choice, Outcome

# Arguments of triton.Config other than the kernel's constants.
_LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_COMPILER = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
_PLAIN = {"alpha": 1.0, "beta": 0.0, "bias": False}
_TYPES = (str, int, float, bool)
Key = tuple[str, str, tuple[str, ...], str, tuple[int, ...]]

_HEAD = '''"""Tuned configs, written by kernelmark. Add to CONFIGS what you like: `kmark tune apply
--as python` keeps every entry that it finds there, but no comment among them.

A key is (arch, op, dtypes, layout, dims): dtypes and dims in the op's order, for gemm a, b, c, acc
and m, n, k; layout is the letters of A and B (n: stored as written, t: transposed) and every
option that is not the usual one. A value is what triton.Config takes; kwargs are in capitals for
kernelmark's Triton kernels, and as the kernel has them for any other.
"""

'''
_TAIL = '''

def lookup(op, dtypes, layout, *dims, arch):
    """The tuned config of exactly this problem, or None."""
    found = CONFIGS.get((arch, op, tuple(dtypes), layout, dims))
    return found and {**found, "kwargs": dict(found["kwargs"])}
'''


class PythonDict(Emitter):
    name = "python"
    summary = "a Python file with a dict of configs and a lookup, which imports nothing"
    facts = FormatFacts(
        versions="kernelmark's own",
        exactness="exact",
        checked="executed in tests",
    )
    backends = ("triton", "fake")

    def takes(self, backend: str) -> bool:
        """Return whether `backend` is supported; kernels of user files are."""
        return backend in self.backends or backends.is_file(backend)

    def emit(self, outcomes: Sequence[Outcome], into: Path, given: Fields) -> Change:
        before = text_at(into)
        table = {} if before is None else _table(before, into)
        settled = settle(self, outcomes, lambda outcome: _fields(_key(outcome)))
        wanted, entries = [], dict(table)
        for fields, outcome in settled.winners.items():
            entries[_key(outcome)] = value = _value(outcome.tuned)
            wanted.append(Wanted(fields=fields, config=_config(value), name=outcome.name))
        known = {_fields(key): _config(value) for key, value in table.items()}
        wanted += kept_answers(known, settled.others, settled.winners)
        after = _text(entries) if before is None else _replaced(before, entries, into)
        edits = () if entries == table else (Edit(path=Path(), before=before, after=after),)
        return Change(emitter=self.name, edits=edits, wanted=tuple(wanted), held=settled.held)

    def read(self, path: Path) -> list[Entry]:
        return [
            Entry(fields=_fields(key), config=_config(value))
            for key, value in _table(required_text(path), path).items()
        ]


def _key(outcome: Outcome) -> Key:
    problem = outcome.problem
    dtypes, dims = tuple(problem.dtypes.values()), tuple(problem.dims.values())
    return outcome.arch, problem.op, dtypes, _layout(problem), dims


def _layout(problem: Problem) -> str:
    options = dict(problem.options)
    letters = "".join(str(options.pop(name)) for name in ("ta", "tb") if name in options)
    words = [f"{name}={value}" for name, value in options.items() if _PLAIN.get(name) != value]
    return " ".join([letters, *words] if letters else words)


def _fields(key: Key) -> Fields:
    arch, op, dtypes, layout, dims = key
    shown = {"arch": arch, "op": op, "dtypes": " ".join(dtypes), "layout": layout}
    return FrozenDict({**shown, "dims": " ".join(map(str, dims))})


def _value(tuned: Choice) -> dict[str, Any]:
    """Return the arguments of triton.Config. Constants of kernelmark's Triton kernels are in upper
    case; options of the AMD compiler are not, though Triton expects them among the constants."""
    config, named = tuned.config, _constant if tuned.backend == "triton" else str
    rest = {named(name): value for name, value in config.items() if name not in _LAUNCH}
    return {"kwargs": rest, **{name: config[name] for name in _LAUNCH if name in config}}


def _constant(name: str) -> str:
    return name if name in _COMPILER else name.upper()


def _config(value: Mapping[str, Any]) -> Config:
    launch = {name: one for name, one in value.items() if name != "kwargs"}
    return FrozenDict({**value["kwargs"], **launch})


def _table(text: str, path: Path) -> dict[Key, dict[str, Any]]:
    """Parse CONFIGS of a file without executing it."""
    try:
        table = ast.literal_eval(_assignment(text, path).value)
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            Reason("configs-unreadable", file=str(path), error=str(error)),
            hint="compare a fresh export",
        ) from None
    if not isinstance(table, dict) or not all(map(_is_entry, table.items())):
        raise UsageError(Reason("configs-not-dict", file=str(path)), hint="compare a fresh export")
    return table


def _assignment(text: str, path: Path) -> ast.Assign:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            Reason("file-not-python", file=str(path), error=str(error)), hint="is it truncated?"
        ) from None
    for node in body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == [
            "CONFIGS"
        ]:
            return node
    raise UsageError(Reason("configs-missing", file=str(path)), hint="name a file that kmark wrote")


def _replaced(text: str, table: Mapping[Key, Mapping[str, Any]], path: Path) -> str:
    """Return the text with CONFIGS replaced; the rest of the file belongs to the user."""
    node = _assignment(text, path)
    lines = text.splitlines(keepends=True)
    assert node.end_lineno is not None
    rest = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip()
    if node.col_offset or (rest and not rest.startswith("#")):
        raise UsageError(
            Reason("configs-share-line", file=str(path), line=node.end_lineno),
            hint="put it on lines of its own",
        )
    return "".join([*lines[: node.lineno - 1], _block(table), *lines[node.end_lineno :]])


def _is_entry(item: tuple[Any, Any]) -> bool:
    key, value = item
    if not (isinstance(key, tuple) and len(key) == 5 and isinstance(value, dict)):
        return False
    words = [*key[:2], key[3], *key[2]] if isinstance(key[2], tuple) else [None]
    dims = key[4] if isinstance(key[4], tuple) else [None]
    kwargs = value.get("kwargs")
    if not all(isinstance(word, str) for word in words) or not isinstance(kwargs, dict):
        return False
    values = [*kwargs.values(), *(one for name, one in value.items() if name != "kwargs")]
    names = [*kwargs, *value]
    return (
        all(isinstance(size, int) for size in dims)
        and all(isinstance(one, _TYPES) for one in values)
        and all(isinstance(name, str) for name in names)
    )


def _text(table: Mapping[Key, Mapping[str, Any]]) -> str:
    return f"{_HEAD}{_block(table)}{_TAIL}"


def _block(table: Mapping[Key, Mapping[str, Any]]) -> str:
    lines = "".join(f"    {key!r}: {dict(value)!r},\n" for key, value in table.items())
    return f"CONFIGS = {{\n{lines}}}\n"


emitter = PythonDict()
