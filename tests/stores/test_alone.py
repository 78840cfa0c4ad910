"""Results that take the place of all that a run had of their cases, as of a failure tried again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Result, Run, Status
from kernelmark.stores import open_store
from kernelmark.stores.store import Store
from kernelmark.testing.stores import measured, problem

CASES = [Case(problem=problem(m), backend="numpy") for m in (1, 2)]
FAILED = [Result(case=c, device="cuda:3", status=Status.CRASHED, error="it fell") for c in CASES]
AGAIN = dataclasses.replace(measured(CASES[0], (1.0,)), device="cuda:1")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path) -> Iterator[Store]:
    place = tmp_path / "results.sqlite"
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_place")
    with open_store(place) as opened:
        for name in ("one", "two"):
            opened.add_run(Run(id=name, started=1.0, environment=Environment(host="h")))
            opened.add_results(name, FAILED)
        yield opened


def test_other_rows_of_the_case_in_the_run_go_whatever_their_device(store: Store) -> None:
    store.add_results("one", [dataclasses.replace(FAILED[0], device="cuda:4")], process=2)
    assert store.add_results("one", [AGAIN], alone=True) == 1
    assert list(store.results("one")) == [FAILED[1], AGAIN]
    assert store.counts("one") == {Status.OK: 1, Status.CRASHED: 1}
    assert list(store.results("two")) == FAILED


def test_without_it_they_stay(store: Store) -> None:
    store.add_results("one", [AGAIN])
    assert len(list(store.results("one"))) == 3


def test_the_earlier_rows_stay_when_the_new_one_cannot_be_stored(store: Store) -> None:
    with pytest.raises(Exception, match=r"too large|out of range"):
        store.add_results("one", [AGAIN], process=2**70, alone=True)
    assert list(store.results("one")) == FAILED
