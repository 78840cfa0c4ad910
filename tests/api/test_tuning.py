"""Summaries and plans from Python."""

from __future__ import annotations

import pytest

import kernelmark as km
from kernelmark import ops
from kernelmark.api import tuning
from kernelmark.api.tuning import _reference
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.result import Status
from kernelmark.runners.events import CaseFinished, Note
from kernelmark.runners.targets import find
from kernelmark.tune import plans
from kernelmark.tune import summary as summaries
from kernelmark.tune.folder import TuningFolder
from kernelmark.workloads.workload import Call, Workload, write
from kernelmark_dev.raising import tells

pytestmark = pytest.mark.usefixtures("workers_here")


def problem(m: int):
    return ops.parse(f"gemm m={m} n=16 k=16 dtype=f32")


@pytest.fixture
def folder(tmp_path):
    calls = tuple(Call(problem=problem(m), count=m) for m in (30, 50, 20))
    place = tmp_path / "work.log"
    place.mkdir()
    write(place / "workload.csv", Workload(name="work", calls=calls))
    return place


def test_from_a_workload_to_a_plan(folder):
    found = km.tuning.summarise(folder, backend="fake", device="fake", thr=25)
    assert [cost.count for cost in found.selected] == [50, 30]
    assert found.coverage == pytest.approx(0.8, abs=1e-3)
    done = km.tuning.plan(
        folder, backend="fake", strategy="random", budget=tuning.Budget(evaluations=9)
    )
    assert [draft.plan.name for draft in done.drafts] == ["SSS_NN_0", "SSS_NN_1"]
    assert [cost.count for cost in done.left_out] == [20]
    plan = plans.read_plan(TuningFolder(folder).plan("SSS_NN_0"))
    assert (plan.problem, plan.budget.evaluations) == (problem(50), 9)


def test_problems_without_a_folder(tmp_path):
    asked = tuning.Selection(ops=("gemm",), axes=("m=[8,16]", "n=8", "k=8"), dtypes=("f32",))
    done = tuning.plan(
        tmp_path / "new", backend="fake", device="fake", strategy="random", selection=asked
    )
    assert len(done.drafts) == 2
    assert done.notes[0].startswith("shares are not known")


def test_what_was_timed_before_ctrl_c_is_kept(folder):
    def interrupt(event: object) -> None:
        if isinstance(event, CaseFinished):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=str(folder / "summary.csv")):
        tuning.summarise(folder, backend="fake", device="fake", on_event=interrupt)
    partly = summaries.read(folder / "summary.csv")
    assert partly is not None
    assert sum(cost.status is None for cost in partly.costs) == 2
    told: list[object] = []
    found = tuning.summarise(folder, backend="fake", device="fake", on_event=told.append)
    assert sum(isinstance(event, CaseFinished) for event in told) == 2
    assert [cost.status for cost in found.costs] == [Status.OK] * 3


def test_calls_that_do_more_than_their_problem_are_named(tmp_path):
    calls = (
        Call(problem=problem(8), count=3, lost=("act_type=ActivationType.Gelu",)),
        Call(problem=problem(8), count=2),
    )
    write(tmp_path / "workload.csv", Workload(name="x", calls=calls))
    told: list[object] = []
    tuning.summarise(tmp_path, backend="fake", device="fake", on_event=told.append)
    (note,) = [event.text for event in told if isinstance(event, Note)]
    assert tells(note, 3, 5, "ActivationType.Gelu")


def test_without_a_name_the_reference_is_one_that_is_here():
    assert _reference(find("cpu")[1]) in ("torch", "numpy")
    assert _reference(find("fake")[1]) == "fake"


def test_an_empty_workload_is_nothing_to_do(tmp_path):
    write(tmp_path / "workload.csv", Workload(name="x", calls=()))
    with pytest.raises(NothingToDo, match=str(tmp_path / "workload.csv")):
        tuning.summarise(tmp_path, backend="fake", device="fake")


def test_a_threshold_is_checked_first(folder):
    with pytest.raises(UsageError):
        tuning.plan(folder, backend="fake", device="fake", thr=-3)
