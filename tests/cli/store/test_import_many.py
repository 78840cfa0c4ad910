"""`kmark import` of several files, and of our own with a label."""

from __future__ import annotations

import json

import pytest

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, ResultSet, Run
from kernelmark.stores import open_store
from kernelmark.testing.stores import measured, problem


def write(path, name, times=(1.0,), **more):
    results = (measured(Case(problem=problem(1), backend="numpy"), times),)
    run = Run(id=name, started=1.0, environment=Environment(host="h"), **more)
    path.write_text(codec.dumps(ResultSet(run=run, results=results)))
    return str(path)


@pytest.fixture
def files(tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    first, second = (write(tmp_path / f"{name}.json", name) for name in ("a", "b"))
    return [first, str(bad), str(tmp_path / "missing.json"), second]


def test_a_bad_file_does_not_stop_the_others(kmark, files, tmp_path):
    ended = kmark("import", *files)
    assert ended.code == 3
    with open_store(tmp_path / "store.sqlite") as store:
        assert {run.id for run in store.runs()} == {"a", "b"}


def test_only_bad_files_are_a_usage_error(kmark, files, tmp_path):
    assert kmark("import", files[1], files[2]).code == 2
    assert not (tmp_path / "store.sqlite").exists()


def test_quiet_is_quiet(kmark, files):
    ended = kmark("import", "-q", files[0])
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_other_results_of_a_stored_run_are_refused(kmark, files, tmp_path):
    assert kmark("import", files[0]).code == 0
    other = write(tmp_path / "other.json", "a", times=(2.0,))
    assert kmark("import", other).reason.code == "run-differs"
    assert kmark("import", other, files[3]).code == 3


def test_the_label_is_that_of_the_command(kmark, files):
    assert kmark("import", files[0], "--label", "X").code == 0
    assert [run["label"] for run in json.loads(kmark("list", "runs", "--json", "-").out)] == ["X"]


def test_latest_is_no_run_of_tuning(kmark, tmp_path):
    run = write(tmp_path / "run.json", "mine")
    later = write(tmp_path / "tune.json", "tuning", argv=("tune", "summarise", "m"))
    assert kmark("import", run, later).code == 0
    assert json.loads(kmark("export", "latest").out)["run"]["id"] == "mine"
    assert json.loads(kmark("export", "tuning").out)["run"]["id"] == "tuning"
