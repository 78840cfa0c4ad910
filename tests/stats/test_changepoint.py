"""Steps are found where they are; noise, drift, wild points and two modes are no steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.stats.changepoint import change_points


def white(count, seed, spread=0.004):
    return np.random.default_rng(seed).normal(0, spread, count)


def test_one_step():
    data = white(40, 1)
    data[25:] += 0.03
    (found,) = change_points(data, min_effect=0.01)
    assert found.index == 25
    assert found.size == pytest.approx(0.03, abs=0.004)
    assert found.p_value <= 0.01


def test_several_steps_up_and_down():
    data = white(60, 2)
    data[20:40] += 0.05
    data[50:] -= 0.04
    assert [(s.index, s.size > 0) for s in change_points(data, min_effect=0.01)] == [
        (20, True),
        (40, False),
        (50, False),
    ]


def test_three_points_are_enough_after_a_clear_step():
    data = white(33, 3)
    data[30:] += 0.05
    assert [s.index for s in change_points(data, min_effect=0.01)] == [30]
    assert change_points(data[:32], min_effect=0.01) == []  # two are not


def test_a_step_under_the_floor_is_none():
    data = white(60, 4, spread=0.001)
    data[30:] += 0.008
    assert change_points(data, min_effect=0.01) == []
    assert [s.index for s in change_points(data, min_effect=0.005)] == [30]


def test_wild_points_are_no_steps():
    data = white(50, 5)
    data[[7, 23, 24, 41]] += 0.5
    assert change_points(data, min_effect=0.01) == []


def drifting(count, seed):
    random = np.random.default_rng(seed)
    level, made = random.normal(0, 0.012), []
    for _ in range(count):
        level = 0.95 * level + random.normal(0, 0.012 * np.sqrt(1 - 0.95**2))
        made.append(level + random.normal(0, 0.004))
    return made


def modal(count, seed):
    random = np.random.default_rng(seed)
    return np.where(random.random(count) < 0.25, 0.03, 0.0) + random.normal(0, 0.003, count)


@pytest.mark.parametrize(("make", "allowed"), [(white, 1), (modal, 1), (drifting, 4)])
def test_few_false_steps(make, allowed):
    false = sum(bool(change_points(make(60, seed), min_effect=0.02)) for seed in range(40))
    assert false <= allowed


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=6, max_size=40), st.floats(0.01, 0.5))
def test_steps_are_in_order_and_large_enough(data, floor):
    found = change_points(data, min_effect=floor)
    assert [s.index for s in found] == sorted({s.index for s in found})
    assert all(abs(s.size) >= floor for s in found)
    for before, after in itertools.pairwise(found):
        assert before.after == after.before
