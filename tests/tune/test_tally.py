"""How long a tuning run is expected to take."""

import math
import types

import pytest

from kernelmark.core.environment import DeviceInfo
from kernelmark.runners.forecast import Means
from kernelmark.tune.finals import timings
from kernelmark.tune.progress import Tally
from kernelmark_dev.tuning import fake_plans

CPU = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="x", cache_bytes=1 << 20)
TIMING_S = 1.0


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))


@pytest.fixture
def clock(monkeypatch):
    now = types.SimpleNamespace(s=0.0)
    clock = types.SimpleNamespace(monotonic=lambda: now.s)
    monkeypatch.setattr("kernelmark.tune.progress.time", clock)
    return now


def tuned(clock, sets):
    """Tune a plan whose final takes its timings `sets` times; the seconds of it."""
    (plan,) = fake_plans(1)
    made = Tally([plan], math.inf, CPU)
    begun, limit = clock.s, plan.budget.evaluations
    made.began(plan.name, 0, limit)
    for _ in range(limit):
        clock.s += TIMING_S
        made.count_trial(plan.name, candidate=True, final=False)
    for _ in range(sets * timings(plan, limit)):
        clock.s += TIMING_S
        made.count_trial(plan.name, candidate=False, final=True)
    made.ended(types.SimpleNamespace(name=plan.name, evaluations=limit))
    made.learn()
    return clock.s - begun


def expected(clock):
    (plan,) = fake_plans(1)
    made = Tally([plan], math.inf, CPU)
    made.began(plan.name, 0, plan.budget.evaluations)
    return made.progress.left_s


@pytest.mark.parametrize("sets", [1, 3])
def test_a_run_is_expected_to_take_what_the_last_ones_took(clock, sets):
    took_s = [tuned(clock, sets) for _ in range(3)][-1]
    assert expected(clock) == pytest.approx(took_s, rel=0.3)


def test_what_other_commands_learn_does_not_change_it(clock):
    tuned(clock, 1)
    before_s = expected(clock)
    means = Means.of_machine()
    means.learn("a CPU/around", 50.0)
    means.learn("a CPU/fake/around", 50.0)
    means.save()
    assert expected(clock) == pytest.approx(before_s)


def at_its_final(clock, *, tried=12, limit=12, deadline=math.inf):
    """A plan with so many of its candidates tried, and a first timing of its final."""
    (plan,) = fake_plans(1)
    clock.s = 0.0
    made = Tally([plan], deadline, CPU)
    made.began(plan.name, 0, limit)
    for _ in range(tried):
        clock.s += TIMING_S
        made.count_trial(plan.name, candidate=True, final=False)
    clock.s += TIMING_S
    made.count_trial(plan.name, candidate=False, final=True)
    return made, plan


def test_time_is_left_until_the_final_has_ended(clock):
    """It goes on for more rounds than were expected if the first leave the winner open."""
    made, plan = at_its_final(clock)
    for _ in range(3 * timings(plan, plan.budget.evaluations)):
        assert made.progress.left_s > 0
        clock.s += TIMING_S
        made.count_trial(plan.name, candidate=False, final=True)
    made.ended(types.SimpleNamespace(name=plan.name, evaluations=plan.budget.evaluations))
    assert made.progress.left_s == 0


def test_a_deadline_limits_the_search_and_the_final(clock):
    for final in (False, True):
        for deadline in (math.inf, 20 * TIMING_S, 0.0):
            if final:
                made, plan = at_its_final(clock, deadline=deadline)
            else:
                (plan,) = fake_plans(1)
                made = Tally([plan], deadline, CPU)
                made.began(plan.name, 0, plan.budget.evaluations)
            left_s = made.progress.left_s
            assert left_s <= max(0.0, deadline - clock.s)
            assert left_s > 0 or deadline <= clock.s


def test_a_search_that_ended_early_has_only_its_final_left(clock):
    """As one does whose minutes are spent."""
    early, full = (at_its_final(clock, tried=2, limit=n)[0].progress for n in (12, 2))
    assert early.left_s == pytest.approx(full.left_s)
