"""MXFP4: groups of 32 numbers of 4 bits (f4e2m1) that share one power of two (f8e8m0).

The group's exponent is that of its largest magnitude, rounded up where the magnitude's significand
is 1.75 or more, less two: the largest element then lands in (3, 7) on a grid that ends at 6.
Elements round to nearest, ties to the even code, and saturate at 6. Everything is integer and
power-of-two arithmetic, so a kernel that quantises gives these bits exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernelmark.numerics.floats import decode, encode

GROUP = 32
_BIAS = 127
ROUND_UP = np.uint32(0x200000)  # carries into the exponent from a significand of 1.75 on
INFINITE = 255

Codes = NDArray[np.uint8]


def quantise(values: NDArray[np.float64]) -> tuple[Codes, Codes]:
    """Return (4-bit codes in the shape of `values`, e8m0 codes of its groups along the last axis).

    A last group that is not full is scaled by what it has."""
    grouped = _grouped(np.asarray(values, np.float64))
    scales = scale_codes(np.max(np.abs(grouped), axis=-1))
    exponent = scales.astype(np.int64) - _BIAS
    codes = np.asarray(encode(np.ldexp(grouped, -exponent[..., None]), "f4e2m1"), np.uint8)
    flat = codes.reshape(*grouped.shape[:-2], -1)[..., : values.shape[-1]]
    return flat, scales


def scale_codes(largest: NDArray[np.float64]) -> Codes:
    """e8m0 codes of groups whose largest magnitudes, exact in f32, are given."""
    bits = np.asarray(largest, np.float64).astype(np.float32).view(np.uint32)
    exponent = ((bits + ROUND_UP) >> np.uint32(23)).astype(np.int64)
    codes = np.where(exponent >= INFINITE, 2 * _BIAS, np.maximum(exponent - 2, 0))
    return codes.astype(np.uint8)


def dequantise(codes: Codes, scales: Codes) -> NDArray[np.float64]:
    """Return the numbers that codes and the scales of their groups stand for."""
    factors = np.repeat(decode(scales, "f8e8m0"), GROUP, axis=-1)[..., : codes.shape[-1]]
    return np.asarray(decode(codes, "f4e2m1") * factors, np.float64)


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """`values` after quantising, as numbers."""
    return dequantise(*quantise(values))


def _grouped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    missing = -values.shape[-1] % GROUP
    widths = [(0, 0)] * (values.ndim - 1) + [(0, missing)]
    return np.pad(values, widths).reshape(*values.shape[:-1], -1, GROUP)
