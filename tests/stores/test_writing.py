"""Rows that replace others, thinned samples, and the names of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Block, Case, Result, Run, RunState, Status
from kernelmark.stores import check_name, new_run_id, open_store
from kernelmark.stores.store import Store
from kernelmark.testing.stores import measured, problem
from kernelmark_dev.raising import raises

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
    with pytest.raises(OverflowError):
        store.add_results("one", [AGAIN], process=2**70, alone=True)
    assert list(store.results("one")) == FAILED


def test_the_run_before_has_the_label_and_suite(tmp_path):
    def a_run(name: str, started: float, label: str = "nightly", suite: str = "demo") -> Run:
        return Run(
            id=name,
            started=started,
            environment=Environment(host="here"),
            label=label,
            suite=suite,
            state=RunState.DONE,
        )

    made = [
        a_run("first", 1.0),
        a_run("second", 2.0),
        a_run("other-label", 3.0, label=""),
        a_run("other-suite", 4.0, suite="micro"),
        a_run("third", 5.0),
        a_run("later", 6.0),
    ]
    with open_store(tmp_path / "results.sqlite") as store:
        for run in made:
            store.add_run(run)
        before = {run.id: store.run_before(run) for run in made}
    assert {name: found.id if found else None for name, found in before.items()} == {
        "first": None,
        "second": "first",
        "other-label": None,
        "other-suite": None,
        "third": "second",
        "later": "third",
    }


CASE = Case(problem=problem(1), backend="numpy")
LOST = Result(case=Case(problem=problem(2), backend="numpy"), device="cpu", status=Status.CRASHED)


def with_blocks(*blocks: Block) -> Result:
    result = measured(CASE, (1.0,))
    assert result.measurement is not None
    return dataclasses.replace(
        result, measurement=dataclasses.replace(result.measurement, blocks=blocks)
    )


FULL = with_blocks(
    Block(process=0, allocation=0, samples_s=(1.0, 3.0, 2.0), clocks_mhz=(10.0, 30.0, 20.0)),
    Block(process=1, allocation=0, samples_s=(5.0, 4.0, 6.0), clocks_mhz=(10.0,)),
)


@pytest.fixture(params=["sqlite", "postgres"])
def old_store(request: pytest.FixtureRequest, tmp_path) -> Iterator[Store]:
    place = tmp_path / "results.sqlite"
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_place")
    with open_store(place) as opened:
        for name in ("old", "new"):
            opened.add_run(Run(id=name, started=1.0, environment=Environment(host="h")))
            opened.add_results(name, [FULL, LOST])
        yield opened


def test_one_time_a_block_stays(old_store: Store) -> None:
    assert old_store.thin_samples("old") == 1
    thin, failed = old_store.results("old")
    assert failed == LOST
    assert FULL.measurement is not None
    assert thin.measurement is not None
    assert [block.samples_s for block in thin.measurement.blocks] == [(2.0,), (5.0,)]
    assert [block.clocks_mhz for block in thin.measurement.blocks] == [(20.0,), ()]
    assert thin.measurement.median_s == FULL.measurement.median_s
    assert (thin.measurement.low_s, thin.measurement.high_s) == (
        FULL.measurement.low_s,
        FULL.measurement.high_s,
    )
    assert dataclasses.replace(thin, measurement=FULL.measurement) == FULL
    assert list(old_store.results("new")) == [FULL, LOST], "other runs are left alone"
    assert old_store.thin_samples("old") == 0, "once is enough"


def test_a_single_block_stays_whole(old_store: Store) -> None:
    alone = with_blocks(Block(process=0, allocation=0, samples_s=(1.0, 2.0)))
    old_store.add_results("new", [alone])
    old_store.thin_samples("new")
    assert alone in list(old_store.results("new"))


def test_a_removed_run_is_gone_with_its_results_and_names(old_store: Store) -> None:
    old_store.pin("golden", "old")
    points = len(old_store.history())
    old_store.delete_run("old")
    assert [run.id for run in old_store.runs()] == ["new"]
    assert old_store.pins() == {}
    assert len(old_store.history()) == points // 2
    with pytest.raises(UsageError):
        old_store.run("old")
    old_store.add_run(Run(id="old", started=2.0, environment=Environment()))
    assert list(old_store.results("old")) == []


def test_an_id_says_when_and_sorts_by_it() -> None:
    early, late = new_run_id(1794712502.9, Random(9)), new_run_id(1794712503.0, Random(1))
    assert early.startswith("20261115-031502-")
    assert len(early) == len("20261115-031502-k3f9x2")
    assert early < late


def test_ids_of_one_second_differ() -> None:
    assert len({new_run_id(0.0) for _ in range(1000)}) == 1000
    assert new_run_id(0.0, Random(3)) == new_run_id(0.0, Random(3))


def test_every_id_is_a_legal_name() -> None:
    for seed in range(200):
        made = new_run_id(random=Random(seed))
        assert check_name("run", made) == made


@pytest.mark.parametrize(
    "bad", ["", " ", "a b", "latest", "Latest~1", "-x", "a/b", "x" * 65, "\0", "a\n", "é"]
)
def test_a_name_that_cannot_be_typed_back_is_refused(bad: str) -> None:
    with raises(UsageError, name=repr(bad[:80]), what="run"):
        check_name("run", bad)
