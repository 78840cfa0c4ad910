"""A night against its history: who is suspected, what confirmation changes, and the exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from kernelmark import ops
from kernelmark.api.suspects import Rules, change_of, judge, looks_for, verdict_again
from kernelmark.compare import alarms
from kernelmark.core.environment import Environment
from kernelmark.core.errors import NothingToDo
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Mode, Result, ResultSet, Run, RunState, Status
from kernelmark.core.verdict import VerdictStatus
from kernelmark.stats.interval import mean_of
from kernelmark.stats.paired import rounds_for_one
from kernelmark.stores import open_store
from kernelmark.testing.stores import measured

NOISE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003)
CANARY = "copy n=1 dtype=f32"


def result(key: str, factor: float | None, device: str = "cpu") -> Result:
    case = Case(problem=ops.parse(key), backend="numpy")
    if factor is None:
        failed = Reason.of("it fell")
        return Result(case=case, device=device, arch="a", status=Status.CRASHED, error=failed)
    return dataclasses.replace(measured(case, *[(1e-5 * factor,)] * 3), device=device)


def gemm(m: int, factor: float | None, device: str = "cpu") -> Result:
    return result(f"gemm m={m} n=8 k=8 dtype=f32", factor, device)


@pytest.fixture
def night(tmp_path) -> Iterator:
    """Judges a night of these results after six quiet ones of the same kernels."""
    with open_store(tmp_path / "store.sqlite") as store:
        count = 0

        def add(*results: Result) -> str:
            nonlocal count
            count += 1
            run = Run(
                id=f"night-{count}",
                started=1e9 + 86400 * count,
                environment=Environment(commit=f"c{count}"),
                label="n",
                state=RunState.DONE,
            )
            store.add_result_set(ResultSet(run=run, results=results))
            return run.id

        def call(*results: Result, confirm=None, quiet=NOISE, **rules):
            for noise in quiet:
                add(*(gemm_like(one, noise) for one in results))
            asked: list = []

            def keep(doubts):
                asked.extend(doubts)
                return (confirm or (lambda one: {}))(doubts)

            found = judge(store, [add(*results)], Rules(label="n", **rules), keep)
            return found, asked

        call.store, call.add = store, add
        yield call


def gemm_like(one: Result, factor: float) -> Result:
    return result(one.case.problem.key, factor, one.device)


def agreeing(doubts):
    """Every suspect is what it looked like."""
    reason = Reason("changed", "changed", ratio=1.1, low=1.05, high=1.15)
    return {one.key: change_of(one.result, one.level_s, one.status, reason) for one in doubts}


def refuting(doubts):
    """No suspect is what it looked like."""
    status = VerdictStatus.UNSURE
    return {one.key: change_of(one.result, one.level_s, status, Reason("no")) for one in doubts}


def test_a_quiet_night_has_no_suspects(night):
    found, asked = night(gemm(8, 1.001), gemm(16, 0.999))
    assert asked == []
    assert found.code == 0
    assert found.answer
    assert [one.status for one in found.changes] == [VerdictStatus.SAME] * 2


def test_nobody_is_alarmed_before_the_second_stage_agrees(night):
    found, asked = night(gemm(8, 1.05), gemm(16, 1.0), confirm=refuting)
    assert [one.status for one in asked] == [VerdictStatus.SLOWER]
    assert asked[0].before == "night-6"
    assert found.code == 0
    (change,) = (one for one in found.changes if one.status is VerdictStatus.UNSURE)
    assert change.reason


def test_what_is_confirmed_alarms(night):
    found, _ = night(gemm(8, 1.05), gemm(16, 1.0), confirm=agreeing)
    assert found.code == 1
    assert found.answer
    assert found.doubts == 1


def test_a_limit_spares_what_is_below_it(night):
    limits = alarms.parse(["slower:10%"])
    assert night(gemm(8, 1.05), confirm=agreeing, limits=limits)[0].code == 0


def test_a_failure_that_is_confirmed_is_a_regression_and_an_old_one_is_not(night):
    found, asked = night(gemm(8, None), gemm(16, 1.0), confirm=agreeing)
    assert [one.status for one in asked] == [VerdictStatus.BROKEN]
    assert found.code == 1
    assert found.failed == 1
    again, asked = night(gemm(8, None), gemm(16, 1.0), quiet=())
    assert asked == [], "it was measured again the night before"
    assert again.code == 1, "and is still broken"
    assert [one.since for one in again.changes if one.status is VerdictStatus.BROKEN] == ["night-7"]
    never, asked = night(gemm(32, None), gemm(16, 1.0), quiet=())
    assert (asked, never.code) == ([], 3), "it never worked"


def test_a_failure_that_stays_undecided_is_not_refuted(night):
    """On a machine too busy to answer, for example."""
    found, asked = night(gemm(8, None), gemm(16, 1.0), confirm=refuting)
    assert [one.status for one in asked] == [VerdictStatus.BROKEN]
    assert found.code == 3
    assert not night.store.marks()
    _, asked = night(gemm(8, None), gemm(16, 1.0), quiet=())
    assert [one.status for one in asked] == [VerdictStatus.BROKEN]


def test_a_suspect_that_cannot_be_measured_again_is_never_well(night):
    assert night(gemm(8, 1.05))[0].code == 1, "an alarm of history stands"
    found, asked = night(gemm(32, 1.015))
    assert [one.status for one in found.changes] == [VerdictStatus.UNSURE]
    assert (len(asked), found.code) == (1, 4)


@pytest.mark.parametrize("nights", [1, 12])
def test_a_confirmed_slowdown_is_red_and_not_measured_again_until_it_is_good(night, nights):
    """Also when every night that history looks at is slow."""
    found, _ = night(gemm(8, 1.2), confirm=agreeing)
    for _ in range(nights):
        found, asked = night(gemm(8, 1.2), quiet=(), nights=8)
        assert (found.code, asked) == (1, [])
    (change,) = found.changes
    assert (change.status, change.since) == (VerdictStatus.SLOWER, "night-7")
    assert change.ratio == pytest.approx(1.2, rel=0.01)
    assert night(gemm(8, 1.0), quiet=(), nights=8)[0].code == 0


def test_a_machine_that_changed_is_accepted_once_paired_rounds_agree_and_a_step_proves_it(night):
    def same(doubts):
        reason = Reason("same")
        return {d.key: change_of(d.result, d.level_s, VerdictStatus.SAME, reason) for d in doubts}

    codes = [night(gemm(8, 1.2), confirm=same, paired=True)[0].code]
    asked = [None]
    while asked and len(codes) < 10:
        found, asked = night(gemm(8, 1.2), quiet=(), confirm=same, paired=True)
        codes.append(found.code)
    assert asked == []
    assert codes == [0] * len(codes)
    (kinds,) = ([mark.kind.value for mark in marks] for marks in night.store.marks().values())
    assert "accepted" in kinds


def test_the_first_nights_are_undecided_not_well(night):
    found, asked = night(gemm(8, 1.0), gemm(16, 1.0), quiet=(1.0,))
    assert asked == []
    assert found.answer
    assert [one.status for one in found.changes] == [VerdictStatus.UNSURE] * 2


@pytest.mark.parametrize(("paired", "code"), [(False, 0), (True, 1)])
def test_a_moved_canary_suppresses_all_but_paired_rounds(night, paired, code):
    canary = result(CANARY, 1.5)
    found, asked = night(canary, gemm(8, 1.015), gemm(16, 1.5), confirm=agreeing, paired=paired,
                         canaries="sentinels")  # fmt: skip
    assert found.code == code
    assert all(one.result.case.problem.op == "gemm" for one in asked), "canaries are no suspects"
    assert any("canary moved" in note for note in found.notes)


def test_a_slow_loss_shows_against_a_pinned_run(night):
    first = night.add(gemm(8, 1.0))
    night.store.pin("golden", first)
    creeping = [1 + 0.004 * i for i in range(1, 9)]
    found, asked = night(gemm(8, 1.036), quiet=creeping, baseline="golden", confirm=agreeing)
    assert [one.before for one in asked] in ([first], ["night-7"])
    assert found.code == 1


def test_several_devices_of_one_kind_are_judged_each(night):
    results = [gemm(8, 1.2, "cuda:0"), gemm(8, 1.2, "cuda:1")]
    found, asked = night(*results, confirm=agreeing)
    assert {one.result.device for one in asked} == {"cuda:0", "cuda:1"}
    assert len(found.changes) == 2


def test_a_night_without_results_is_nothing_to_judge(night):
    with pytest.raises(NothingToDo):
        judge(night.store, [night.add()], Rules(label="n"), lambda doubts: {})


@pytest.mark.parametrize(
    ("again", "status"),
    [
        (gemm(8, 1.0), VerdictStatus.SAME),
        (gemm(8, 1.05), VerdictStatus.SLOWER),
        (gemm(8, None), VerdictStatus.BROKEN),
    ],
)
def test_repeated_runs_are_screened_strictly(night, again, status):
    _, asked = night(gemm(8, 1.05))
    assert verdict_again(asked[0], again, 0.02).status is status


def test_a_failure_that_does_not_come_again_is_no_alarm(night):
    _, asked = night(gemm(8, None))
    found = verdict_again(asked[0], gemm(8, 1.0), 0.02)
    assert found.status is VerdictStatus.UNSURE
    assert found.reason


def test_a_multimodal_result_is_compared_with_its_level_by_what_history_counts(night):
    modes = (Mode(value_s=1.00e-5, share=0.6), Mode(value_s=1.08e-5, share=0.4))
    made = gemm(8, 1.05)  # its median is on the way from one mode to the other
    mixed = dataclasses.replace(made.measurement, modes=modes)
    mixed = dataclasses.replace(made, measurement=mixed)
    mean_s = mean_of(modes)
    _, asked = night(mixed)
    (doubt,) = asked
    found = verdict_again(doubt, mixed, 0.02)
    assert found.head == pytest.approx(mean_s)
    assert found.ratio == pytest.approx(mean_s / doubt.level_s)
    against = dataclasses.replace(doubt, story=None, level_s=1e-5)  # the median of a pinned run
    assert verdict_again(against, mixed, 0.02).ratio == pytest.approx(1.05)


def test_many_suspects_get_rounds_enough_to_see_one_change():
    assert looks_for(1).last == 32
    for pairs in (20, 10_000_000):
        looks = looks_for(pairs)
        assert rounds_for_one(looks, pairs) <= looks.last + 2
        assert looks.last % 2 == 0


def test_tonight_is_kept_as_it_is(night):
    found, _ = night(gemm(8, 1.05), confirm=agreeing)
    assert dataclasses.replace(found, notes=()).changes[0].head == pytest.approx(1.05e-5)
