"""Encoding and decoding of number formats as bits, with numpy alone.

Rounding is to nearest, ties to even (in f8e8m0, which has only powers of two, ties go up). A finite
value beyond the format's largest becomes infinity where the format has one, else NaN. Float32
values give the same bits as ml_dtypes; float64 values round once, where ml_dtypes rounds twice.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.dtype import DType, dtype

Bits = NDArray[np.generic]

_NATIVE = {"f64": np.float64, "f32": np.float32, "tf32": np.float32, "f16": np.float16}
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def storage(dtype_name: str) -> np.dtype[np.generic]:
    """Return the unsigned integer type for one element's bits (an unpacked f4 takes a byte)."""
    return np.dtype(_UNSIGNED[max(8, dtype(dtype_name).bits)])


def encode(values: NDArray[np.float64], dtype_name: str) -> Bits:
    """Return the bit patterns of float64 values rounded to the dtype."""
    kind = dtype(dtype_name)
    if dtype_name in _NATIVE:
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(_NATIVE[dtype_name]).view(storage(dtype_name))
    if kind.kind == "int":
        signed = np.int8 if kind.bits == 8 else np.int32
        top = kind.max_value
        return np.clip(np.rint(values), -top - 1, top).astype(signed).view(storage(dtype_name))
    if dtype_name == "bf16":
        return _encode_bf16(values)
    return _encode_small(np.asarray(values, np.float64), kind)


def decode(bits: Bits, dtype_name: str) -> NDArray[np.float64]:
    """Return the exact float64 values of bit patterns."""
    kind = dtype(dtype_name)
    if dtype_name in _NATIVE:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return bits.view(_NATIVE[dtype_name]).astype(np.float64)
    if kind.kind == "int":
        signed = np.int8 if kind.bits == 8 else np.int32
        return bits.view(signed).astype(np.float64)
    if dtype_name == "bf16":
        with np.errstate(invalid="ignore"):
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return np.asarray(_table(dtype_name)[bits], np.float64)


