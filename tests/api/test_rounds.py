"""Expected seconds of a comparison."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark.api.ab import AbPlan
from kernelmark.api.rounds import Rounds
from kernelmark.core.result import Case
from kernelmark.ops import parse
from kernelmark.runners.ab import ROUND, Budget, Measured, Pair, Rule
from kernelmark.runners.forecast import Forecast, Means
from kernelmark.runners.sides import Side
from kernelmark.runners.targets import find

START_S, PAIR_S = 3.0, 0.5


def learn_ab_start(rounds: Rounds, seconds: float) -> None:
    rounds.learn_start(seconds)
    rounds.save()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))


def plan(pairs: int, **more: object) -> AbPlan:
    made = []
    for m in range(8, 8 + pairs):
        problem = parse(f"gemm m={m} n=8 k=8 dtype=f32")
        case = Case(problem=problem, backend="numpy", timing=ROUND)
        made.append(Pair(base=case, head=case))
    sides = Side(name="base", python=""), Side(name="head", python="")
    return AbPlan(sides=sides, pairs=tuple(made), device="cpu", rule=Rule(), **more)


def played(asked: AbPlan, rounds: int, budget_s: float | None = None) -> Rounds:
    """The estimates after so many rounds, each of START_S and PAIR_S a pair."""
    clock = Clock()
    budget = None if budget_s is None else Budget(seconds=budget_s, clock=clock)
    made = Rounds(asked, budget, clock)
    for number in range(1, rounds + 1):
        clock.now += START_S
        for done, pair in enumerate(asked.pairs, 1):
            clock.now += PAIR_S
            total = len(asked.pairs)
            made.take(Measured(round=number, done=done, total=total, pair=pair, ratio=1.0))
    return made


@pytest.mark.parametrize(("seen", "asked"), [(1, 1), (4, 4), (4, 1), (4, 12)])
def test_a_round_is_expected_to_take_what_rounds_took(seen, asked):
    played(plan(seen), 6).save()
    assert Rounds(plan(asked)).round_s == pytest.approx(START_S + asked * PAIR_S, rel=0.05)


def test_what_other_commands_learn_does_not_change_what_rounds_took():
    played(plan(4), 6).save()
    info = find("cpu")[1]
    means = Means.of_machine()
    for _ in range(5):
        means.learn(f"{info.model or info.kind}/numpy/load", 60.0)
        means.learn(f"{info.model or info.kind}/around", 50.0)
    means.save()
    assert Forecast.of_machine(info).load_s(["numpy"]) == 60.0
    assert Rounds(plan(4)).round_s == pytest.approx(START_S + 4 * PAIR_S, rel=0.05)


def test_both_sides_start_at_the_same_time():
    loads_s = 2 * Forecast.of_machine(find("cpu")[1]).load_s(["numpy"])
    one, two = (Rounds(plan(pairs)).round_s for pairs in (1, 2))
    assert 2 * one - two < loads_s


def test_a_round_lasts_as_long_as_its_slower_side_loads():
    info = find("cpu")[1]
    means, place = Means.of_machine(), info.model or info.kind
    for backend, load_s in (("numpy", 1.0), ("torch", 7.0)):
        means.learn(f"{place}/{backend}/load", load_s)
    means.save()
    clock, asked = Clock(), plan(1)
    alike = Rounds(asked, None, clock)
    for number in range(1, 7):
        clock.now += 1.0 + alike._pair_s
        alike.take(Measured(round=number, done=1, total=1, pair=asked.pairs[0], ratio=1.0))
    alike.save()
    (pair,) = asked.pairs
    other = dataclasses.replace(pair, head=dataclasses.replace(pair.head, backend="torch"))
    mixed = Rounds(dataclasses.replace(asked, pairs=(other,)))
    assert mixed.round_s - alike.round_s == pytest.approx(6.0, rel=0.2)
    learn_ab_start(alike, 3.0)
    known = Rounds(asked).whole_s[0] - 10 * Rounds(asked).round_s
    mixed = Rounds(dataclasses.replace(asked, pairs=(other,)))
    assert known == pytest.approx(3.0)
    assert mixed.whole_s[0] - 10 * mixed.round_s == pytest.approx(9.0), "reading it loads torch too"


def test_time_left_is_that_of_the_budget():
    asked = plan(1)
    assert played(asked, 2).left_s[1] == pytest.approx(30 * (START_S + PAIR_S), rel=0.05)
    limited = played(asked, 2, budget_s=20.0)
    assert limited.left_s == (13.0, 13.0)
    assert limited.last == 5, "three more rounds fit"


def test_a_budget_that_allows_all_rounds_changes_nothing():
    limited, free = played(plan(1), 2, budget_s=1e6), played(plan(1), 2)
    assert limited.left_s == free.left_s
    assert limited.last == free.last == 32


def test_a_plan_begins_its_budget_with_what_was_spent():
    budget = dataclasses.replace(plan(1), budget_s=30.0).budget(12.0)
    assert 17.0 < budget.left_s <= 18.0
    assert plan(1).budget().left_s > 1e9
