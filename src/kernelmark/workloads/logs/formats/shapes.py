"""shapes: lists of sizes, M,N,K or B,M,N,K per line; D is M×N and row-major.

    512 512 512        separated by commas, semicolons, spaces or x
    m,n,k,count        with a header, in any order, also batch, dtype, count, ta and tb

A table with a header may also be of attention or convolutions, and columns may have any of the
names in `_columns`, `_gemms` and `_layers`. Defaults are those of a layer of a network: weights
stored N×K (tb=t), dtype as given by the user. With columns transA and transB, the sizes are those
of a column-major BLAS call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelmark.core.formats import FormatFacts
from kernelmark.workloads.logs import blas
from kernelmark.workloads.logs.base import ASSUMED_DTYPE, Given, LogReader, Part, RowReader
from kernelmark.workloads.logs.formats import _gemms, _layers
from kernelmark.workloads.logs.formats._columns import Header
from kernelmark.workloads.workload import Call

_ROW = re.compile(rb"\s*\d{1,18}(?:(?:\s*[,;xX]\s*|\s+)\d{1,18}){2,3}\s*[,;]?\s*\Z")
# Also matches rows with invalid numbers, so that the list continues after them.
_NUMBERS = re.compile(rb"\s*[-+]?\d[\d.]*(?:(?:\s*[,;xX]\s*|\s+)[-+]?\d[\d.]*)+\s*[,;]?\s*\Z")
_LONGEST = 200  # characters of a row
_SPLIT = re.compile(r"[\s,;xX]+")


class Shapes(LogReader):
    name = "shapes"
    summary = "lists of sizes: M,N,K per line, or a table of GEMMs, attention or convolutions"
    facts = FormatFacts(
        versions="any",
        exactness="sizes are exact; a missing dtype is read as bf16, with a note",
        checked="samples of our own in tests",
    )
    alone = True

    def rows(self, line: bytes) -> RowReader | None:
        row = _bare(line)
        return _List() if len(row) < _LONGEST and _NUMBERS.match(row) else None

    def table(self, line: bytes, place: str) -> RowReader | None:
        top = Header.of(line)
        return _layers.keys(top) or _gemms.table(top) or _layers.table(top)


class _List(RowReader):
    """A reader of rows without a header."""

    _assumes_dtype = False

    def notes(self) -> tuple[str, ...]:
        return (ASSUMED_DTYPE,) if self._assumes_dtype else ()

    def part(self, line: bytes) -> Part | None:
        row = _bare(line)
        return ("list", row, 1) if len(row) < _LONGEST and _ROW.match(row) else None

    def calls(self, kind: str, part: bytes, given: Given) -> Iterator[Call]:
        self._assumes_dtype = not given.dtype
        sizes = [int(word) for word in _SPLIT.split(part.decode().strip(" \t,;\r")) if word]
        names = ("m", "n", "k") if len(sizes) == 3 else ("batch", "m", "n", "k")
        named = dict(zip(names, sizes, strict=True))
        problem = _gemms.problem_by_rows(named, dtype=given.list_dtype)
        yield Call(problem=problem, blas=blas.fields_of(problem))


def _bare(line: bytes) -> bytes:
    return line.partition(b"#")[0].strip()


reader = Shapes()
