"""`kmark bisect` as a user meets it."""

from __future__ import annotations

import json
import signal

import pytest

FAST = ("--rounds", "4", "--alpha", "0.2", "--max-s", "0.005", "--warmup-s", "0.001")
FAKE = (
    *("bisect", "-o", "gemm", "-d", "fake", "-b", "fake", "--dtype", "f32", "-a", "m=8"),
    *("-a", "n=8", "-a", "k=8", *FAST),
)


@pytest.mark.slow
def test_the_commit_of_a_real_repository(kernel_repo, kmark, monkeypatch, tmp_path):
    kernel = kernel_repo(1, 1, 1, 40, 40)
    monkeypatch.chdir(kernel.parent)
    out = tmp_path / "out.json"
    ended = kmark("bisect", "--good", "HEAD~4", "-b", kernel.name, *FAST, "--json", str(out))
    assert ended.code == 0, ended.err
    found = json.loads(out.read_text())
    assert found["state"] == "located"
    (culprit,) = found["culprits"]
    assert culprit.endswith("Version 3")
    same = kmark("bisect", "--good", "HEAD~4", "--bad", "HEAD~2", "-b", kernel.name, *FAST)
    assert same.code == 4, "its ends do not differ"


@pytest.fixture
def rows(tmp_path):
    """Configs of the fake backend, of which the fourth is slower."""
    path = tmp_path / "rows.txt"
    path.write_text("".join(f"time_us={10.0 if i < 3 else 12.0} seed={i}\n" for i in range(6)))
    return str(path)


@pytest.mark.slow
def test_a_row_of_configs_and_an_interrupted_search(kmark, rows, stopped, tmp_path):
    told = stopped((*FAKE, "--configs", rows), "following", signal.SIGINT)
    assert "the same command goes on" in told
    out = tmp_path / "out.json"
    ended = kmark(*FAKE, "--configs", rows, "--json", str(out), "--md", str(tmp_path / "out.md"))
    assert ended.code == 0, ended.err
    assert "comparing the ends" not in ended.err
    (culprit,) = json.loads(out.read_text())["culprits"]
    assert culprit == "4: seed=3 time_us=12.0"
    assert culprit in (tmp_path / "out.md").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ((), {"given": ()}),
        (("--good", "HEAD", "--configs", "x"), {"given": ("--good", "--configs")}),
        (("--configs", "none.txt"), {"file": "none.txt"}),
        (("--wheels", "none.txt"), {"file": "none.txt"}),
        (("--good", "HEAD", "--repo", "/"), {"folder": "/"}),
        (("--good", "HEAD", "--confidence", "0.3"), {"option": "--confidence"}),
        (("--good", "HEAD", "--build-timeout", "0"), {"option": "--build-timeout"}),
    ],
)
def test_what_is_refused(refused, words, fields):
    refused(*FAKE, "-q", *words, **fields)


def test_a_single_candidate_is_nothing_to_do(refused, tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("time_us=10.0\n")
    words = ("-q", "--configs", str(path))
    refused(*FAKE, *words, code=4)
