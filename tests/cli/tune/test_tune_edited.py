"""What a tuned folder is still good for after its plans were edited, or parts of it were lost."""

import json
import runpy
import shutil

import pytest

from kernelmark.api import tuning
from kernelmark.tune import results
from kernelmark.tune.folder import TuningFolder
from kernelmark_dev.tuning import fake_plans, make_folder

FIRST, SECOND = "SSS_NN_0", "SSS_NN_1"
WORDS = ("--timeout", "120", "--jobs", "0")
EDITS = {
    "seed": ("seed = 1 ", "seed = 2 "),
    "space": ("\n[space]\n", "\n[space]\nwarps = [1, 2, 4]\n"),
}


@pytest.fixture(scope="module")
def tuned_once(tmp_path_factory):
    place = tmp_path_factory.mktemp("tuned")
    folder = make_folder(place / "t", fake_plans(2, evaluations=8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELMARK_CACHE", str(place / "cache"))
        done = tuning.run(folder.path, timeout_s=120, jobs=0)
    assert [outcome.kept for outcome in done.outcomes] == [True, True]
    return folder


@pytest.fixture
def folder(tuned_once, tmp_path):
    shutil.copytree(tuned_once.path, tmp_path / "t")
    return TuningFolder(tmp_path / "t")


def edit(folder, name, old, new):
    path = folder.plan(name)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.fixture
def export(kmark, folder, tmp_path):
    """The command, and how many winners are in the file that it wrote; None without a file."""

    def call():
        file = tmp_path / "tuned.py"
        file.unlink(missing_ok=True)
        ended = kmark("export", str(folder.path), "--as", "python", "-o", str(file))
        configs = runpy.run_path(str(file))["CONFIGS"].values() if file.exists() else None
        return ended, None if configs is None else sum(config is not None for config in configs)

    return call


@pytest.fixture
def shown(kmark, folder):
    """What `kmark tune show` says of each plan."""

    def call():
        ended = kmark("tune", "show", str(folder.path), "--json", "-")
        return {one["plan"]: one for one in json.loads(ended.out)}

    return call


def test_as_it_was_tuned_all_is_written(export, shown):
    ended, configs = export()
    assert (ended.code, configs) == (0, 2), ended.err
    assert {one["state"] for one in shown().values()} == {"done"}


# Plans that are other plans now


@pytest.mark.parametrize("what", EDITS)
def test_another_search_has_no_ratio_and_is_not_counted_as_kept(kmark, folder, shown, what):
    edit(folder, FIRST, *EDITS[what])
    one = shown()[FIRST]
    assert (one["state"], one["ratio"], one["kept"]) == ("edited", None, None)
    assert "its plan was edited since" in one["reason"]
    assert shown()[SECOND]["state"] == "done"
    ended = kmark("tune", "show", str(folder.path))
    (row,) = (line for line in ended.out.splitlines() if line.startswith(FIRST))
    assert "edited" in row
    assert "×" not in row
    assert "1 done, 1 edited" in ended.err
    ended = kmark("tune", "run", str(folder.path), *WORDS)
    assert ended.code == 3
    assert f"{FIRST} cannot be tuned: " in ended.err
    assert "1 of 1 problem kept" in ended.err
    assert [outcome.name for outcome in results.read(folder)] == [SECOND]
    assert json.loads(results.metrics_file(folder).read_text())["kept"] == 1


@pytest.mark.parametrize("what", EDITS)
def test_another_search_gives_no_winner(folder, export, what):
    edit(folder, FIRST, *EDITS[what])
    ended, configs = export()
    assert (ended.code, configs) == (0, 1), ended.err
    assert f"{FIRST} is not written: its plan was edited since" in ended.err
    assert SECOND not in ended.err
    edit(folder, SECOND, *EDITS[what])
    ended, configs = export()
    assert (ended.code, configs) == (4, None)
    assert f"{SECOND} is not written: its plan was edited since" in ended.err
    edit(folder, FIRST, *reversed(EDITS[what]))
    assert export()[1] == 1


def test_what_was_not_run_is_not_counted_either(kmark, folder):
    edit(folder, FIRST, *EDITS["seed"])
    ended = kmark("tune", "run", str(folder.path), "--only", SECOND, *WORDS)
    assert ended.code == 0, ended.err
    assert [outcome.name for outcome in results.read(folder)] == [SECOND]


def test_more_that_is_asked_of_a_winner_is_decided_anew(kmark, folder, export, shown):
    edit(folder, FIRST, "min_ratio = 1.03", "min_ratio = 50.0")
    ended, configs = export()
    assert (ended.code, configs) == (0, 1)
    assert f"{FIRST} is not written: its plan was edited since" in ended.err
    assert "'kmark tune run' decides anew" in ended.err
    assert (shown()[FIRST]["state"], shown()[FIRST]["ratio"]) == ("edited", None)
    trials = folder.journal(FIRST).read_text().count('"line":"trial"')
    ended = kmark("tune", "run", str(folder.path), *WORDS)
    assert ended.code == 0, ended.err
    assert "1 of 2 problems kept" in ended.err
    assert (shown()[FIRST]["state"], shown()[FIRST]["kept"]) == ("done", "no")
    assert {o.name: o.reason.code for o in results.read(folder)}[FIRST] == "gain-too-small"
    assert folder.journal(FIRST).read_text().count('"line":"trial"') == trials
    ended, configs = export()
    assert (ended.code, configs) == (0, 1)
    assert "edited since" not in ended.err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("evaluations = 8", "evaluations = 500"),
        ("evaluations = 8", "evaluations = 2"),
        ("minutes = 0.0", "minutes = 9.0"),
        ("count = 10 ", "count = 77 "),
    ],
)
def test_another_budget_or_count_leaves_winners_what_they_are(folder, export, shown, old, new):
    edit(folder, FIRST, old, new)
    ended, configs = export()
    assert (ended.code, configs) == (0, 2), ended.err
    assert "not written" not in ended.err
    assert shown()[FIRST]["ratio"] > 1


