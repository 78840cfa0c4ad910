"""Spreads that learn from each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import polygamma

from kernelmark.stats.corrections import Common, _inverse_trigamma, common


def variances(spread, rows, count, seed=0):
    random = np.random.default_rng(seed)
    sigma = 0.01 * np.exp(random.normal(0, spread, rows))
    return list((random.normal(0, 1, (rows, count)) * sigma[:, None]).var(axis=1, ddof=1))


def test_equal_spreads_are_found_and_trusted():
    found = common(variances(0.0, 300, 3), [2] * 300)
    assert found.dof == 1.0
    assert found.variance == pytest.approx(1e-4, rel=0.15)


def test_unequal_spreads_are_trusted_less():
    equal, unequal = (common(variances(s, 300, 6), [5] * 300) for s in (0.0, 2.5))
    assert 0 < unequal.dof < equal.dof


def test_few_rows_say_nothing():
    assert common([1.0] * 4, [2] * 4) == Common()
    assert common([0.0] * 50, [2] * 50) == Common()
    assert common([], []) == Common()


def test_mixing():
    own, dof = Common().mixed(2.0, 3.0)
    assert (own, dof) == (2.0, 3.0)
    mixed, dof = Common(variance=4.0, dof=2.0).mixed(1.0, 1.0)
    assert (mixed, dof) == (3.0, 3.0)


@pytest.mark.parametrize("x", [0.05, 0.5, 1.0, 7.0, 300.0])
def test_inverse_trigamma(x):
    assert _inverse_trigamma(float(polygamma(1, x))) == pytest.approx(x, rel=1e-6)
