"""Workload: the calls a program makes, as problems with counts; and its file, a CSV table.

One row a call, the fields of the logged call as columns, so that a spreadsheet opens it and a
person edits it. An empty cell is a field that the call has not.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, file_unwritable, read_whole, write_whole
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason

# What makes two logged BLAS calls the same, in the order that the file shows it in. The kernel that
# a library chose is not among it.
BLAS_FIELDS = (
    *("function", "transA", "transB", "m", "n", "k", "batch_count"),
    *("lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d"),
    *("a_type", "b_type", "c_type", "d_type", "compute_type", "scale_type", "bias_type"),
    *("scaleA", "scaleB", "alpha", "beta", "bias_vector", "activation_type"),
)
_FIRST = ("problem", "count")
_LAST = ("lost", "sources")
_ESCAPED = {"n": "\n", "r": "\r"}
_WHOLE = re.compile(r"\s*[1-9][0-9]{0,17}\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One distinct call and how often it is made. `blas` holds the fields of the logged call
    that a library's file asks for again (transA, m, lda, a_type, …; BLAS names and column-major);
    `lost` names what of it our problem does not compute (an activation, a scale), one word each.

    Calls that differ in `blas` or `lost` are distinct, even if they are one problem."""

    problem: Problem
    count: int = 1
    blas: Mapping[str, str] = field(default_factory=FrozenDict)
    lost: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A line of a log that is no call, with the reason."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Distinct calls, most frequent first."""

    name: str
    calls: tuple[Call, ...]

    @property
    def total(self) -> int:
        return sum(call.count for call in self.calls)


def write(path: Path, workload: Workload) -> None:
    """Write the file, whole or not at all."""
    fields = _columns(workload.calls)
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((*_FIRST, *fields, *_LAST))
    for call in workload.calls:
        blas = [call.blas.get(name, "") for name in fields]
        last = " ".join(call.lost), _joined(call.sources)
        rows.writerow((call.problem.key, call.count, *blas, *last))
    try:
        write_whole(path, text.getvalue().encode("utf-8", "surrogatepass"))
    except OSError as error:
        raise UsageError(file_unwritable(path, error)) from None


def read(path: Path) -> Workload:
    """Return the workload in a file; it is named after its folder."""
    try:
        text = read_whole(path).decode("utf-8", "surrogatepass").removeprefix("\ufeff")
    except FileNotFoundError:
        raise UsageError(Reason("file-missing", file=str(path))) from None
    except OSError as error:
        raise UsageError(file_unreadable(path, error)) from None
    except UnicodeDecodeError:
        raise UsageError(Reason("file-not-utf8", file=str(path))) from None
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        calls = tuple(_calls(rows, path))
    except csv.Error as error:
        raise UsageError(f"{path}: line {rows.line_num} is no CSV: {error}") from None
    return Workload(name=path.absolute().parent.name, calls=calls)


def _calls(rows: Iterator[list[str]], path: Path) -> Iterator[Call]:
    header = next(rows, [])
    missing = [name for name in _FIRST if name not in header]
    if missing or len(set(header)) < len(header):
        raise UsageError(
            Reason("column-missing", file=str(path), column=missing[0])
            if missing
            else Reason("column-twice", file=str(path)),
            hint="the first two columns are: problem,count",
        )
    for number, row in enumerate(rows, 2):
        if not any(row):
            continue
        place = f"{path}: row {number}"
        if len(row) != len(header):
            raise UsageError(Reason("row-cells", where=place, cells=len(row), columns=len(header)))
        yield _call(dict(zip(header, row, strict=True)), place)


def _call(cells: Mapping[str, str], place: str) -> Call:
    if not _WHOLE.match(cells["count"]):
        raise UsageError(
            Reason("count-not-whole", where=place, given=cells["count"][:24]),
            hint="delete the row, or write how often the call is made",
        )
    try:
        problem = ops.parse(cells["problem"])
    except UsageError as error:
        reason = Reason("at", where=place, cause=error.message)
        raise UsageError(reason, hint=error.hint) from None
    others = (*_FIRST, *_LAST)
    return Call(
        problem=problem,
        count=int(cells["count"]),
        blas=FrozenDict({name: x for name, x in cells.items() if x and name not in others}),
        lost=tuple(cells.get("lost", "").split()),
        sources=_split(cells.get("sources", "")),
    )


def _columns(calls: Iterable[Call]) -> list[str]:
    """Return every field that a call has, the known ones in their order."""
    used = dict.fromkeys(name for call in calls for name in call.blas)
    return [name for name in BLAS_FIELDS if name in used] + [
        name for name in used if name not in BLAS_FIELDS
    ]


def _joined(words: Iterable[str]) -> str:
    """By semicolons; those inside a word, and backslashes, after a backslash; one line."""
    escaped = (re.sub(r"[\\;]", r"\\\g<0>", word) for word in words)
    return ";".join(word.replace("\n", "\\n").replace("\r", "\\r") for word in escaped)


def _split(text: str) -> tuple[str, ...]:
    found = re.findall(r"((?:[^\\;]|\\.)+)", text)
    return tuple(re.sub(r"\\(.)", lambda m: _ESCAPED.get(m[1], m[1]), word) for word in found)
