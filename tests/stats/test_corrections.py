"""Corrections to the rows of a comparison."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import polygamma

from kernelmark.stats.interval import block_interval, serial_factor
from kernelmark.stats.paired import Common, _inverse_trigamma, adjusted, clock_line, common


def run(count: int, *, slope: float, clock: float, noise: float, seed: int):
    rng = np.random.default_rng(seed)
    clocks = math.log(clock) + 0.03 * rng.standard_normal(count)
    times = slope * clocks + noise * rng.standard_normal(count)
    return list(times), list(clocks)


@given(st.floats(-1.2, -0.5), st.integers(0, 1000))
def test_the_slope_within_runs_is_found_whatever_lies_between_them(slope, seed):
    first = run(20, slope=slope, clock=1500, noise=0.002, seed=seed)
    second = run(20, slope=slope, clock=1600, noise=0.002, seed=seed + 1)
    slower = [t + 0.5 for t in second[0]]  # another kernel: must not bend the line
    line = clock_line([first[0], slower], [first[1], second[1]])
    assert line is not None
    assert line.slope == pytest.approx(slope, abs=6 * line.error)
    moved = [
        np.mean([line.moved(t, c) for t, c in zip(*side, strict=True)])
        for side in (first, (slower, second[1]))
    ]
    assert moved[1] - moved[0] == pytest.approx(0.5, abs=0.01)


def test_times_that_do_not_follow_the_clock_have_no_line():
    flat = run(20, slope=0.0, clock=1500, noise=0.01, seed=1)
    assert clock_line([flat[0], flat[0]], [flat[1], flat[1]]) is None
    rising = run(20, slope=1.0, clock=1500, noise=0.001, seed=1)
    assert clock_line([rising[0]], [rising[1]]) is None


def test_few_blocks_or_a_clock_that_stands_still_have_no_line():
    few = run(3, slope=-1.0, clock=1500, noise=0.001, seed=1)
    assert clock_line([few[0], few[0]], [few[1], few[1]]) is None
    assert clock_line([[0.0, 0.1] * 5], [[7.0] * 10]) is None


def test_blocks_that_resemble_their_neighbours_widen_the_interval():
    rng = np.random.default_rng(3)
    alone = list(0.03 * rng.standard_normal(200))
    swinging = [0.0]
    for step in alone[1:]:
        swinging.append(0.5 * swinging[-1] + step)
    assert serial_factor(alone) == pytest.approx(1.0, abs=0.15)
    assert serial_factor(swinging) == pytest.approx(math.sqrt(3), rel=0.2)
    assert serial_factor(swinging[:7]) == 1.0
    assert serial_factor([1.0] * 20) == 1.0
    alternating = [0.01, -0.01] * 10
    assert serial_factor(alternating) == 1.0
    times = [math.exp(x) for x in swinging]
    sizes = []
    for order in (times, list(rng.permutation(times))):
        low, high = block_interval(order)
        sizes.append(math.log(high / low))
    assert sizes[0] > 1.3 * sizes[1]


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
