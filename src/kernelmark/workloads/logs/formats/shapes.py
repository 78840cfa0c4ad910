"""shapes: plain lists of sizes. M,N,K or B,M,N,K a line, D is M×N and row-major.

    512 512 512        separated by commas, semicolons, spaces or x
    m,n,k,count        with a header, in any order, also batch, dtype, count, ta and tb

What a list leaves out is as in a layer of a network: weights stored N×K (tb=t), dtype as given.
With columns transA and transB the sizes are those of BLAS, stored by columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.workloads.logs import blas, dtypes
from kernelmark.workloads.logs.base import Given, LogReader, Part, RowReader
from kernelmark.workloads.logs.table import BlasTable, Table, whole
from kernelmark.workloads.workload import Call

_ROW = re.compile(rb"\s*\d{1,18}(?:(?:\s*[,;xX]\s*|\s+)\d{1,18}){2,3}\s*[,;]?\s*\Z")
_LONGEST = 200  # characters of a row
_SPLIT = re.compile(r"[\s,;xX]+")
_NAMES = {"b": "batch", "batch_count": "batch", "calls": "count", "call_count": "count"}
_NAMES |= {"type": "dtype", "data_type": "dtype"}
_WANTED = ("m", "n", "k", "batch", "dtype", "count", "ta", "tb")


class Shapes(LogReader):
    name = "shapes"
    summary = "plain lists: M,N,K or B,M,N,K a line, with or without a header"
    alone = True

    def rows(self, line: bytes) -> RowReader | None:
        return _List() if _List().part(line) is not None else None

    def table(self, line: bytes, place: str) -> RowReader | None:
        text = line.strip().decode("utf-8", "replace")
        columns = [word.strip().strip('"') for word in re.split(r"[,;]", text)]
        if not {"m", "n", "k"} <= {name.lower() for name in columns}:
            columns = text.split()
        lower = [name.lower() for name in columns]
        if "a" not in lower:  # beside a column a, b is a dtype
            lower = [_NAMES.get(name, name) for name in lower]
        if not {"m", "n", "k"} <= set(lower) or len(set(lower)) < len(lower):
            return None
        if "transa" in lower:
            return BlasTable(columns)
        return _Rows(lower, by_space="," not in text and ";" not in text)


class _List(RowReader):
    """Rows without a header."""

    def part(self, line: bytes) -> Part | None:
        row = line.partition(b"#")[0].strip()
        return ("list", row, 1) if len(row) < _LONGEST and _ROW.match(row) else None

    def calls(self, kind: str, part: bytes, given: Given) -> Iterator[Call]:
        sizes = [int(word) for word in _SPLIT.split(part.decode().strip(" \t,;\r")) if word]
        names = ("m", "n", "k") if len(sizes) == 3 else ("batch", "m", "n", "k")
        yield _call(dict(zip(names, sizes, strict=True)), {"dtype": given.dtype})


class _Rows(Table):
    def __init__(self, columns: Sequence[str], *, by_space: bool) -> None:
        super().__init__(columns, _WANTED)
        self._by_space = by_space

    def part(self, line: bytes) -> Part | None:
        separated = b",".join(line.split()) if self._by_space else line.replace(b";", b",")
        return super().part(separated)

    def row(self, cells: Mapping[str, str], given: Given) -> Iterator[Call]:
        sizes = {name: whole(cells, name) for name in ("m", "n", "k")}
        if cells.get("batch"):
            sizes["batch"] = whole(cells, "batch")
        options = {name: cells[name].lower() for name in ("ta", "tb") if cells.get(name)}
        options["dtype"] = dtypes.named(cells.get("dtype") or given.dtype, given.arch)
        yield _call(sizes, options, whole(cells, "count") if cells.get("count") else 1)


def _call(sizes: dict[str, int], options: Mapping[str, str], count: int = 1) -> Call:
    problem = _problem(sizes, {"tb": "t"} | dict(options))
    return Call(problem=problem, count=count, blas=blas.fields_of(problem))


def _problem(sizes: dict[str, int], options: Mapping[str, str]) -> Problem:
    batched = sizes.get("batch", 1) > 1
    if not batched:
        sizes = {name: size for name, size in sizes.items() if name != "batch"}
    return ops.registry.get("batched_gemm" if batched else "gemm").problem(**sizes, **options)


reader = Shapes()
