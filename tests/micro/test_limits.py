"""No number that a device cannot reach is ever `ok`: not when it is made, not when it is stored."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core import codec
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.metric import MARGIN, Metric, PointColumn, impossible
from kernelmark.core.result import Result, Status
from kernelmark.micro import registry
from kernelmark.micro.hardware import Hardware
from kernelmark.micro.session import execute, open_rig
from kernelmark.testing.micro import micro_result
from kernelmark_dev.raising import raises, raises_code

GOOD = micro_result(
    columns=(PointColumn(name="bytes_per_s", unit="B/s", limit=100.0, why="10 units × 10 B/s"),),
    rows=({"bytes_per_s": 90.0},),
    metrics=(Metric(name="rate", value=90.0, unit="B/s", limit=100.0, why="the same"),),
)


def with_rate(value, **more):
    metric = dataclasses.replace(GOOD.metrics[0], value=value)
    return dataclasses.replace(GOOD, metrics=(metric,), **more)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (103.0, "above-physical"),
        (90e3, "above-physical"),
        (float("inf"), "no-measurement"),
        (float("nan"), "no-measurement"),
        (-1.0, "no-measurement"),
    ],
)
def test_an_impossible_metric_cannot_be_ok(value, code):
    with raises_code(UsageError, code, name="rate", unit="B/s"):
        with_rate(value)
    kept = with_rate(value, status=Status.WRONG)
    assert kept.status is Status.WRONG


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rows": ({"bytes_per_s": 90.0}, {"bytes_per_s": 200.0})}, "above-physical"),
        ({"metrics": (Metric(name="l", value=0.001, unit="cycles", least=1.0),)}, "below-physical"),
    ],
)
def test_an_impossible_point_or_time_cannot_be_ok(changes, code):
    with raises_code(UsageError, code):
        dataclasses.replace(GOOD, **changes)


def test_an_edited_document_is_refused():
    document = json.loads(codec.dumps(GOOD))
    document["metrics"][0]["value"] = 90e6
    with raises_code(CodecError, "above-physical", name="rate", value=90e6):
        codec.from_document(document, Result)


@given(st.floats(0, 1e18), st.floats(1e-3, 1e18))
def test_the_margin_is_all_there_is(value, limit):
    metric = Metric(name="m", value=value, unit="", limit=limit)
    assert bool(impossible((), (), (metric,))) == (value > limit * MARGIN)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_points_are_finite_or_absent(value):
    with raises(UsageError, column="bytes_per_s"):
        dataclasses.replace(GOOD, rows=({"bytes_per_s": value},), status=Status.WRONG)
    dataclasses.replace(GOOD, rows=({"bytes_per_s": None},))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("cache", {"sizes": 16384, "seconds": 1e-6}),
        ("stream", {"nbytes": 2**20, "kernels": "copy"}),
        ("memcpy", {"sizes": 65536}),
        ("roofline", {"seconds": 0.01}),
    ],
)
def test_a_planted_unit_error_ends_as_wrong(name, parameters, monkeypatch):
    """Milliseconds taken for seconds: a thousand times too fast."""
    rig = open_rig("cpu", 1)
    # The limit of one core: that of hundreds is a thousand times what one of them reaches.
    monkeypatch.setattr(rig, "hardware", Hardware.of(dataclasses.replace(rig.info, units=1)))
    plain = rig.passes

    def mistaken(*given):
        done = plain(*given)
        return dataclasses.replace(done, whole_s=tuple(one / 1e3 for one in done.whole_s))

    monkeypatch.setattr(rig, "passes", mistaken)
    try:
        result = execute(registry.get(name), rig, "brief", parameters)
    finally:
        rig.close()
    assert result.status is Status.WRONG
    assert "above the physical limit" in result.error
    assert result.rows  # what was measured is kept, for looking at
