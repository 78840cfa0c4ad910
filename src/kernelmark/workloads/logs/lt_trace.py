"""Trace lines of hipBLASLt and cuBLASLt, which have a call's matrix descriptors."""

from __future__ import annotations

import re

from kernelmark.core.reason import Reason
from kernelmark.workloads.logs.base import BadLine

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


def descriptions(text: str) -> tuple[list[Description], Description, Description]:
    """Return the descriptors of A, B, C and D, that of the computation, and the fields after
    them."""
    groups = dict(_GROUP.findall(text))
    try:
        matrices = [_pairs(groups[f"{name}desc"]) for name in "ABCD"]
        compute = _pairs(groups["computeDesc"])
    except KeyError:
        raise BadLine(Reason("call-cut", part="matrix descriptors")) from None
    return matrices, compute, _pairs(text.rpartition("]")[2])


def blas_fields(matrices: list[Description], compute: Description) -> dict[str, str]:
    """Return the BLAS fields of a call with column-major matrices, by the names of hipBLASLt."""
    a, b, _, d = matrices
    found = {
        "transA": compute.get("transA", ""),
        "transB": compute.get("transB", ""),
        "m": d.get("rows", ""),
        "n": d.get("cols", ""),
        "k": _shape(a, compute.get("transA"))[1],
        "batch_count": d.get("batch_count", "1"),
        "compute_type": _compute_type(compute.get("computeType", "")),
        "scale_type": _TYPES.get(compute.get("scaleType", ""), ""),
    }
    shapes = _shape(a, found["transA"]), _shape(b, found["transB"])
    if shapes != ((found["m"], found["k"]), (found["k"], found["n"])):
        every = (*shapes, (found["m"], found["n"]))
        raise BadLine(Reason("call-shapes", shapes=[f"{r[:24]}×{c[:24]}" for r, c in every]))
    for name, matrix in zip("abcd", matrices, strict=True):
        kind = matrix.get("type", "")
        # Some versions log an invalid type for a C that is not used.
        found[f"{name}_type"] = "" if (name, kind) == ("c", "Invalid") else _type(kind)
        found[f"ld{name}"] = matrix.get("ld", "")
        found[f"stride_{name}"] = matrix.get("batch_stride", "")
    return found | _epilogue(compute.get("epilogue", "EPILOGUE_DEFAULT"))


def _shape(matrix: Description, letter: str | None) -> tuple[str, str]:
    """Return rows and columns of a matrix after the transpose of its letter."""
    rows, columns = matrix.get("rows", ""), matrix.get("cols", "")
    return (rows, columns) if letter == "OP_N" else (columns, rows)


def _type(text: str) -> str:
    if text not in _TYPES:
        raise BadLine(Reason("call-unknown", what="type", given=text[:24]))
    return _TYPES[text]


def _compute_type(text: str) -> str:
    # Pedantic types forbid faster algorithms; the accumulator is the same.
    kind = text.removesuffix("_PEDANTIC")
    if kind not in _COMPUTES:
        raise BadLine(Reason("call-unknown", what="compute type", given=text[:40]))
    return _COMPUTES[kind]


def _epilogue(text: str) -> dict[str, str]:
    words = text.removeprefix("EPILOGUE_").split("_")
    if not text or not _EPILOGUE.issuperset(words):
        raise BadLine(Reason("call-unknown", what="epilogue", given=text[:40]))
    found = {}
    if activations := [word.lower() for word in words if word in _ACTIVATIONS]:
        found["activation_type"] = activations[0]
    if "BIAS" in words:
        found["bias_vector"] = "1"
    if "AUX" in words:
        found["use_e"] = "1"
    if any(word in _GRADIENTS for word in words):
        found["gradient"] = "1"
    return found


def _pairs(text: str) -> Description:
    return dict(_PAIR.findall(text))
