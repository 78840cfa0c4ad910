"""A session asks, climbs, stops and decides by the answers in its journal; no worker is needed."""

import dataclasses
import itertools

import pytest

from kernelmark import ops
from kernelmark.backends import fake
from kernelmark.backends._memory import Searched
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Space, Status, config_key, join_config
from kernelmark.core.timing import Timer
from kernelmark.devices.fake import FakeDevice
from kernelmark.runners import kernel_files
from kernelmark.tune import strategies
from kernelmark.tune.driver import MAX_FAILURES, Pipeline, Session, starts_from
from kernelmark.tune.evaluate import Evaluator, ladder, static_reason
from kernelmark.tune.journal import Journal, Trial, out_of_minutes, read_journal
from kernelmark.tune.plans import Budget, distance
from kernelmark.tune.strategies.base import Points
from kernelmark_dev.tuning import fake_plans

INFO = FakeDevice().info
PLAN = fake_plans(1, evaluations=20)[0]
CPU = DeviceInfo(name="cpu", kind="cpu", model="x", arch="x")
HOPPER = DeviceInfo(
    name="g", kind="cuda", model="m", arch="sm_90", attributes={"shared_per_block": "1024"}
)
CDNA = DeviceInfo(name="g", kind="hip", model="m", arch="gfx942")


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


def closed(path, plan=PLAN, **how):
    """A session that was driven and whose journal was closed."""
    session = opened(path, plan)
    result = driven(session, **how)
    session.journal.close()
    return result


def names(requests):
    return [(config_key(r.case.config), r.step, r.case.problem.key) for r in requests]


def slow(request, plan):
    return dataclasses.replace(answer(request, plan), cost_s=10.0)


def test_a_session_ends_with_a_verified_outcome(tmp_path):
    session = opened(tmp_path / "a.jsonl")
    asked, outcome = driven(session)
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


@pytest.mark.parametrize(
    "pipeline", [Pipeline(pool=3, refill=0, lag=0), Pipeline(pool=8, refill=7, lag=5)]
)
def test_a_session_that_is_cut_off_anywhere_walks_on_the_same_way(tmp_path, pipeline):
    points = Points.of(kernel_files.find("fake").space(PLAN.problem, INFO))
    memory = [remembered(PLAN, points.config(9), [points.config(i) for i in range(0, 99, 5)])]
    whole, outcome = driven(opened(tmp_path / "whole.jsonl", pipeline=pipeline, memory=memory))
    for cut in (1, 5, 11, len(whole) - 30, len(whole) - 1):
        path = tmp_path / f"{cut}.jsonl"
        first = opened(path, pipeline=pipeline, memory=memory)
        before, _ = driven(first, most=cut)
        first.journal.close()
        # What it would be opened with now is not what it was begun with.
        second = opened(path, pipeline=Pipeline(pool=9), memory=[])
        after, again = driven(second)
        assert again.tuned == outcome.tuned
        assert set(names(before + after)) == set(names(whole))
        searched = [r for r in before + after if not r.step.startswith("final")]
        assert len(set(names(searched))) == len(searched), "something was evaluated twice"


@pytest.mark.parametrize("strategy", strategies.registry.names())
def test_every_strategy_can_be_replayed(tmp_path, strategy):
    plan = fake_plans(1, evaluations=30, strategy=strategy)[0]
    pipeline = Pipeline(pool=8, refill=7)
    whole, outcome = driven(opened(tmp_path / "whole.jsonl", plan, pipeline=pipeline), say=faulty)
    first = opened(tmp_path / "cut.jsonl", plan, pipeline=pipeline)
    before, _ = driven(first, most=17, say=faulty)
    first.journal.close()
    after, again = driven(opened(tmp_path / "cut.jsonl", plan), say=faulty)
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
    assert outcome.tuned.median_s >= 0.9e-5
    assert any(t.status is Status.WRONG for t in session.journal.trials)


def test_a_plan_without_a_right_candidate_is_given_up(tmp_path):
    plan = fake_plans(1, evaluations=200)[0]
    session = opened(tmp_path / "a.jsonl", plan)
    asked, outcome = driven(session, say=lambda r, p: answer(r, p, bad=Status.CRASHED))
    assert not outcome.kept
    assert outcome.reason
    assert len(asked) == MAX_FAILURES


def budget(evaluations, minutes=0.0):
    return dataclasses.replace(PLAN, budget=Budget(evaluations=evaluations, minutes=minutes))