def _encode_bf16(values: NDArray[np.float64]) -> Bits:
    """Round from float64 in one step: going through float32 would round twice."""
    values = np.asarray(values, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        _, exponent = np.frexp(values)
        exponent = np.maximum(exponent, dtype("bf16").min_exponent + 1)
        step = exponent - 8
        rounded = np.ldexp(np.rint(np.ldexp(values, -step)), step)
        rounded = np.where(np.isfinite(values), rounded, values)
        high = rounded.astype(np.float32).view(np.uint32) >> np.uint32(16)
    high = np.where(np.isnan(values), np.uint32(0x7FC0), high)
    return high.astype(np.uint16)


@functools.cache
def _table(dtype_name: str) -> NDArray[np.float64]:
    """Return every value of a format of at most 8 bits, indexed by its bits."""
    kind = dtype(dtype_name)
    if dtype_name == "f8e8m0":
        powers = np.exp2(np.arange(256, dtype=np.float64) - 127.0)
        powers[255] = np.nan
        return powers
    fraction_bits = kind.digits - 1
    exponent_bits = kind.bits - 1 - fraction_bits
    codes = np.arange(2**kind.bits)
    sign = np.where(codes >> (kind.bits - 1), -1.0, 1.0)
    exponent = (codes >> fraction_bits) & (2**exponent_bits - 1)
    fraction = (codes & (2**fraction_bits - 1)) / 2**fraction_bits
    bias = 1 - kind.min_exponent
    scale = 2.0 ** (np.maximum(exponent, 1) - bias)
    table = sign * scale * (fraction + (exponent > 0))
    half = 2 ** (kind.bits - 1)
    if dtype_name.endswith("fnuz"):
        table[half] = np.nan
    elif dtype_name == "f8e4m3":
        table[[half - 1, 2 * half - 1]] = np.nan
    elif kind.has_inf:
        top = exponent == 2**exponent_bits - 1
        table = np.where(top, np.where(fraction == 0, sign * np.inf, np.nan), table)
    return np.asarray(table, np.float64)


@functools.cache
def _ordered(dtype_name: str) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Return the finite non-negative values in ascending order, with their codes."""
    table = _table(dtype_name)
    codes = np.flatnonzero(np.isfinite(table) & ~np.signbit(table))
    order = np.argsort(table[codes], kind="stable")
    return table[codes][order], codes[order].astype(np.uint8)


def _encode_small(values: NDArray[np.float64], kind: DType) -> Bits:
    """Return the nearest codes in a format of at most 8 bits; ties go to the even code."""
    bounds, codes = _nearest(kind.name)
    result = codes[np.searchsorted(bounds, np.abs(values), side="right")]
    if kind.name == "f8e8m0":
        return np.where(np.isnan(values) | (values < 0), np.uint8(255), result)
    negative = np.signbit(values)
    if kind.name.endswith("fnuz"):
        negative &= result != 0
    coded = result | (negative.astype(np.uint8) << np.uint8(kind.bits - 1))
    return np.where(np.isnan(values), np.uint8(_nan_code(kind)), coded)


@functools.cache
def _nearest(dtype_name: str) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Return ascending bounds of magnitudes, and the codes of the magnitudes between them: the nth
    code's begin at bound n - 1. Beyond the last, infinity, NaN or, in f4, the largest value."""
    finite, codes = _ordered(dtype_name)
    ties_up = dtype_name == "f8e8m0"
    step = finite[-1] if ties_up else finite[-1] - finite[-2]
    middles = (finite + np.append(finite[1:], finite[-1] + step)) / 2
    # The code after an odd one is even, also after that of the largest value.
    reached = ties_up | (codes % 2 == 1)
    bounds = np.where(reached, middles, np.nextafter(middles, np.inf))
    kind = dtype(dtype_name)
    beyond = {"f4e2m1": 7, "f8e5m2": 0x7C}.get(dtype_name, _nan_code(kind))
    return bounds, np.append(codes, np.uint8(beyond))


def _nan_code(kind: DType) -> int:
    if kind.name.endswith("fnuz"):
        return 0x80
    return {"f8e4m3": 0x7F, "f8e5m2": 0x7E, "f8e8m0": 0xFF}.get(kind.name, 0)


GROUP = 32
_BIAS = 127
ROUND_UP = np.uint32(0x200000)  # carries into the exponent for significands of 1.75 or more
INFINITE = 255

Codes = NDArray[np.uint8]


def quantise(values: NDArray[np.float64]) -> tuple[Codes, Codes]:
    """Return (4-bit codes in the shape of `values`, e8m0 codes of its groups along the last axis).

    An incomplete last group is scaled by the elements that it has.
    """
    grouped = _grouped(np.asarray(values, np.float64))
    scales = scale_codes(np.max(np.abs(grouped), axis=-1))
    exponent = scales.astype(np.int64) - _BIAS
    codes = np.asarray(encode(np.ldexp(grouped, -exponent[..., None]), "f4e2m1"), np.uint8)
    flat = codes.reshape(*grouped.shape[:-2], -1)[..., : values.shape[-1]]
    return flat, scales


def scale_codes(largest: NDArray[np.float64]) -> Codes:
    """Return the e8m0 codes of groups with these largest magnitudes, which are exact in f32."""
    bits = np.asarray(largest, np.float64).astype(np.float32).view(np.uint32)
    exponent = ((bits + ROUND_UP) >> np.uint32(23)).astype(np.int64)
    codes = np.where(exponent >= INFINITE, 2 * _BIAS, np.maximum(exponent - 2, 0))
    return codes.astype(np.uint8)


def dequantise(codes: Codes, scales: Codes) -> NDArray[np.float64]:
    """Return the values of codes with the scales of their groups."""
    factors = np.repeat(decode(scales, "f8e8m0"), GROUP, axis=-1)[..., : codes.shape[-1]]
    return np.asarray(decode(codes, "f4e2m1") * factors, np.float64)


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `values` quantised and dequantised."""
    return dequantise(*quantise(values))


def _grouped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    missing = -values.shape[-1] % GROUP
    widths = [(0, 0)] * (values.ndim - 1) + [(0, missing)]
    return np.pad(values, widths).reshape(*values.shape[:-1], -1, GROUP)
