"""MXFP4: groups of 32 numbers of 4 bits (f4e2m1) that share one power of two (f8e8m0).

The group's exponent is that of its largest magnitude, rounded up if its significand is 1.75 or
more, minus two: the largest element is then in (3, 7), and the largest f4e2m1 is 6. Elements round
to nearest, ties to the even code, and saturate at 6. Everything is integer and power-of-two
arithmetic, so that a kernel that quantises produces exactly these bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernelmark.numerics.floats import decode, encode

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
