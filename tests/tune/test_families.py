"""Families: who follows whom, the order of the shared candidates, and a tuning run with them."""

from __future__ import annotations

import dataclasses
import math
import time
from types import SimpleNamespace

import pytest

from kernelmark import ops
from kernelmark.backends._memory import Searched
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import config_key
from kernelmark.runners.local import LocalRunner
from kernelmark.tune import journal
from kernelmark.tune.driver import Driver
from kernelmark.tune.families import RADIUS, joined, ranked
from kernelmark.tune.plans import Budget, TunePlan, distance, plan_text, read_plan
from kernelmark_dev.tuning import fake_plans


def a_plan(name: str, m: int, n: int = 64, budget: int = 100, dtype: str = "f32") -> TunePlan:
    problem = ops.parse(f"gemm m={m} n={n} k=64 dtype={dtype}")
    return TunePlan(
        name=name,
        problem=problem,
        backend="fake",
        reference_backend="fake",
        budget=Budget(evaluations=budget),
    )


def test_a_problem_follows_the_one_with_the_most_neighbours():
    every = (
        *(a_plan("big", 4096), a_plan("near", 3000), a_plan("half", 2048), a_plan("far", 64)),
        *(a_plan("other", 4096, n=4096), a_plan("type", 4096, dtype="f16"), a_plan("small", 80)),
    )
    plans = joined(every, 12)
    follows = {plan.name: plan.follows for plan in plans}
    assert follows == {
        "big": "", "near": "big", "half": "big", "far": "", "other": "", "type": "", "small": "far",
    }  # fmt: skip
    assert {plan.budget.evaluations for plan in plans if plan.follows} == {12}
    assert {plan.budget.evaluations for plan in plans if not plan.follows} == {100}
    named = {plan.name: plan for plan in plans}
    for plan in plans:
        if plan.follows:
            assert distance(plan.problem, named[plan.follows].problem) <= RADIUS


def test_the_middle_of_a_family_is_searched():
    """One search then serves sizes on both sides of it."""
    plans = joined([a_plan(f"m{m}", m) for m in (512, 256, 128, 64)], 12)
    assert [plan.follows for plan in plans] == ["m256", "", "m256", ""]
    plans = joined([a_plan(f"m{m}", m) for m in (640, 256, 100)], 12)
    assert [plan.follows for plan in plans] == ["m256", "", "m256"]
    assert [plan.acceptance.finalists for plan in plans] == [1, 3, 1]


def test_a_family_never_raises_a_budget():
    first, second = joined([a_plan("a", 64, budget=5), a_plan("b", 65, budget=5)], 12)
    assert (first.budget.evaluations, second.budget.evaluations) == (5, 5)


def test_two_hundred_problems_of_five_layers_are_few_searches():
    sizes = [(4096, 4096), (28672, 4096), (4096, 14336), (6144, 4096), (10240, 8192)]
    plans = [a_plan(f"p{m}-{n}", m, n=n) for n, _ in sizes for m in [1 + 97 * i for i in range(42)]]
    found = joined(plans, 12)
    assert sum(plan.budget.evaluations for plan in found) < 0.25 * 100 * len(plans)


def test_a_plan_keeps_what_it_follows(tmp_path):
    plan = dataclasses.replace(a_plan("b", 64), follows="a")
    path = tmp_path / "b.toml"
    path.write_text(plan_text(plan))
    assert read_plan(path).follows == "a"
    path.write_text(plan_text(a_plan("b", 64)))
    assert read_plan(path).follows == ""


def searched(m: int, **times: float) -> Searched:
    found = {}
    for name, seconds in times.items():
        config = FrozenDict({"c": name})
        found[config_key(config)] = (config, seconds)
    return Searched(problem=a_plan("", m).problem, backend="fake", arch="x", times=found)


def names(plan, *searches):
    return [config["c"] for config in ranked(plan, "x", searches)]


def test_candidates_are_in_the_order_of_the_nearest_problem():
    plan = a_plan("p", 100)
    far, near = searched(800, a=1.0, b=2.0, c=3.0), searched(96, a=3.0, b=1.0, c=2.0)
    assert names(plan, far) == ["a", "b", "c"]
    assert names(plan, near, far) == ["b", "c", "a"]
    assert names(plan) == []


def test_one_that_was_only_measured_far_away_comes_after_what_is_good_nearby():
    plan = a_plan("p", 100)
    assert names(plan, searched(6400, far=1.0), searched(100, near=1.0, bad=4.0)) == [
        "near", "far", "bad",
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{"backend": "other"}, {"arch": "y"}, {"times": {}}])
def test_searches_that_are_not_comparable_are_ignored(change):
    other = dataclasses.replace(searched(100, a=1.0), **change)
    assert names(a_plan("p", 100), other) == []
    assert math.isinf(distance(a_plan("p", 1).problem, a_plan("q", 1, dtype="f16").problem))


def run(tmp_path, plans):
    runner = LocalRunner(["fake"], timeout_s=5, jobs=1)
    driver = Driver(plans, runner, tmp_path / "trials")
    driver.run()
    return driver


def candidates(tmp_path, name):
    header, trials, _ = journal.load_journal(tmp_path / "trials" / f"{name}.jsonl")
    own = [trial for trial in trials if trial.of_search]
    return header, list(dict.fromkeys(config_key(trial.config) for trial in own))


@pytest.mark.slow
def test_the_best_candidates_of_a_search_are_evaluated_first_elsewhere(tmp_path, workers_here):
    leader, follower = (
        dataclasses.replace(plan, problem=ops.parse(f"gemm m={m} n=24 k=16 dtype=f32"))
        for plan, m in zip(fake_plans(2, evaluations=16), (24, 32), strict=True)
    )
    follower = dataclasses.replace(follower, follows=leader.name, budget=Budget(evaluations=4))
    driver = run(tmp_path, [follower, leader])
    assert driver.outcomes.keys() == {leader.name, follower.name}
    header, tried = candidates(tmp_path, follower.name)
    assert len(tried) == 4
    _, there = candidates(tmp_path, leader.name)
    assert len(there) == 16
    best = config_key(driver.outcomes[leader.name].tuned.config)
    assert best in map(config_key, header.starts)
    # Continued with more candidates, it keeps its list; a leader of an earlier run is read.
    more = dataclasses.replace(follower, budget=Budget(evaluations=6))
    run(tmp_path, [more])
    again, tried_again = candidates(tmp_path, follower.name)
    assert again.starts == header.starts
    assert tried_again[:4] == tried


@pytest.mark.slow
def test_searches_end_in_time_for_their_finals(tmp_path, workers_here, monkeypatch):
    """The clock stands still, and the finals would take longer than what is left."""
    clock = SimpleNamespace(monotonic=lambda: 0.0, time=time.time)
    monkeypatch.setattr("kernelmark.tune.driver.time", clock)
    (plan,) = fake_plans(1, evaluations=40)
    driver = Driver([plan], LocalRunner(["fake"], timeout_s=5, jobs=1), tmp_path, minutes=1e-6)
    driver.run()
    assert driver.cut == [plan.name]
    assert 0 < driver.outcomes[plan.name].evaluations < 40
