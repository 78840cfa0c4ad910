"""Winners that are out of date, and the comparison after they were written."""

import dataclasses

import pytest

from kernelmark import backends
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import KernelInfo
from kernelmark.runners.pool import Pool
from kernelmark.tune.install import apply as applying
from kernelmark.tune.install.apply import recompare
from kernelmark.tune.install.emitters import registry
from kernelmark.tune.plans import Acceptance
from kernelmark.tune.results import Choice
from kernelmark_dev.tuning import make_outcome

pytestmark = pytest.mark.usefixtures("workers_here")

emitter = registry.get("python")
QUICK = Acceptance(rounds=6, neighbours=0, min_gain_us=0.1)


def outcome(*, version="", tuned_us=10.0, reference_us=20.0, backend="fake", **more):
    tuned = Choice(
        backend=backend,
        config=FrozenDict({"time_us": tuned_us, **more}),
        median_s=tuned_us * 1e-6,
        worst=0.1,
        version=version,
    )
    reference = Choice(backend="fake", config=FrozenDict({"time_us": reference_us}))
    return make_outcome(tuned=tuned, reference=reference)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def takes_fake(monkeypatch):
    monkeypatch.setattr(type(emitter), "backends", ("triton", "fake"))


def test_another_version_of_the_library_is_refused(takes_fake, tmp_path):
    here = backends.find("fake").version()
    for version in (here, ""):  # "": it was not recorded
        change = applying.prepare(emitter, [outcome(version=version)], tmp_path / "t.py")
        assert change.edits
    change = applying.prepare(emitter, [outcome(version="0.0.1")], tmp_path / "t.py")
    assert not change.edits
    (skipped,) = change.skipped
    assert "0.0.1" in skipped.reason
    assert here in skipped.reason


@pytest.mark.parametrize("installed", [True, False])
def test_without_the_gpu_a_note_has_the_version_that_a_file_is_for(
    takes_fake, installed, tmp_path, monkeypatch
):
    if not installed:
        backend = type(backends.find("fake"))
        monkeypatch.setattr(backend, "available", lambda self: "missing")
    made = dataclasses.replace(outcome(version="0.0.1"), device="hip:0", arch="gfx942")
    change = applying.prepare(emitter, [made, made], tmp_path / "t.py")
    assert change.edits
    assert not change.skipped
    (note,) = [note for note in change.notes if "0.0.1" in note]
    assert "gfx942" in note


def test_backups_do_not_overwrite_each_other(takes_fake, tmp_path):
    file = tmp_path / "t.py"
    for time_us in (10.0, 11.0, 12.0):
        change = applying.prepare(emitter, [outcome(tuned_us=time_us)], file)
        applying.write(emitter, change, file)
    assert len(list(tmp_path.glob("t.py.*.bak"))) == 2


def test_through_a_link_the_file_itself_changes(takes_fake, tmp_path):
    file, link = tmp_path / "real" / "tuned.py", tmp_path / "t.py"
    file.parent.mkdir()
    applying.write(emitter, applying.prepare(emitter, [outcome()], file), file)
    before = file.read_text()
    link.symlink_to(file)
    change = applying.prepare(emitter, [outcome(tuned_us=11.0)], link)
    written = applying.write(emitter, change, link)
    assert link.is_symlink()
    assert file.read_text() == change.edits[0].after != before
    assert [copy.read_text() for copy in written.backups] == [before]


def test_the_comparison_finds_the_gain_again_on_a_device_like_it():
    """Tuned on four GPUs, applied where there is one."""
    seen = []
    elsewhere = dataclasses.replace(outcome(), device="fake:3")
    (again,) = recompare([elsewhere], acceptance=lambda _: QUICK, on_outcome=seen.append)
    assert again.kept, again.reason
    assert again.ratio == pytest.approx(2.0, rel=0.01)
    assert again.tuned.verified
    assert seen == [again]
    other = dataclasses.replace(elsewhere, arch="of another kind")
    with pytest.raises(UsageError, match="fake:3"):
        recompare([other], acceptance=lambda _: QUICK)


def test_each_round_of_the_comparison_is_in_memory_of_its_own(monkeypatch):
    asked = []
    call = Pool.call

    def record(pool, job):
        asked.append(job.process)
        return call(pool, job)

    monkeypatch.setattr(Pool, "call", record)
    recompare([outcome()], acceptance=lambda _: QUICK)
    assert len(set(asked)) == QUICK.rounds
    assert asked[::2] == asked[1::2] == sorted(asked[::2])


def test_a_gain_that_is_gone_is_told():
    slow = dataclasses.replace(outcome(tuned_us=30.0), ratio=2.0)
    other_name = dataclasses.replace(outcome().tuned, kernel=KernelInfo(name="something_else"))
    renamed = dataclasses.replace(outcome(), tuned=other_name)
    before = [slow, outcome(behaviour="wrong"), renamed]
    gone, wrong, other = (recompare([one], acceptance=lambda _: QUICK)[0] for one in before)
    assert [one.kept for one in (gone, wrong, other)] == [False] * 3
    assert gone.high < 1.0
    assert not wrong.tuned.verified
    assert "something_else" in other.reason


def test_a_time_of_another_day_says_nothing_of_the_machine_now():
    quick = dataclasses.replace(outcome().tuned, median_s=1e-9)
    (again,) = recompare([dataclasses.replace(outcome(), tuned=quick)], acceptance=lambda _: QUICK)
    assert again.kept, again.reason


def test_another_device_is_refused():
    with pytest.raises(UsageError, match="sm_90"):
        recompare([dataclasses.replace(outcome(), arch="sm_90")])
    with pytest.raises(KernelmarkError):
        recompare([dataclasses.replace(outcome(), device="hip:7")])
