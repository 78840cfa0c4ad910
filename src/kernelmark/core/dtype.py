"""The number formats of problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernelmark.core.errors import ProblemError


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """A number format. For floats, `digits` counts the significand with its hidden bit."""

    name: str
    bits: int
    kind: Literal["float", "int"]
    digits: int
    min_exponent: int = 0
    max_value: float = 0.0
    has_inf: bool = True

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding to nearest; 0 for integers."""
        return 2.0**-self.digits if self.kind == "float" else 0.0

    @property
    def smallest_step(self) -> float:
        """The spacing of subnormal numbers, twice the smallest absolute error bound."""
        if self.kind == "int":
            return 0.0
        return float(2.0 ** (self.min_exponent - (self.digits - 1)))

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` packed elements."""
        return (count * self.bits + 7) // 8

    def __str__(self) -> str:
        return self.name


def _float(name: str, bits: int, digits: int, emin: int, top: float, *, inf: bool = True) -> DType:
    return DType(
        name=name,
        bits=bits,
        kind="float",
        digits=digits,
        min_exponent=emin,
        max_value=top,
        has_inf=inf,
    )


_ALL = (
    _float("f64", 64, 53, -1022, 1.7976931348623157e308),
    _float("f32", 32, 24, -126, 3.4028234663852886e38),
    # tf32 is an arithmetic mode of the matrix units: stored as f32, multiplied with 11 digits.
    _float("tf32", 32, 11, -126, 3.4011621342146535e38),
    _float("f16", 16, 11, -14, 65504.0),
    _float("bf16", 16, 8, -126, 3.3895313892515355e38),
    _float("f8e4m3", 8, 4, -6, 448.0, inf=False),
    _float("f8e5m2", 8, 3, -14, 57344.0),
    _float("f8e4m3fnuz", 8, 4, -7, 240.0, inf=False),
    _float("f8e5m2fnuz", 8, 3, -15, 57344.0, inf=False),
    _float("f4e2m1", 4, 2, 0, 6.0, inf=False),
    _float("f8e8m0", 8, 1, -127, 1.7014118346046923e38, inf=False),
    DType(name="i8", bits=8, kind="int", digits=7, max_value=127.0, has_inf=False),
    DType(name="i32", bits=32, kind="int", digits=31, max_value=2147483647.0, has_inf=False),
)
DTYPES: dict[str, DType] = {d.name: d for d in _ALL}

# torch's names; NumPy uses the same ones for the formats it has.
TORCH_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "i32": "int32",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
}
BY_TORCH_NAME = {theirs: ours for ours, theirs in TORCH_NAMES.items()}

# Names in other tools, for hints.
_OTHERWISE = BY_TORCH_NAME | {"fp64": "f64", "fp32": "f32", "fp16": "f16", "half": "f16"}
_OTHERWISE |= {"fp8": "f8e4m3", "fp8_e4m3": "f8e4m3", "fp8_e5m2": "f8e5m2", "fp4": "f4e2m1"}


def foreign_dtype(kind: object) -> str | None:
    """Return the name of a dtype or scalar type of NumPy, ml_dtypes or torch; None for others."""
    name = kind.__name__ if isinstance(kind, type) else str(kind).removeprefix("torch.")
    return None if isinstance(kind, str) else BY_TORCH_NAME.get(name)


def dtype(name: str) -> DType:
    """Return the format called `name`; raise a ProblemError that lists the known ones."""
    try:
        return DTYPES[name]
    except KeyError:
        lower = str(name).lower()
        close = lower if lower in DTYPES else _OTHERWISE.get(lower)
        meant = f"did you mean {close}? " if close else ""
        raise ProblemError(
            f"unknown dtype {name!r}", hint=f"{meant}known dtypes: {', '.join(DTYPES)}"
        ) from None
