"""cublaslt: calls in the trace of cuBLASLt, with CUBLASLT_LOG_LEVEL=2 or higher.

    [2026-01-31 10:20:30][cublasLt][812][Trace][cublasLtMatmul] A=0X7F… Adesc=[type=R_16F rows=64
    cols=128 ld=64] … computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transa=OP_T] … beta=0 …

on one line. cuBLAS calls it too, through functions such as cublasLtTSTMatmul, whose letters are
types. Fields with their default value are not logged, and alpha never is. [Api] lines have pointers
or queries to the heuristic, and are not calls. hipBLASLt's trace has the same descriptors of
matrices, which `descriptions` and `blas_fields` read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterator, Mapping

from kernelmark.core.registry import FormatFacts
from kernelmark.workloads import blas
from kernelmark.workloads.calls import NOTHING, LogOptions, LogReader, Part
from kernelmark.workloads.source import BadLine
from kernelmark.workloads.workload import Call

_GROUP = re.compile(r"(\w+)=\[([^\]]*)\]")
_PAIR = re.compile(r"(\w+)=(\S*)")
_TYPES = {
    "R_64F": "f64_r",
    "R_32F": "f32_r",
    "R_16F": "f16_r",
    "R_16BF": "bf16_r",
    "R_8I": "i8_r",
    "R_32I": "i32_r",
    "R_8F_E4M3": "f8_r",
    "R_8F_E5M2": "bf8_r",
    "R_8F_E4M3_FNUZ": "f8_fnuz_r",
    "R_8F_E5M2_FNUZ": "bf8_fnuz_r",
}
_COMPUTES = {
    "COMPUTE_64F": "f64_r",
    "COMPUTE_32F": "f32_r",
    "COMPUTE_16F": "f16_r",
    "COMPUTE_32I": "i32_r",
    "COMPUTE_32XF": "xf32_r",
    "COMPUTE_32F_16F": "f32_f16_r",
    "COMPUTE_32F_16BF": "f32_bf16_r",
    "COMPUTE_32F_FAST_TF32": "xf32_r",
    "COMPUTE_32F_FAST_16F": "f32_f16_r",
    "COMPUTE_32F_FAST_16BF": "f32_bf16_r",
}
_ACTIVATIONS = ("RELU", "GELU", "SWISH", "CLAMP", "SIGMOID", "DGELU", "DRELU")
_GRADIENTS = ("DGELU", "DRELU", "BGRAD", "BGRADA", "BGRADB")
_EPILOGUE = frozenset((*_ACTIVATIONS, *_GRADIENTS, "DEFAULT", "BIAS", "AUX", "EXT"))
Description = dict[str, str]
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


class CublasltLog(LogReader):
    name = "cublaslt"
    summary = "cuBLASLt's trace lines: CUBLASLT_LOG_LEVEL=2 and higher"
    facts = FormatFacts(
        versions="cuBLASLt 11.11, 12.4, 12.9 and 13.8",
        exactness="exact except for alpha, which is not logged: 1 is assumed; a beta in device "
        "memory is reported; a call that no op computes is rejected line by line",
        checked="descriptions that the four libraries themselves logged; field names from their "
        "format strings; lines of public logs; samples of our own in tests",
    )

    absent = ("alpha",)
    without_sizes = (_LIBRARY, "CUBLASLT_LOG_LEVEL=2")

    def part(self, line: bytes) -> Part | None:
        if _LIBRARY not in line or line[:1] == b"#":
            return None
        match = _TRACED.search(line)
        if match is None:
            return NOTHING
        # A null pointer means that there is no C; other pointers differ in every line.
        return "trace", _POINTER.sub(b"=0X1", _ALGO.sub(b"", line[match.end() :])).strip(), 1

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterator[Call]:
        text = part.decode("utf-8", "replace")
        matrices, compute, factors = descriptions(text)
        if "beta" not in factors or "outOfPlace" not in factors:
            raise BadLine("is cut: it lacks factors")
        _check(compute, _COMPUTE)
        compute = dict.fromkeys(_LETTERS.values(), "OP_N") | {
            _LETTERS.get(name, name): value for name, value in compute.items()
        }
        stored = [_by_columns(matrix, i, compute) for i, matrix in enumerate(matrices)]
        fields = blas_fields(stored, compute) | _scales(compute)
        lost = []
        has_c = f"C={_NULL} " not in text
        beta = factors["beta"] if has_c else "0"
        if beta == "?":  # in device memory
            beta, lost = "0", ["beta"]
        fields |= {"beta": beta, **_bias(compute, fields, lost)}
        if compute.get("fastAccumulationFlag", "0") != "0":
            lost.append("fast_accumulation")
        # R_8F_E4M3 is unambiguous: no architecture is needed.
        call = blas.call(fields)
        yield dataclasses.replace(call, lost=(*call.lost, *lost))


def _by_columns(matrix: Description, index: int, compute: Description) -> Description:
    """Return a matrix in column-major form; a row-major one becomes its transpose."""
    _check(matrix, _MATRIX)
    fields = {_MATRIX[name]: value for name, value in matrix.items()}
    if fields.get("batch_count", "1") != "1":
        fields.setdefault("batch_stride", "0")
    order = fields.pop("order", "ORDER_COL")
    if order == "ORDER_COL":
        return fields
    letter = ("transA", "transB", "", "")[index]
    if order != "ORDER_ROW" or not letter or compute[letter] not in _FLIPPED:
        raise BadLine(f"the order {order[:24]} of {'ABCD'[index]} is not supported")
    compute[letter] = _FLIPPED[compute[letter]]
    return fields | {"rows": fields.get("cols", ""), "cols": fields.get("rows", "")}


def _check(description: Description, readable: Container[str]) -> None:
    for name in description:
        if name not in readable and not _SILENT.match(name):
            raise BadLine(f"{name[:24]}={description[name][:24]} is not supported")


def _scales(compute: Description) -> dict[str, str]:
    fields = {}
    for ours, theirs in _SCALES.items():
        mode = compute.get(f"{theirs}Mode", "SCALAR_32F")
        if mode not in _MODES and not _BLOCKS.match(mode):
            raise BadLine(f"unknown scale mode {mode[:24]!r}")
        if f"{theirs}Pointer" in compute:
            fields[ours] = _MODES.get(mode, "3")
    if "amaxDPointer" in compute:
        fields["amaxD"] = "1"
    return fields


def _bias(compute: Description, fields: Mapping[str, str], lost: list[str]) -> dict[str, str]:
    """Return the type of the bias, if it is logged: the default is that of D, except for GEMMs of
    8-bit types."""
    if fields.get("bias_vector") != "1":
        return {}
    if (number := compute.get("biasDataType", "-1")) != "-1":
        if number not in _BIAS_TYPES:
            raise BadLine(f"unknown bias type {number[:12]!r}")
        return {"bias_type": _BIAS_TYPES[number]}
    if fields["a_type"] in (*_F8, "i8_r") and fields["d_type"] not in ("f16_r", "bf16_r"):
        lost.append("bias_type")
    return {}


def descriptions(text: str) -> tuple[list[Description], Description, Description]:
    """Return the descriptors of A, B, C and D, that of the computation, and the fields after
    them."""
    groups = dict(_GROUP.findall(text))
    try:
        matrices = [_pairs(groups[f"{name}desc"]) for name in "ABCD"]
        compute = _pairs(groups["computeDesc"])
    except KeyError:
        raise BadLine("is cut: it lacks matrix descriptors") from None
    return matrices, compute, _pairs(text.rpartition("]")[2])


def blas_fields(matrices: list[Description], compute: Description) -> dict[str, str]:
    """Return the BLAS fields of a call with column-major matrices, by the names of hipBLASLt."""
    a, b, _, d = matrices
    fields = {
        "transA": compute.get("transA", ""),
        "transB": compute.get("transB", ""),
        "m": d.get("rows", ""),
        "n": d.get("cols", ""),
        "k": _shape(a, compute.get("transA"))[1],
        "batch_count": d.get("batch_count", "1"),
        "compute_type": _compute_type(compute.get("computeType", "")),
        "scale_type": _TYPES.get(compute.get("scaleType", ""), ""),
    }
    shapes = _shape(a, fields["transA"]), _shape(b, fields["transB"])
    if shapes != ((fields["m"], fields["k"]), (fields["k"], fields["n"])):
        every = (*shapes, (fields["m"], fields["n"]))
        shown = ", ".join(f"{rows[:24]}×{columns[:24]}" for rows, columns in every)
        raise BadLine(f"has shapes that do not fit: {shown}")
    for name, matrix in zip("abcd", matrices, strict=True):
        kind = matrix.get("type", "")
        # Some versions log an invalid type for a C that is not used.
        fields[f"{name}_type"] = "" if (name, kind) == ("c", "Invalid") else _type(kind)
        fields[f"ld{name}"] = matrix.get("ld", "")
        fields[f"stride_{name}"] = matrix.get("batch_stride", "")
    return fields | _epilogue(compute.get("epilogue", "EPILOGUE_DEFAULT"))


def _shape(matrix: Description, letter: str | None) -> tuple[str, str]:
    """Return rows and columns of a matrix after the transpose of its letter."""
    rows, columns = matrix.get("rows", ""), matrix.get("cols", "")
    return (rows, columns) if letter == "OP_N" else (columns, rows)


def _type(text: str) -> str:
    if text not in _TYPES:
        raise BadLine(f"unknown type {text[:24]!r}")
    return _TYPES[text]


def _compute_type(text: str) -> str:
    # Pedantic types forbid faster algorithms; the accumulator is the same.
    kind = text.removesuffix("_PEDANTIC")
    if kind not in _COMPUTES:
        raise BadLine(f"unknown compute type {text[:40]!r}")
    return _COMPUTES[kind]


def _epilogue(text: str) -> dict[str, str]:
    parts = text.removeprefix("EPILOGUE_").split("_")
    if not text or not _EPILOGUE.issuperset(parts):
        raise BadLine(f"unknown epilogue {text[:40]!r}")
    fields = {}
    if activations := [word.lower() for word in parts if word in _ACTIVATIONS]:
        fields["activation_type"] = activations[0]
    if "BIAS" in parts:
        fields["bias_vector"] = "1"
    if "AUX" in parts:
        fields["use_e"] = "1"
    if any(word in _GRADIENTS for word in parts):
        fields["gradient"] = "1"
    return fields


def _pairs(text: str) -> Description:
    return dict(_PAIR.findall(text))


readers = (CublasltLog(),)
