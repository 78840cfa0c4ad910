"""Pairs as a suite: discoveries at any look, mirrored, and never taken back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.paired import Looks, rounds_for_one, stopped_p_value, suite_verdicts

LOOKS = Looks()
CHANGED = (VerdictStatus.SLOWER, VerdictStatus.FASTER)
MIRROR = {"slower": "faster", "faster": "slower", "same": "same", "unsure": "unsure"}


def pair(count, ratio=1.0, spread=0.01, seed=0):
    logs = np.random.default_rng(seed).normal(0, spread, (2, count))
    return np.exp(logs[0]), ratio * np.exp(logs[1])


def test_a_pair_alone_is_judged_as_before():
    for ratio in (1.0, 1.02, 0.97):
        (found,) = suite_verdicts(LOOKS, [pair(24, ratio, 0.003)])
        alone = LOOKS.verdict(*pair(24, ratio, 0.003))
        assert (found.status, found.ratio, found.p_value) == (
            alone.status,
            alone.ratio,
            alone.p_value,
        )
        assert found.q_value == stopped_p_value(LOOKS, *pair(24, ratio, 0.003))


def test_the_p_value_pays_for_every_look():
    base, head = [1.0] * 10, [1.1] * 10
    assert stopped_p_value(LOOKS, base, head) == pytest.approx(2 / 2**10 * LOOKS.last / 10)
    # later rounds that say nothing do not take the first look's back
    later = [*head, *[1.0] * 14]
    assert stopped_p_value(LOOKS, [1.0] * 24, later) <= stopped_p_value(LOOKS, base, head)
    assert stopped_p_value(LOOKS, base, base) == 1.0


def test_alone_it_would_count_among_many_it_may_be_chance():
    lone = [1.0] * 10, [1.1] * 10
    noise = [pair(10, seed=i) for i in range(40)]
    assert suite_verdicts(LOOKS, [lone])[0].status is VerdictStatus.SLOWER
    found = suite_verdicts(LOOKS, [lone, *noise])[0]
    assert found.status is VerdictStatus.UNSURE
    assert found.reason.code == "perhaps-chance"
    assert found.q_value is not None
    assert found.q_value > LOOKS.alpha
    assert found.detectable > suite_verdicts(LOOKS, [lone])[0].detectable
    # many that change together are believed
    together = suite_verdicts(LOOKS, [lone] * 30 + noise[:10])
    assert all(one.status is VerdictStatus.SLOWER for one in together[:30])


def test_what_is_found_stays_found():
    """Every pair goes on to the last look: no discovery of an earlier one is lost by others."""
    suite = [pair(24, 1.03 if i < 8 else 1.0, 0.004, seed=i) for i in range(24)]
    before: set[int] = set()
    for rounds in LOOKS.rounds:
        q_values = [
            one.q_value
            for one in suite_verdicts(LOOKS, [(b[:rounds], h[:rounds]) for b, h in suite])
        ]
        now = {i for i, q in enumerate(q_values) if q is not None and q <= LOOKS.alpha}
        assert before <= now
        before = now
    assert before >= set(range(8))


times = st.floats(0.5, 2.0)
rounds_of = st.sampled_from((10, 16)).flatmap(
    lambda n: st.tuples(
        st.lists(times, min_size=n, max_size=n), st.lists(times, min_size=n, max_size=n)
    )
)


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(rounds_of, min_size=1, max_size=6))
def test_swapping_sides_mirrors(pairs):
    there = suite_verdicts(LOOKS, pairs)
    back = suite_verdicts(LOOKS, [(head, base) for base, head in pairs])
    for one, other in zip(there, back, strict=True):
        assert other.status.value == MIRROR[one.status.value]
        assert other.q_value == one.q_value
        assert math.isclose(other.ratio * one.ratio, 1.0)


def test_false_suites_are_rare():
    """Nothing changed in 60 suites of 30 wild pairs: one suite in a hundred may alarm."""
    wrong = 0
    for number in range(60):
        suite = [pair(16, spread=0.05, seed=1000 * number + i) for i in range(30)]
        looks = Looks(rounds=(10, 16))
        wrong += any(one.status in CHANGED for one in suite_verdicts(looks, suite))
    assert wrong <= 3  # 0.6 expected at most


def test_how_many_rounds_one_pair_alone_needs():
    assert rounds_for_one(LOOKS, 1) <= 10
    need = rounds_for_one(Looks(rounds=(10,)), 61)
    assert need == 14
    last = Looks(rounds=(need,))
    quiet = [([1.0] * need, [1.0] * need)] * 60
    found = suite_verdicts(last, [([1.0] * need, [1.1] * need), *quiet])
    assert found[0].status is VerdictStatus.SLOWER
    fewer = Looks(rounds=(need - 1,))
    short = [(b[1:], h[1:]) for b, h in [([1.0] * need, [1.1] * need), *quiet]]
    assert suite_verdicts(fewer, short)[0].status is VerdictStatus.UNSURE
