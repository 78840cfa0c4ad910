"""Plans from costs: order, names, reasons, and files that leave a user's edits alone."""

import dataclasses

import pytest

from kernelmark import backends, ops
from kernelmark.core.result import Space, Status
from kernelmark.gpu.architectures import absent
from kernelmark.runners.targets import find
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plans import (
    Budget,
    Fate,
    Settings,
    assign,
    costs_of,
    drafts,
    plan_names,
    plan_text,
    read_plan,
    space_of,
    tunable,
    write_plans,
)
from kernelmark.tune.summary import Basis, Cost, summary
from kernelmark.workloads.workload import Call, Workload

BASIS = Basis(
    backend="fake", version="1", model="a script", arch="fake", timing="quick", device="fake"
)
FAKE = find("fake")[1]
SETTINGS = Settings(backend="fake", reference="fake", strategy="random")


def problem(m, dtype="f32"):
    return ops.parse(f"gemm m={m} n=16 k=32 dtype={dtype}")


def workload(**counts):
    calls = tuple(Call(problem=problem(int(m[1:])), count=n) for m, n in counts.items())
    return Workload(name="x", calls=calls)


def timed(m, count, seconds):
    return Cost(problem=problem(m), count=count, status=Status.OK, time_s=seconds)


def sizes(costs):
    return [cost.problem.dims["m"] for cost in costs]


def made(costs, settings=SETTINGS, info=FAKE, **given):
    names = assign([cost.problem for cost in costs], {})
    return drafts(
        costs, names=names, blas=given.pop("blas", {}), settings=settings, info=info, **given
    )


def test_without_a_summary_the_order_is_by_calls_times_work():
    costs = costs_of(workload(m8=1, m512=1, m64=1000), None, None)
    assert sizes(costs) == [64, 512, 8]
    assert all(cost.selected and cost.share == 0 for cost in costs)


def test_with_a_summary_the_order_is_by_time_and_shares_follow_todays_counts():
    known = summary(BASIS, [timed(8, 1, 30e-6), timed(64, 1, 70e-6)])
    costs = costs_of(workload(m8=21, m64=1, m512=1), known, None)
    assert sizes(costs) == [8, 64, 512]
    assert [cost.share for cost in costs] == pytest.approx([0.9, 0.1, 0.0])
    assert [cost.status for cost in costs] == [Status.OK, Status.OK, None]


def test_the_summarys_selection_holds_until_another_threshold_is_given():
    known = summary(BASIS, [timed(8, 1, 1e-6), timed(64, 1, 99e-6)], thr=5.0)
    here = workload(m8=1, m64=1, m512=1)
    assert sizes(c for c in costs_of(here, known, None) if c.selected) == [64]
    assert sizes(c for c in costs_of(here, known, 1.0) if c.selected) == [64, 8]
    assert sizes(c for c in costs_of(here, known, 0.0) if c.selected) == [64, 8, 512]


def test_a_plan_has_all_of_the_space_and_what_the_log_said():
    blas = {problem(8): {"transA": "N", "lda": "16"}}
    (draft,), refused = made([timed(8, 5, 1e-5)], blas=blas, timed_by="fake")
    assert refused == []
    assert (draft.plan.count, draft.plan.reference_s, draft.plan.arch) == (5, 1e-5, "fake")
    assert draft.plan.blas == blas[problem(8)]
    assert (draft.combinations, len(draft.plan.space)) == (3600, 6)


def test_a_time_of_another_backend_is_not_the_references():
    crashed = Cost(problem=problem(2), count=1, status=Status.CRASHED, reason="signal 9")
    for cost in (timed(8, 5, 1e-5), crashed):  # what failed there can still be tuned
        (draft,), refused = made([cost], timed_by="torch")
        assert (draft.plan.reference_s, refused) == (0.0, [])


def test_what_cannot_be_tuned_has_a_reason():
    large = ops.parse("gemm m=4096 n=4096 k=4096 dtype=f32")
    crashed = Cost(problem=problem(2), count=1, status=Status.CRASHED, reason="signal 9")
    costs = [Cost(problem=large, count=1), crashed, timed(8, 1, 1e-5)]
    plans, refused = made(costs, timed_by="fake")
    assert [draft.plan.problem for draft in plans] == [problem(8)]
    assert len(refused) == 2
    assert "signal 9" in refused[1].reason
    _, refused = made(
        [timed(8, 1, 1e-5)], Settings(backend="numpy", reference="numpy"), find("cpu")[1]
    )
    assert refused[0].reason.code == "nothing-to-tune"


def test_a_list_of_thousands_of_solutions_is_not_written_out(monkeypatch):
    fake = backends.registry.get("fake")
    long = Space(parameters={"algo": tuple(f"id={i}" for i in range(5000)), "pad": (0, 1)})
    monkeypatch.setattr(type(fake), "space", lambda self, problem, info: long)
    (draft,), _ = made([timed(8, 1, 1e-5)], SETTINGS, FAKE)
    assert dict(draft.plan.space) == {"pad": (0, 1)}
    assert len(plan_text(draft.plan, space=draft.space)) < 4000
    assert space_of(draft.plan, FAKE).parameters == long.parameters


