"""Copies of stores: exact, verified, repeatable, from SQLite to PostgreSQL and back."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kernelmark.core.environment import Environment
from kernelmark.core.errors import StoreError
from kernelmark.core.result import Case, Result, Run, RunState, Status
from kernelmark.core.verdict import Mark, MarkKind
from kernelmark.stores import open_store
from kernelmark.stores.store import Scope, Store
from kernelmark.testing.stores import measured, problem, results

CASES = [Case(problem=problem(m), backend="numpy") for m in (1, 2, 3)]
MARK = Mark(
    series="a series",
    kind=MarkKind.ACCEPTED,
    state="slower",
    run_id="one",
    started=1.0,
    before_id="one",
    level=2.0,
    reason="known",
    author="me",
    created=3.0,
)


def a_run(name: str, host: str = "h", **fields: Any) -> Run:
    return Run(id=name, started=1.0, environment=Environment(host=host), **fields)


def copy(source: Store, target: Store) -> list[tuple[str, int, int]]:
    """As `kmark store migrate`: the id, and the numbers of new and known results of each run."""
    every, _ = source.find_runs(limit=1000)
    outcomes = [target.copy_run(source, run) for run in reversed(every)]
    target.copy_names(source)
    return [(one.run_id, one.added, one.known) for one in outcomes]


def contents(store: Store) -> dict[str, Any]:
    """All that a store answers with."""
    every, _ = store.find_runs(limit=1000)
    ids = [run.id for run in every]
    return {
        "runs": repr(every),
        "results": [[repr(result) for result in store.results(id)] for id in ids],
        "checksums": [store.checksums(id) for id in ids],
        "history": repr(store.history()),
        "latest": repr(store.latest()),
        "roofs": repr(store.roofs(every=True)),
        "pins": store.pins(),
        "marks": store.marks(),
        "tokens": store.tokens(),
    }


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "source.sqlite") as store:
        store.add_run(a_run("one", state=RunState.DONE))
        for process in (1, 0):  # the order of rows is kept, and so are processes
            some = [measured(case, (1.0, 2.0 + process)) for case in CASES]
            store.add_results("one", some, process=process)
        store.add_run(a_run("two", label="nightly"))
        failed = Result(case=CASES[0], device="x\0y", status=Status.CRASHED, error="\ud800 fell")
        store.add_results("two", [failed])
        store.add_run(a_run("empty", host="other"))
        store.pin("golden", "two")
        store.mark([MARK])
        store.create_token("host", Scope.WRITE)
        yield store


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place = tmp_path / "target.sqlite"
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_place")
    with open_store(place) as store:
        yield store


def test_a_copy_and_its_copy_have_all_that_the_source_has(source, target, tmp_path):
    assert sorted(copy(source, target)) == [("empty", 0, 0), ("one", 6, 0), ("two", 1, 0)]
    assert contents(target) == contents(source)
    with open_store(tmp_path / "back.sqlite") as back:
        copy(target, back)
        assert contents(back) == contents(source)
        assert back.damage().problems == ()


def test_a_copy_that_is_repeated_adds_what_is_new(source, target):
    copy(source, target)
    before = contents(target)
    assert all(added == 0 for _, added, _ in copy(source, target))
    assert contents(target) == before
    more = measured(CASES[1], (3.0,))
    source.add_results("two", [more])
    source.update_run(dataclasses.replace(a_run("two", label="nightly"), state=RunState.DONE))
    source.pin("golden", "one")
    assert sorted(copy(source, target))[-1] == ("two", 1, 1)
    assert contents(target) == contents(source)


def test_stores_are_merged(source, target, tmp_path):
    target.add_run(a_run("here", host="elsewhere"))
    target.add_results("here", [measured(case, (5.0,)) for case in reversed(CASES)])
    own = list(target.results("here"))
    copy(source, target)
    assert list(target.results("here")) == own
    assert list(target.results("one")) == list(source.results("one"))
    assert len(target.latest()) == len(source.latest())
    assert target.damage().problems == ()


def test_another_run_of_the_same_id_is_refused(source, target):
    target.add_run(a_run("one", host="another"))
    target.add_results("one", [measured(CASES[0], (9.0,))])
    kept = list(target.results("one"))
    with pytest.raises(StoreError) as refused:
        target.copy_run(source, source.run("one"))
    assert refused.value.message.code == "run-differs"
    assert list(target.results("one")) == kept


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE results SET median_s = median_s * 2 WHERE run_no = 1 AND process = 0",
        "UPDATE results SET detail = substr(detail, 1, 40) || x'00' || substr(detail, 42)",
        "DELETE FROM results WHERE no = 2",
    ],
)
def test_a_damaged_run_is_not_copied(source, target, damage):
    path = source.location.path
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(damage)
    with pytest.raises(StoreError):
        target.copy_run(source, source.run("one"))
    assert target.find_runs(limit=10)[0] == []


def test_a_copy_that_differs_is_deleted_again(source, target, monkeypatch):
    monkeypatch.setattr("kernelmark.stores.copying.run_digest", lambda connection, run_no: "")
    with pytest.raises(StoreError):
        target.copy_run(source, source.run("one"))
    assert target.find_runs(limit=10)[0] == []


def test_rows_of_an_older_version_are_copied_without_checksums(source, target):
    path = source.location.path
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE results SET checksum = NULL, detail = substr(detail, 6)")
        other.execute("UPDATE runs SET checksum = NULL, tally = NULL")
    copy(source, target)
    assert list(target.results("one")) == list(source.results("one"))
    assert target.damage().unchecked == 7
    assert copy(source, target)


@pytest.mark.slow
@hypothesis.given(st.lists(results(), min_size=5, max_size=10))
@hypothesis.settings(
    max_examples=8, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_any_result_is_copied_exactly(tmp_path_factory, target, drawn):
    with open_store(tmp_path_factory.mktemp("any") / "source.sqlite") as source:
        run = a_run("any")
        source.add_run(run)
        source.add_results("any", drawn)
        target.copy_run(source, run)
        try:
            assert [repr(one) for one in target.results("any")] == [
                repr(one) for one in source.results("any")
            ]
            assert target.checksums("any") == source.checksums("any")
        finally:
            target.delete_run("any")
