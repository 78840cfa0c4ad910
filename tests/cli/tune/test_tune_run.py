"""`kmark tune run` on the fake device."""

import dataclasses
import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from kernelmark.cli.main import main
from kernelmark.cli.tune.commands import export_command
from kernelmark.core.result import Status, config_key
from kernelmark.runners.process import LocalWorkers
from kernelmark.tune import journal, results
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plans import Budget
from kernelmark_dev.raising import tells
from kernelmark_dev.tuning import fake_plans, make_folder

# Some candidates of the fake space hang, and all others take milliseconds.
# Without --jobs 0, a run would start a worker more to compile ahead.
WORDS = ("--timeout", "120", "--jobs", "0")


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "t", fake_plans(2, evaluations=4))


@pytest.fixture(scope="module")
def tuned_once(tmp_path_factory):
    """A folder like `folder`, tuned."""
    place = tmp_path_factory.mktemp("tuned")
    made = make_folder(place / "t", fake_plans(2, evaluations=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMARK_CACHE", str(place / "cache"))
        with pytest.raises(SystemExit) as ended:
            main(("tune", "run", str(made.path), "-q", *WORDS))
    assert not ended.value.code
    return made


@pytest.fixture
def tuned(tuned_once, tmp_path):
    """This test's own copy of it."""
    return TuningFolder(Path(shutil.copytree(tuned_once.path, tmp_path / "t")))


def test_it_tunes_shows_and_writes(kmark, folder):
    ended = kmark("tune", "run", str(folder.path), *WORDS, "--jobs", "1")
    assert ended.code == 0, ended.err
    assert "SSS_NN_0" in ended.out
    assert "kept" in ended.err
    outcomes = results.read(folder)
    assert [outcome.name for outcome in outcomes] == ["SSS_NN_0", "SSS_NN_1"]
    for path in (results.raw(folder), results.final(folder), results.metrics_file(folder)):
        assert path.exists()
    again = kmark("tune", "run", str(folder.path), "--only", "SSS_NN_1", "--json", "-", *WORDS)
    assert "as found before" in again.err
    document = json.loads(again.out)
    assert document["kernelmark"] == "outcomes"
    # What was not asked for stays in the results.
    assert [one["name"] for one in document["outcomes"]] == ["SSS_NN_0", "SSS_NN_1"]
    assert config_key(document["outcomes"][0]["tuned"]["config"]) == config_key(
        outcomes[0].tuned.config
    )


@pytest.mark.usefixtures("no_store_yet")
def test_the_next_command_names_the_format_of_a_kernel_file():
    assert export_command("a b", {"./tiled.py"}) == "kmark export 'a b' --as python -o tuned.py"
    assert export_command("d", {"triton"}).split()[3:5] == ["--as", "FORMAT"]


def test_a_bare_number_is_a_device_of_the_plans_kind(kmark, tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "t", fake_plans(2, evaluations=1, rounds=6, finalists=1))
    monkeypatch.setenv("KERNELMARK_FAKE_DEVICES", "2")
    ended = kmark("tune", "run", str(folder.path), "-d", "0,1", *WORDS)
    assert ended.code == 0, ended.err
    told = json.loads(results.metrics_file(folder).read_text())
    assert told["devices"] == ["fake", "fake:1"]


def test_what_the_clock_cut_short_is_told(kmark, tmp_path, time_up_after):
    folder = make_folder(tmp_path / "t", fake_plans(1, evaluations=400))
    with time_up_after(8):
        ended = kmark("tune", "run", str(folder.path), "--minutes", "1", *WORDS)
    assert ended.code == 0, ended.err
    assert f"kmark tune run {folder.path}" in ended.err


def test_a_search_that_its_plans_minutes_ended_is_told(kmark, tmp_path):
    plan = fake_plans(1, evaluations=400)[0]
    short = Budget(evaluations=400, minutes=0.001)
    folder = make_folder(tmp_path / "t", [dataclasses.replace(plan, budget=short)])
    for _ in range(2):  # of the search, and as found before
        ended = kmark("tune", "run", str(folder.path), "-q", *WORDS)
        assert ended.code == 0, ended.err
        tried = results.read(folder)[0].evaluations
        assert 0 < tried < 400
        assert f"SSS_NN_0 {tried} of 400 " in ended.err
        shown = kmark("tune", "show", str(folder.path))
    assert f" time was up {tried} of 400 " in " ".join(shown.out.split())
    assert "1 time was up" in shown.err


def test_candidates_are_counted_alike_after_a_lower_budget_and_a_retry(kmark, tmp_path):
    folder = make_folder(tmp_path / "t", fake_plans(1, evaluations=26))
    run = ("tune", "run", str(folder.path), *WORDS)
    assert kmark(*run).code == 0
    path = folder.journal("SSS_NN_0")
    # One that failed because of the machine, and not among the first ten.
    lines = path.read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if '"step":"short"' in line)
    document = json.loads(lines[last]) | {"status": "timeout", "seconds": None}
    lines[last] = json.dumps(document) + "\n"
    path.write_text("".join(lines))
    plan = folder.plan("SSS_NN_0")
    plan.write_text(plan.read_text().replace("evaluations = 26", "evaluations = 10"))
    assert kmark(*run, "-q").code == 0
    assert kmark(*run, "-q", "--retry-failed").code == 0
    shown = json.loads(kmark("tune", "show", str(folder.path), "--json", "-").out)
    assert shown[0]["evaluations"] == results.read(folder)[0].evaluations == 26


def test_a_full_disk_is_told_with_the_file(kmark, folder, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ended = kmark("tune", "run", str(folder.path), "-q", *WORDS)
    assert ended.code == 2
    assert f"{folder.trials}/SSS_NN_" in ended.reason


def test_what_is_wrong_is_told_in_a_sentence(kmark, folder, tmp_path):
    ended = kmark("tune", "run", str(tmp_path / "none"))
    assert ended.code == 2
    ended = kmark("tune", "run", str(folder.path), "--only", "XXX")
    assert ended.code == 2
    assert "XXX" in ended.reason
    assert "SSS_NN_0" in ended.err
    for path in folder.plans.glob("*.toml"):
        path.unlink()
    ended = kmark("tune", "run", str(folder.path))
    assert ended.code == 4


@pytest.mark.parametrize(
    "damage",
    [
        ("plans/SSS_NN_0.toml", 'backend = "fak"', "SSS_NN_0.toml: backend: 'fak'"),
        ("trials/SSS_NN_0.jsonl", "x\n\n", "SSS_NN_0.jsonl: line 1"),
    ],
)
def test_files_of_plans_that_are_not_asked_for_block_no_other(kmark, folder, damage):
    place, text, told = damage
    (folder.path / place).parent.mkdir(exist_ok=True)
    (folder.path / place).write_text(text)
    ended = kmark("tune", "run", str(folder.path), "--only", "SSS_NN_1,SSS_NN_1", *WORDS)
    assert ended.code == 0, ended.err
    assert re.search(rf"^warning: SSS_NN_0 .*{folder.path}/.*{re.escape(told)}", ended.err, re.M)
    assert [outcome.name for outcome in results.read(folder)] == ["SSS_NN_1"]
    ended = kmark("tune", "run", str(folder.path), "--only", "SSS_NN_0", *WORDS)
    assert ended.code != 0
    assert told in ended.err


def test_a_plan_that_cannot_be_tuned_is_exit_code_3(kmark, folder):
    path = folder.plan("SSS_NN_0")
    path.write_text(path.read_text().replace('arch = "fake"', 'arch = "sm_90"'))
    ended = kmark("tune", "run", str(folder.path), "-d", "fake", *WORDS)
    assert ended.code == 3
    assert tells(ended.err, plan="SSS_NN_0", planned="sm_90", arch="fake")
    assert [outcome.name for outcome in results.read(folder)] == ["SSS_NN_1"]


def test_a_journal_of_an_edited_plan_is_refused(kmark, tuned):
    path = tuned.plan("SSS_NN_0")
    path.write_text(path.read_text().replace("seed = 1", "seed = 2"))
    ended = kmark("tune", "run", str(tuned.path), *WORDS)
    assert ended.code == 3
    assert str(tuned.journal("SSS_NN_0")) in ended.err


@pytest.mark.parametrize("text", ["", "{"])
def test_damaged_results_are_written_anew_from_the_journals(kmark, tuned, text):
    before = results.outcomes_file(tuned).read_text()
    results.outcomes_file(tuned).write_text(text)
    ended = kmark("tune", "run", str(tuned.path), "--only", "SSS_NN_1", *WORDS)
    assert ended.code == 0, ended.err
    assert results.outcomes_file(tuned).read_text() == before


@pytest.mark.slow
def test_what_failed_because_of_the_machine_is_tried_again_when_asked(kmark, tmp_path, monkeypatch):
    # A worker in this process has replied before its time is over.
    monkeypatch.setattr("kernelmark.runners.pool.LocalWorkers", LocalWorkers)
    small = {"tile_m": (32, 64), "tile_n": (32, 64), "warps": (2, 4), "swizzle": (1, 2)}
    plan = dataclasses.replace(fake_plans(1, evaluations=4)[0], space=small)
    folder = make_folder(tmp_path / "t", [plan])
    path = folder.journal(plan.name)

    ended = kmark("tune", "run", str(folder.path), "--timeout", "1e-6", "--jobs", "1")
    assert ended.code == 3, ended.err
    assert {trial.status for trial in journal.read_journal(path)[1]} == {Status.TIMEOUT}
    (outcome,) = results.read(folder)
    assert "4" in outcome.reason
    assert "timeout" in outcome.reason
    assert outcome.reason
    assert "--retry-failed" in ended.out

    before = path.read_text()
    ended = kmark("tune", "run", str(folder.path), *WORDS)
    assert ended.code == 3
    assert "as found before" in ended.err
    assert path.read_text() == before

    ended = kmark("tune", "run", str(folder.path), "--retry-failed", *WORDS)
    assert ended.code == 0, ended.err
    assert "1 of 1 problem kept" in ended.err
    assert path.read_text().startswith(before)
    outcome = results.read(folder)[0]
    assert outcome.evaluations == 4
    assert kmark("export", str(folder.path), "--as", "python", "-o", "-").code == 0

    ended = kmark("tune", "run", str(folder.path), *WORDS)
    assert ended.code == 0
    assert results.read(folder)[0] == outcome


@pytest.mark.slow
def test_a_final_on_a_busy_machine_is_told_and_played_again_by_the_same_command(
    kmark, tmp_path, monkeypatch
):
    folder = make_folder(tmp_path / "t", fake_plans(2, evaluations=12))
    run = ("tune", "run", str(folder.path), *WORDS)
    monkeypatch.setenv("KERNELMARK_FAKE_SCRIPT", '{"load": [1.0]}')
    ended = kmark(*run, "-q")
    assert ended.code == 0, ended.err
    assert "not kept, too noisy to judge: other work used 1.0 of 1 core during" in ended.out
    told = "the machine was busy during the final of 2 plans (SSS_NN_0, SSS_NN_1): when it is quiet"
    assert f"{told}, kmark tune run {folder.path} compares them again" in ended.err
    assert "2 stopped" in kmark("tune", "show", str(folder.path)).err
    monkeypatch.delenv("KERNELMARK_FAKE_SCRIPT")
    ended = kmark(*run)
    assert "SSS_NN_0: has 12 candidates, and goes on with its final" in ended.err
    assert "2 of 2 problems kept" in ended.err
    assert "the machine was busy" not in ended.err
    assert "as found before" in kmark(*run).err
