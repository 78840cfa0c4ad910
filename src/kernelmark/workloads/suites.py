"""Suites: named lists of problems in TOML files, shipped with kernelmark or written by users.

name = "mine"                     default: the name of the file
why = "What our service runs."    one or two sentences
source = "profile of 2025-05-01"  origin of the sizes
dtype = ["bf16"]                  default for the groups

[[problems]]                      one or more groups: see workloads/groups.py
op = "gemm"
m = [1, 16, 256]
n = 4096
k = 4096
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.errors import KernelmarkError, ProblemError, UsageError, about
from kernelmark.core.files import load_toml
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.ops import registry
from kernelmark.workloads import axes, groups

# The suite of problems that should never change: if their times move, the machine changed. The name
# is older than the word, and stored.
CANARIES = "sentinels"
_FOLDER = Path(__file__).with_name("data")
_KEYS = ("name", "why", "source", "dtype", "problems")


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


def names() -> list[str]:
    """Return the names of the suites that come with kernelmark, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


@about("suite-file")
def load(name_or_path: str | Path, dtypes: Sequence[str] = (), ops: Sequence[str] = ()) -> Suite:
    """Return a suite by its name, or from a TOML file; `dtypes` replaces its dtypes, `ops` filters
    its problems."""
    file = _open(str(name_or_path))
    found: dict[Problem, None] = {}
    total = 0
    for where, item in _items(file, tuple(dtypes)):
        if ops and item.op not in ops:
            continue
        with _at(where):
            found[registry.get(item.op).problem(**item.given)] = None
        total += 1
    return Suite(
        name=file.name,
        why=file.why,
        source=file.source,
        problems=tuple(found),
        duplicates=total - len(found),
    )


def describe() -> list[SuiteInfo]:
    """Return information on every suite that comes with kernelmark."""
    return [_describe(name) for name in names()]


def info(suite: Suite) -> SuiteInfo:
    """Return the information on a suite."""
    ops = Counter(problem.op for problem in suite.problems)
    return _info(suite, ops)


def _describe(name: str) -> SuiteInfo:
    # Counts without validating the problems, which takes most of the time of loading a suite.
    file = _open(name)
    distinct = {(item.op, frozenset(item.given.items())) for _, item in _items(file, ())}
    return _info(file, Counter(op for op, _ in distinct))


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
    groups: tuple[Mapping[str, Any], ...]


def _open(name_or_path: str) -> _File:
    path, shown = _find(name_or_path)
    document = _read(path, shown)
    tables = document.get("problems", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables) or not tables:
        raise UsageError(
            Reason("workload-empty", file=shown), hint="begin a group with [[problems]]"
        )
    return _File(
        shown=shown,
        name=_text(document, "name", path.stem, shown),
        why=_text(document, "why", "", shown),
        source=_text(document, "source", "", shown),
        dtypes=_dtypes(document, shown),
        groups=tuple(tables),
    )


def _items(file: _File, wanted: Sequence[str]) -> Iterator[tuple[str, groups.Item]]:
    """Yield the problems of every group in order, with their position for errors."""
    total = 0
    for number, table in enumerate(file.groups, start=1):
        where = f"{file.shown}: problems {number}"
        if wanted:
            table = groups.without(table, "dtype")
        before = total
        with _at(where):
            for item in groups.items(table, wanted or file.dtypes, where):
                total += 1
                axes.check_count(total, file.shown)
                yield where, item
        if total == before:
            raise UsageError(Reason("group-empty", where=where))


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Prefix errors with the position in the file."""
    try:
        yield
    except groups.GroupError:
        raise
    except KernelmarkError as error:
        kind = ProblemError if isinstance(error, ProblemError) else UsageError
        reason = Reason("at", where=where, cause=error.message)
        raise kind(reason, hint=error.hint) from None


def _find(name_or_path: str) -> tuple[Path, str]:
    """Return the file, and its name in errors."""
    if name_or_path in names():
        return _FOLDER / f"{name_or_path}.toml", f"{name_or_path}.toml"
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path, str(path)
    close = difflib.get_close_matches(name_or_path, names(), n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UsageError(
        Reason("unknown-name", what="suite", name=name_or_path),
        hint=f"{meant}'kmark list suites' lists them; a file of your own is named ./mine.toml",
    )


def _read(path: Path, shown: str) -> dict[str, Any]:
    missing = "'kmark list suites' lists built-in ones"
    document = load_toml(path, missing=missing, hint=Reason("document-cut"), shown=shown)
    for key in document:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                Reason("field-unknown", where=shown, name=key),
                hint=f"{meant}known: {', '.join(_KEYS)}",
            )
    return document


def _dtypes(document: Mapping[str, Any], shown: str) -> tuple[str, ...]:
    if "dtype" not in document:
        return ()
    given = groups.values(document["dtype"], f"{shown}: dtype")
    return tuple(str(name) for name in given)


def _text(document: Mapping[str, Any], key: str, default: str, shown: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str):
        raise UsageError(
            Reason("field-expected", where=f"{shown}: {key}", expected="text", found=repr(value))
        )
    return value


def canary_keys(name_or_path: str = CANARIES) -> list[str]:
    """Return the problem keys of a suite of canaries; none for an empty name."""
    return [problem.key for problem in load(name_or_path).problems] if name_or_path else []


def added_canaries(suite: str) -> frozenset[str]:
    """Return the problem keys of the canaries that were added to the other suites of a run."""
    names = suite.split(",")
    return frozenset(canary_keys()) if CANARIES in names and len(names) > 1 else frozenset()
