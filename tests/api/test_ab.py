"""The exit code of a comparison."""

from __future__ import annotations

import dataclasses

import pytest

from kernelmark import ops
from kernelmark.api.ab import failing, outcome
from kernelmark.compare import fail_on
from kernelmark.core.environment import Environment
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, Run, RunState, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.report.ab import AbReport
from kernelmark.runners.ab import Pair, Row, Rule
from kernelmark.stats.paired import paired_verdict

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


def test_an_interrupted_comparison_says_so_whatever_it_found():
    found = report(row("slower", 1.05))
    stopped = dataclasses.replace(found.base, state=RunState.INTERRUPTED)
    assert outcome(dataclasses.replace(found, base=stopped)) == 130
