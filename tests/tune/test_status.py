"""How far plans are, from their files and journals; the words that tables say it in."""

import dataclasses
import json
import math

import pytest

from kernelmark import ops
from kernelmark.core.result import Status
from kernelmark.report import tuning as report
from kernelmark.report.tuning import outcome_table
from kernelmark.tune import plans, results
from kernelmark.tune.folder import TuningFolder, write_whole
from kernelmark.tune.journal import Finished, Journal, PlanState, Trial, plan_statuses
from kernelmark.tune.plans import (
    Acceptance,
    Budget,
    TunePlan,
    decision_digest,
    plan_digest,
    search_digest,
)
from kernelmark.tune.results import Choice, Metrics
from kernelmark_dev.tuning import make_header, make_outcome

PLAN = TunePlan(
    name="SSS_NN_0",
    problem=ops.parse("gemm m=8 n=16 k=32 dtype=f32"),
    backend="fake",
    reference_backend="fake",
    strategy="random",
    share=0.25,
    count=7,
)


def outcome(*, kept=True, ratio=1.25):
    return make_outcome(
        ratio,
        name=PLAN.name,
        problem=PLAN.problem,
        reference=Choice(backend="fake", median_s=10e-6, worst=0.1),
        tuned=Choice(backend="fake", config={"warps": 2}, median_s=8e-6, worst=0.1),
        kept=kept,
        reason="faster: 1.250 ×" if kept else "gains too little",
        share=PLAN.share,
        count=PLAN.count,
    )


def trial(warps, seconds=None, **more):
    good = seconds is not None
    status = Status.OK if good else Status.CRASHED
    given = {"step": "short", **more}
    return Trial(config={"warps": warps}, status=status, seconds=seconds, **given)


@pytest.fixture
def folder(tmp_path):
    made = TuningFolder(tmp_path)
    write_whole(made.plan(PLAN.name), plans.plan_text(PLAN))
    return made


HEADER = make_header(plan=search_digest(PLAN), problem=PLAN.problem.key, pool=4)


@pytest.fixture
def journal(folder):
    made = Journal(folder.journal(PLAN.name))
    made.begin(HEADER)
    yield made
    made.close()


def finished(plan=PLAN, **more):
    digests = {"plan": plan_digest(plan), "decision": decision_digest(plan)}
    return Finished(**digests, outcome=outcome(**more))


def only(folder):
    (one,) = plan_statuses(folder)
    return one


def test_a_plan_that_was_not_begun(folder):
    one = only(folder)
    assert (one.state, one.evaluations, one.outcome) == (PlanState.NOT_STARTED, 0, None)
    assert math.isnan(one.best_s)


def test_a_plan_stopped_before_its_first_trial_was_not_begun(folder, journal):
    assert only(folder).state is PlanState.RUNNING
    journal.close()
    assert only(folder).state is PlanState.NOT_STARTED


def test_a_plan_stopped_after_its_reference_was_begun(folder, journal):
    journal.record(trial(8, 1e-6, backend="numpy"))
    journal.close()
    assert (only(folder).state, only(folder).evaluations) == (PlanState.STOPPED, 0)


def test_a_plan_that_is_at_work_then_stopped(folder, journal):
    journal.record(trial(1, 9e-6))
    journal.record(trial(2))
    journal.record(trial(4, 7e-6))
    journal.record(trial(4, 8e-6, step="full"))
    journal.record(trial(8, 1e-6, backend="numpy"))  # the reference
    journal.record(trial(1, 1e-6, problem="gemm m=9"))  # a neighbouring size
    journal.record(trial(0, 1e-6, step="final abc round 0"))
    one = only(folder)
    assert one.state is PlanState.RUNNING
    assert (one.evaluations, one.failures) == (3, 1)
    assert one.best_s == 7e-6
    journal.close()
    assert only(folder).state is PlanState.STOPPED


def test_a_plan_that_is_done(folder, journal):
    journal.record(trial(1, 9e-6))
    journal.finish(finished())
    journal.close()
    one = only(folder)
    assert one.state is PlanState.DONE
    assert one.reason == "faster: 1.250 ×"
    (row,) = report.status_table([one]).rows
    assert row[1:] == (
        *("25.0 %", "done", "1 of 100", "0", "8.000 µs", "1.250 ×", "warps=2", "faster: 1.250 ×"),
    )
    assert "warps=2" in outcome_table([one.outcome]).rows[0]
    (record,) = report.status_records([one])
    assert record["config_tuned"] == '{"warps":2}'
    assert record["kept"] == "yes"
    assert record["reference_us"] == pytest.approx(10.0)
    assert record["pct_of_total"] == pytest.approx(25.0)


def test_a_plan_that_asks_for_more_than_was_done_goes_on(folder, journal):
    journal.record(trial(1, 9e-6))
    journal.finish(finished())
    journal.close()
    more = dataclasses.replace(PLAN, budget=Budget(evaluations=500))
    write_whole(folder.plan(PLAN.name), plans.plan_text(more))
    assert only(folder).state is PlanState.STOPPED
    assert only(folder).outcome == outcome()


def test_a_plan_without_one_good_candidate_failed(folder, journal):
    journal.record(trial(1))
    journal.finish(finished(kept=False, ratio=math.nan))
    journal.close()
    one = only(folder)
    assert one.state is PlanState.FAILED
    assert json.dumps(report.status_records([one]), allow_nan=False)