def test_a_plan_that_cannot_be_read_holds_up_no_other(folder, export):
    folder.plan(FIRST).write_text("seed = 'x'")
    ended, configs = export()
    assert (ended.code, configs) == (3, 1)
    assert f"{FIRST} is not written: {folder.plan(FIRST)}: " in ended.err


def spoil(path, number):
    lines = path.read_text().splitlines()
    lines[number - 1] = "garbage"
    path.write_text("\n".join([*lines, ""]))


def test_a_journal_that_cannot_be_read_is_told_and_holds_up_no_other(kmark, folder, export):
    path = folder.journal(FIRST)
    spoil(path, 5)
    told = f"{path}: line 5 "
    ended, configs = export()
    assert (ended.code, configs) == (3, 1)
    assert told in ended.err
    assert SECOND not in ended.err
    where = ("--as", "python", "--to", str(folder.path / "tuned.py"), "--no-compare")
    ended = kmark("tune", "apply", str(folder.path), *where)
    assert ended.code == 3, ended.err
    assert told in ended.err
    ended = kmark("tune", "run", str(folder.path), *WORDS)
    assert ended.code == 3
    assert told in ended.err
    spoil(folder.journal(SECOND), 2)
    ended, configs = export()
    assert (ended.code, configs) == (4, None)
    assert f"{folder.journal(SECOND)}: line 2 " in ended.err


def lose_a_line(kmark, folder):
    path = folder.journal(FIRST)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))
    assert kmark("tune", "run", str(folder.path), *WORDS).code == 0


LOSSES = {
    "a spoilt line": lose_a_line,
    "a kill before the results": lambda kmark, folder: shutil.rmtree(folder.results),
    "all but results": lambda kmark, folder: [
        shutil.rmtree(gone) for gone in (folder.plans, folder.trials)
    ],
}


@pytest.mark.parametrize("loss", LOSSES)
def test_winners_are_found_in_what_is_left(kmark, folder, export, loss):
    LOSSES[loss](kmark, folder)
    ended, configs = export()
    assert (ended.code, configs) == (0, 2), ended.err


# Parts that are gone


def test_plans_without_trials_have_no_results_yet(folder, export):
    shutil.rmtree(folder.trials)
    ended, configs = export()
    assert (ended.code, configs) == (4, None)
    assert ended.reason
    assert f"hint: kmark tune run {folder.path}" in ended.err


def test_results_of_before_do_not_stand_in_for_journals(folder, export):
    folder.journal(FIRST).unlink()
    assert [outcome.name for outcome in results.read(folder)] == [FIRST, SECOND]
    ended, configs = export()
    assert (ended.code, configs) == (0, 1), ended.err


def test_a_mistake_in_the_reference_is_told_before_the_search(kmark, tmp_path):
    folder = make_folder(tmp_path / "t", fake_plans(1, evaluations=8))
    edit(folder, FIRST, "[reference.config]\n", '[reference.config]\ntile_m = "maybe"\n')
    ended = kmark("tune", "run", str(folder.path), *WORDS)
    assert ended.code == 3
    assert "reference.config.tile_m" in ended.err
    assert not any(path.read_bytes() for path in folder.trials.glob("*.jsonl"))


def test_times_of_another_architecture_are_told(kmark, tmp_path):
    place = str(tmp_path / "t")
    words = ("-o", "gemm", "-a", "m=[64,128]", "-a", "n=64", "-a", "k=64", "--dtype", "f16")
    ended = kmark("tune", "plan", place, "-b", "triton", "--arch", "sm_90a", *words)
    assert f"kmark tune summarise {place} -d cuda:0" in ended.err
    assert "where there is a sm_90:" in ended.err
    ended = kmark("tune", "summarise", place, "-b", "fake", "-d", "fake")
    assert "has plans for sm_90, and these times are of" in ended.err
    ended = kmark("tune", "plan", place, "-b", "triton", "--reference", "triton", "--arch", "sm_90")
    assert "are from a summary on" in ended.err
