"""Workload: the calls of a program, as problems with counts; and its file, a CSV table.

The file has one row per call, with the fields of the logged call as columns, so that it can be
edited in a spreadsheet. An empty cell is a field that the call does not have.
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
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, prefixed

# The fields that identify a logged BLAS call, in the order of the file's columns. The kernel that
# the library chose is not among them.
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
    """A distinct call and its count. `blas` holds the fields of the logged call that tuning files
    of libraries need (transA, m, lda, a_type, …; BLAS names, column-major). `lost` names what the
    problem does not compute (an activation, a scale), one word each.

    Calls that differ in `blas` or `lost` are distinct, even if they have the same problem."""

    problem: Problem
    count: int = 1
    blas: Mapping[str, str] = field(default_factory=FrozenDict)
    lost: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A line of a log that is not a call, with the reason."""

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
    """Write the file atomically."""
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
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(file_unreadable(path, error)) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
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
            Reason(f"{path}: there is no column {missing[0]}")
            if missing
            else Reason(f"{path}: has a column twice"),
            hint="the first two columns are: problem,count",
        )
    for number, row in enumerate(rows, 2):
        if not any(row):
            continue
        where = f"{path}: row {number}"
        if len(row) != len(header):
            raise UsageError(f"{where} has {len(row)} cells for {len(header)} columns")
        yield _call(dict(zip(header, row, strict=True)), where)


def _call(cells: Mapping[str, str], where: str) -> Call:
    if not _WHOLE.match(cells["count"]):
        raise UsageError(
            f"{where}: count {cells['count'][:24]!r} is not a whole number",
            hint="delete the row, or write how often the call is made",
        )
    try:
        problem = ops.parse(cells["problem"])
    except UsageError as error:
        reason = prefixed(error.message, f"{where}: ")
        raise UsageError(reason, hint=error.hint) from None
    fixed = (*_FIRST, *_LAST)
    return Call(
        problem=problem,
        count=int(cells["count"]),
        blas=FrozenDict({name: x for name, x in cells.items() if x and name not in fixed}),
        lost=tuple(cells.get("lost", "").split()),
        sources=_split(cells.get("sources", "")),
    )


def _columns(calls: Iterable[Call]) -> list[str]:
    """Return all fields of the calls: those in BLAS_FIELDS in its order, then the others."""
    used = dict.fromkeys(name for call in calls for name in call.blas)
    return [name for name in BLAS_FIELDS if name in used] + [
        name for name in used if name not in BLAS_FIELDS
    ]


def _joined(texts: Iterable[str]) -> str:
    """Join words with semicolons, on one line; escape semicolons and backslashes in them."""
    escaped = (re.sub(r"[\\;]", r"\\\g<0>", word) for word in texts)
    return ";".join(word.replace("\n", "\\n").replace("\r", "\\r") for word in escaped)


def _split(text: str) -> tuple[str, ...]:
    parts = re.findall(r"((?:[^\\;]|\\.)+)", text)
    return tuple(re.sub(r"\\(.)", lambda m: _ESCAPED.get(m[1], m[1]), word) for word in parts)
