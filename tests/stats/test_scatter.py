"""The scatter of rows between equal runs on a CPU, by the rows of one comparison."""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.stats.paired import Scatter, scatter_of


def scattered(rng, rows=24, *, common=0.0, scatter=0.014, error=0.006):
    return common + np.hypot(scatter, error) * rng.standard_normal(rows), np.full(rows, error**2)


def test_the_scatter_of_rows_is_found_beside_changed_ones():
    rng = np.random.default_rng(3)
    clean, dirty = [], []
    for _ in range(40):
        ratios, variances = scattered(rng, common=0.02)
        clean.append(scatter_of(list(ratios), list(variances)))
        ratios[:3] += 0.15
        dirty.append(scatter_of(list(ratios), list(variances)))
    for found in (clean, dirty):
        assert statistics.fmean(s.common for s in found) == pytest.approx(0.02, abs=0.003)
        assert statistics.fmean(s.variance for s in found) == pytest.approx(0.014**2, rel=0.35)
        assert all(s.usual for s in found)


def test_few_rows_have_the_scatter_of_other_machines():
    few = scatter_of([0.05, 0.06, 0.05, 0.04], [1e-6] * 4)
    assert few == Scatter()
    assert few.common == 0.0


def test_a_common_change_is_unusual_only_if_large_and_sure():
    rng = np.random.default_rng(4)
    ratios, variances = scattered(rng, common=0.08)
    assert not scatter_of(list(ratios), list(variances)).usual
    ratios, variances = scattered(rng, common=0.03)
    assert scatter_of(list(ratios), list(variances)).usual
    assert scatter_of([-0.3, 0.2, 0.1, 0.3, -0.1, 0.25], [1e-6] * 6).usual


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-0.5, 0.5), st.floats(1e-8, 1e-2)), min_size=5, max_size=30))
def test_the_scatter_does_not_depend_on_which_side_is_base(rows):
    ratios, variances = map(list, zip(*rows, strict=True))
    there, back = scatter_of(ratios, variances), scatter_of([-r for r in ratios], variances)
    assert back == dataclasses.replace(there, common=-there.common)
    assert min(ratios) - 1e-9 <= there.common <= max(ratios) + 1e-9
    assert there.variance > 0
