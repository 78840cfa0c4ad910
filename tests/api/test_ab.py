"""The exit code of a comparison, and its runs in the store."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark import ops
from kernelmark.api.ab import AbPlan, Rounds, compare_sides, failing, outcome
from kernelmark.compare import alarms
from kernelmark.core.environment import Environment
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, Run, RunState, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.ops import parse
from kernelmark.report.ab import AbReport
from kernelmark.runners.ab import ROUND, Budget, Measured, Pair, Row, Rule, Side, parse_sides
from kernelmark.runners.forecast import Forecast, Means
from kernelmark.runners.targets import find
from kernelmark.stats.paired import paired_verdict
from kernelmark.stores import open_store
from kernelmark_dev.results import make_result

CASE = Case(problem=ops.parse("gemm m=8 n=8 k=8 dtype=f32"), backend="fake")


def row(status: str, factor: float = 1.0, *, failed: bool = False) -> Row:
    times = [1e-5 * (1 + 0.001 * (i % 3)) for i in range(10)]
    status_of_both = Status.CRASHED if failed else Status.UNSUPPORTED
    result = make_result(CASE, device="fake", status=status_of_both, error="it fell")
    return Row(
        pair=Pair(base=CASE, head=CASE),
        status=VerdictStatus(status),
        reason=Reason.of(""),
        base_s=tuple(times),
        head_s=tuple(factor * one for one in times),
        base=result,
        head=result,
        paired=paired_verdict(times, [factor * one for one in times]),
    )


def report(*rows: Row) -> AbReport:
    run = Run(id="r", started=1.0, environment=Environment(), state=RunState.DONE)
    return AbReport(names=("base", "head"), base=run, head=run, rule=Rule(), rows=rows)


@pytest.mark.parametrize(
    ("rows", "words", "code"),
    [
        ([row("same")], [], 0),
        ([row("same"), row("slower", 1.05)], [], 1),
        ([row("broken")], [], 1),
        ([row("slower", 1.05)], ["slower:10%"], 0),
        ([row("slower", 1.05)], ["slower:4%"], 1),
        ([row("broken")], ["slower:4%"], 1),
        ([row("slower", 1.05)], ["none"], 0),
        ([row("faster", 0.9)], ["faster"], 1),
        ([row("same"), row("ignored", failed=True)], [], 3),
        ([row("slower", 1.05), row("ignored", failed=True)], [], 1),
        ([row("ignored")], [], 4),
        ([], [], 4),
    ],
)
def test_exit_codes(rows, words, code):
    limits = alarms.parse(words) if words else None
    found = report(*rows)
    assert outcome(found, limits) == code
    assert (code == 1) == bool(failing(found, limits))


def test_a_failure_on_one_side_is_no_verdict_on_pairs_that_were_not_measured():
    fixed = dataclasses.replace(row("fixed"), paired=None)
    found = report(fixed)
    assert outcome(found) == 0
    cut = dataclasses.replace(found.base, cases=3)
    assert outcome(dataclasses.replace(found, base=cut)) == 4
    assert outcome(dataclasses.replace(report(fixed, row("same")), base=cut)) == 0


class Worker:
    """Measures a case in a second of `clock`; every case fails."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def ready(self) -> None:
        pass

    def measure(self, case: Case, process: int = 0) -> Result:
        self._clock[0] += 1.0
        return Result(case=case, device="fake", status=Status.CRASHED, error="it fell")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("budget_s", "rows", "state"),
    [(0.0, 0, None), (1.0, 1, "interrupted"), (5.0, 3, "done"), (9.0, 3, "done")],
)
def test_runs_are_stored_for_what_was_measured_within_the_budget(tmp_path, budget_s, rows, state):
    """Nothing measured: no run. Some pairs: `interrupted` runs, though the comparison ended."""
    clock = [0.0]
    problems = [ops.parse(f"gemm m={m} n=8 k=8 dtype=f32") for m in (8, 16, 24)]
    pairs = tuple(
        Pair(base=case, head=case)
        for case in (dataclasses.replace(CASE, problem=problem) for problem in problems)
    )
    plan = AbPlan(sides=parse_sides((), ()), pairs=pairs, device="fake", rule=Rule())
    with open_store(str(tmp_path / "store.sqlite")) as store:
        found = compare_sides(
            plan,
            (Environment(), Environment()),
            store=store,
            opener=lambda side: Worker(clock),
            budget=Budget(seconds=budget_s, clock=lambda: clock[0]),
        )
        assert (len(found.rows), found.base.state) == (rows, RunState.DONE)
        assert [run.state for run in store.runs()] == ([state] * 2 if state else [])
        assert all(sum(store.counts(run.id).values()) == rows for run in store.runs())


def test_an_interrupted_comparison_says_so_whatever_it_found():
    found = report(row("slower", 1.05))
    stopped = dataclasses.replace(found.base, state=RunState.INTERRUPTED)
    assert outcome(dataclasses.replace(found, base=stopped)) == 130


START_S, PAIR_S = 3.0, 0.5


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


def test_a_round_and_the_start_are_learned():
    clock, asked = Clock(), plan(1)
    alike = Rounds(asked, None, clock)
    for number in range(1, 7):
        clock.now += 1.0 + alike._pair_s
        alike.take(Measured(round=number, done=1, total=1, pair=asked.pairs[0], ratio=1.0))
    alike.save()
    assert Rounds(asked).round_s == pytest.approx(alike.round_s)
    alike.learn_start(3.0)
    alike.save()
    first_s = Rounds(asked).whole_s[0] - 10 * Rounds(asked).round_s
    assert first_s == pytest.approx(3.0)


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