def test_a_larger_budget_goes_on_and_an_edited_space_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    asked, first = closed(path)
    added, outcome = closed(path, budget(30))
    assert outcome.evaluations == 30
    assert not set(names(added)) & set(names(asked))
    again, outcome = closed(path, budget(5))  # a smaller one throws nothing away
    assert (outcome.evaluations, again) == (30, [])
    assert outcome.tuned.config
    assert first.evaluations == 20
    known = opened(path, dataclasses.replace(budget(5), count=7, share=0.125))
    assert (known.done.count, known.done.share) == (7, 0.125)  # a later summary weighs it
    known.journal.close()
    with pytest.raises(UsageError, match="plan"):
        opened(path, dataclasses.replace(PLAN, space={"tile_m": (32,)}))


def test_what_failed_and_is_not_asked_for_again_is_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    _, before = closed(path, say=faulty)
    again = Session(budget(2), INFO, Journal(path, retry_failed=True))
    assert not any(trial.status is Status.CRASHED for trial in again.journal.trials)
    _, outcome = driven(again, say=faulty)
    assert (before.evaluations, outcome.evaluations) == (20, 20)


def test_minutes_end_a_search_and_a_final_takes_none_from_one_that_goes_on(tmp_path):
    path = tmp_path / "a.jsonl"
    first = opened(path, budget(1000, minutes=1.0))
    _, before = driven(first, say=slow)
    assert before.evaluations < 12
    assert sum(trial.cost_s for trial in first.journal.trials) > 120
    assert out_of_minutes(first.plan, first.journal.trials)
    first.journal.close()
    _, outcome = driven(opened(path, budget(1000, minutes=2.0)), say=slow)
    assert outcome.evaluations > before.evaluations


def test_a_stopped_session_goes_on_later(tmp_path):
    path = tmp_path / "a.jsonl"
    session = opened(path)
    session.stop = True
    assert driven(session) == ([], None)
    session.journal.close()
    assert driven(opened(path))[1].evaluations == 20
    with pytest.raises(UsageError, match="gfx942"):
        opened(path, dataclasses.replace(PLAN, arch="gfx942"))


# The ladder


def climbed(path, factors, info=INFO):
    """Steps that each of several candidates reached, given their times."""
    journal = Journal(path)
    evaluator = Evaluator(PLAN, info, journal)
    configs = [{"tile_m": i} for i in range(len(factors))]
    for config, factor in zip(configs, factors, strict=True):
        for step in evaluator.evaluate(config):
            for request in step.requests:
                journal.record(
                    Trial(
                        config=request.case.config,
                        step=request.step,
                        status=Status.OK,
                        seconds=1e-5 * factor,
                    )
                )
    return [journal.reached([s.name for s in evaluator.steps])[i].step for i in range(len(configs))]


@pytest.mark.parametrize(
    ("factors", "info", "steps"),
    [
        ([1.2, 2.0, 5.0, 1.5, 1.0, 1.04], INFO, ["full"] * 2 + ["short"] * 4),
        ([1.2, 2.0, 5.0, 5.0, 5.0, 5.0, 1.0, 1.04], INFO, ["full"] * 3 + ["short"] * 5),
        ([1.0, 9.0, 8.0, 7.0, 1.2, 1.4], CPU, ["full", "short"] + ["look"] * 4),
        ([1.0] * 9, INFO, ["full"] * 3 + ["short"] * 6),  # at most a third climbs
    ],
)
def test_only_what_is_close_to_the_best_is_timed_longer(tmp_path, factors, info, steps):
    assert sorted(climbed(tmp_path / "a", factors, info)) == sorted(steps)


def test_short_timings_are_short():
    for info in (INFO, CPU):
        spans = [s.timing.max_s + s.timing.warmup_s for s in ladder(info)]
        assert spans == sorted(spans)
    assert ladder(INFO)[0].timing.max_s + ladder(INFO)[0].timing.warmup_s <= 0.015


@pytest.mark.parametrize(
    ("info", "used", "rejected"),
    [
        (HOPPER, {"stack_bytes": 16, "shared_bytes": 1024}, False),
        (HOPPER, {"shared_bytes": 1025}, True),
        (HOPPER, {"stack_bytes": 4096}, True),
        (HOPPER, {"spilled_registers": 100}, True),
        (INFO, {"shared_bytes": 10**6}, False),
        # On AMD any vector register in memory, and no scalar one.
        (CDNA, {"stack_bytes": 0, "spilled_registers": 0, "spilled_scalar_registers": 40}, False),
        (CDNA, {"stack_bytes": 4, "spilled_registers": 1}, True),
    ],
)
def test_resources_alone_can_reject(info, used, rejected):
    assert (static_reason(used, info) is not None) == rejected


