"""Slow devices of a fleet."""

from __future__ import annotations

import numpy as np
import pytest

from kernelmark.stats.outliers import LEAST_DEVICES, find_slow, slow_threshold


def fleet(count, spread, seed):
    return 100 * np.exp(np.random.default_rng(seed).normal(0, spread, count))


@pytest.mark.parametrize("count", [8, 64])
def test_false_alarms_are_as_rare_as_asked_for(count):
    alpha = 0.05
    fleets = (
        find_slow(fleet(count, 0.01, i), higher_is_better=True, alpha=alpha) for i in range(400)
    )
    assert sum(bool(found.slow) for found in fleets) <= 400 * alpha + 3 * (400 * alpha) ** 0.5


def test_one_of_64_devices_that_is_5_percent_slow_is_found():
    hits = 0
    for i in range(100):
        values = fleet(64, 0.005, i)
        values[7] *= 0.95
        found = find_slow(values, higher_is_better=True)
        hits += found.slow[:1] == (7,)
        assert found.low < found.median < found.high
    assert hits >= 99


def test_a_time_is_slow_above_the_median_and_a_rate_below_it():
    values = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.001, 1.3]
    assert find_slow(values, higher_is_better=False).slow == (7,)
    assert find_slow(values, higher_is_better=True).slow == ()


def test_in_a_uniform_fleet_a_difference_below_the_least_effect_is_no_alarm():
    values = [1.0] * 20
    assert find_slow([*values, 0.995], higher_is_better=True).slow == ()
    assert find_slow([*values, 0.98], higher_is_better=True).slow == (20,)


def test_many_slow_devices_do_not_hide_each_other():
    values = [*fleet(40, 0.003, 3), *(0.9 * fleet(15, 0.003, 4))]
    assert set(find_slow(values, higher_is_better=True).slow) == set(range(40, 55))


def test_too_few_devices_are_not_judged():
    assert find_slow([1.0] * (LEAST_DEVICES - 1), higher_is_better=True) is None


def test_the_threshold_grows_with_certainty_and_for_few_devices():
    assert slow_threshold(64, 0.01) > slow_threshold(64, 0.05)
    assert slow_threshold(6, 0.05) > slow_threshold(64, 0.05)
