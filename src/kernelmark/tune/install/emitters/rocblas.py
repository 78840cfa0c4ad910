"""rocblas: the CSV of rocblas-gemm-tune, which ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH names.

    transA,transB,M,N,batch_count,K,alpha,beta,lda,ldb,ldc,input_type,output_type,compute_type,…
    N,N,320,588,1,4096,1,0,320,6144,320,f32_r,f32_r,f32_r,3788

The reader parses by position: 15 values, or 18 with stride_a, stride_b, stride_c before input_type.
It does not trim values (" N" is read as transposed), skips lines without a comma, and accepts only
positive indices: those of the Tensile library, starting at 1. The backend records the Tensile index
of each solution that Tensile names; hipBLASLt's have none and cannot be written. Kernel names are
in comment lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config
from kernelmark.tune.install.emitters._blas import blas_call
from kernelmark.tune.install.emitters._lines import LineEmitter, Row
from kernelmark.tune.install.emitters.base import (
    ON_AMD,
    Entry,
    Fields,
    Override,
    Unfit,
    solution_index,
)
from kernelmark.tune.records.outcome import Outcome
from kernelmark.workloads.logs.blas_words import number_text

_SHAPE = ("transA", "transB", "M", "N", "batch_count", "K", "alpha", "beta", "lda", "ldb", "ldc")
_STRIDES = ("stride_a", "stride_b", "stride_c")
_TYPES = ("input_type", "output_type", "compute_type")
_SHORT = (*_SHAPE, *_TYPES, "solution_index")
_LONG = (*_SHAPE, *_STRIDES, *_TYPES, "solution_index")
_RESERVED = 10  # rocBLAS reserves the indices down to -10
_COMMENT = "# kernel: "
_ROUNDED = frozenset(("xf32_r", "f32_f16_r", "f32_bf16_r"))


class Rocblas(LineEmitter):
    name = "rocblas"
    summary = "rocBLAS's override CSV (ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH), as rocblas-gemm-tune"
    facts = FormatFacts(
        versions="rocBLAS b520bc83 (2024-10), and the indices of 5.0",
        exactness="exact; hipBLASLt's solutions and rounded inputs are rejected",
        checked="compared with its reader's code; read back in tests",
    )
    backends = ("rocblas",)
    caution = ON_AMD
    override = Override(
        backend="rocblas", variables={"ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH": "{path}"}
    )

    def rows(self, lines: Sequence[str], path: Path) -> list[Row]:
        rows = []
        for i, line in enumerate(lines):
            entry = _entry(line)
            if entry is None:
                continue
            named = i > 0 and lines[i - 1].startswith(_COMMENT)
            kernel = lines[i - 1].removeprefix(_COMMENT).strip() if named else ""
            entry = Entry(fields=entry.fields, config=entry.config, kernel=kernel)
            rows.append(Row(first=i - named, end=i + 1, entry=entry))
        return rows

    def lookup_key(self, outcome: Outcome, given: Fields) -> Fields:
        call = blas_call(outcome)
        if call["a_type"] != call["b_type"]:
            types = (call["a_type"], call["b_type"])
            raise Unfit(
                Reason("format-one-type", format=self.name, operands=("A", "B"), types=types)
            )
        if call["compute_type"] in _ROUNDED:
            raise Unfit(Reason("format-compute", format=self.name, compute=call["compute_type"]))
        cells = dict(call) | {"M": call["m"], "N": call["n"], "K": call["k"]}
        cells |= {"input_type": call["a_type"], "output_type": call["c_type"]}
        return _lookup_key(cells)

    def entry(self, outcome: Outcome, fields: Fields) -> tuple[Config, list[str]]:
        index = _file_index(outcome)
        call = blas_call(outcome)
        batched = call["batch_count"] != "1"
        cells = dict(fields) | {"alpha": call["alpha"], "solution_index": str(index)}
        row = ",".join(cells[name] for name in (_LONG if batched else _SHORT))
        text = [f"{_COMMENT}{outcome.tuned.kernel.name}", row]
        return FrozenDict({"solution_index": index}), text

    def head(self, winners: Sequence[Outcome], lines: Sequence[str], given: Fields) -> list[str]:
        return [",".join(_SHORT)]

    def is_head(self, line: str) -> bool:
        return tuple(line.split(",")) in (_SHORT, _LONG)


def _file_index(outcome: Outcome) -> int:
    """Return the index of a winner in the file, where Tensile's solutions start at 1."""
    number = solution_index(outcome)
    tensile = outcome.tuned.kernel.resources.get("tensile_index")
    if tensile is not None:
        return tensile + 1
    # Without a recorded index, only negative indices are known to be Tensile's.
    if number < -_RESERVED:
        return -number - _RESERVED
    raise Unfit(Reason("solution-not-tensile", index=number, own=number <= 0))


def _lookup_key(cells: Fields) -> Fields:
    """Return the lookup key of a row: without alpha, and with strides only for a batch."""
    batched = cells["batch_count"] != "1"
    names = [name for name in _SHAPE if name != "alpha"]
    strides = {name: cells[name] if batched else "" for name in _STRIDES}
    shape = {name: cells[name] for name in names}
    return FrozenDict(shape | strides | {name: cells[name] for name in _TYPES})


def _entry(line: str) -> Entry | None:
    values = line.split(",")
    if "transA" in line or len(values) not in (len(_SHORT), len(_LONG)):
        return None
    cells = dict(zip(_LONG if len(values) == len(_LONG) else _SHORT, values, strict=True))
    try:
        index = int(cells["solution_index"])
        m, n, k, batch, lda, ldb, ldc = (
            int(cells[name]) for name in ("M", "N", "K", "batch_count", "lda", "ldb", "ldc")
        )
        cells["beta"] = number_text(float(cells["beta"]))
    except ValueError:
        return None
    if index <= 0:
        return None
    for name in ("transA", "transB"):
        cells[name] = "N" if cells[name] == "N" else "T"
    dense = {
        "stride_a": lda * (m if cells["transA"] == "T" else k),
        "stride_b": ldb * (k if cells["transB"] == "T" else n),
        "stride_c": ldc * n,
    }
    cells = {name: str(value) for name, value in dense.items()} | cells
    cells["batch_count"] = str(batch)
    return Entry(fields=_lookup_key(cells), config=FrozenDict({"solution_index": index}))


emitter = Rocblas()
