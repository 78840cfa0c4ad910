"""reference-csv: tables of means from the benchmark suites that preceded kernelmark.

GEMM (M, N, K and transposes), attention (B, M, N, K1, K2) and convolution (B, H, W, C, P, Q, F, S)
with a column mean_microseconds; `ok` False is a failure. The backend is in the file name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelmark import ops
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import ResultSet, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.importers._lines import Row, table_of
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    name_words,
    number,
    unexpected,
)

_TIME = "mean_microseconds"
_WORDS = {"gemm", "attention", "conv", "results"}
# fp8 is the 8-bit float of the GPU that these tables were measured on.
_DTYPES = {"fp16": "f16", "fp32": "f32", "fp8": "f8e4m3fnuz", "int8": "i8"}
_FLIPPED = {"n": "t", "t": "n"}
_OK = {"true": True, "false": False, "": True, "1": True, "0": False}
# These tools use one set of buffers for all launches.
_TIMING = Timing(cache=Cache.HOT)


class ReferenceCsv(Importer):
    name = "reference-csv"
    summary = "CSV tables with a column mean_microseconds (GEMM, attention, convolution)"
    facts = FormatFacts(
        versions="CSV with mean_microseconds",
        exactness="means",
        checked="samples of our own in tests",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        return name.endswith(".csv") and _TIME.encode() in head.partition(b"\n")[0]

    def read(self, path: Path, given: Given) -> ResultSet:
        backend = given.backend or _backend(path)
        return build_run(path, given, _rows(path, backend), method="mean of another tool")


def _rows(path: Path, backend: str) -> Iterator[Found]:
    _, rows = table_of(path)
    for row in rows:
        try:
            problem = _problem(row.cells, row.place)
        except ProblemError as error:
            reason = Reason("at", where=row.place, cause=error.message)
            raise UsageError(reason, hint=error.hint) from None
        mean_us = number(row.cells.get(_TIME), row.place)
        status, reason = _status(row, backend)
        yield Found(
            problem=problem,
            backend=backend,
            samples_s=(mean_us * 1e-6,),
            timing=_TIMING,
            status=status,
            error=reason,
            kernel=row.cells.get("name") or "",
            binary_hash=row.cells.get("vmfb_hash") or "",
            doubt=row.doubt,
        )


def _status(row: Row, backend: str) -> tuple[Status, Reason]:
    cells = row.cells
    word = cells.get("ok", "")
    if word.strip().lower() not in _OK:
        raise unexpected(f"{row.place}, ok", "True or False", word, Reason("document-cut"))
    if not _OK[word.strip().lower()]:
        return Status.RUNTIME_ERROR, Reason("failure-unexplained")
    if backend == "torch" and cells.get("K2") and cells["M"] != cells["K2"]:
        return Status.WRONG, Reason("queries-as-keys", queries=cells["M"], keys=cells["K2"])
    return Status.OK, NO_REASON


def _problem(row: Mapping[str, str], place: str) -> Problem:
    if "K1" in row:
        return ops.registry.get("attention").problem(
            heads=_int(row, "B", place),
            seq_q=_int(row, "M", place),
            seq_kv=_int(row, "K2", place),
            dim_qk=_int(row, "K1", place),
            dim_v=_int(row, "N", place),
            dtype=_dtype(row, "dtype"),
        )
    if "P" in row:
        return _convolution(row, place)
    if "K" in row:
        # BLAS letters are column-major: in row-major terms, the letters of A and B are flipped.
        blas = "tA" not in row
        letters = [str(row.get(n) or "N").lower() for n in (("A", "B") if blas else ("tA", "tB"))]
        ta, tb = (_FLIPPED.get(word, word) if blas else word for word in letters)
        return ops.registry.get("gemm").problem(
            **{name: _int(row, name.upper(), place) for name in ("m", "n", "k")},
            dtype=_dtype(row, "dtype"),
            ta=ta,
            tb=tb,
        )
    raise UsageError(
        Reason("row-without-problem", where=place),
        hint="columns: M,N,K · B,M,N,K1,K2 · B,H,W,C,P,Q,F,S",
    )


def _convolution(row: Mapping[str, str], place: str) -> Problem:
    """Return the convolution of a row. H and W are sizes of the output; the input has the size that
    the tool allocates."""
    stride, taps = _int(row, "S", place), (_int(row, "P", place), _int(row, "Q", place))
    sizes = [
        _int(row, name, place) * stride + tap - 1
        for name, tap in zip(("H", "W"), taps, strict=True)
    ]
    return ops.registry.get("conv").problem(
        n=_int(row, "B", place),
        c=_int(row, "C", place),
        h=sizes[0],
        w=sizes[1],
        k=_int(row, "F", place),
        r=taps[0],
        s=taps[1],
        stride=stride,
        dtype=_dtype(row, "input_dtype"),
        layout="nchw" if "nchw" in str(row.get("name")) else "nhwc",
    )


def _int(row: Mapping[str, str], name: str, place: str) -> int:
    here = f"{place}, {name}"
    value = number(row.get(name), here)
    if not value.is_integer():
        raise unexpected(here, "a whole number", row.get(name))
    return int(value)


def _dtype(row: Mapping[str, str], name: str) -> str:
    word = str(row.get(name) or "").lower()
    return _DTYPES.get(word, word)


def _backend(path: Path) -> str:
    """Return the backend in the file name: iree-tk for golden_iree_gemm_tk.csv; csv if there is
    none, as in golden.csv and tot.csv."""
    return "-".join(word for word in name_words(path) if word not in _WORDS) or "csv"


importer = ReferenceCsv()
