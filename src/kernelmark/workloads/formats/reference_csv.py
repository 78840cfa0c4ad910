"""reference-csv: tables of means from the benchmark suites that preceded kernelmark.

GEMM (M, N, K and transposes), attention (B, M, N, K1, K2) and convolution (B, H, W, C, P, Q, F, S)
with a column mean_microseconds; `ok` False is a failure. The backend is in the file name.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelmark import ops
from kernelmark.core.errors import ProblemError, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.importers import (
    Importer,
    ResultFile,
    ResultRow,
    exact_problem,
    name_words,
)
from kernelmark.workloads.source import BadLine, Fields, unexpected
from kernelmark.workloads.workload import Call

_TIME = "mean_microseconds"
_WORDS = {"gemm", "attention", "conv", "results"}
# fp8 is the 8-bit float of the GPU that these tables were measured on.
_DTYPES = {"fp16": "f16", "fp32": "f32", "fp8": "f8e4m3fnuz", "int8": "i8"}
_FLIPPED = {"n": "t", "t": "n"}
_KNOWN = frozenset(
    (
        *("index", "tag", "name", "vmfb_hash", "M", "N", "K", "A", "B", "tA", "tB", "K1", "K2"),
        *("H", "W", "C", "P", "Q", "F", "S", "dtype", "input_dtype", "output_dtype"),
        *(_TIME, "arithmetic_intensity", "tflops", "ok"),
    )
)
_OK = {"true": True, "false": False, "": True, "1": True, "0": False}
# Columns by the parameters of the op.
_ATTENTION = {"heads": "B", "seq_q": "M", "seq_kv": "K2", "dim_qk": "K1", "dim_v": "N"}
_CONV = {"n": "B", "c": "C", "k": "F", "r": "P", "s": "Q", "stride": "S"}
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
    method = "mean of another tool"

    def recognizes(self, name: str, head: bytes) -> bool:
        return name.endswith(".csv") and _TIME.encode() in head.partition(b"\n")[0]

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        # iree-tk for golden_iree_gemm_tk.csv; csv if there is none, as in golden.csv and tot.csv.
        named = "-".join(word for word in name_words(file.name) if word not in _WORDS)
        backend = file.overrides.backend or named or "csv"
        columns, table = file.table()
        if unknown := [name for name in columns if name not in _KNOWN]:
            raise UsageError(
                f"line 1: the column {unknown[0]!r} is not known, and may be part of the problem",
                hint="take it out of the table if it is not",
            )
        for cells in table:
            problem = _computed(cells)
            status, error = _status(cells, backend)
            yield ResultRow(
                problem=problem,
                backend=backend,
                samples_s=(cells.number(_TIME) * 1e-6,),
                timing=_TIMING,
                status=status,
                error=error,
                kernel=cells.text("name"),
                binary_hash=cells.text("vmfb_hash"),
            )


def _status(cells: Fields, backend: str) -> tuple[Status, Reason]:
    word = cells.text("ok").strip()
    if word.lower() not in _OK:
        raise unexpected("ok", "True or False", word)
    if not _OK[word.lower()]:
        return Status.RUNTIME_ERROR, Reason("no reason was recorded in the file")
    if backend == "torch" and cells.get("K2") and cells["M"] != cells["K2"]:
        return Status.WRONG, Reason(
            f"measured with as many queries as keys ({cells['K2']} instead of "
            f"{cells['M']}), which is another problem"
        )
    return Status.OK, NO_REASON


def _computed(cells: Fields) -> Problem:
    """Return the problem of a row: of an op, or, if no op has this dtype of the output, one that
    names it."""
    output = _dtype(cells, "output_dtype")
    if not output:
        return _problem(cells)
    try:
        return _problem(cells, output)
    except ProblemError:
        return exact_problem(Call(problem=_problem(cells), lost=(f"output_dtype={output}",)))


def _problem(cells: Fields, output: str = "") -> Problem:
    """Return the problem of a row; without an output dtype, that of the op."""

    def written(name: str) -> dict[str, str]:
        return {name: output} if output else {}

    if "K1" in cells:
        sizes = {name: cells.whole(column) for name, column in _ATTENTION.items()}
        return ops.registry.get("attention").problem(
            **sizes, **written("o"), dtype=_dtype(cells, "dtype")
        )
    if "P" in cells:
        sizes = {name: cells.whole(column) for name, column in _CONV.items()}
        # H and W are sizes of the output; the input has the size that the tool allocates.
        for side, taps in (("h", "r"), ("w", "s")):
            sizes[side] = cells.whole(side.upper()) * sizes["stride"] + sizes[taps] - 1
        return ops.registry.get("conv").problem(
            **sizes,
            **written("y"),
            dtype=_dtype(cells, "input_dtype"),
            layout="nchw" if "nchw" in cells.text("name") else "nhwc",
        )
    if "K" in cells:
        # BLAS letters are column-major: in row-major terms, the letters of A and B are flipped.
        blas = "tA" not in cells
        letters = [cells.text(name, "N").lower() for name in (("A", "B") if blas else ("tA", "tB"))]
        ta, tb = (_FLIPPED.get(word, word) if blas else word for word in letters)
        sizes = {name: cells.whole(name.upper()) for name in ("m", "n", "k")}
        dtype = _dtype(cells, "dtype")
        return ops.registry.get("gemm").problem(**sizes, **written("c"), dtype=dtype, ta=ta, tb=tb)
    raise BadLine(
        "the row is no problem of an op", hint="columns: M,N,K · B,M,N,K1,K2 · B,H,W,C,P,Q,F,S"
    )


def _dtype(cells: Fields, name: str) -> str:
    word = cells.text(name).lower()
    return _DTYPES.get(word, word)


importers = (ReferenceCsv(),)
