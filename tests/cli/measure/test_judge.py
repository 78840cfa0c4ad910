"""`kmark judge`: verdicts, exit codes, and what is stored."""

from __future__ import annotations

import json

import pytest

from kernelmark.judge import referee
from kernelmark.stores import open_store
from kernelmark_dev.attacks import FOLDER

PROBLEM = ("-p", "gemm m=32 n=16 k=8 dtype=f32", "--threads", "1", "--rounds", "4")
HONEST, WRONG = str(FOLDER / "honest" / "one_size.py"), str(FOLDER / "partial_rows.py")


@pytest.fixture(autouse=True)
def _few_sets(monkeypatch):
    monkeypatch.setattr(referee, "_MOST_SETS", 16)


def test_an_accepted_kernel_is_stored_like_any_result(kmark):
    ended = kmark("judge", HONEST, *PROBLEM)
    assert ended.code == 0, ended.out + ended.err
    assert ended.out.startswith("accepted")
    with open_store() as store:
        (run,) = store.runs()
        results = list(store.results(run.id))
    assert {result.case.backend for result in results} >= {"numpy"}
    assert {result.case.timing.timer.value for result in results} == {"outside"}
    assert {result.status.value for result in results} == {"ok"}
    shown = kmark("show", run.id)
    assert shown.code == 0
    assert "one_size" in shown.out


def test_a_refused_kernel_ends_with_3_and_says_why_in_json(kmark, tmp_path):
    file = tmp_path / "verdict.json"
    ended = kmark("judge", WRONG, *PROBLEM, "--reference", "none", "--json", str(file))
    assert ended.code == 3
    (document,) = json.loads(file.read_text())
    assert document["verdict"] == "refused"
    assert document["code"] == "not-written"
    assert document["counter_example"]["seed"] == document["seed"]
    assert document["time"] == {}


def test_what_is_unsupported_everywhere_ends_with_4(kmark):
    problem = ("-p", "gemm m=33 n=8 k=8 dtype=f32", "--reference", "none", "--no-store")
    assert kmark("judge", HONEST, *problem).code == 4


@pytest.mark.parametrize(
    "words",
    [
        ("missing.py", *PROBLEM),
        (HONEST, "-p", "softmax rows=8"),
        (HONEST, *PROBLEM, "--seed", "zz"),
        (HONEST, *PROBLEM, "--reference", "nothing"),
        (HONEST, *PROBLEM, "-d", "fake"),
        (HONEST,),
    ],
)
def test_an_illegal_request_is_one_sentence_and_a_hint(refused, words):
    refused("judge", *words, "--no-store")
