"""`kmark ab` and `kmark lint-configs` as a user meets them."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from kernelmark.cli.compare.ab import progress
from kernelmark.core.result import RunState
from kernelmark.runners.events import Waiting
from kernelmark.stores import open_store
from kernelmark_dev.raising import tells

FAKE = (
    *("ab", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32", "-a", "m=8", "-a", "n=8"),
    *("-a", "k=8", "--rounds", "4", "--alpha", "0.2", "--max-s", "0.02", "--warmup-s", "0.01"),
)
AA = ("--env", "base", "--env", "head")  # a thing with itself, asked for in so many words
WRONG = ("--config", "behaviour=wrong")  # on both sides, which ends after one round
SLOW_BY_HALF = ("--set", 'head:KERNELMARK_FAKE_SCRIPT={"slow":[1.5]}')
SLOW = ("--set", 'tot:KERNELMARK_FAKE_SCRIPT={"slow":[1.05]}')


def test_a_regression_is_told_stored_and_ends_with_one(kmark, tmp_path):
    ended = kmark(
        *FAKE, "--env", "golden", "--env", "tot", *SLOW, "--label", "night",
        "--json", str(tmp_path / "a.json"), "--md", str(tmp_path / "a.md"),
        "--csv", str(tmp_path / "a.csv"),
    )  # fmt: skip
    assert ended.code == 1, ended.err
    lines = ended.out.splitlines()
    assert lines[0].split() == ["environment", "golden", "tot"], "the difference comes first"
    assert "KERNELMARK_FAKE_SCRIPT" in lines[2]
    assert "+5.0 %" in ended.out
    assert "slower" in ended.out
    for side in ("golden", "tot"):
        shown = kmark("show", f"night-{side}")
        assert shown.code == 0
        assert "gemm m=8" in shown.out
    document = json.loads((tmp_path / "a.json").read_text())
    (row,) = document["rows"]
    assert row["status"] == "slower"
    assert len(row["base_s"]) == len(row["head_s"]) == 4
    assert document["rule"]["rounds"] == [4]
    assert "| slower |" in (tmp_path / "a.md").read_text()
    assert (tmp_path / "a.csv").read_text().count("\n") == 2


def test_nothing_changed_ends_with_zero(kmark):
    ended = kmark(*FAKE, *AA, "--quiet")
    assert ended.code == 0
    assert "nothing differs" in ended.out
    assert "same" in ended.out
    assert ended.err.strip() == ""
    history = kmark("history")
    assert history.code == 4
    assert "--label" in history.err


def test_two_configs_and_a_failure_on_one_side(kmark):
    ended = kmark(*FAKE, "--config", "head:behaviour=wrong", "--no-store", "--quiet")
    assert ended.code == 1
    assert "broken" in ended.out
    assert "fake → fake [behaviour=wrong]" in ended.out
    assert "environment" not in ended.out  # the sides are not meant to differ there


def test_a_head_that_mends_its_base_is_no_failure(kmark):
    ended = kmark(*FAKE, "--config", "base:behaviour=wrong", "--no-store", "--quiet")
    assert ended.code == 0
    assert "fixed" in ended.out


def test_who_holds_the_device_is_told_once(kmark, holder, monkeypatch):
    plain = Waiting.__str__

    def told(event):
        holder.let_go()
        return plain(event)

    monkeypatch.setattr(Waiting, "__str__", told)
    ended = kmark(*FAKE, *AA, *WRONG, "--no-store", "--json", "-")
    assert ended.code == 3
    document = json.loads(ended.out)  # and nothing else on stdout
    assert document["kernelmark"] == "ab"
    assert [row["status"] for row in document["rows"]] == ["ignored"], "it fails on both sides"
    assert ended.err.count(f"waiting for fake: process {holder.pid} of ") == 1


def test_a_holder_is_told_once_however_often_it_is_waited_for(capsys):
    tell = progress(None)
    for holder in ("process 7", "process 7", "process 8", "process 7"):
        tell(Waiting(device="fake", holder=holder))
    told = capsys.readouterr().err
    assert [told.count(f"process {pid} ") for pid in (7, 8)] == [1, 1]


@pytest.mark.parametrize("words", [(), ("-b", "fake"), ("--config", "time_us=5.0")])
def test_sides_that_do_not_differ_are_refused_before_anything_starts(kmark, words):
    ended = kmark(*FAKE, *words)
    assert (ended.code, ended.out) == (2, "")
    assert "fake" in ended.reason
    assert "--env" in ended.err


def test_a_budget_that_ends_before_the_first_look_is_told_before_it_starts(kmark):
    ended = kmark(*FAKE, *AA, "--budget", "0.1", "--dry-run")
    assert ended.code == 0
    assert "--budget" in ended.err
    assert "--budget" not in kmark(*FAKE, *AA, "--budget", "1e6", "--dry-run").err


def test_a_budget_that_ended_before_the_first_look_has_judged_nothing(kmark):
    assert kmark(*FAKE, *AA, *SLOW_BY_HALF, "--budget", "0.1").code == 4
    assert json.loads(kmark("list", "runs", "--json", "-").out) == []


def test_a_budget_that_is_known_to_end_before_the_first_round_starts_nothing(kmark, monkeypatch):
    from kernelmark.api.ab import Rounds

    monkeypatch.setattr(Rounds, "start_s", 5.0)
    ended = kmark(*FAKE, *AA, "--budget", "4")
    assert (ended.code, ended.out) == (4, "")
    assert tells(ended.reason, budget_s=4, start_s=5)


def test_dry_run(kmark):
    ended = kmark(*FAKE, "--config", "base:time_us=5.0", "--dry-run")
    assert ended.code == 0
    assert "fake [time_us=5.0]" in ended.out
    assert "1 pair on fake" in ended.err


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("--env", "one"), {"count": 1}),
        (("--env", "a", "--env", "b=/no/such"), {"environment": "b"}),
        (("--rounds", "2"), {"rounds": 2}),
        (("--rounds", "9"), {"rounds": 9}),
        (("--rounds", "x"), {"rounds": "x"}),
        (("--rounds", "4,-6"), {"rounds": "4,-6"}),
        (("--samples", "0"), {"least": 1}),
        (("--timing", "quick"), {"timing": "quick"}),
        (("--alpha", "2"), {"alpha": 2.0}),
        (("--delta", "0"), {"delta": 0.0}),
        (("-b", "base:numpy"), {"backends": ("fake", "numpy"), "others": ("fake",)}),
        (("-d", "fake:9"), {"device": "fake:9"}),
        (("--config", "head:x"), {"given": "x", "form": "NAME=VALUE"}),
    ],
)
def test_what_is_refused(refused, words, fields):
    given = [word for word in FAKE if not (words[0] == "--rounds" and word in ("--rounds", "4"))]
    refused(*given, *words, "--no-store", **fields)


def test_no_problems_are_told_by_commands_of_ab(refused):
    ended = refused("ab", "-b", "base:numpy", "-b", "head:torch")
    assert "kmark ab -b base:numpy" in ended.err
    assert "kmark run" not in ended.err


def run_states() -> list[RunState]:
    with open_store() as store:
        return [run.state for run in store.runs()]


@pytest.mark.parametrize(("events", "told"), [(0, "no result is kept"), (2, "so far is stored as")])
def test_ctrl_c_says_what_is_kept(kmark, monkeypatch, events, told):
    from kernelmark.runners.ab import Experiment

    real = Experiment.events

    def stopped(self):
        yield from itertools.islice(real(self), events)
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "events", stopped)
    ended = kmark(*FAKE, *AA)
    assert ended.code == 130
    assert "interrupted" in ended.err.splitlines()[-1]
    assert told in ended.err.splitlines()[-1]
    assert ("1 unsure" in ended.err) == ("verdict" in ended.out) == bool(events)
    assert run_states() == [RunState.INTERRUPTED] * (2 if events else 0)


def test_an_error_leaves_no_run_that_seems_to_go_on(kmark, monkeypatch):
    def fail(*given):
        raise RuntimeError("surprise")

    monkeypatch.setattr("kernelmark.runners.ab.Experiment.events", fail)
    assert kmark(*FAKE, *AA).code == 2
    assert run_states() == []


def test_ctrl_c_in_the_first_round_leaves_no_run(kmark, monkeypatch):
    from kernelmark.runners.ab import Experiment

    def stopped(self):
        yield Waiting(device="fake", holder="")
        assert run_states() == [RunState.RUNNING] * 2
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "events", stopped)
    monkeypatch.setattr("kernelmark.api.ab._check_configs", lambda events, names: events)
    assert kmark(*FAKE, *AA).code == 130
    assert run_states() == []


def test_lint_configs(kmark, tmp_path):
    folder = tmp_path / "gemm"
    folder.mkdir()
    file = folder / "gfx950-GEMM-A8W8.json"
    good = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16}
    file.write_text(json.dumps({"any": good}))
    clean = kmark("lint-configs", str(tmp_path))
    assert (clean.code, clean.out) == (0, "")
    assert "1 file, 0 findings" in clean.err
    file.write_text(json.dumps({"any": good, "M_LEQ_3": good}))
    (folder.parent / "moe-of-another-kind.json").write_text("{}")
    found = kmark("lint-configs", str(tmp_path), "--json", "-")
    told = json.loads(found.out)
    assert found.code == 1
    assert [one["place"] for one in told["findings"]] == ["M_LEQ_3"]
    assert (told["files"], told["unchecked"]) == (1, 1)


def test_lint_configs_of_no_folder(refused, tmp_path):
    refused("lint-configs", str(tmp_path / "none"))
    refused("lint-configs", str(tmp_path), what="configs")


def test_too_few_rounds_for_one_of_many_are_told(kmark):
    words = [word if word != "m=8" else "m=[8:328:8]" for word in FAKE]
    ended = kmark(*words, *AA, "--dry-run")
    assert ended.code == 0
    assert re.search(r"note: .* 41 pairs .* 4 rounds; .*\d", ended.err)
    assert "note" not in kmark(*FAKE, *AA, "--dry-run").err


def test_what_neither_side_has_is_nothing_compared(kmark):
    words = ("ab", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32", "-a", "m=8")
    words = (*words, "-a", "n=8", "-a", "k=8", "--rounds", "10", "--no-store", "--max-s", "0.02")
    ended = kmark(*words, *AA, "--config", "behaviour=nosuch")
    assert ended.code == 4
    assert "unsupported" in ended.out + ended.err


@pytest.mark.slow
def test_a_file_is_read_by_its_sides_alone(kmark, tmp_path):
    """Each side has another package of one name, and neither is this process's."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mypkg.py").write_text(f"NAME = {name!r}\n")
    file = tmp_path / "k.py"
    file.write_text(
        "import os, pathlib\nimport numpy as np\nimport mypkg\nop = 'gemm'\ndevices = ('cpu',)\n"
        "def prepare(problem, config, sets):\n"
        "    side = os.environ['PYTHONPATH'].split(os.pathsep)[-1]\n"
        "    pathlib.Path(side, f'read-{mypkg.NAME}').touch()\n"
        "    def launch(i):\n"
        "        np.matmul(sets[i]['a'], sets[i]['b'], out=sets[i]['d'])\n"
        "    return launch\n"
    )
    ended = kmark(
        *("ab", "-b", str(file), "-o", "gemm", "--dtype", "f32", "--threads", "1", "--no-store"),
        *("-a", "m=96", "-a", "n=96", "-a", "k=96", "--rounds", "10", "--max-s", "0.02"),
        *("--set", f"base:PYTHONPATH={tmp_path / 'old'}"),
        *("--set", f"head:PYTHONPATH={tmp_path / 'new'}", "--warmup-s", "0.01"),
        *("--cache", "hot"),  # thousands of cold sets would take a minute
    )
    assert ended.code in (0, 1), ended.err  # of two equal kernels one may be slower by chance
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/read-*")}
    assert found == {"old/read-old", "new/read-new"}
    assert "same binary" not in ended.err


def test_a_budget_is_positive(refused):
    words = ("ab", "-b", "numpy", "-o", "gemm", "-a", "m=8", "-a", "n=8", "-a", "k=8")
    words += ("--dtype", "f32", "--budget", "-5")
    refused(*words, option="--budget")


@pytest.mark.parametrize(
    ("word", "side"),
    [
        ("head:zzz=2", "head"),
        pytest.param("base:zzz=2", "base", marks=pytest.mark.slow),
        pytest.param("zzz=2", "base", marks=pytest.mark.slow),
    ],
)
def test_a_config_name_that_a_side_does_not_know_is_a_slip_not_a_regression(kmark, word, side):
    problems = ("-p", "gemm m=8 n=8 k=8 dtype=f32", "-p", "gemm m=16 n=8 k=8 dtype=f32")
    short = ("--rounds", "8", "--max-s", "0.01", "--warmup-s", "0.01", "--cache", "hot")
    ended = kmark("ab", *AA, "-b", "numpy", "--config", word, *problems, *short, "--label", "typo")
    assert ended.code == 2
    assert str(side) in ended.reason
    assert "zzz" in ended.reason
    assert "--config" in ended.err
    assert "broken" not in ended.out + ended.err
    assert "typo" not in kmark("list", "runs").out
