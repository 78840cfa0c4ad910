"""Benjamini–Hochberg against scipy's and against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kernelmark.stats.corrections import adjusted


def discoveries(p_values, q):
    return [value <= q for value in adjusted(p_values)]


shares = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(shares)
def test_as_scipy(values):
    assert adjusted(values) == pytest.approx(list(stats.false_discovery_control(values)))


@given(shares, st.floats(0.001, 0.5))
def test_by_definition(values, q):
    """The largest k with p_(k) ≤ q·k/m decides; up to rounding at the threshold itself."""
    ordered = sorted(values)
    passing = [k for k, p in enumerate(ordered, 1) if p * len(values) / k <= q]
    assert sum(discoveries(values, q)) >= (max(passing) if passing else 0)
    limit = ordered[max(passing) - 1] if passing else -1.0
    assert all(
        found == (p <= limit) for p, found in zip(values, discoveries(values, q), strict=True)
    )


def test_edges():
    assert adjusted([]) == []
    assert discoveries([0.01], 0.01) == [True]
    assert discoveries([0.01, 0.9], 0.01) == [False, False]
    with pytest.raises(ValueError, match="between 0 and 1"):
        adjusted([1.5])
    with pytest.raises(ValueError, match="between 0 and 1"):
        adjusted([float("nan")])


def test_rate_of_false_discoveries():
    random = np.random.default_rng(1)
    false = found = 0
    for _ in range(200):
        values = random.random(50)
        values[:10] = random.random(10) * 1e-4
        hits = discoveries(list(values), 0.1)
        found += sum(hits)
        false += sum(hits[10:])
    assert false / found < 0.1
