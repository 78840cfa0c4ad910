from __future__ import annotations

import dataclasses
import time

import pytest

from kernelmark.api import roofs as folder
from kernelmark.api.plan import Selection, plan
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.roof import Roof
from kernelmark.core.timing import Timing
from kernelmark.devices import registry
from kernelmark.micro.roofs import UNSTEADY
from kernelmark.stores import open_store

GEMM = "gemm m=8 n=8 k=8 dtype=f32"


@pytest.fixture
def measured(monkeypatch):
    """What measuring gives, and the calls that were made for it."""
    info = registry.get("cpu").infos()[0]
    roof = Roof(
        device="cpu",
        arch=info.arch,
        kind="flops",
        name="f32",
        value=2e9,
        how="a test",
        measured=time.time(),
        unit="vector",
        threads=info.units,
    )
    calls = []

    def quick(device, threads):
        calls.append((device, threads))
        return (dataclasses.replace(roof, threads=threads),)

    monkeypatch.setattr(folder, "quick", quick)
    return roof, calls


def ask(store, mode="stored", threads=0):
    made = plan(Selection(problems=(GEMM,), backends=("fake",)), Timing(threads=threads))
    told = []
    return folder.roofs_for_plan(made, store, mode, told.append), told


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


def test_disturbed_roofs_are_measured_again_and_never_lower_a_limit(
    measured, tmp_path, monkeypatch
):
    roof, _ = measured
    disturbed = dataclasses.replace(roof, value=1e9, how=UNSTEADY)
    with open_store(tmp_path / "s.sqlite") as store:
        assert ask(store)[0][0].value == 2e9
        monkeypatch.setattr(folder, "quick", lambda *given: (disturbed,))
        assert ask(store, "fresh")[0][0].value == 2e9
    with open_store(tmp_path / "other.sqlite") as store:
        assert ask(store)[0][0].value == 1e9
        monkeypatch.setattr(folder, "quick", lambda *given: (roof,))
        assert ask(store)[0][0].value == 2e9


def test_a_roof_that_cannot_be_is_told_and_left_out(measured, monkeypatch):
    def impossible(*given):
        raise KernelmarkError("the measured roof is not physically possible")

    monkeypatch.setattr(folder, "quick", impossible)
    found, told = ask(None)
    assert found == ()
    assert "not physically possible" in told[-1]
