"""hipblaslt-bench: what hipblaslt-bench and rocblas-bench print. Each row is a bare mean.

A header line, `[0]:transA,…,us`, comes before its line of values and varies with the options.
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ResultSet
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers._lines import CUT, Lines, lines_of, uneven_row
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    gathered,
    number,
    problem_of,
)
from kernelmark.workloads.logs import blas

_HEADER = re.compile(r"\s*(?:\[\d+\]:)?\s*(trans[A_a].*,us(?:,.*)?)\Z")
_SOLUTION = re.compile(r"\s*--Solution index:\s*(\d+)")
_KERNEL = re.compile(r"\s*--(?:kernel|Solution) name:\s*(\S.*)")
# Columns that, unless they are one of these, make it another problem than a plain product.
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
Cells = Mapping[str, str]


class HipblasltBench(Importer):
    name = "hipblaslt-bench"
    summary = "output of hipblaslt-bench and rocblas-bench"

    def recognizes(self, name: str, head: bytes) -> bool:
        return b"transA" in head and (b"hipblaslt-Gflops" in head or b"rocblas-Gflops" in head)

    def read(self, path: Path, given: Given) -> ResultSet:
        return gathered(path, given, _rows(path, given.arch), method="mean of hipblaslt-bench")


def _rows(path: Path, arch: str) -> Iterator[Found]:
    header: list[str] | None = None
    pending: tuple[Cells, str] | None = None
    config: dict[str, int] = {}
    kernel = ""
    lines = lines_of(path)
    for line, text in enumerate(lines.texts, 1):
        match = _HEADER.match(text)
        if match or text.lstrip().startswith("Winner"):
            if pending:
                yield _found(*pending, arch, config, kernel)
            pending, config, kernel = None, {}, ""
            if not match:
                return  # the winner repeats a row
            header = match[1].split(",")
        elif header is not None and pending is None and text.count(",") >= 5:
            cells = next(csv.reader([re.sub(r"\(([^)]*)\)", r'"(\1)"', text.strip())]))
            if len(cells) != len(header):
                raise uneven_row(f"{path}: line {line}", len(cells), len(header))
            pending = dict(zip(header, cells, strict=True)), f"{path}: line {line}"
        elif found := _SOLUTION.match(text):
            config = {"solution_index": int(found[1])}
        elif found := _KERNEL.match(text):
            kernel = found[1]
    if pending:
        yield _found(*pending, arch, config, kernel, lines.doubt(len(lines.texts)))
    elif header is not None:
        _check_end(path, lines)


def _check_end(path: Path, lines: Lines) -> None:
    """A header's row may be cut to so little that it does not look like one."""
    if not lines.ended:
        raise UsageError(f"{path}: ends in line {len(lines.texts)} without a row", hint=CUT)


def _found(
    cells: Cells, place: str, arch: str, config: Config, kernel: str, doubt: str = ""
) -> Found:
    time_s = number(cells["us"], place) * 1e-6
    _check_sizes(cells, place)
    rotates = cells.get("rotating_buffer", "0") not in ("0", "")
    by_device = cells.get("use_gpu_timer", "0") not in ("0", "")
    return Found(
        problem=_problem(cells, arch),
        backend="rocblas" if "rocblas-Gflops" in cells else "hipblaslt",
        samples_s=(time_s,),
        timing=Timing(
            cache=Cache.COLD if rotates else Cache.HOT,
            timer=Timer.GATE if by_device else Timer.LOOP,
        ),
        config=config,
        kernel=kernel,
        doubt=doubt,
    )


def _check_sizes(cells: Cells, place: str) -> None:
    """A size that is none would be another problem, or a problem without it."""
    for name in _SIZES:
        if name in cells and not number(cells[name], f"{place}, {name}").is_integer():
            raise UsageError(f"{place}: {name}={cells[name]} is not an integer")


def _problem(cells: Cells, arch: str) -> Problem:
    if all(cells.get(name, "") in plain for name, plain in _PLAIN.items()):
        with contextlib.suppress(ProblemError):
            # What our op refuses (a complex factor, a foreign dtype) is still a result.
            return blas.product(cells, arch)
    kept = {name: cells[name] for name in cells if name in _PLAIN and cells[name] not in ("", "0")}
    names = ("transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type")
    kept |= {name: cells[name] for name in (*names, "d_type", "compute_type") if name in cells}
    return problem_of("blas_matmul", kept)


importer = HipblasltBench()
