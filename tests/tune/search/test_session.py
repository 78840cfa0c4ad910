"""A session asks, climbs, stops and decides by the answers in its journal; no worker is needed."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from kernelmark import ops
from kernelmark.backends import fake
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Status, config_key
from kernelmark.devices.fake import FakeDevice
from kernelmark.tune import strategies
from kernelmark.tune.plans.plan import Budget
from kernelmark.tune.records.journal import Journal, Trial, out_of_minutes, read
from kernelmark.tune.search.evaluate import Evaluator, ladder, static_reason
from kernelmark.tune.search.session import (
    MAX_FAILURES,
    Pipeline,
    Session,
    Winner,
    distance,
    mapped,
    starts_from,
)
from kernelmark_dev.tuning import fake_plans

INFO = FakeDevice().info
PLAN = fake_plans(1, evaluations=20)[0]
CPU = DeviceInfo(name="cpu", kind="cpu", model="x", arch="x")


def answer(request, plan, *, slower=1.0, bad=Status.OK):
    """What the fake backend would have said, without asking it."""
    case = request.case
    seconds = 1e-5
    if case.config:
        seconds *= fake.tiled(plan.problem, case.config).factor * slower
    own = case.backend == plan.backend
    return Trial(
        config=case.config,
        step=request.step,
        status=bad,
        seconds=seconds if bad is Status.OK else None,
        worst=0.1,
        error="" if bad is Status.OK else "it broke",
        backend="" if own else case.backend,
        problem="" if case.problem == plan.problem else case.problem.key,
    )


def driven(session, most=None, say=answer):
    """Run a session by hand; the requests in order, and its outcome if it came to one."""
    asked = []
    work = session.work()
    for step in work:
        for request in step.requests:
            if most is not None and len(asked) == most:
                return asked, None
            asked.append(request)
            session.record(say(request, session.plan))
    return asked, session.done


def opened(path, plan=PLAN, **given):
    return Session(plan, INFO, Journal(path), **given)


def names(requests):
    return [(config_key(r.case.config), r.step, r.case.problem.key) for r in requests]


def test_a_session_ends_with_a_verified_outcome(tmp_path):
    session = opened(tmp_path / "a.jsonl")
    asked, outcome = driven(session)
    assert outcome is not None
    assert outcome.kept, outcome.reason
    assert outcome.evaluations == 20
    assert outcome.tuned.verified
    assert outcome.ratio == pytest.approx(1 / fake.tiled(PLAN.problem, outcome.tuned.config).factor)
    assert config_key(asked[0].case.config) == config_key(fake.DEFAULT)
    final = [r for r in asked if r.step.startswith("final")]
    assert len({r.case.timing.seed for r in final}) == PLAN.acceptance.seeds
    last = [r for r in final if " round " in r.step]
    assert len({r.process for r in last}) == PLAN.acceptance.rounds
    assert sum(r.step == "near" for r in asked) == PLAN.acceptance.neighbours


def test_final_rounds_turn_round_and_hold_together(tmp_path):
    session = opened(tmp_path / "a.jsonl")
    rounds = []
    for step in session.work():
        for request in step.requests:
            session.record(answer(request, PLAN))
        if step.requests[0].step.startswith("final"):
            assert step.together
            rounds.append([config_key(r.case.config) for r in step.requests])
    screened, last = rounds[:2], rounds[2:]
    assert [len(one) for one in screened] == [1 + PLAN.acceptance.finalists] * 2
    assert [len(one) for one in last] == [2] * PLAN.acceptance.rounds
    for stage in (screened, last):
        assert stage[0][0] == "{}"
        assert all(two == one[::-1] for one, two in itertools.pairwise(stage))


@pytest.mark.parametrize("pipeline", [Pipeline(batch=3), Pipeline(batch=4, ahead=2)])
def test_a_session_that_is_cut_off_anywhere_walks_on_the_same_way(tmp_path, pipeline):
    whole, outcome = driven(opened(tmp_path / "whole.jsonl", pipeline=pipeline))
    for cut in (1, 5, 11, len(whole) - 30, len(whole) - 1):
        path = tmp_path / f"{cut}.jsonl"
        first = opened(path, pipeline=pipeline)
        before, _ = driven(first, most=cut)
        first.journal.close()
        # What it would be opened with now is not what it was begun with.
        second = opened(path, pipeline=Pipeline(batch=9), winners=[])
        after, again = driven(second)
        assert again is not None
        assert again.tuned == outcome.tuned
        assert set(names(before + after)) == set(names(whole))
        searched = [r for r in before + after if not r.step.startswith("final")]
        assert len(set(names(searched))) == len(searched), "something was evaluated twice"


@pytest.mark.parametrize("strategy", strategies.registry.names())
def test_every_strategy_can_be_replayed(tmp_path, strategy):
    plan = fake_plans(1, evaluations=30, strategy=strategy)[0]
    pipeline = Pipeline(batch=4, ahead=2)
    whole, outcome = driven(opened(tmp_path / "whole.jsonl", plan, pipeline=pipeline), say=faulty)
    first = opened(tmp_path / "cut.jsonl", plan, pipeline=pipeline)
    before, _ = driven(first, most=17, say=faulty)
    first.journal.close()
    after, again = driven(opened(tmp_path / "cut.jsonl", plan), say=faulty)
    assert again is not None
    assert again.tuned == outcome.tuned
    assert set(names(before + after)) == set(names(whole))


def faulty(request, plan):
    """Answers in which every seventh candidate or so fails."""
    odd = sum(config_key(request.case.config).encode()) % 7 == 3
    failed = odd and not request.step.startswith("final")
    return answer(request, plan, bad=Status.CRASHED if failed else Status.OK)


def test_failed_candidates_are_data_and_wrong_ones_never_rank(tmp_path):
    def best_is_wrong(request, plan):
        good = answer(request, plan)
        fast = good.seconds is not None and good.seconds < 0.9e-5
        return dataclasses.replace(good, status=Status.WRONG) if fast else good

    session = opened(tmp_path / "a.jsonl", fake_plans(1, evaluations=60)[0])
    _, outcome = driven(session, say=best_is_wrong)
    assert outcome is not None
    assert outcome.tuned.median_s >= 0.9e-5
    assert any(t.status is Status.WRONG for t in session.journal.trials)


def test_a_plan_without_a_right_candidate_is_given_up(tmp_path):
    plan = fake_plans(1, evaluations=200)[0]
    session = opened(tmp_path / "a.jsonl", plan)
    asked, outcome = driven(session, say=lambda r, p: answer(r, p, bad=Status.CRASHED))
    assert outcome is not None
    assert not outcome.kept
    assert outcome.reason
    assert len(asked) <= MAX_FAILURES + session.header.batch


def test_a_larger_budget_goes_on_and_an_edited_space_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    first = opened(path)
    asked, _ = driven(first)
    first.journal.close()
    more = dataclasses.replace(PLAN, budget=Budget(evaluations=30))
    second = opened(path, more)
    assert second.done is None
    added, outcome = driven(second)
    assert outcome is not None
    assert outcome.evaluations == 30
    assert not set(names(added)) & set(names(asked))
    second.journal.close()
    with pytest.raises(UsageError, match="plan"):
        opened(path, dataclasses.replace(PLAN, space={"tile_m": (32,)}))


def test_minutes_end_a_search(tmp_path):
    plan = dataclasses.replace(PLAN, budget=Budget(evaluations=1000, minutes=1.0))

    def slow(request, plan):
        return dataclasses.replace(answer(request, plan), cost_s=10.0)

    _, outcome = driven(opened(tmp_path / "a.jsonl", plan), say=slow)
    assert outcome is not None
    assert outcome.evaluations < 12


def test_a_stopped_session_goes_on_later(tmp_path):
    path = tmp_path / "a.jsonl"
    session = opened(path)
    session.stop = True
    asked, outcome = driven(session)
    assert (asked, outcome) == ([], None)
    session.journal.close()
    assert driven(opened(path))[1].evaluations == 20


def test_a_device_of_another_architecture_is_refused(tmp_path):
    plan = dataclasses.replace(PLAN, arch="gfx942")
    with pytest.raises(UsageError, match="gfx942"):
        opened(tmp_path / "a.jsonl", plan)


# The ladder


def climbed(path, factors, info=INFO):
    """Steps that each of several candidates reached, given their times."""
    journal = Journal(path)
    evaluator = Evaluator(PLAN, info, journal)
    configs = [{"tile_m": i} for i in range(len(factors))]
    work = evaluator.batch(configs)
    for step in work:
        for request in step.requests:
            factor = factors[int(request.case.config["tile_m"])]
            journal.record(
                Trial(
                    config=request.case.config,
                    step=request.step,
                    status=Status.OK,
                    seconds=1e-5 * factor,
                )
            )
    return [journal.reached([s.name for s in evaluator.steps])[i].step for i in range(len(configs))]


def test_only_what_is_close_to_the_best_is_timed_longer(tmp_path):
    assert climbed(tmp_path / "a", [1.0, 1.04, 1.2, 2.0, 5.0, 1.5]) == [
        *("full", "full", "short"),
        *("short", "short", "short"),
    ]
    found = climbed(tmp_path / "b", [1.0, 1.2, 1.4, 9.0, 8.0, 7.0], CPU)
    assert found == ["full", "short", "look", "look", "look", "look"]


def test_at_most_a_third_of_a_batch_climbs(tmp_path):
    assert climbed(tmp_path / "a", [1.0] * 9).count("full") == 3


def test_short_timings_are_short():
    for info in (INFO, CPU):
        spans = [s.timing.max_s + s.timing.warmup_s for s in ladder(info)]
        assert spans == sorted(spans)
    assert ladder(INFO)[0].timing.max_s + ladder(INFO)[0].timing.warmup_s <= 0.015


def test_resources_alone_can_reject():
    gpu = DeviceInfo(
        name="g", kind="cuda", model="m", arch="sm_90", attributes={"shared_per_block": "1024"}
    )
    assert static_reason({"stack_bytes": 16, "shared_bytes": 1024}, gpu) is None
    for used in ({"shared_bytes": 1025}, {"stack_bytes": 4096}, {"spilled_registers": 100}):
        assert static_reason(used, gpu) is not None
    assert static_reason({"shared_bytes": 10**6}, INFO) is None


def test_on_amd_any_vector_register_in_memory_rejects():
    gpu = DeviceInfo(name="g", kind="hip", model="m", arch="gfx942")
    used = {"stack_bytes": 0, "spilled_registers": 0, "spilled_scalar_registers": 40}
    assert static_reason(used, gpu) is None
    assert static_reason(used | {"stack_bytes": 4, "spilled_registers": 1}, gpu) is not None


# Transfer


def winner(key, config, **changes):
    given = {"problem": ops.parse(key), "backend": "fake", "arch": "fake", "config": config}
    return Winner(**{**given, **changes})


def test_the_nearest_winners_of_like_problems_are_starts(tmp_path):
    points = opened(tmp_path / "a.jsonl")._points
    config = {**fake.DEFAULT}
    near, far = {**config, "stages": 2}, {**config, "stages": 3}
    found = starts_from(
        PLAN,
        "fake",
        [
            winner("gemm m=4096 n=4096 k=16 dtype=f32", far),
            winner("gemm m=8 n=24 k=32 dtype=f32", near),
            winner("gemm m=8 n=24 k=16 dtype=f16", {**config, "stages": 4}),
            winner("gemm m=8 n=24 k=16 dtype=f32", {**config, "depth": 32}, arch="sm_90"),
        ],
        points,
    )
    assert [dict(c) for c in found] == [near, far]
    assert mapped({**config, "tile_m": 100}, points)["tile_m"] == 128
    assert mapped({"tile_m": 16}, points) is None


def test_distance_is_in_doublings():
    one, two = (ops.parse(f"gemm m={m} n=8 k=8 dtype=f32") for m in (8, 64))
    assert distance(one, two) == 3.0
    assert distance(one, ops.parse("gemm m=8 n=8 k=8 dtype=f32 tb=t")) == float("inf")


def test_a_smaller_budget_throws_nothing_away(tmp_path):
    path = tmp_path / "a.jsonl"
    first = opened(path)
    _, before = driven(first)
    first.journal.close()
    again, outcome = driven(opened(path, dataclasses.replace(PLAN, budget=Budget(evaluations=5))))
    assert (before.evaluations, outcome.evaluations) == (20, 20)
    assert outcome.tuned.config == before.tuned.config
    assert not again


def test_what_failed_and_is_not_asked_for_again_is_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    first = opened(path)
    _, before = driven(first, say=faulty)
    assert any(trial.status is Status.CRASHED for trial in first.journal.trials)
    first.journal.close()
    less = dataclasses.replace(PLAN, budget=Budget(evaluations=2))
    again = Session(less, INFO, Journal(path, retry_failed=True))
    _, outcome = driven(again, say=faulty)
    assert (before.evaluations, outcome.evaluations) == (20, 20)


def test_a_final_takes_no_minutes_from_a_search_that_goes_on(tmp_path):
    path = tmp_path / "a.jsonl"

    def slow(request, plan):
        return dataclasses.replace(answer(request, plan), cost_s=10.0)

    budget = Budget(evaluations=1000, minutes=1.0)
    first = opened(path, dataclasses.replace(PLAN, budget=budget))
    _, before = driven(first, say=slow)
    assert sum(trial.cost_s for trial in first.journal.trials) > 120
    assert out_of_minutes(first.plan, first.journal.trials)
    first.journal.close()
    more = dataclasses.replace(PLAN, budget=dataclasses.replace(budget, minutes=2.0))
    _, outcome = driven(opened(path, more), say=slow)
    assert outcome.evaluations > before.evaluations


def test_a_search_whose_minutes_are_spent_still_has_its_final(tmp_path):
    path = tmp_path / "a.jsonl"
    first = opened(path)

    def slow(request, plan):
        return dataclasses.replace(answer(request, plan), cost_s=10.0)

    driven(first, most=8, say=slow)
    first.journal.close()
    less = dataclasses.replace(PLAN, budget=Budget(evaluations=20, minutes=1.0))
    asked, outcome = driven(opened(path, less))
    assert outcome is not None
    assert outcome.tuned.verified, outcome.reason
    assert all(request.step.startswith(("final", "near")) for request in asked)


def test_a_later_summary_weighs_what_was_found_before(tmp_path):
    path = tmp_path / "a.jsonl"
    first = opened(path)
    driven(first)
    first.journal.close()
    known = opened(path, dataclasses.replace(PLAN, count=7, share=0.125)).done
    assert (known.count, known.share) == (7, 0.125)


def test_a_final_that_was_disturbed_is_played_again_and_nothing_else(tmp_path):
    path = tmp_path / "a.jsonl"

    def went_on(say=answer, most=None):
        session = opened(path)
        asked, outcome = driven(session, say=say, most=most)
        session.journal.close()
        return names(asked), outcome

    def busy(request, plan):
        return dataclasses.replace(answer(request, plan), load=1.0)

    asked, outcome = went_on(busy)
    assert outcome is None  # it is not done
    told = read(path)[2]
    assert told is not None
    assert told.disturbed
    assert not told.kept
    final = [one for one in asked if one[1].startswith("final")]
    assert went_on(busy)[0] == final
    assert went_on(most=5)[0] == final[:5]
    again, outcome = went_on()
    assert again[-1] in final
    assert again[-1] != final[-1]  # an undisturbed final needs no more than one set of rounds
    assert len(again) < len(final)  # rounds of the one that was cut off count
    assert outcome is not None
    assert outcome.kept, outcome.reason
    assert went_on() == ([], outcome)
