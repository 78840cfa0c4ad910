"""Noisy binary search: exact without noise, right most times with it, honest where it cannot be."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from kernelmark.stats.changepoint import Search, SoughtStep


def run(search: Search, answer, most: int = 10_000) -> int:
    """Ask until the search ends; the rounds it took."""
    used = 0
    while (place := search.next) is not None and used < most:
        logs: list[float] = []
        before = list(search.rounds.get(place, ()))
        while not search.step.is_settled([*before, *logs]):
            logs += [answer(place), answer(place)]
        search.add(place, logs)
        used += len(logs)
    return used


@pytest.mark.parametrize("culprit", [1, 2, 7, 15, 16])
def test_without_noise_it_is_plain_bisection(culprit):
    search = Search(16, SoughtStep(size=math.log(1.5), spread=0.01))
    run(search, lambda place: math.log(1.5) if place >= culprit else 0.0)
    assert search.best[:2] == (culprit, culprit)
    assert search.best[2] >= 0.95
    assert len(search.rounds) <= 7


def test_two_candidates_need_no_search():
    search = Search(1, SoughtStep(size=0.1))
    assert search.next is None
    assert search.best == (1, 1, 1.0)


@pytest.mark.parametrize("size", [0.03, -0.03])
def test_noise_as_large_as_the_step_costs_rounds_not_the_result(size):
    right = 0
    for seed in range(100):
        rng = random.Random(seed)
        culprit = rng.randrange(1, 33)
        ends = [rng.gauss(size, 0.02) for _ in range(16)]
        search = Search(32, SoughtStep.of_rounds(ends, size))
        run(search, lambda q, c=culprit, r=rng: r.gauss(size if q >= c else 0.0, 0.02))
        right += search.best[0] == culprit
    assert right >= 93


def test_places_that_cannot_be_built_leave_a_range():
    search = Search(8, SoughtStep(size=0.5, spread=0.01))
    for place in (3, 4):
        search.skip(place)
    run(search, lambda place: 0.5 if place >= 4 else 0.0)
    assert search.best[:2] == (3, 5), "2 is before the step, 5 after, and those between are unknown"


def test_what_broke_is_found_by_whether_it_works():
    search = Search(64, SoughtStep(broken=True))
    asked = 0
    while (place := search.next) is not None:
        search.add(place, failed=place >= 40)
        asked += 1
    assert search.best[:2] == (40, 40)
    assert asked <= 10


def test_a_kernel_that_fails_is_no_answer_about_its_time():
    search = Search(4, SoughtStep(size=0.5, spread=0.01))
    search.add(2, failed=True)
    assert search.untestable == {2}


def test_a_refuted_place_is_left_for_the_next_best():
    search = Search(4, SoughtStep(size=0.5, spread=0.01))
    run(search, lambda place: 0.5 if place >= 3 else 0.0)
    assert search.best[0] == 3
    search.refute(3)
    assert search.next in (2, 3), "measured again"
    run(search, lambda place: 0.5 if place >= 2 else 0.0)
    assert search.best[:2] == (2, 2)


def test_probabilities_are_ones_sum_and_only_evidence_moves_them():
    search = Search(5, SoughtStep(size=0.1, spread=0.05))
    assert np.allclose(search.probabilities, 0.2)
    search.add(2, [0.1, 0.1])
    assert search.probabilities.sum() == pytest.approx(1.0)
    assert search.probabilities[0] > search.probabilities[3]


def test_one_outlier_decides_nothing():
    step = SoughtStep(size=0.03, spread=0.003)
    assert not step.is_settled([5.0])
    assert step.odds([5.0, -5.0]) == 0.0


def test_a_stored_search_goes_on_as_it_was():
    search = Search(9, SoughtStep(size=0.2, spread=0.05))
    search.add(4, [0.1, 0.2])
    search.skip(5)
    other = Search(9, search.step)
    other.restore(**search.document())
    assert np.array_equal(other.probabilities, search.probabilities)
    assert other.next == search.next


@pytest.mark.parametrize("confidence", [0.2, 1.0])
def test_what_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence"):
        Search(4, SoughtStep(), confidence)
    with pytest.raises(ValueError, match="no candidate"):
        Search(0, SoughtStep())
