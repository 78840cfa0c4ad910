"""hipblaslt-bench: output of hipblaslt-bench and rocblas-bench. Each row is a bare mean.

A header line, `[0]:transA,…,us` (version 600: `[0]transA`), precedes its line of values and varies
with the options: rocblas-bench names sizes M, N and K, and types only with --log_datatype. A call
that is not a plain GEMM becomes a problem with the names and values of its arguments.
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers._lines import CUT, Lines, lines_of, uneven_row
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    number,
    problem_of,
    unexpected,
)
from kernelmark.workloads.logs import blas

_MARKS = ("hipblaslt-Gflops", "rocblas-Gflops", "rocblas-GB/s")
_HEADER = re.compile(r"\s*(?:\[(\d{1,9})\]:?)?\s*(\w+(?:,[^,\s]+)*,us(?:,\S*)?)\s*\Z")
_SOLUTION = re.compile(r"\s*--Solution index:\s*(\d{1,9})(?!\d)")
_KERNEL = re.compile(r"\s*--(?:kernel|Solution) name:\s*(\S.*)")
# The columns of arguments end before the first of these.
_MEASURED = (
    *("rotating_buffer", "cold_iters", "lowest-avg-freq", "avg-freq_0", "avg-MCLK"),
    *("splitK", "wgm", *_MARKS, "hipblaslt-GB/s", "us"),
)
# Columns that make a call more than a plain GEMM, unless they have one of these values.
_PLAIN = {
    "grouped_gemm": ("0", ""),
    "activation_type": ("none", ""),
    "scaleA": ("0", ""),
    "scaleB": ("0", ""),
    "scaleC": ("0", ""),
    "scaleD": ("0", ""),
    "amaxD": ("0", ""),
    "swizzle_a": ("0", ""),
    "swizzle_b": ("0", ""),
}
_SIZES = ("m", "n", "k", "batch_count")
_PRODUCT = ("transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type")
_TUNED = {"splitK": "splitk", "wgm": "wgm"}
_NO_TYPES = "rocblas-bench --log_function_name --log_datatype prints them"
Cells = Mapping[str, str]


class HipblasltBench(Importer):
    name = "hipblaslt-bench"
    summary = "output of hipblaslt-bench and rocblas-bench"
    facts = FormatFacts(
        versions="hipBLASLt 7d9fb683 (2024-10), rocBLAS b520bc83 (2024-10)",
        exactness="every row; a call without types that occurs twice is rejected",
        checked="compared with their argument models; samples of our own in tests",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        return any(mark.encode() in head for mark in _MARKS)

    def read(self, path: Path, given: Given) -> ResultSet:
        rows = _typed(_rows(path, given.arch))
        return build_run(path, given, rows, method="mean of hipblaslt-bench")


@dataclass(slots=True)
class _Row:
    """A line of values, with the kernel from the lines below it."""

    cells: Cells
    place: str
    config: dict[str, int] = field(default_factory=dict)
    kernel: str = ""


def _typed(rows: Iterator[tuple[Found, str]]) -> Iterator[Found]:
    """Raise UsageError for a second row of a call without types: its types may differ."""
    seen: set[str] = set()
    for found, place in rows:
        problem = found.problem
        if problem.op.startswith("blas_") and "a_type" not in problem.options:
            if problem.key in seen:
                raise UsageError(Reason("call-types-unknown", where=place), hint=_NO_TYPES)
            seen.add(problem.key)
        yield found


def _rows(path: Path, arch: str) -> Iterator[tuple[Found, str]]:
    header: list[str] | None = None
    pending: _Row | None = None
    rank = 0
    # The winner repeats a row of its problem, unless only winners were printed.
    has_rows, is_winner = False, False
    lines = lines_of(path)
    for line, text in enumerate(lines.texts, 1):
        match = _HEADER.match(text) if any(mark in text for mark in _MARKS) else None
        if match or text.lstrip().startswith("Winner"):
            if pending:
                yield _found(pending, arch), pending.place
            pending, header = None, match[2].split(",") if match else None
            rank = int(match[1] or 0) if match else 0
            is_winner = is_winner or not match
        elif header is not None and pending is None and text.count(",") >= 5:
            cells = _cells(text, header, f"{path}: line {line}")
            if not (is_winner and has_rows):
                pending = _Row(cells, f"{path}: line {line}", {"rank": rank} if rank else {})
            else:
                header = None
            has_rows, is_winner = not is_winner, False
        elif pending and (found := _SOLUTION.match(text)):
            pending.config = {"solution_index": int(found[1])}
        elif pending and (found := _KERNEL.match(text)):
            pending.kernel = found[1]
        elif pending and header and len(_split(text)) == len(header):
            # The repeated headers of the table were removed.
            yield _found(pending, arch), pending.place
            place = f"{path}: line {line}"
            pending = _Row(_cells(text, header, place), place, {"rank": rank} if rank else {})
    if pending:
        yield _found(pending, arch, lines.doubt(len(lines.texts))), pending.place
    elif header is not None:
        _check_end(path, lines)


def _split(text: str) -> list[str]:
    """Return the cells of a line; a complex number such as (1,0) is one cell."""
    return next(csv.reader([re.sub(r"\(([^)]*)\)", r'"(\1)"', text.strip())]))


def _cells(text: str, header: list[str], place: str) -> Cells:
    cells = _split(text)
    if len(cells) != len(header):
        raise uneven_row(place, len(cells), len(header))
    names = [name.lower() if name in ("M", "N", "K") else name for name in header]
    return {name: cell.strip() for name, cell in zip(names, cells, strict=True)}


def _check_end(path: Path, lines: Lines) -> None:
    """Raise UsageError if the file ends within the row of the last header: a truncated row may not
    look like one."""
    if not lines.ended:
        reason = Reason("table-cut", file=str(path), line=len(lines.texts))
        raise UsageError(reason, hint=CUT)


def _found(row: _Row, arch: str, doubt: str = "") -> Found:
    cells = row.cells
    time_s = number(cells["us"], row.place) * 1e-6
    _check_sizes(cells, row.place)
    rotates = cells.get("rotating_buffer", "0") not in ("0", "")
    by_device = cells.get("use_gpu_timer", "0") not in ("0", "")
    tuned = {
        name: int(number(cells[column], row.place))
        for column, name in _TUNED.items()
        if cells.get(column, "0") not in ("0", "")
    }
    return Found(
        problem=_problem(cells, arch),
        backend="hipblaslt" if "hipblaslt-Gflops" in cells else "rocblas",
        samples_s=(time_s,),
        timing=Timing(
            cache=Cache.COLD if rotates else Cache.HOT,
            timer=Timer.GATE if by_device else Timer.LOOP,
        ),
        config=FrozenDict(row.config | tuned),
        kernel=row.kernel,
        doubt=doubt,
    )


def _check_sizes(cells: Cells, place: str) -> None:
    """Raise CodecError for a size that is not an integer: it would become an option."""
    for name in _SIZES:
        here = f"{place}, {name}"
        if name in cells and not number(cells[name], here).is_integer():
            raise unexpected(here, "a whole number", cells[name])


def _problem(cells: Cells, arch: str) -> Problem:
    """Return the problem of a row: a GEMM, or, if the op does not compute it exactly (a complex
    factor, an unknown dtype), a problem with the fields that differ."""
    lost: tuple[str, ...] = ("alpha", "beta")
    with contextlib.suppress(ProblemError):
        call = blas.call(cells, arch)
        # The type of a bias is not part of a problem.
        lost = tuple(name for name in call.lost if name != "bias_type")
        if not lost:
            return call.problem
    if "transB" not in cells or "k" not in cells:
        function = cells.get("function", "call")
        return problem_of(f"blas_{function}", _arguments(cells))
    kept = {name: cells[name] for name in cells if name in _PLAIN and cells[name] not in ("", "0")}
    kept |= {name: cells[name] for name in lost if cells.get(name) and not _usual(name, cells)}
    kept |= {name: cells[name] for name in (*_PRODUCT, "d_type", "compute_type") if name in cells}
    return problem_of("blas_matmul", kept)


def _usual(name: str, cells: Cells) -> bool:
    return cells[name] == {"alpha": "1", "beta": "0"}.get(name)


def _arguments(cells: Cells) -> Cells:
    """Return the columns before those of the measurement, without the function's name."""
    end = next((i for i, name in enumerate(cells) if name in _MEASURED), len(cells))
    return {name: cells[name] for name in list(cells)[:end] if name != "function"}


importer = HipblasltBench()
