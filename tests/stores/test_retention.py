"""Old runs with less in them: what stays is what verdicts are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Block, Case, Result, Run, Status
from kernelmark.stores import open_store
from kernelmark.stores.store import Store
from kernelmark.testing.stores import measured, problem

CASE = Case(problem=problem(1), backend="numpy")
FAILED = Result(case=Case(problem=problem(2), backend="numpy"), device="cpu", status=Status.CRASHED)


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
def store(request: pytest.FixtureRequest, tmp_path) -> Iterator[Store]:
    place = tmp_path / "results.sqlite"
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_place")
    with open_store(place) as opened:
        for name in ("old", "new"):
            opened.add_run(Run(id=name, started=1.0, environment=Environment(host="h")))
            opened.add_results(name, [FULL, FAILED])
        yield opened


def test_one_time_a_block_stays(store: Store) -> None:
    assert store.thin_samples("old") == 1
    thin, failed = store.results("old")
    assert failed == FAILED
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
    assert list(store.results("new")) == [FULL, FAILED], "other runs are left alone"
    assert store.thin_samples("old") == 0, "once is enough"


def test_a_single_block_stays_whole(store: Store) -> None:
    alone = with_blocks(Block(process=0, allocation=0, samples_s=(1.0, 2.0)))
    store.add_results("new", [alone])
    store.thin_samples("new")
    assert alone in list(store.results("new"))


def test_a_removed_run_is_gone_with_its_results_and_names(store: Store) -> None:
    store.pin("golden", "old")
    points = len(store.history())
    store.delete_run("old")
    assert [run.id for run in store.runs()] == ["new"]
    assert store.pins() == {}
    assert len(store.history()) == points // 2
    with pytest.raises(UsageError):
        store.run("old")
    store.add_run(Run(id="old", started=2.0, environment=Environment()))
    assert list(store.results("old")) == []
