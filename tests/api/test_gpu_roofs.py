"""Roofs of a GPU flow into percentages: measured when there are none, stored, kept where a new
measurement fails."""

from __future__ import annotations

import platform
import time

import pytest

from kernelmark import ops
from kernelmark.api import roofs as api
from kernelmark.api.plan import Plan
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.micro import session
from kernelmark.stores import open_store
from kernelmark.stores.roofs import recorded
from kernelmark_dev.results import make_roof

GPU = DeviceInfo(name="cuda:0", kind="cuda", model="NVIDIA H200", arch="sm_90", units=132)


def roof(name, value, *, kind="flops", unit="matrix", measured=None):
    about = {"device": "cuda:0", "arch": "sm_90", "model": GPU.model, "unit": unit}
    when = time.time() if measured is None else measured
    return make_roof(kind, name, value, how="kmark micro", measured=when, **about)


def complete(store, mode, tell):
    case = Case(problem=ops.parse("gemm m=8 n=8 k=8 dtype=f32"), backend="fake", timing=Timing())
    return api.roofs_for_plan(Plan(cases=(case,), devices=(GPU,)), store, mode).complete(tell)


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

    monkeypatch.setattr(session, "measure_roof_sources", measure)
    return asked, found


def test_they_are_measured_once_and_then_taken_from_the_store(store, measured):
    asked, found = measured
    told: list[str] = []
    first = complete(store, "stored", told.append)
    again = complete(store, "stored", told.append)
    assert first == again == tuple(found)
    assert asked == ["cuda:0"]
    assert len(told) == 1
    complete(store, "fresh", told.append)
    assert asked == ["cuda:0"] * 2


def test_old_ones_are_measured_again(store, measured):
    asked, _ = measured
    store.add_roofs([roof("bf16", 1e12, measured=1.0)], host=platform.node())
    assert complete(store, "stored", print)[0].value == 9e14
    assert asked


def test_what_cannot_be_measured_keeps_its_last_roof(store, measured):
    _, found = measured
    old = roof("f64", 6e13, measured=1.0)
    store.add_roofs([old], host=platform.node())
    assert complete(store, "stored", print) == (found[0], old)
    found.clear()
    told: list[str] = []
    kept = complete(store, "fresh", told.append)
    assert old in kept
    assert told[-1] == "it cannot be measured"


def test_nothing_is_measured_for_nothing(measured):
    asked, _ = measured
    told: list[str] = []
    assert complete(None, "stored", told.append) == ()
    assert not asked
    assert "--roofs fresh" in told[0]
    assert complete(None, "fresh", told.append)
    assert asked
