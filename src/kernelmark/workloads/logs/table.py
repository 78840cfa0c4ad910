"""Tables: rows of separated cells under a header."""

from __future__ import annotations

import csv
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from kernelmark.core.reason import Reason
from kernelmark.workloads.logs import blas, dtypes
from kernelmark.workloads.logs import blas_words as words
from kernelmark.workloads.logs.base import NOTHING, BadLine, Given, Part, RowReader
from kernelmark.workloads.workload import BLAS_FIELDS, Call

_MARK = b"\0"
_PAIR = re.compile(r"(?<![^,])\([^()\"]*\)(?![^,])")
_SEPARATORS = ",;\t|"
# hipblaslt-bench of 2022 and 2023 printed only d_type: with f32, inputs may be f16 or f32.
OUTPUT_ALONE = Reason("call-without-dtype", output=True)


class Table(RowReader):
    """A reader of rows in which the columns in `wanted` identify the call. Without a separator,
    cells are separated by spaces."""

    def __init__(self, columns: Sequence[str], wanted: Iterable[str], separator: str = ",") -> None:
        self._columns = [name.strip().strip('"') for name in columns]
        self._separator = separator
        wanted = frozenset(wanted)
        self._kept = [i for i, name in enumerate(self._columns) if name in wanted]

    def part(self, line: bytes) -> Part | None:
        if self._separator == "|" and not line.strip(b"|:- \r"):
            return NOTHING
        cells = self._cells(line)
        if len(cells) < 2:
            return None
        if len(cells) != len(self._columns):
            return "cells", str(len(cells)).encode(), 1
        return "row", _MARK.join(cells[i].strip() for i in self._kept), 1

    def calls(self, kind: str, part: bytes, given: Given) -> Iterable[Call]:
        if kind == "cells":
            raise BadLine(Reason("call-values", given=int(part), wanted=len(self._columns)))
        texts = part.decode("utf-8", "replace").split(_MARK.decode())
        names = [self._columns[i] for i in self._kept]
        return self.row(dict(zip(names, texts, strict=True)), given)

    @abstractmethod
    def row(self, cells: Mapping[str, str], given: Given) -> Iterable[Call]:
        """Return the calls of one row."""

    def _cells(self, line: bytes) -> list[bytes]:
        line = line.replace(_MARK, b" ")
        # With tabs as separators, a tab at the end of a row is an empty cell.
        line = line.strip(b" \r\n") if self._separator == "\t" else line.strip()
        if not self._separator:
            return line.split()
        if b'"' in line:
            return _quoted(line.decode("latin-1"), self._separator)
        if b"(" in line and self._separator == ",":  # a complex factor is (1,0)
            return _quoted(_PAIR.sub(r'"\g<0>"', line.decode("latin-1")), ",")
        return line.split(self._separator.encode())


def header(line: bytes) -> tuple[list[str], str]:
    """Return the cells of a line, and its most frequent separator; "" for spaces."""
    text = line.strip(b" \r\n").decode("latin-1")
    separator = max(_SEPARATORS, key=text.count)
    found = separator in text
    cells = _quoted(text, separator) if found else line.split()
    return [cell.decode("utf-8", "replace").strip() for cell in cells], separator if found else ""


def whole(cells: Mapping[str, str], name: str) -> int:
    """Return a cell as a whole number; raise BadLine if it is not one."""
    text = cells.get(name, "")
    if fault := words.no_size(text):
        raise BadLine(Reason("cell-no-size", name=name, given=text[:24], cause=fault))
    return int(text)


def _quoted(text: str, separator: str) -> list[bytes]:
    try:
        cells = next(csv.reader([text], delimiter=separator), [])
        return [cell.encode("latin-1") for cell in cells]
    except csv.Error:
        return []


class BlasTable(Table):
    """A reader of rows of BLAS fields, as printed by the libraries' benchmark clients."""

    def __init__(self, columns: Sequence[str]) -> None:
        extras = ("M", "N", "K", "grouped_gemm", "scaleC", "scaleD", "amaxD", "use_e", "gradient")
        types = ("input_type", "output_type", "swizzle_a", "swizzle_b", "bias_source")
        super().__init__(columns, (*BLAS_FIELDS, *extras, *types))

    def row(self, cells: Mapping[str, str], given: Given) -> Iterable[Call]:
        found = dict(cells)
        source, target = found.pop("input_type", ""), found.pop("output_type", "")
        if source:
            found |= {"a_type": source, "b_type": source}
        if target:
            found |= {"c_type": target, "d_type": target}
        if not found.get("a_type") and found.get("d_type"):
            if not given.dtype:
                raise BadLine(OUTPUT_ALONE)
            found["a_type"] = words.token(dtypes.named(given.dtype, given.arch))
        yield blas.call(found, given.arch)
