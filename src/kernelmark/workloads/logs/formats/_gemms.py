"""Tables of GEMMs: M, N, K and optional columns.

With ta and tb, or without letters, a GEMM is row-major, D = A·B. With transA and transB, with a
layout such as TN, or with letters in columns A and B, it is a column-major BLAS call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kernelmark import ops
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs import blas, blas_words
from kernelmark.workloads.logs.base import BadLine, Given
from kernelmark.workloads.logs.formats import _columns
from kernelmark.workloads.logs.formats._columns import (
    COUNT,
    DTYPE,
    Cells,
    Header,
    Names,
    is_open,
)
from kernelmark.workloads.logs.table import OUTPUT_ALONE, whole
from kernelmark.workloads.workload import Call

_SIZES = ("m", "n", "k")
_BATCH = ("batch", "batch_count", "batch_size", "num_batches")
_FIELDS: Names = {
    **{name: (name,) for name in (*_SIZES, "ta", "tb", "alpha", "beta")},
    **DTYPE,
    **COUNT,
    "a": ("a_type", "a_dtype", "dtype_a", "type_a", "a"),
    "b": ("b_type", "b_dtype", "dtype_b", "type_b"),
    "d": ("d_type", "d_dtype", "out_dtype", "outdtype", "output_dtype", "output_type", "d"),
    "c": ("c_type", "c_dtype", "dtype_c", "type_c", "c"),
    "acc": ("compute_type", "compute_dtype", "acc_dtype", "acc_type", "acc"),
    "bias": ("bias", "has_bias"),
}
_LETTERS: Names = {
    "transA": ("transa", "trans_a", "transposea", "transpose_a"),
    "transB": ("transb", "trans_b", "transposeb", "transpose_b"),
    "layout": ("layout", "trans", "transpose"),
}
# Further fields of a BLAS call, which have a meaning only with letters.
_OF_BLAS = (
    *("function", "lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d"),
    *("scale_type", "bias_type", "scaleA", "scaleB", "bias_vector", "activation_type"),
    *("grouped_gemm", "scaleC", "scaleD", "amaxD", "use_e", "gradient", "bias_source"),
    *("swizzle_a", "swizzle_b", "swizzleA", "swizzleB", "scaleAlpha_vector"),
)
_LETTER = {"true": "T", "false": "N", "1": "T", "0": "N", "t": "T", "n": "N", "c": "C"}
_TWO = re.compile(r"[NTC]{2}\Z", re.IGNORECASE)
_LAYOUTS = ("NN", "NT", "TN", "TT")
_NOTE = Reason("letters-of-blas")


def table(top: Header) -> Gemms | None:
    """Return the reader of the rows under this header, if they are GEMMs; else None."""
    # With a column a, the column b belongs to operand B; without, it is the batch.
    known = dict(_FIELDS)
    known["b"] = (*known["b"], "b") if top.has("a") else known["b"]
    known["batch"] = _BATCH if top.has("a") else (*_BATCH, "b")
    letters = any(name in top.names for names in _LETTERS.values() for name in names)
    if letters or top.has("a"):
        known |= dict(_LETTERS) | {name: (name.lower(),) for name in _OF_BLAS}
    columns = top.columns(known)
    return Gemms(top, columns) if set(_SIZES) <= set(columns) else None


class Gemms(_columns.ShapeTable):
    def __init__(self, top: Header, columns: list[str]) -> None:
        super().__init__(top, columns)
        # Libraries that write these two columns write column-major sizes.
        self._of_library = top.has("a_type", "compute_type")
        self._by_columns = False

    def notes(self) -> tuple[str, ...]:
        noted = self._by_columns and not self._of_library
        return (*((_NOTE,) if noted else ()), *super().notes())

    def row(self, cells: Cells, given: Given) -> Iterator[Call]:
        times = _columns.count(cells)
        letters = _letters(cells)
        if letters:
            self._by_columns = True
            call = _by_columns(cells, letters, given)
        else:
            problem = _by_rows(cells, given)
            call = Call(problem=problem, blas=blas.fields_of(problem))
        yield Call(problem=call.problem, count=times, blas=call.blas, lost=call.lost)


def problem_by_rows(sizes: Mapping[str, int], **given: str | float | bool) -> Problem:
    """Return a row-major GEMM; by default with weights stored N×K, as in a layer."""
    batched = sizes.get("batch", 1) > 1
    kept = {name: size for name, size in sizes.items() if batched or name != "batch"}
    op = ops.registry.get("batched_gemm" if batched else "gemm")
    return op.problem(**kept, **({"tb": "t"} | given))


def _letters(cells: Cells) -> dict[str, str]:
    """Return transA and transB; empty if the row is not a BLAS call."""
    text = cells.get("layout", "")
    if not _columns.is_open(text):
        if not _TWO.match(text):
            raise BadLine(Reason("cell-not-one-of", name="layout", given=text[:12], known=_LAYOUTS))
        return {"transA": text[0].upper(), "transB": text[1].upper()}
    if "transA" in cells or "transB" in cells:
        found = {name: cells.get(name, "") for name in ("transA", "transB")}
        return {name: _LETTER.get(word.lower(), word) for name, word in found.items()}
    if _is_letter(cells.get("a", "")) and _is_letter(cells.get("b", "")):
        return {"transA": cells["a"].upper(), "transB": cells["b"].upper()}
    return {}


def _is_letter(text: str) -> bool:
    return text.upper() in ("N", "T", "C")


def _by_rows(cells: Cells, given: Given) -> Problem:
    asked: dict[str, str | float | bool] = {
        name: cells[name].lower() for name in ("ta", "tb") if cells.get(name)
    }
    asked |= {name: blas_words.real(cells, name) for name in ("alpha", "beta") if cells.get(name)}
    asked |= _types(cells, given) | {"bias": _columns.flag(cells, "bias")}
    required = {name: whole(cells, name) for name in _SIZES}
    return problem_by_rows(required | _columns.sizes(cells, "batch"), **asked)


def _by_columns(cells: Cells, letters: Mapping[str, str], given: Given) -> Call:
    types = _types(cells, given)
    # The operands of the row-major problem are those of BLAS in swapped order.
    swapped = {"a": types["b"], "b": types["a"]}
    usual = ops.registry.get("gemm").problem(m=1, n=1, k=1, **swapped).dtypes
    out = types.get("c", usual["c"])
    fields = {name: cells[name] for name in _OF_BLAS if cells.get(name)}
    fields |= {name: cells.get(name, "") for name in (*_SIZES, "alpha", "beta")}
    fields |= letters
    fields["batch_count"] = cells.get("batch", "")
    if _columns.flag(cells, "bias"):
        fields["bias_vector"] = "1"
    tokens = {"a_type": types["a"], "b_type": types["b"], "c_type": out, "d_type": out}
    tokens["compute_type"] = types.get("acc", usual["acc"])
    fields |= {name: blas_words.token(kind) for name, kind in tokens.items()}
    # Type names of the library are kept: f8_r is another type on another device.
    said = {"a_type": "a", "b_type": "b", "c_type": "c", "d_type": "d", "compute_type": "acc"}
    fields |= {
        name: cells[field] for name, field in said.items() if cells.get(field, "").endswith("_r")
    }
    return blas.call({name: text for name, text in fields.items() if text}, given.arch)


def _types(cells: Cells, given: Given) -> dict[str, str]:
    """Return the dtypes of a and b, and those of c and acc if there are columns for them."""
    lettered = _is_letter(cells.get("a", ""))
    named = {field: "" if lettered and field in "ab" else cells.get(field, "") for field in "abcd"}
    # If only one operand has a type, the other has the same.
    named["a"] = named["a"] or named["b"] or cells.get("dtype", "")
    named["b"] = named["b"] or named["a"]
    named["c"] = named["d"] or named["c"]
    if is_open(named["a"]) and not is_open(named["c"]) and not given.dtype:
        raise BadLine(OUTPUT_ALONE)
    found = {name: _columns.dtype(named, name, given) for name in "ab"}
    if not _columns.is_open(named["c"]):
        found["c"] = _columns.dtype(named, "c", given)
    compute = cells.get("acc", "")
    if compute.endswith("_r"):
        found["acc"] = blas_words.accumulator(blas_words.normal({"compute_type": compute}))
    elif not _columns.is_open(compute):
        found["acc"] = _columns.dtype(cells, "acc", given)
    return found
