"""Paired rounds, alone and as a suite."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kernelmark.core.units import NOISY, span_text
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.paired import (
    Looks,
    least_rounds,
    paired_verdict,
    rounds_for_one,
    signed_rank,
    stopped_p_value,
    suite_verdicts,
)

MIRROR = {"slower": "faster", "faster": "slower", "same": "same", "unsure": "unsure"}
times = st.floats(1e-6, 1e3)


def rounds(count, ratio=1.0, spread=0.002, seed=0):
    random = np.random.default_rng(seed)
    base = np.exp(random.normal(0, spread, count))
    return base, ratio * np.exp(random.normal(0, spread, count))


def test_p_value_is_that_of_the_exact_test():
    random = np.random.default_rng(3)
    for count in (5, 8, 13, 20):
        values = random.normal(0.3, 1, count)
        theirs = stats.wilcoxon(values, method="exact").pvalue
        assert signed_rank(values, 0.05).p_value == pytest.approx(theirs)


def test_interval_excludes_zero_exactly_when_the_test_rejects():
    random = np.random.default_rng(4)
    for _ in range(200):
        values = random.normal(0.5, 1, 9)
        found = signed_rank(values, 0.05)
        assert (found.low > 0 or found.high < 0) == (found.p_value <= 0.05)
        assert found.low <= found.centre <= found.high


def test_error_rate_by_all_sign_patterns():
    """Under exchangeable labels every sign pattern is as likely: count the false alarms of all."""
    sizes = np.array([0.013, 0.02, 0.04, 0.05, 0.011, 0.09, 0.3, 0.06, 0.07, 0.08])
    alarms = 0
    for signs in itertools.product((1, -1), repeat=len(sizes)):
        head = np.exp(sizes * np.array(signs))
        alarms += paired_verdict([1.0] * len(head), head, alpha=0.05).status in (
            VerdictStatus.SLOWER,
            VerdictStatus.FASTER,
        )
    assert 0 < alarms <= 0.05 * 2 ** len(sizes)


def test_four_verdicts():
    assert paired_verdict(*rounds(16)).status is VerdictStatus.SAME
    slower = paired_verdict(*rounds(16, 1.02))
    assert slower.status is VerdictStatus.SLOWER
    assert slower.low < 1.02 < slower.high
    assert slower.decided
    assert paired_verdict(*rounds(16, 1 / 1.02)).status is VerdictStatus.FASTER
    wild = paired_verdict(*rounds(16, 1.02, spread=0.1))
    assert wild.status is VerdictStatus.UNSURE
    assert not wild.decided
    assert wild.detectable > 0.05


def test_a_sure_change_under_the_floor_is_no_alarm():
    small = paired_verdict(*rounds(16, 1.005, spread=0.0005))
    assert small.status is VerdictStatus.SAME
    edge = paired_verdict(*rounds(16, 1.0098, spread=0.0008))
    assert edge.status is VerdictStatus.UNSURE
    assert edge.reason.code == "perhaps-within"
    assert paired_verdict(*rounds(16, 1.005, spread=0.0005), delta=0.002).status.value == "slower"


def test_too_few_rounds_say_how_many_it_takes():
    found = paired_verdict([1.0] * 5, [2.0] * 5, alpha=0.01)
    assert found.status is VerdictStatus.UNSURE
    assert (found.low, found.high, found.detectable) == (0.0, math.inf, math.inf)
    assert "8" in found.reason
    assert paired_verdict([1.0] * 8, [2.0] * 8, alpha=0.01).status is VerdictStatus.SLOWER
    for alpha in (0.05, 0.01, 0.004):
        need = least_rounds(alpha)
        assert math.isfinite(signed_rank([1.0] * need, alpha).low)
        assert math.isinf(signed_rank([1.0] * (need - 1), alpha).low)


def test_equal_times_are_the_same():
    found = paired_verdict([1.0] * 10, [1.0] * 10)
    assert found.status is VerdictStatus.SAME
    assert (found.ratio, found.p_value) == (1.0, 1.0)


def test_wild_rounds_do_not_move_it():
    base, head = rounds(24, 1.03)
    head[[3, 17]] *= 5
    found = paired_verdict(base, head)
    assert found.status is VerdictStatus.SLOWER
    assert found.ratio == pytest.approx(1.03, abs=0.005)


@settings(max_examples=100, deadline=None)
@given(pairs=st.lists(st.tuples(times, times), min_size=1, max_size=20))
def test_swapping_sides_mirrors(pairs):
    base, head = zip(*pairs, strict=True)
    there, back = paired_verdict(base, head), paired_verdict(head, base)
    assert back.status.value == MIRROR[there.status.value]
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.p_value == there.p_value


@pytest.mark.parametrize(
    ("base", "head"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([math.nan], [1.0])]
)
def test_refuses(base, head):
    with pytest.raises(ValueError, match=r"no rounds|rounds of base|positive and finite"):
        paired_verdict(base, head)


def test_looks_spend_alpha_once():
    looks = Looks(rounds=(10, 16, 24), alpha=0.01)
    spent = [looks.alpha_at(n) for n in looks.rounds]
    assert sum(spent) == pytest.approx(0.01)
    assert (looks.after(0), looks.after(10), looks.after(24)) == (10, 16, None)
    assert looks.last == 24
    with pytest.raises(ValueError, match="no look after 12 rounds"):
        looks.alpha_at(12)
    for bad in ((), (0, 4), (8, 8), (9, 5)):
        with pytest.raises(ValueError, match="increase"):
            Looks(rounds=bad)
    with pytest.raises(ValueError, match="alpha"):
        Looks(alpha=0.0)


def test_stopping_at_looks_keeps_the_error_rate():
    """Symmetric noise with two modes, looked at three times: at most 1 % alarms on average."""
    random = np.random.default_rng(8)
    looks = Looks()
    alarms = 0
    for _ in range(400):
        logs = np.where(random.random((2, 24)) < 0.25, 0.03, 0.0) + random.normal(0, 0.003, (2, 24))
        base, head = np.exp(logs)
        done = 0
        while done < looks.last:
            done = looks.after(done)
            found = looks.verdict(base[:done], head[:done])
            if found.decided:
                break
        alarms += found.status in (VerdictStatus.SLOWER, VerdictStatus.FASTER)
    # 400 × 1 % = 4 expected at most; 11 or more would happen once in 300 such tests
    assert alarms <= 10


def test_bounds_that_are_far_apart_are_not_spelt_out():
    assert span_text(math.log(1.012), math.log(1.034)) == "+1.2 % to +3.4 %"
    assert span_text(math.log(20), math.log(21)) == "+1900.0 % to +2000.0 %"
    assert span_text(math.log(0.1), 30.0) == NOISY
    assert span_text(-800.0, 800.0) == NOISY
    assert span_text(-math.inf, math.inf) == "any size to any size"


LOOKS = Looks()
CHANGED = (VerdictStatus.SLOWER, VerdictStatus.FASTER)


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


suite_times = st.floats(0.5, 2.0)
rounds_of = st.sampled_from((10, 16)).flatmap(
    lambda n: st.tuples(
        st.lists(suite_times, min_size=n, max_size=n), st.lists(suite_times, min_size=n, max_size=n)
    )
)


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(rounds_of, min_size=1, max_size=6))
def test_swapping_sides_mirrors_a_suite(pairs):
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
