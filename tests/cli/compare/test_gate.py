"""`kmark gate` as a user meets it: two commits of a real repository, judged by the exit code."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from kernelmark.core.timing import Timer
from kernelmark.stores import open_store
from kernelmark_dev.raising import tells

PAGE = Path(__file__).parents[3] / "docs" / "nightly.md"
FAST = (
    *("--rounds", "4", "--alpha", "0.2", "--max-s", "0.005", "--warmup-s", "0.001"),
    *("--cache", "hot"),  # cold timings of a small problem need thousands of argument sets
)
FAKE = (
    *("-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32", "-a", "m=[8,16]"),
    *("-a", "n=8", "-a", "k=8", *FAST),
)


@pytest.fixture
def repo(kernel_repo, monkeypatch):
    kernel = kernel_repo(1, 40, 40)
    monkeypatch.chdir(kernel.parent)
    return kernel


def test_a_slower_commit_fails_and_the_comment_says_so_first(repo, kmark, tmp_path):
    md = tmp_path / "comment.md"
    for _ in range(3):  # other work on the machine may leave the kernel undecided
        ended = kmark("gate", "--base", "HEAD~2", "-b", repo.name, *FAST, "--md", str(md))
        if ended.code == 1:
            break
    assert ended.code == 1, ended.err
    text = md.read_text()
    assert text.startswith("### kernelmark: 1 of 1 kernel got slower")
    assert "head: " in text
    assert "HEAD~2" not in text, "refs are written as commits, which do not move"
    assert f"-b ./{repo.name}" in text.split("Repeat it")[1]


@pytest.mark.slow
def test_the_timing_file_in_the_docs_for_a_noisy_cpu(repo, kmark, tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    name, fields = re.search(r"^```toml\n# (\S+)\n(.*?)^```", page, re.DOTALL | re.M).groups()
    (repo.parent / name).write_text(fields)
    for words in (("add", "-A"), ("commit", "-qm", "Time on a noisy CPU")):
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *author, *words], check=True)
    line = re.search(rf"^kmark (gate .*--timing {re.escape(name)}.*)$", page, re.M)[1]
    line = line.replace("origin/main", "HEAD~3").replace("kernels/softmax.py", repo.name)
    out = tmp_path / "out.json"
    ended = kmark(*line.split(), *FAST, "-q", "--json", str(out))
    assert ended.code == 1, ended.err
    (row,) = json.loads(out.read_text())["rows"]
    assert row["status"] == "slower"
    with open_store(None, readonly=True) as store:
        timings = [r.case.timing for run in store.runs() for r in store.results(run.id)]
    assert {(one.timer, one.threads) for one in timings} == {(Timer.CPU, 1)}


@pytest.mark.slow
def test_what_is_only_faster_passes(repo, kmark):
    ended = kmark("gate", "--base", "HEAD", "--head", "HEAD~2", "-b", repo.name, *FAST, "-q")
    assert ended.code == 0, ended.err


def test_the_working_tree_with_its_changes(repo, kmark):
    text = repo.read_text()
    repo.write_text(text.replace("np.tanh(sets", "np.cosh(sets"))
    ended = kmark("gate", "--base", "HEAD", "--head", ".", "-b", repo.name, *FAST)
    assert ended.code == 1, ended.err
    assert "broken" in ended.out, "the wrong answer of the working tree"


def on_fake(kmark, tmp_path, *words):
    out = tmp_path / "out.json"
    ended = kmark("gate", "--base", "HEAD~1", *FAKE, *words, "-q", "--json", str(out))
    return ended, json.loads(out.read_text()) if out.exists() else None


@pytest.mark.slow
def test_variables_builds_and_limits(repo, kmark, tmp_path):
    slow = ("--set", 'head:KERNELMARK_FAKE_SCRIPT={"slow":[1.05]}')
    ended, found = on_fake(kmark, tmp_path, *slow)
    assert ended.code == 1, ended.err
    assert [row["status"] for row in found["rows"]] == ["slower"] * 2
    assert on_fake(kmark, tmp_path, *slow, "--fail-on", "slower:10%")[0].code == 0
    both = ("--set", 'KERNELMARK_FAKE_SCRIPT={"slow":[1.05]}')
    assert on_fake(kmark, tmp_path, *both, "--build", "touch built")[0].code == 0


def test_a_build_that_fails_is_told_with_its_output(repo, kmark):
    command = "echo broken compiler; exit 1"
    ended = kmark("gate", "--base", "HEAD~1", *FAKE, "-q", "--build", command)
    assert tells(ended.reason, exit_code=1, side="base", command=command)
    assert "broken compiler" in ended.err.splitlines()


@pytest.mark.slow
def test_two_environments(kmark, tmp_path, monkeypatch):
    import sys

    monkeypatch.chdir(tmp_path)
    words = ("gate", "--base-env", sys.executable, "--head-env", sys.executable, *FAKE, "-q")
    assert kmark(*words).code == 0
    slow = ("--set", 'head:KERNELMARK_FAKE_SCRIPT={"slow":[1.05]}')
    assert kmark(*words, *slow).code == 1
    history = kmark("history")
    assert history.code == 4, "the sides of a gate are no points of a series"


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ((), {}),
        (("--base", "nothing"), {"ref": "nothing"}),
        (("--base", "HEAD", "--repo", "/"), {"folder": "/"}),
        (("--base-env", "a"), {"options": ("--base-env",), "other": "--head-env"}),
        (("--head-env", "a"), {"options": ("--head-env",), "other": "--base-env"}),
        (
            ("--base-env", "a", "--head-env", "b", "--build", "make"),
            {"options": ("--build",), "other": "--base-env"},
        ),
        (("--base", "HEAD", "--set", "other:A=1"), {"given": "'other:A=1'"}),
        (("--base", "HEAD", "--budget", "0"), {"option": "--budget"}),
        (("--base", "HEAD", "--fail-on", "slowest"), {"what": "verdict", "name": "slowest"}),
    ],
)
def test_what_is_refused(repo, refused, words, fields):
    refused("gate", *FAKE, "-q", *words, **fields)
