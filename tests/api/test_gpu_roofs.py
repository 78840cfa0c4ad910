"""Roofs of a GPU flow into percentages: measured when there are none, stored, kept where a new
measurement fails."""

from __future__ import annotations

import platform
import time

import pytest

from kernelmark.api import roofs as api
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.metric import Roof
from kernelmark.stores import open_store
from kernelmark.stores.roofs import recorded

GPU = DeviceInfo(name="cuda:0", kind="cuda", model="NVIDIA H200", arch="sm_90", units=132)


def roof(name, value, *, kind="flops", unit="matrix", measured=None):
    return Roof(
        device="cuda:0",
        arch="sm_90",
        kind=kind,
        name=name,
        value=value,
        how="kmark micro",
        measured=time.time() if measured is None else measured,
        unit=unit,
        model=GPU.model,
    )


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        yield opened


@pytest.fixture
def measured(monkeypatch):
    """What the microbenchmarks give, and how often they were asked."""
    asked = []
    found = [roof("bf16", 9e14)]

    def measure(device, threads, tell):
        asked.append(device)
        if not found:
            raise UsageError("it cannot be measured")
        return [result for made in recorded(found, "") for result in made.results]

    monkeypatch.setattr(api, "measure", measure)
    return asked, found


def test_they_are_measured_once_and_then_taken_from_the_store(store, measured):
    asked, found = measured
    told: list[str] = []
    first = api._roofs(GPU, 0, store, "stored", told.append)
    again = api._roofs(GPU, 0, store, "stored", told.append)
    assert first == again == tuple(found)
    assert asked == ["cuda:0"]
    assert len(told) == 1
    api._roofs(GPU, 0, store, "fresh", told.append)
    assert asked == ["cuda:0"] * 2


def test_old_ones_are_measured_again(store, measured):
    asked, _ = measured
    store.add_roofs([roof("bf16", 1e12, measured=1.0)], host=platform.node())
    assert api._roofs(GPU, 0, store, "stored", print)[0].value == 9e14
    assert asked


def test_what_cannot_be_measured_keeps_its_last_roof(store, measured):
    _, found = measured
    old = roof("f64", 6e13, measured=1.0)
    store.add_roofs([old], host=platform.node())
    assert api._roofs(GPU, 0, store, "stored", print) == (found[0], old)
    found.clear()
    told: list[str] = []
    kept = api._roofs(GPU, 0, store, "fresh", told.append)
    assert old in kept
    assert told[-1] == "it cannot be measured"


def test_nothing_is_measured_for_nothing(measured):
    asked, _ = measured
    told: list[str] = []
    assert api._roofs(GPU, 0, None, "stored", told.append) == ()
    assert not asked
    assert "--roofs fresh" in told[0]
    assert api._roofs(GPU, 0, None, "fresh", told.append)
    assert asked
