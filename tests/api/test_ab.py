"""The exit code of a comparison, and its runs in the store."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark import ops
from kernelmark.api.ab import AbPlan, compare_sides, failing, outcome
from kernelmark.compare import fail_on
from kernelmark.core.environment import Environment
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, Run, RunState, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.ab import AbReport
from kernelmark.runners.ab import Budget, Pair, Row, Rule
from kernelmark.runners.sides import parse_sides
from kernelmark.stats.paired import paired_verdict
from kernelmark.stores import open_store

CASE = Case(problem=ops.parse("gemm m=8 n=8 k=8 dtype=f32"), backend="fake")


def row(status: str, factor: float = 1.0, *, failed: bool = False) -> Row:
    times = [1e-5 * (1 + 0.001 * (i % 3)) for i in range(10)]
    result = Result(
        case=CASE,
        device="fake",
        status=Status.CRASHED if failed else Status.UNSUPPORTED,
        error="it fell",
    )
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
    limits = fail_on.parse(words) if words else None
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
