"""MXFP4 bit for bit: against its definition written out number by number, and ml_dtypes' f4."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.numerics.floats import GROUP, dequantise, encode, quantise, rounded, scale_codes

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
bf16 = st.integers(0, 2**16 - 1).filter(lambda bits: (bits >> 7) & 0xFF not in (0, 0xFE, 0xFF))


def value_of(bits):
    return float(np.array([bits << 16], np.uint32).view(np.float32)[0])


def slow_scale(largest):
    """The group's code by logarithms, as the format's users write it."""
    if largest == 0:
        return 0
    fraction, exponent = math.frexp(largest)  # largest = fraction · 2^exponent, 0.5 ≤ fraction < 1
    floor = exponent - 1 + (fraction >= 0.875)
    return min(max(floor - 2, -127), 127) + 127


def slow_code(value, scale):
    """The nearest number of the grid by trying all; the even code wins a tie."""
    size = abs(value) / 2.0 ** (scale - 127)
    best = min(range(8), key=lambda code: (abs(GRID[code] - min(size, 6.0)), code % 2))
    return best | (8 if math.copysign(1, value) < 0 else 0)


@given(st.lists(bf16, min_size=1, max_size=3 * GROUP))
def test_every_bit_is_the_definition_s(bits):
    values = np.array([value_of(b) for b in bits])
    codes, scales = quantise(values)
    for start in range(0, len(values), GROUP):
        part = values[start : start + GROUP]
        scale = slow_scale(float(np.abs(part).max()))
        assert scales[start // GROUP] == scale
        assert codes[start : start + GROUP].tolist() == [slow_code(v, scale) for v in part]


def test_many_random_values_and_all_ties():
    rng = np.random.default_rng(1)
    grid = np.array(GRID)
    ties = (grid[1:] + grid[:-1]) / 2
    values = np.concatenate([rng.normal(size=20_000), rng.uniform(-8, 8, 20_000)])
    values = values.astype(ml_dtypes.bfloat16).astype(np.float64)
    for start in range(0, len(values), GROUP):
        values[start] = 4.0  # the scale is one: the ties stay ties
        values[start + 1 : start + 8] = ties * rng.choice([-1, 1], 7)
    values = np.clip(values, -6.9, 6.9)
    codes, scales = quantise(values)
    for start in range(0, len(values), GROUP):
        assert scales[start // GROUP] == slow_scale(float(np.abs(values[start:][:GROUP]).max()))
    known = dequantise(np.zeros_like(codes), scales)
    assert not known.any()
    factors = np.repeat(2.0 ** (scales.astype(float) - 127), GROUP)
    their = (values / factors).astype(np.float32).astype(ml_dtypes.float4_e2m1fn)
    assert np.array_equal(codes, their.view(np.uint8) & 15)


@pytest.mark.parametrize(
    ("largest", "code"),
    [
        (0.0, 0),
        (1.0, 125),
        (1.7421875, 125),
        (1.75, 126),
        (6.0, 127),
        (7.0, 128),
        (2.0**-140, 0),
        (2.9e38, 252),
        (3.39e38, 254),
    ],
)
def test_scales_at_the_edges(largest, code):
    assert scale_codes(np.array([largest]))[0] == code


def test_saturates_and_keeps_zero_and_sign():
    values = np.zeros(GROUP)
    values[:4] = (6.9, -6.9, -0.0, 0.24)
    codes, scales = quantise(values)
    assert scales.tolist() == [127]
    assert codes[:5].tolist() == [7, 15, 8, 0, 0]


@given(st.lists(bf16, min_size=GROUP, max_size=GROUP))
def test_quantising_twice_is_quantising_once(bits):
    once = rounded(np.array([value_of(b) for b in bits]))
    codes, scales = quantise(once)
    largest = np.abs(once).max()
    if largest / 2.0 ** (float(scales[0]) - 127) <= 6:  # a group that rounded up may rescale
        assert np.array_equal(dequantise(codes, scales), once)


def test_codes_agree_with_the_codec():
    assert encode(np.array([5.0, 2.5, -0.25]), "f4e2m1").tolist() == [6, 4, 8]
