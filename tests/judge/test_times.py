"""Times from two lengths: what a kernel can and cannot do to them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from kernelmark.judge import referee
from kernelmark.judge.referee import ROUNDS, _Times

COST_S, LAUNCH_S, COUNT = 1e-4, 2e-5, 150


def times(mine, theirs, *, noise: float = 0.0, seed: int = 0) -> _Times:
    """Rounds of two sides, whose functions return the seconds of a request of n launches."""
    rng, made = np.random.default_rng(seed), _Times(cost_s=COST_S)
    for _ in range(ROUNDS):
        for is_mine, side in ((True, mine), (False, theirs)):
            short_s, long_s = (
                side(n) * (1 + noise * rng.standard_normal()) for n in (COUNT, 2 * COUNT)
            )
            made.add(COUNT, short_s, long_s, is_mine=is_mine)
    return made


def honest(launch_s: float):
    return lambda n: COST_S + n * launch_s


def test_the_cost_of_a_request_cancels():
    made = times(honest(LAUNCH_S), honest(2 * LAUNCH_S))
    assert made.mine_s == pytest.approx(LAUNCH_S)
    assert math.exp(made.ratio().centre) == pytest.approx(0.5)
    assert made.notes() == []


def test_a_slow_short_length_gains_nothing():
    """The short length takes as long as the long one: the difference of both is nothing."""
    made = times(lambda n: COST_S + 2 * COUNT * LAUNCH_S, honest(LAUNCH_S))
    assert made.mine_s == pytest.approx(LAUNCH_S, rel=0.01)
    assert len(made.notes()) == 1


def test_a_delay_that_is_not_noticed_gains_little():
    """The largest gain is that of a delay just below the limit: of the cost and 1 %."""
    gains = []
    for delay_s in np.linspace(0, 1e-3, 101):
        made = times(
            lambda n, d=delay_s: COST_S + n * LAUNCH_S + (d if n == COUNT else 0), honest(LAUNCH_S)
        )
        gains.append(1 - made.mine_s / LAUNCH_S)
    assert max(gains) < 2 * COST_S / (COUNT * LAUNCH_S) + 0.02


def test_swapped_sides_have_the_reciprocal_ratio():
    sides = honest(LAUNCH_S), honest(1.3 * LAUNCH_S)
    one, other = times(*sides), times(*reversed(sides))
    assert one.ratio().centre == pytest.approx(-other.ratio().centre)
    assert one.ratio().low == pytest.approx(-other.ratio().high)


def test_intervals_hold_the_ratio():
    inside = 0
    for seed in range(60):
        ratio = times(honest(LAUNCH_S), honest(LAUNCH_S), noise=0.01, seed=seed).ratio()
        inside += ratio.low <= 0 <= ratio.high
    assert inside >= 52  # of 57 expected at 95 %


def test_a_measurement_has_the_median_and_all_launches():
    made = times(honest(LAUNCH_S), honest(LAUNCH_S), noise=0.003)
    measured = made.measurement(is_mine=True)
    assert measured.median_s == pytest.approx(LAUNCH_S, rel=0.01)
    assert measured.low_s < measured.median_s < measured.high_s
    assert measured.launches == 2 * COUNT
    assert measured.method == "outside"


class _Pairs(referee._Judgement):
    """A judgement whose single launches and rows take prepared times."""

    def __init__(self, pairs: list[tuple[float, float]]) -> None:
        self._pairs = iter(pairs)
        self._notes, self._passed = [], []
        self._device = SimpleNamespace(enqueues=False, cores=(0, 1))
        self._question = SimpleNamespace(problem=None)

    def _single_and_row_s(self, side, checker, times, *, by_request):
        return (1e-2, 1e-2) if side == "reference" else next(self._pairs)


def _compare_singles(pairs: list[tuple[float, float]]) -> _Pairs:
    judgement, timed = _Pairs(pairs), _Times(cost_s=0.0)
    for is_mine in (True, False):
        timed.add(1, 1e-2, 2e-2, is_mine=is_mine)
    judgement._check_singles("kernel", None, "reference", timed)
    return judgement


def test_single_launches_that_other_work_makes_long_are_tried_again():
    pairs = [(2e-2, 1e-2)] * 12 + [(1e-2, 1e-2)] * 4
    assert _compare_singles(pairs)._passed == ["single launches"]


def test_single_launches_that_always_take_longer_are_refused():
    with pytest.raises(referee.Refused):
        _compare_singles([(2e-2, 1e-2)] * 16)
