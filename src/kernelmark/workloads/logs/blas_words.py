"""Vocabulary of BLAS logs: normalise names, types and values of many versions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kernelmark.core.errors import ProblemError
from kernelmark.core.reason import NO_REASON, Reason

_LONGEST = 18  # digits of an integer: 64 bits
_NAMES = {
    "M": "m",
    "N": "n",
    "K": "k",
    "transposeA": "transA",
    "transposeB": "transB",
    "activation": "activation_type",
    "rocblas_function": "function",
    "swizzle_a": "swizzleA",
    "swizzle_b": "swizzleB",
}
_DTYPES = {
    "f64_r": "f64",
    "f32_r": "f32",
    "f16_r": "f16",
    "bf16_r": "bf16",
    "i8_r": "i8",
    "i32_r": "i32",
    "f8_r": "f8e4m3",
    "bf8_r": "f8e5m2",
    "f8_fnuz_r": "f8e4m3fnuz",
    "bf8_fnuz_r": "f8e5m2fnuz",
}
# Both clients also accept letters (string2rocblas_datatype, string_to_hip_datatype).
_LETTERS = {"h": "f16_r", "s": "f32_r", "d": "f64_r", "i8": "i8_r", "i": "i32_r", "x": "xf32_r"}
_TYPED = ("a_type", "b_type", "c_type", "d_type", "compute_type", "scale_type", "bias_type")
_TOKENS = {name: token for token, name in _DTYPES.items()}
# The same letters for OCP and FNUZ formats: only the device determines which one it was.
SHARED_F8 = frozenset({"f8_r", "bf8_r"})
SHARED_BY = frozenset({"hipblaslt", "rocblas"})  # other logs name the format
F8_OCP = frozenset(_DTYPES[token] for token in SHARED_F8)
FNUZ_ARCHS = ("gfx940", "gfx941", "gfx942")
_COMPUTE = {
    "f64_r": "f64",
    "f32_r": "f32",
    "f16_r": "f16",
    "i32_r": "i32",
    "xf32_r": "f32",
    "f32_f16_r": "f32",
    "f32_bf16_r": "f32",
}
_COMPUTE_NAMES = {"f32_fast_f16_r": "f32_f16_r", "f32_fast_bf16_r": "f32_bf16_r"}
_COMPUTE_NAMES |= {"f32_fast_xf32_r": "xf32_r", "f32_pedantic_r": "f32_r"}
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off", "none", ""})
_FLAGS = (
    *("bias_vector", "scaleAlpha_vector", "gradient", "use_e", "swizzleA", "swizzleB"),
    *("grouped_gemm", "amaxD"),
)
_SCALES = ("scaleA", "scaleB", "scaleC", "scaleD")
_WHOLE = (
    *("m", "n", "k", "batch_count", "lda", "ldb", "ldc", "ldd"),
    *("stride_a", "stride_b", "stride_c", "stride_d"),
)


def normal(given: Mapping[str, str]) -> dict[str, str]:
    """Return the fields with normalised names and values, without empty values."""
    fields = {_NAMES.get(name, name): text.strip() for name, text in given.items()}
    for name in _WHOLE:
        if fields.get(name):
            fields[name] = str(whole(fields, name))
    for name in ("alpha", "beta"):
        if fields.get(name):
            fields[name] = number_text(real(fields, name))
    for name in _FLAGS:
        if name in fields:
            fields[name] = _flag(name, fields[name])
    for name in _SCALES:
        if name in fields:
            fields[name] = _scale(fields[name])
    for name in _TYPED:
        if fields.get(name) in _LETTERS:
            fields[name] = _LETTERS[fields[name]]
    for name in ("transA", "transB"):
        if fields.get(name):
            fields[name] = fields[name].upper().removeprefix("OP_")
    if fields.get("compute_type"):
        # In profile logs, c_ is a prefix of compute types only.
        compute = fields["compute_type"].removeprefix("c_")
        fields["compute_type"] = _COMPUTE_NAMES.get(compute, compute)
    activation = fields.get("activation_type", "").lower()
    fields["activation_type"] = "none" if activation in _NO else activation
    return fields


def whole(fields: Mapping[str, str], name: str, default: str = "") -> int:
    """Return a field as a whole number that is not negative; raise ProblemError otherwise."""
    text = fields.get(name) or default
    if fault := no_size(text):
        raise ProblemError(Reason("field-no-size", name=name, given=text[:24], cause=fault))
    return int(text)


def no_size(text: str) -> Reason:
    """Return why a text is not a size or count; an empty reason if it is one."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        return Reason("size-not-whole")
    if digits != text:
        return Reason("size-negative")
    return Reason("size-too-large") if len(text) > _LONGEST else NO_REASON


def real(fields: Mapping[str, str], name: str, default: str = "") -> float:
    """Return a field as a finite number; raise ProblemError otherwise."""
    text = fields.get(name) or default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ProblemError(Reason("field-not-finite", name=name, given=text[:24]))
    return value


def number_text(value: float) -> str:
    """Format a factor in canonical form: 1 for 1.000000, 1.0 and 1."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def letter(fields: Mapping[str, str], name: str) -> str:
    """Return a field as n or t; the conjugate transpose of real numbers is the transpose."""
    text = fields.get(name, "").strip().upper()
    if text not in ("N", "T", "C"):
        raise ProblemError(Reason("field-not-transpose", name=name, given=text[:12]))
    return "n" if text == "N" else "t"


def dtype(fields: Mapping[str, str], name: str, arch: str) -> str:
    """Return the dtype of a BLAS type name on this architecture."""
    text = fields.get(name, "")
    if text not in _DTYPES:
        raise ProblemError(Reason("field-no-type", name=name, given=text[:24]))
    fnuz = text in SHARED_F8 and arch.startswith(FNUZ_ARCHS)
    return _DTYPES[text] + ("fnuz" if fnuz else "")


def token(dtype_name: str) -> str:
    """Return the name of a dtype in BLAS libraries."""
    if dtype_name not in _TOKENS:
        raise ProblemError(Reason("dtype-not-blas", dtype=dtype_name))
    return _TOKENS[dtype_name]


def accumulator(fields: Mapping[str, str]) -> str:
    """Return the accumulator dtype of a compute type."""
    text = fields.get("compute_type", "")
    if text not in _COMPUTE:
        raise ProblemError(Reason("field-unknown-value", name="compute_type", given=text[:24]))
    return _COMPUTE[text]


def _flag(name: str, text: str) -> str:
    if text.lower() in _YES:
        return "1"
    if text.lower() in _NO:
        return "0"
    raise ProblemError(Reason("field-not-boolean", name=name, given=text[:24]))


def _scale(text: str) -> str:
    """Normalise a scale mode: 0 none, 1 scalar, 2 vector, 3 blocks. Old logs have s and v, PyTorch
    has the type of the scale."""
    if text.lower() in _NO:
        return "0"
    if text.lower() in _YES or text == "s" or text.endswith("_r"):
        return "1"
    return "2" if text == "v" else text
