"""Times that follow the core clock."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.stats.corrections import clock_line
from kernelmark.stats.interval import block_interval, serial_factor


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
