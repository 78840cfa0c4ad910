"""Robust location and scale, and the t distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kernelmark.stats.interval import mad, median, quantile, t_distribution, t_quantile

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=40)


@given(TIMES)
def test_mad_agrees_with_scipy(times: list[float]) -> None:
    assert mad(times) == pytest.approx(stats.median_abs_deviation(times), rel=1e-12, abs=1e-300)


@given(TIMES, st.sampled_from([2.0**-20, 0.5, 2.0, 2.0**20]))
def test_estimators_scale_with_the_unit(times: list[float], factor: float) -> None:
    scaled = [t * factor for t in times]
    for estimate in (median, mad, lambda s: quantile(s, 0.9)):
        assert estimate(scaled) == pytest.approx(estimate(times) * factor, rel=1e-12)


@given(TIMES)
def test_location_lies_among_the_samples(times: list[float]) -> None:
    for estimate in (median, lambda s: quantile(s, 0.3)):
        assert min(times) * (1 - 1e-12) <= estimate(times) <= max(times) * (1 + 1e-12)


def test_one_wild_sample_moves_nothing() -> None:
    quiet = list(np.linspace(1.0, 1.02, 21))
    wild = [*quiet, 1e6]
    assert median(wild) == pytest.approx(median(quiet), rel=1e-3)


def test_scaled_mad_estimates_the_standard_deviation() -> None:
    values = np.random.default_rng(3).normal(10.0, 2.0, 20_000)
    assert mad(values, scaled=True) == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("dof", [1, 2, 3, 5, 9, 29, 100, 1000])
@pytest.mark.parametrize("share", [0.001, 0.025, 0.2, 0.5, 0.9, 0.975, 0.995, 0.9999])
def test_agrees_with_scipy(share: float, dof: int) -> None:
    expected = stats.t.ppf(share, dof)
    assert t_quantile(share, dof) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.floats(0.001, 0.999), st.integers(1, 400))
def test_quantile_inverts_the_distribution(share: float, dof: int) -> None:
    assert t_distribution(t_quantile(share, dof), dof) == pytest.approx(share, abs=1e-10)
