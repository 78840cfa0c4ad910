"""cublaslt: calls in the trace of cuBLASLt, with CUBLASLT_LOG_LEVEL=2 or higher.

    [2026-01-31 10:20:30][cublasLt][812][Trace][cublasLtMatmul] A=0X7F… Adesc=[type=R_16F rows=64
    cols=128 ld=64] … computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transa=OP_T] … beta=0 …

on one line. cuBLAS calls it too, through functions such as cublasLtTSTMatmul, whose letters are
types. Fields with their default value are not logged, and alpha never is. [Api] lines have pointers
or queries to the heuristic, and are not calls.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterator, Mapping

from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs import blas, lt_trace
from kernelmark.workloads.logs.base import NOTHING, BadLine, Given, LogReader, Part
from kernelmark.workloads.logs.lt_trace import Description
from kernelmark.workloads.workload import Call

_LIBRARY = b"[cublasLt]"
_TRACED = re.compile(rb"\[Trace\]\[cublasLt[A-Z]*Matmul\] ")
_ALGO = re.compile(rb" (?:algo=\[[^\]]*\]|(?:workSpace|workSpaceSizeInBytes|stream)=\w+)")
_POINTER = re.compile(rb"=0[xX]0*[1-9a-fA-F][0-9a-fA-F]*")
_NULL = "0X0"
_MATRIX = {"batchCount": "batch_count", "stridedBatchOffset": "batch_stride"}
_MATRIX |= {name: name for name in ("type", "rows", "cols", "ld", "order")}
_LETTERS = {"transa": "transA", "transb": "transB"}
_SCALES = {"scaleA": "aScale", "scaleB": "bScale", "scaleC": "cScale", "scaleD": "dScale"}
# hipBLASLt's scale modes: scalar, and vector along rows or columns.
_MODES = {"SCALAR_32F": "1", "OUTER_VEC_32F": "2"}
_BLOCKS = re.compile(r"(?:VEC|BLK)[0-9]+\w*\Z")
# Fields without effect on the result: addresses of tensors, and the number of SMs.
_SILENT = re.compile(
    r"(?:\w+Pointer|smCountTarget|pointerMode|epilogueAuxLd|epilogueAuxBatchStride)\Z"
)
_COMPUTE = {"computeType", "scaleType", "epilogue", "biasDataType", "fastAccumulationFlag"}
_COMPUTE |= {*_LETTERS, *(f"{name}Mode" for name in _SCALES.values())}
# Numbers of cudaDataType_t, in which the type of a bias is logged.
_BIAS_TYPES = {"0": "f32_r", "2": "f16_r", "14": "bf16_r"}
_F8 = ("f8_r", "bf8_r")
_FLIPPED = {"OP_N": "OP_T", "OP_T": "OP_N", "OP_C": "OP_N"}


class Cublaslt(LogReader):
    name = "cublaslt"
    summary = "cuBLASLt's trace lines: CUBLASLT_LOG_LEVEL=2 and higher"
    facts = FormatFacts(
        versions="cuBLASLt 11.11, 12.4, 12.9 and 13.8",
        exactness="exact except for alpha, which is not logged: 1 is assumed; a beta in device "
        "memory is reported; a call that no op computes is rejected line by line",
        checked="descriptions that the four libraries themselves logged; field names from their "
        "format strings; lines of public logs; samples of our own in tests",
    )

    def part(self, line: bytes) -> Part | None:
        if _LIBRARY not in line or line[:1] == b"#":
            return None
        found = _TRACED.search(line)
        if found is None:
            return NOTHING
        # A null pointer means that there is no C; other pointers differ in every line.
        return "trace", _POINTER.sub(b"=0X1", _ALGO.sub(b"", line[found.end() :])).strip(), 1

    def calls(self, kind: str, part: bytes, given: Given) -> Iterator[Call]:
        text = part.decode("utf-8", "replace")
        matrices, compute, factors = lt_trace.descriptions(text)
        if "beta" not in factors or "outOfPlace" not in factors:
            raise BadLine(Reason("call-cut", part="factors"))
        _check(compute, _COMPUTE)
        compute = dict.fromkeys(_LETTERS.values(), "OP_N") | {
            _LETTERS.get(name, name): value for name, value in compute.items()
        }
        stored = [_by_columns(matrix, i, compute) for i, matrix in enumerate(matrices)]
        found = lt_trace.blas_fields(stored, compute) | _scales(compute)
        lost = []
        has_c = f"C={_NULL} " not in text
        beta = factors["beta"] if has_c else "0"
        if beta == "?":  # in device memory
            beta, lost = "0", ["beta"]
        found |= {"beta": beta, **_bias(compute, found, lost)}
        if compute.get("fastAccumulationFlag", "0") != "0":
            lost.append("fast_accumulation")
        # R_8F_E4M3 is unambiguous: no architecture is needed.
        call = blas.call(found)
        yield dataclasses.replace(call, lost=(*call.lost, *lost))

    def notes(self) -> tuple[str, ...]:
        return (Reason("read-as-one", format=self.name, names=("alpha",)),)


def _by_columns(matrix: Description, index: int, compute: Description) -> Description:
    """Return a matrix in column-major form; a row-major one becomes its transpose."""
    _check(matrix, _MATRIX)
    found = {_MATRIX[name]: value for name, value in matrix.items()}
    if found.get("batch_count", "1") != "1":
        found.setdefault("batch_stride", "0")
    order = found.pop("order", "ORDER_COL")
    if order == "ORDER_COL":
        return found
    letter = ("transA", "transB", "", "")[index]
    if order != "ORDER_ROW" or not letter or compute[letter] not in _FLIPPED:
        name = f"order of {'ABCD'[index]}"
        raise BadLine(Reason("call-unsupported", name=name, given=order[:24]))
    compute[letter] = _FLIPPED[compute[letter]]
    return found | {"rows": found.get("cols", ""), "cols": found.get("rows", "")}


def _check(description: Description, known: Container[str]) -> None:
    for name in description:
        if name not in known and not _SILENT.match(name):
            given = description[name][:24]
            raise BadLine(Reason("call-unsupported", name=name[:24], given=given))


def _scales(compute: Description) -> dict[str, str]:
    found = {}
    for ours, theirs in _SCALES.items():
        mode = compute.get(f"{theirs}Mode", "SCALAR_32F")
        if mode not in _MODES and not _BLOCKS.match(mode):
            raise BadLine(Reason("call-unknown", what="scale mode", given=mode[:24]))
        if f"{theirs}Pointer" in compute:
            found[ours] = _MODES.get(mode, "3")
    if "amaxDPointer" in compute:
        found["amaxD"] = "1"
    return found


def _bias(compute: Description, found: Mapping[str, str], lost: list[str]) -> dict[str, str]:
    """Return the type of the bias, if it is logged: the default is that of D, except for GEMMs of
    8-bit types."""
    if found.get("bias_vector") != "1":
        return {}
    if (number := compute.get("biasDataType", "-1")) != "-1":
        if number not in _BIAS_TYPES:
            raise BadLine(Reason("call-unknown", what="bias type", given=number[:12]))
        return {"bias_type": _BIAS_TYPES[number]}
    if found["a_type"] in (*_F8, "i8_r") and found["d_type"] not in ("f16_r", "bf16_r"):
        lost.append("bias_type")
    return {}


reader = Cublaslt()
