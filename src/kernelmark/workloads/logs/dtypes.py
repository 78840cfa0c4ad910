"""Dtypes by the names that PyTorch, its profiler and people use."""

from __future__ import annotations

from kernelmark.core.dtype import DTYPES
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs.base import BadLine
from kernelmark.workloads.logs.blas_words import FNUZ_ARCHS

_NAMES = {
    "double": "f64",
    "float64": "f64",
    "fp64": "f64",
    "float": "f32",
    "float32": "f32",
    "fp32": "f32",
    "half": "f16",
    "float16": "f16",
    "fp16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "float4_e2m1fn_x2": "f4e2m1",
    "signed char": "i8",
    "int8": "i8",
    "int": "i32",
    "int32": "i32",
}
_F8 = ("fp8", "f8", "float8")


def named(text: str, arch: str = "") -> str:
    """Return kernelmark's name of a dtype; `fp8` is the format that `arch` supports."""
    word = text.strip().lower()
    for prefix in ("torch.", "c10::", "dtypes."):
        word = word.removeprefix(prefix)
    if word in _F8:
        return "f8e4m3fnuz" if arch.startswith(FNUZ_ARCHS) else "f8e4m3"
    name = _NAMES.get(word, word)
    if name not in DTYPES:
        raise BadLine(Reason("call-unknown", what="dtype", given=text[:24]))
    return name
