from __future__ import annotations

import dataclasses
import time

import pytest

from kernelmark.api import roofs as folder
from kernelmark.api.plan import plan
from kernelmark.api.selection import Selection
from kernelmark.core.errors import KernelmarkError, StoreError
from kernelmark.core.micro import ROOFS_SUITE
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.micro import session
from kernelmark.runners.forecast import Means
from kernelmark.stores import open_store
from kernelmark.stores.roofs import recorded
from kernelmark_dev.raising import raises_code
from kernelmark_dev.results import make_roof

GEMM = "gemm m=8 n=8 k=8 dtype=f32"


@pytest.fixture
def measured(monkeypatch):
    """What measuring gives, and the calls that were made for it."""
    info = registry.get("cpu").infos()[0]
    fields = {"arch": info.arch, "model": info.model, "threads": info.units}
    roof = make_roof("flops", "f32", 2e9, measured=time.time(), unit="vector", **fields)
    calls = []

    def measure(device, threads, tell):
        calls.append((device, threads))
        return results_of(dataclasses.replace(roof, threads=threads))

    monkeypatch.setattr(session, "measure_roof_sources", measure)
    return roof, calls


def results_of(*roofs):
    """Results that give these roofs."""
    return [result for made in recorded(roofs, "") for result in made.results]


def ask(store, mode="stored", threads=0):
    made = plan(Selection.parse(problems=(GEMM,), backends=("fake",)), Timing(threads=threads))
    told = []
    return folder.roofs_for_plan(made, store, mode).complete(told.append), told


def test_compiling_is_not_expected_again(measured, monkeypatch):
    roof, _ = measured
    info = registry.get("cpu").infos()[0]
    now = [1000.0]

    def measure(device, threads, tell):
        now[0] += 9.0
        return [dataclasses.replace(one, cost={"compile": 7.0}) for one in results_of(roof)]

    monkeypatch.setattr(session, "measure_roof_sources", measure)
    monkeypatch.setattr(folder.time, "time", lambda: now[0])
    means = Means()
    monkeypatch.setattr(Means, "of_machine", lambda: means)
    folder.measure_roofs(folder.DeviceRoofs(info=info), None, lambda text: None)
    made = plan(Selection.parse(problems=(GEMM,), backends=("fake",)), Timing())
    assert folder.roofs_for_plan(made, None, "fresh").expected_s == pytest.approx(2.0)


def test_stored_roofs_are_used_until_they_are_a_week_old(measured, tmp_path):
    _, calls = measured
    with open_store(tmp_path / "s.sqlite") as store:
        first, told = ask(store)
        assert "measuring" in told[0]
        assert ask(store) == (first, [])
        assert len(calls) == 1
        assert ask(store, "fresh")[0] == first
        assert len(calls) == 2
        assert ask(store, "none") == ((), [])


def test_without_a_store_fresh_roofs_of_the_default_store_are_used(measured, monkeypatch):
    roof, calls = measured
    ask(None)
    assert len(calls) == 1
    with raises_code(StoreError, "store-missing"):  # it is not made
        open_store(readonly=True)
    with open_store() as default:
        ask(default)
    assert len(calls) == 2
    made = plan(Selection.parse(problems=(GEMM,), backends=("fake",)), Timing())
    assert folder.roofs_for_plan(made, None, "stored").expected_s == 0
    got, told = ask(None)
    assert (len(calls), told) == (2, [])
    assert [one.value for one in got] == [roof.value]
    ask(None, "fresh")
    assert len(calls) == 3
    monkeypatch.setattr(folder, "MAX_AGE_S", 0.0)
    ask(None)
    assert len(calls) == 4
    with open_store() as default:
        assert len(default.runs(suites=[ROOFS_SUITE])) == 1  # without a store, none is added


def test_old_ones_are_measured_again(measured, tmp_path, monkeypatch):
    _, calls = measured
    with open_store(tmp_path / "s.sqlite") as store:
        ask(store)
        monkeypatch.setattr(folder, "MAX_AGE_S", -1.0)
        ask(store)
        assert len(calls) == 2


def test_roofs_belong_to_a_number_of_threads(measured, tmp_path):
    _, calls = measured
    with open_store(tmp_path / "s.sqlite") as store:
        ask(store)
        ask(store, threads=1)
    assert calls[-1] == ("cpu", 1)


@pytest.mark.parametrize("value", [1e9, 3e9])
def test_the_newest_steady_roof_counts_higher_or_lower(measured, tmp_path, monkeypatch, value):
    roof, _ = measured
    newer = dataclasses.replace(roof, value=value, measured=roof.measured + 1)
    with open_store(tmp_path / "s.sqlite") as store:
        ask(store)
        monkeypatch.setattr(session, "measure_roof_sources", lambda *given: results_of(newer))
        assert ask(store, "fresh")[0] == (newer,)
        assert store.roofs() == (newer,)


@pytest.mark.parametrize("value", [1e9, 3e9])
def test_a_disturbed_roof_does_not_replace_a_steady_one(measured, tmp_path, monkeypatch, value):
    roof, _ = measured
    disturbed = dataclasses.replace(roof, value=value, steady=False, measured=roof.measured + 1)
    with open_store(tmp_path / "s.sqlite") as store:
        ask(store)
        monkeypatch.setattr(session, "measure_roof_sources", lambda *given: results_of(disturbed))
        found, told = ask(store, "fresh")
        assert found == store.roofs() == (roof,)
        assert "f32" in told[-1]
        # As `kmark roofs` asks.
        info = registry.get("cpu").infos()[0]
        assert folder.measure_roofs(folder.DeviceRoofs(info=info), store, told.append) == (roof,)
        assert store.roofs() == (roof,)


def test_known_roofs_are_those_of_the_store_and_nothing_is_measured(measured, tmp_path):
    roof, calls = measured
    with open_store(tmp_path / "s.sqlite") as store:
        assert folder.known_roofs(store, ["cpu"]) == ()
        ask(store)
        assert folder.known_roofs(store, ["cpu"]) == (roof,)
        assert folder.known_roofs(store, ["fake"]) == ()
        assert folder.known_roofs(None, ["cpu"]) == ()
    assert len(calls) == 1


def test_where_all_are_disturbed_the_newest_counts_and_a_later_run_measures_again(
    measured, tmp_path, monkeypatch
):
    roof, _ = measured
    higher, lower = (
        dataclasses.replace(roof, value=value, steady=False, measured=roof.measured + later)
        for later, value in enumerate((1.5e9, 1e9))
    )
    with open_store(tmp_path / "s.sqlite") as store:
        monkeypatch.setattr(session, "measure_roof_sources", lambda *given: results_of(higher))
        assert ask(store)[0] == (higher,)
        monkeypatch.setattr(
            session, "measure_roof_sources", lambda *given: pytest.fail("it may still run")
        )
        assert ask(store)[0] == (higher,)
        monkeypatch.setattr(folder, "RETRY_S", -10.0)  # they are of the future
        for now in (lower, dataclasses.replace(roof, measured=roof.measured + 3)):
            monkeypatch.setattr(
                session, "measure_roof_sources", lambda *given, now=now: results_of(now)
            )
            assert ask(store)[0] == store.roofs() == (now,)


def test_a_roof_that_cannot_be_is_told_and_left_out(measured, monkeypatch):
    def impossible(*given):
        raise KernelmarkError("the measured roof is not physically possible")

    monkeypatch.setattr(session, "measure_roof_sources", impossible)
    found, told = ask(None)
    assert found == ()
    assert "not physically possible" in told[-1]