# Transfer


def test_distance_is_in_doublings():
    one, two, other = (
        ops.parse(f"gemm m={m} n=8 k=8 dtype=f32 tb={tb}")
        for m, tb in ((8, "n"), (64, "n"), (8, "t"))
    )
    assert (distance(one, two), distance(one, other)) == (3.0, float("inf"))


def test_a_search_whose_minutes_are_spent_still_has_its_final(tmp_path):
    path = tmp_path / "a.jsonl"
    closed(path, most=8, say=slow)
    asked, outcome = driven(opened(path, budget(20, minutes=1.0)))
    assert outcome.tuned.verified, outcome.reason
    assert all(request.step.startswith(("final", "near")) for request in asked)


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
    told = read_journal(path)[2]
    assert told.disturbed
    assert not told.kept
    final = [one for one in asked if one[1].startswith("final")]
    assert went_on(busy)[0] == final
    assert went_on(most=5)[0] == final[:5]
    again, outcome = went_on()
    assert again[-1] in final
    assert again[-1] != final[-1]  # an undisturbed final needs no more than one set of rounds
    assert len(again) < len(final)  # rounds of the one that was cut off count
    assert outcome.kept, outcome.reason
    assert went_on() == ([], outcome)


def remembered(plan, best, others, m=48):
    """Memory of a search of another size, in which `best` was twice as fast as the rest."""
    problem = ops.parse(plan.problem.key.replace(f"m={plan.problem.dims['m']}", f"m={m}"))
    times = {config_key(c): (c, 2e-5) for c in others} | {config_key(best): (best, 1e-5)}
    return Searched(problem=problem, backend=plan.backend, arch=INFO.arch, times=times)


def test_a_search_starts_from_what_memory_predicts_and_keeps_it(tmp_path):
    points = Points.of(kernel_files.find("fake").space(PLAN.problem, INFO))
    configs = [points.config(i) for i in range(0, len(points), 3)]
    memory = [remembered(PLAN, configs[7], configs)]
    session = opened(tmp_path / "a.jsonl", memory=memory)
    default, *starts = session.header.starts
    assert default == kernel_files.find("fake").space(PLAN.problem, INFO).default
    assert (starts[0], len(starts)) == (configs[7], 3)
    first = driven(session, most=12)[0]
    session.journal.close()
    keys = list(dict.fromkeys(config_key(request.case.config) for request in first))
    assert config_key(configs[7]) == keys[1]  # after the default
    # Continued, it has the same starts, whatever is remembered by then.
    again = opened(tmp_path / "a.jsonl", memory=[])
    assert again.header == session.header
    again.journal.close()
    cold = opened(tmp_path / "b.jsonl", memory=[])
    assert cold.header.starts == (default,)
    cold.journal.close()


def test_starts_of_several_backends_are_the_best_of_each():
    space = kernel_files.find("fake").space(PLAN.problem, INFO)
    configs = [Points.of(space).config(i) for i in range(0, 40, 3)]
    plan = dataclasses.replace(PLAN, backend="fake,triton")
    both = Space.union({"fake": space, "triton": space})
    memory = [remembered(PLAN, configs[2], configs)]
    starts = starts_from(plan, INFO, memory, both)
    assert starts[0] == join_config("fake", configs[2])
    assert {start["backend"] for start in starts} == {"fake"}
    assert starts_from(plan, INFO, [], both) == []


def test_a_plan_for_one_thread_is_timed_by_cpu_time(tmp_path):
    cpu = dataclasses.replace(CPU, units=8)
    assert dataclasses.replace(PLAN, threads=2).device(cpu).units == 2
    assert PLAN.device(cpu).units == 8
    plan = dataclasses.replace(PLAN, threads=1)
    evaluator = Evaluator(plan, plan.device(cpu), Journal(tmp_path / "a.jsonl"))
    timings = [
        evaluator.case(PLAN.reference_config, step.timing).timing for step in evaluator.steps
    ]
    assert {(timing.timer, timing.threads) for timing in timings} == {(Timer.CPU, 1)}
    assert plan.device(HOPPER) == HOPPER
