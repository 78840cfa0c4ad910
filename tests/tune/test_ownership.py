"""Which outcomes are of the plans as they are now."""

import dataclasses

import pytest

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.devices.fake import FakeDevice
from kernelmark.tune.driver import Session
from kernelmark.tune.finals import nothing_found
from kernelmark.tune.journal import (
    Finished,
    Journal,
    check_backend,
    current_outcomes,
    outdated_plans,
    valid_outcomes,
)
from kernelmark.tune.plans import Acceptance, Budget, decision_digest, plan_digest
from kernelmark_dev.tuning import fake_plans, make_folder

PLAN = fake_plans(1)[0]
NAME = PLAN.name
INFO = FakeDevice().info
LARGER = dataclasses.replace(PLAN, budget=Budget(evaluations=500))
STRICTER = dataclasses.replace(PLAN, acceptance=Acceptance(min_ratio=2.0))
ELSEWHERE = dataclasses.replace(PLAN, seed=2)
FAMOUS = dataclasses.replace(PLAN, count=77, share=0.5)


@pytest.fixture
def ended(tmp_path):
    """A folder whose only plan came to an outcome, with these digests beside it."""

    def make(**digests):
        folder = make_folder(tmp_path / "t", [PLAN])
        journal = Journal(folder.journal(NAME))
        Session(PLAN, INFO, journal)
        outcome = nothing_found(PLAN, INFO, journal, 1)
        journal.finish(Finished(outcome=outcome, **digests))
        journal.close()
        return folder

    return make


WHOLE = {"plan": plan_digest(PLAN), "decision": decision_digest(PLAN)}
OF_OLD = {"plan": plan_digest(PLAN)}
CUT_SHORT = {"plan": "", "decision": decision_digest(PLAN)}


@pytest.mark.parametrize("digests", [WHOLE, OF_OLD, CUT_SHORT])
@pytest.mark.parametrize("plan", [PLAN, FAMOUS])
def test_an_outcome_of_the_plan_is_weighed_by_it(ended, digests, plan):
    found = valid_outcomes(ended(**digests), [plan])
    assert not found.stale
    outcome = found.outcomes[NAME]
    assert (outcome.count, outcome.share) == (plan.count, plan.share)


@pytest.mark.parametrize("digests", [WHOLE, CUT_SHORT])
def test_another_budget_leaves_an_outcome_true(ended, digests):
    assert valid_outcomes(ended(**digests), [LARGER]).outcomes.keys() == {NAME}


@pytest.mark.parametrize("digests", [WHOLE, OF_OLD, CUT_SHORT])
@pytest.mark.parametrize(("plan", "why"), [(STRICTER, "decides anew"), (ELSEWHERE, "tune again")])
def test_an_outcome_of_another_plan_is_not_the_plans(ended, digests, plan, why):
    found = valid_outcomes(ended(**digests), [plan])
    assert not found.outcomes
    assert found.stale[NAME].startswith("its plan was edited since: ")
    assert found.stale[NAME].endswith(why)


@pytest.mark.parametrize("broken", [False, True])
def test_plans_of_another_architecture_are_refused_before_there_are_trials(tmp_path, broken):
    folder = make_folder(tmp_path / "t", [PLAN])
    if broken:
        path = folder.plan(NAME)
        path.write_text(path.read_text().replace("seed = 1", "seed = 'x'"))
    check_backend(folder, "fake", "fake")
    with pytest.raises(UsageError, match="gfx950") as refused:
        check_backend(folder, "fake", "gfx950")
    assert "give -d or --arch as before, or take another folder" in refused.value.hint


@pytest.mark.parametrize("text", ["", "backend = 3", 'backend = "fak"', "backend = ", "arch = 1"])
def test_a_plan_that_does_not_say_whose_it_is_may_be_written_anew(tmp_path, text):
    folder = make_folder(tmp_path / "t", [PLAN])
    folder.plan(NAME).write_text(text)
    check_backend(folder, "fake", "gfx950")


def test_a_plan_for_any_architecture_is_of_all(tmp_path):
    folder = make_folder(tmp_path / "t", [dataclasses.replace(PLAN, arch="")])
    check_backend(folder, "fake", "gfx950")


def test_a_journal_that_cannot_be_read_is_not_one_that_is_not_there(ended):
    folder = ended(**WHOLE)
    path = folder.journal(NAME)
    path.write_text("garbage\n" + path.read_text())
    found = current_outcomes(folder)
    assert found.unreadable == found.stale
    assert "line 1" in found.unreadable[NAME]
    path.unlink()
    path.mkdir()
    assert str(path) in current_outcomes(folder).unreadable[NAME]
    path.rmdir()
    assert valid_outcomes(folder, [PLAN]).unreadable == {}


def test_a_search_that_came_to_nothing_yet_is_no_result(tmp_path):
    folder = make_folder(tmp_path / "t", [PLAN])
    journal = Journal(folder.journal(NAME))
    Session(PLAN, INFO, journal)
    journal.close()
    with pytest.raises(NothingToDo, match=str(folder.path)):
        current_outcomes(folder)


def test_a_journal_of_another_search_cannot_be_continued(ended):
    folder = ended(**WHOLE)
    assert outdated_plans(folder, [PLAN, LARGER, STRICTER]) == []  # the same candidates
    assert outdated_plans(folder, [ELSEWHERE]) == [NAME]


def test_a_plan_without_a_journal_is_not_outdated(tmp_path):
    assert outdated_plans(make_folder(tmp_path / "t", [PLAN]), [ELSEWHERE]) == []