def test_a_plan_that_was_given_up_says_why(folder):
    results.write(folder, [], retired={PLAN.name: "no device can do it"})
    one = only(folder)
    assert (one.state, one.reason) == (PlanState.FAILED, "no device can do it")


def test_why_it_was_given_up_is_not_told_while_somebody_is_at_it(folder, journal):
    results.write(folder, [], retired={PLAN.name: "another run was at it"})
    journal.record(trial(1, 9e-6))
    assert (only(folder).state, only(folder).reason) == (PlanState.RUNNING, "")
    journal.close()
    assert only(folder).reason == "another run was at it"


def test_files_that_cannot_be_read_are_rows(folder, journal):
    journal.record(trial(1, 9e-6))
    journal.close()
    path = folder.journal(PLAN.name)
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    assert only(folder).state is PlanState.FAILED
    assert "line 1" in only(folder).reason
    folder.plan(PLAN.name).write_text("seed = 'x'")
    assert only(folder).state is PlanState.FAILED
    (row,) = report.status_table([only(folder)]).rows
    assert row[1] == "–"


def test_metrics_in_one_sentence():
    assert report.metrics_line(Metrics.of([outcome(kept=False)])) == "none of 1 problem is kept"
    line = report.metrics_line(Metrics.of([outcome(), outcome(ratio=5.0)]))
    assert line.startswith("2 of 2 problems kept: 2.500 × faster in the geometric mean, 3.125 × in")
    line = report.metrics_line(Metrics.of([outcome(), outcome(kept=False)]))
    assert line.startswith("1 of 2 problems kept: 1.250 × faster; that saves")
    assert "that saves 5.00 % of the workload's time, of which they are 25.0 %" in line


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.000 %"),
        (0.00012, "0.012 %"),
        (0.0056, "0.56 %"),
        (0.0567, "5.67 %"),
        (0.123, "12.3 %"),
        (0.9999, "100 %"),
        (1.0, "100 %"),
    ],
)
def test_shares_in_percent(share, text):
    assert report.percent(share) == text


def test_trials_of_another_backend_are_not_the_plans(folder, journal):
    journal.finish(finished())
    write_whole(folder.plan(PLAN.name), plans.plan_text(dataclasses.replace(PLAN, backend="numpy")))
    one = only(folder)
    assert (one.state, one.outcome) == (PlanState.FAILED, None)
    assert "fake" in one.reason
    assert "numpy" in one.reason


def test_a_lowered_budget_is_not_told_as_if_it_were_larger(folder, journal):
    for warps in range(4):
        journal.record(trial(warps, 9e-6))
    less = dataclasses.replace(PLAN, budget=Budget(evaluations=2))
    write_whole(folder.plan(PLAN.name), plans.plan_text(less))
    (row,) = report.status_table(plan_statuses(folder)).rows
    assert row[3] == "4"


def ended(folder, journal, plan, *, cost_s):
    """Three candidates and a final that took an hour, for this plan."""
    for warps in (1, 2, 4):
        journal.record(trial(warps, 9e-6, cost_s=cost_s))
    journal.record(trial(1, 9e-6, step="final abc round 0", cost_s=3600.0))
    journal.finish(finished(plan))
    journal.close()
    write_whole(folder.plan(PLAN.name), plans.plan_text(plan))


def test_a_search_that_its_own_minutes_ended_is_not_told_as_if_it_were_through(folder, journal):
    plan = dataclasses.replace(PLAN, budget=Budget(evaluations=300, minutes=1.0))
    ended(folder, journal, plan, cost_s=20.0)
    assert only(folder).state is PlanState.TIME_UP
    (row,) = report.status_table(plan_statuses(folder)).rows
    assert row[2:4] == ("time was up", "3 of 300")
    more = dataclasses.replace(plan, budget=Budget(evaluations=300, minutes=2.0))
    write_whole(folder.plan(PLAN.name), plans.plan_text(more))
    assert only(folder).state is PlanState.STOPPED


@pytest.mark.parametrize(("evaluations", "cost_s"), [(300, 19.0), (3, 20.0)])
def test_a_search_within_its_minutes_is_done(folder, journal, evaluations, cost_s):
    """The final's minutes are not the search's; and all candidates in time are all there are."""
    plan = dataclasses.replace(PLAN, budget=Budget(evaluations=evaluations, minutes=1.0))
    ended(folder, journal, plan, cost_s=cost_s)
    assert only(folder).state is PlanState.DONE


def test_what_another_decision_is_made_from_is_counted(folder, journal):
    ended(folder, journal, PLAN, cost_s=1.0)
    asked = Acceptance(min_ratio=1.5)
    edited = dataclasses.replace(PLAN, acceptance=asked, budget=Budget(evaluations=50))
    write_whole(folder.plan(PLAN.name), plans.plan_text(edited))
    one = only(folder)
    assert (one.state, one.evaluations, one.failures) == (PlanState.EDITED, 3, 0)
    assert (one.outcome, one.best_s) == (None, 9e-6)
    assert "decides anew" in one.reason
    (row,) = report.status_table([one]).rows
    assert row[3] == "3 of 50"
    another = dataclasses.replace(edited, seed=2)
    write_whole(folder.plan(PLAN.name), plans.plan_text(another))
    one = only(folder)
    assert (one.state, one.evaluations) == (PlanState.EDITED, 0)
