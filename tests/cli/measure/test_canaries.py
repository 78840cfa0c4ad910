"""`kmark run -s` brings canaries of its own."""

from __future__ import annotations

import json

import pytest

from kernelmark.core import codec
from kernelmark.core.result import RunState
from kernelmark.stores import open_store
from kernelmark.workloads.suites import canary_keys
from kernelmark_dev.results import make_result, make_set

QUICK = ("--max-s", "0.05", "--warmup-s", "0.01", "--roofs", "none", "--quiet")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A run of a suite with one problem."""
    file = tmp_path_factory.mktemp("suite") / "mine.toml"
    file.write_text('dtype = "f32"\n[[problems]]\nop = "gemm"\nm = 8\nn = 8\nk = 8\n')
    return ("run", "-s", str(file), "-b", "numpy", *QUICK)


@pytest.fixture(scope="module")
def document(words):
    """What such a run is exported as."""
    keys = ("gemm m=8 n=8 k=8 dtype=f32", *canary_keys())
    results = (make_result(key, 1e-3, flops=1, bytes=1) for key in keys)
    fields = {"suite": "mine,sentinels", "argv": words, "cases": len(keys)}
    made = make_set(*results, id="20260101-000000-aaaaaa", state=RunState.DONE, **fields)
    return codec.to_document(made)


@pytest.fixture
def resumed(document, kmark, tmp_path):
    """The problems of that run, cut short and resumed after changes of the run."""

    def call(kept, **changes):
        cut = {**document, "results": kept}
        cut["run"] = document["run"] | {"state": "interrupted", "finished": None} | changes
        (tmp_path / "cut.json").write_text(json.dumps(cut))
        assert kmark("import", str(tmp_path / "cut.json")).code == 0
        assert kmark("run", "--resume", "--quiet", "--roofs", "none").code == 0
        with open_store(None) as store:
            (run,) = store.runs()
            return {result.case.problem.key for result in store.results(run.id)}

    return call


def test_a_stored_suite_has_them_last_in_its_table(document, kmark, tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document))
    lines = kmark("show", str(file)).out.splitlines()[2:]
    starts = ["gemm m=8 ", "canaries:", "copy n=1 ", "copy n=16777216 ", "gemm m=1024 "]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 5
    assert "sentinels" not in kmark("show", str(file), "-o", "copy").out


def test_a_run_that_was_cut_short_is_resumed_with_them(resumed, document):
    """The smallest of them is measured, for real on the CPU."""
    kept = [one for one in document["results"] if "n=1 " not in one["case"]["problem"]]
    assert len(kept) == 3
    assert resumed(kept) > set(canary_keys())


def test_a_run_that_had_none_is_resumed_without(resumed, document):
    assert len(resumed(document["results"][:1], suite="mine")) == 1


def test_they_can_be_left_out(kmark, words):
    assert "copy n=1 " in kmark(*words, "--dry-run").out
    assert "copy n=1 " not in kmark(*words, "--dry-run", "--no-canaries").out
    assert "copy n=1 " not in kmark(*words, "--dry-run", "--no-store").out


def test_the_choice_holds_for_a_resumed_run(document, kmark, refused, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert kmark("import", str(tmp_path / "run.json")).code == 0
    run = document["run"]["id"]
    words = ("run", "--resume", run, "--no-canaries")
    refused(*words, options=("--no-canaries",), other="--resume")
