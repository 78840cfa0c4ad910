"""Encode and decode agree with ml_dtypes bit for bit."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.dtype import dtype
from kernelmark.numerics.floats import decode, encode, storage

KNOWN = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f4e2m1": ml_dtypes.float4_e2m1fn,
    "f8e8m0": ml_dtypes.float8_e8m0fnu,
}
SMALL = [name for name in KNOWN if dtype(name).bits <= 16]


def as_known(values, name):
    """By ml_dtypes, from float32: from float64 it would round twice."""
    single = np.asarray(values).astype(np.float32)
    assert np.array_equal(single.astype(np.float64), values, equal_nan=True) or name == "f64"
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.asarray(values) if name == "f64" else single).astype(KNOWN[name])


def comparable(values, name):
    """A scale (f8e8m0) is positive, and ml_dtypes misrounds float32's subnormals to it; f4 has no
    code for NaN."""
    if name == "f8e8m0":
        return values[~(values < 2.0**-126)]
    return values[~np.isnan(values)] if name == "f4e2m1" else values


def same(bits, expected, name):
    """Equal bits, where any NaN is as good as another."""
    expected_bits = expected.view(storage(name))
    nan = np.isnan(expected.astype(np.float64))
    return (
        np.array_equal(bits[~nan], expected_bits[~nan]) and np.isnan(decode(bits, name)[nan]).all()
    )


def every_code(name):
    return np.arange(2 ** dtype(name).bits).astype(storage(name))


@pytest.mark.parametrize("name", SMALL)
def test_every_code_decodes_as_ml_dtypes_does(name):
    with np.errstate(invalid="ignore"):
        expected = every_code(name).view(KNOWN[name]).astype(np.float64)
    found = decode(every_code(name), name)
    assert np.array_equal(found, expected, equal_nan=True)
    number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(found)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("name", SMALL)
def test_every_code_survives_decode_and_encode(name):
    values = decode(every_code(name), name)
    number = ~np.isnan(values)
    assert np.array_equal(encode(values, name)[number], every_code(name)[number])


def midpoints(name):
    values = decode(every_code(name), name)
    values = np.unique(values[np.isfinite(values)])
    return (values[:-1] + values[1:]) / 2, values


@pytest.mark.parametrize("name", SMALL)
def test_midpoints_and_their_neighbours_round_as_ml_dtypes_does(name):
    middle, values = midpoints(name)
    middle = middle.astype(np.float32)
    infinity = np.float32(np.inf)
    beyond = values[-1] * np.array([1.0, 1.03125, 1.0625, 1.125, 1.25, 1.5, 1.75, 1.9])
    tried = np.concatenate(
        [middle, np.nextafter(middle, infinity), np.nextafter(middle, -infinity), beyond, -beyond]
    )
    tried = np.concatenate([tried, [0.0, -0.0, np.inf, -np.inf, np.nan]])
    with np.errstate(over="ignore"):
        tried = tried.astype(np.float32)
    tried = comparable(tried.astype(np.float64), name)
    assert same(encode(tried, name), as_known(tried, name), name)


@pytest.mark.parametrize("name", SMALL)
def test_a_hair_beside_a_midpoint_goes_to_the_nearer(name):
    middle, values = midpoints(name)
    above = decode(encode(np.nextafter(middle, np.inf), name), name)
    below = decode(encode(np.nextafter(middle, -np.inf), name), name)
    assert np.array_equal(above, values[1:])
    assert np.array_equal(below, values[:-1])


@pytest.mark.parametrize("name", KNOWN)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_any_float_rounds_as_ml_dtypes_does(name, values):
    tried = comparable(np.array(values), name)
    assert same(encode(tried, name), as_known(tried, name), name)


def test_bf16_does_not_round_twice():
    just_above_tie = 1 + 2.0**-8 + 2.0**-40
    assert decode(encode(np.array([just_above_tie]), "bf16"), "bf16")[0] == 1 + 2.0**-7


@pytest.mark.parametrize(("name", "low", "high"), [("i8", -128, 127), ("i32", -(2**31), 2**31 - 1)])
def test_integers_round_to_even_and_saturate(name, low, high):
    values = np.array([0.5, 1.5, -0.5, -2.5, 1e30, -1e30, low, high])
    assert decode(encode(values, name), name).tolist() == [0, 2, 0, -2, high, low, low, high]


@pytest.mark.parametrize("name", [n for n in KNOWN if n != "f8e8m0"])
def test_unit_roundoff_and_smallest_step_bound_the_rounding(name):
    kind = dtype(name)
    rng = np.random.default_rng(1)
    values = rng.uniform(-1, 1, 5000) * 2.0 ** rng.integers(-20, 3, 5000)
    error = np.abs(decode(encode(values, name), name) - values)
    assert (error <= kind.unit_roundoff * np.abs(values) + kind.smallest_step / 2).all()


@pytest.mark.parametrize("name", SMALL)
def test_largest_value_of_the_table_is_the_dtypes(name):
    values = decode(np.arange(2 ** dtype(name).bits).astype(storage(name)), name)
    assert values[np.isfinite(values)].max() == dtype(name).max_value
    assert np.isinf(values).any() == dtype(name).has_inf
