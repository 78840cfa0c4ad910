import numpy as np
import pytest

from kernelmark.iree.ab import ULP_BOUNDS, default_tolerance, measure_divergence


def test_equal_arrays_do_not_diverge():
    values = np.array([[1.0, np.inf], [np.nan, -2.0]])
    found = measure_divergence(values, values.copy(), "f32")
    assert found.passed
    assert (found.max_abs, found.max_rel, found.bad, found.first_bad) == (0.0, 0.0, 0, None)
    assert found.ulps == (4, *[0] * len(ULP_BOUNDS))


def test_the_first_bad_index_and_the_fraction():
    reference = np.ones((2, 3))
    values = reference.copy()
    values[0, 2] += 0.5
    values[1, 1] -= 0.25
    found = measure_divergence(values, reference, "f32", tolerance=0.01)
    assert not found.passed
    assert found.first_bad == (0, 2)
    assert (found.bad, found.fraction_bad) == (2, pytest.approx(1 / 3))
    assert (found.max_abs, found.max_rel) == (0.5, 0.5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_number_that_became_none_is_bad(wrong):
    found = measure_divergence(np.array([1.0, wrong]), np.array([1.0, 1.0]), "f16", tolerance=1e9)
    assert (found.bad, found.first_bad, found.max_abs) == (1, (1,), np.inf)
    assert found.ulps[-1] == 1


def test_units_in_the_last_place_are_those_of_the_dtype():
    step = 2.0**-10  # of f16 at 1
    reference = np.full(4, 1.0)
    values = reference + step * np.array([0.0, 1.0, 3.0, 1000.0])
    ulps = measure_divergence(values, reference, "f16").ulps
    assert dict(zip((*ULP_BOUNDS, "more"), ulps, strict=True)) == {
        0.5: 1,
        1.0: 1,
        2.0: 0,
        4.0: 1,
        16.0: 0,
        256.0: 0,
        "more": 1,
    }


def test_a_small_sum_may_have_the_error_of_its_large_neighbours():
    reference = np.array([1e-6, 100.0])
    off = measure_divergence(np.array([1e-4, 100.0]), reference, "f32", tolerance=1e-5)
    assert off.passed
    assert off.max_rel > 90


def test_integers_must_be_equal():
    assert default_tolerance("i32") == 0.0
    found = measure_divergence(np.array([1.0, 2.0]), np.array([1.0, 3.0]), "i32")
    assert (found.bad, found.first_bad, found.ulps[1]) == (1, (1,), 1)