@pytest.mark.parametrize("key", ["attention heads=8 seq=1024 dim=72 dtype=f16"])
def test_nothing_to_tune_has_the_backends_cause(key):
    settings = Settings(backend="iree", reference="iree")
    plans, (one,) = made([Cost(problem=ops.parse(key), count=1)], settings, absent("gfx942"))
    assert plans == []
    assert one.reason.code == "nothing-to-tune"
    assert one.bare
    assert "iree" not in tunable(ops.parse(key), absent("gfx942"))


def test_what_the_reference_cannot_do_is_told_as_the_references():
    settings = Settings(backend="iree", reference="numpy")
    (one,) = made([Cost(problem=problem(8, "bf16"), count=1)], settings, find("cpu")[1])[1]
    assert "numpy" in one.reason
    assert one.by_reference
    crashed = Cost(problem=problem(2), count=1, status=Status.CRASHED, reason="signal 9")
    (one,) = made([crashed], settings, find("cpu")[1], timed_by="numpy")[1]
    assert "numpy" in one.reason
    (one,) = made([crashed], timed_by="fake")[1]
    assert not one.by_reference
    assert not one.by_reference


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx90a", "sm_90", "sm_80", "sm_75"])
def test_plans_for_gpus_that_are_not_here(arch, tmp_path):
    info = absent(arch)
    (draft,), _ = made(
        [Cost(problem=problem(512, "bf16"), count=1)],
        Settings(backend="triton", reference="triton", strategy="random"),
        info,
    )
    assert draft.plan.arch == arch
    assert ("waves_per_eu" in draft.plan.space) == arch.startswith("gfx")
    assert ("kpack" in draft.plan.space) == (arch == "gfx942")
    path = tmp_path / f"{draft.plan.name}.toml"
    path.write_text(plan_text(draft.plan, space=draft.space))
    assert read_plan(path) == draft.plan
    assert max(map(len, path.read_text().splitlines())) <= 100


@pytest.fixture
def folder(tmp_path):
    return TuningFolder(tmp_path)


def put(folder, costs, settings=SETTINGS, *, force=False):
    names = plan_names(folder, [cost.problem for cost in costs])
    plans, _ = drafts(costs, names=names, blas={}, settings=settings, info=FAKE)
    return write_plans(folder, plans, names, force=force)


LONGER = dataclasses.replace(SETTINGS, budget=Budget(evaluations=500))


def test_files_are_new_then_the_same_then_changed(folder):
    costs = [timed(8, 1, 1e-5), timed(64, 1, 1e-6)]
    assert put(folder, costs) == {"SSS_NN_0": Fate.NEW, "SSS_NN_1": Fate.NEW}
    assert put(folder, costs) == {"SSS_NN_0": Fate.SAME, "SSS_NN_1": Fate.SAME}
    assert put(folder, costs, LONGER) == {"SSS_NN_0": Fate.CHANGED, "SSS_NN_1": Fate.CHANGED}
    assert read_plan(folder.plan("SSS_NN_1")).budget.evaluations == 500


def test_what_was_edited_by_hand_stays(folder):
    costs = [timed(8, 1, 1e-5), timed(64, 1, 1e-6)]
    put(folder, costs)
    path = folder.plan("SSS_NN_0")
    edited = path.read_text().replace("evaluations = 100", "evaluations = 7")
    path.write_text(edited)
    for _ in range(2):
        assert put(folder, costs, LONGER)["SSS_NN_0"] is Fate.EDITED
        assert path.read_text() == edited
    assert put(folder, costs, LONGER, force=True)["SSS_NN_0"] is Fate.CHANGED
    assert read_plan(path).budget.evaluations == 500
    assert put(folder, costs, SETTINGS)["SSS_NN_0"] is Fate.CHANGED


@pytest.mark.parametrize("lost", [False, True])
def test_names_stay_when_the_order_changes_and_problems_come(folder, lost):
    put(folder, [timed(8, 1, 1e-5), timed(64, 1, 1e-6)])
    if lost:
        folder.state.unlink()
    fates = put(folder, [timed(4, 9, 1e-5), timed(64, 1, 1e-6), timed(8, 1, 1e-5)])
    assert fates == {"SSS_NN_2": Fate.NEW, "SSS_NN_1": Fate.SAME, "SSS_NN_0": Fate.SAME}
    sizes = {n: read_plan(folder.plan(n)).problem.dims["m"] for n in folder.names()}
    assert sizes == {"SSS_NN_0": 8, "SSS_NN_1": 64, "SSS_NN_2": 4}


def test_a_plan_of_the_users_own_keeps_its_name(folder):
    path = folder.plan("mine")
    path.parent.mkdir()
    path.write_text(f'problem = "{problem(8).key}"\nbackend = "fake"\nstrategy = "random"\n')
    fates = put(folder, [timed(8, 1, 1e-5)])
    assert fates == {"mine": Fate.EDITED}
