"""The table of a fleet."""

from __future__ import annotations

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.metric import Metric
from kernelmark.core.micro import micro_case
from kernelmark.core.result import Result, Status
from kernelmark.report.fleet import fleet_metrics, fleet_table


def results(values, **more):
    return [
        Result(
            case=micro_case("stream", "quick", {}, 0),
            device=f"n{i}/cuda:0",
            arch="sm_90",
            status=Status.OK,
            metrics=(Metric(name="copy", value=value, unit="B/s", **more),),
        )
        for i, value in enumerate(values)
    ]


def infos(count, model="H200"):
    return [
        DeviceInfo(name=f"n{i}/cuda:0", kind="cuda", model=model, arch="sm_90")
        for i in range(count)
    ]


VALUES = [4.0e12, 4.001e12, 3.999e12, 4.002e12, 4.0e12, 3.998e12, 4.0e12, 3.7e12]


def test_the_slow_device_is_named_with_its_distance():
    (metric,) = fleet_metrics(results(VALUES), infos(8))
    assert [name for name, *_ in metric.slow] == ["n7/cuda:0"]
    row = dict(
        zip(
            [c.name for c in fleet_table([metric]).columns],
            fleet_table([metric]).rows[0],
            strict=True,
        )
    )
    assert row["slow"] == "n7/cuda:0 (-7.5%)"
    assert row["devices"] == "8"


def test_devices_of_other_models_are_not_compared():
    mixed = [*infos(7), *infos(8, "H100")[7:]]
    metrics = fleet_metrics(results(VALUES), mixed)
    assert [(m.model, len(m.values), m.slow) for m in metrics] == [("H200", 7, []), ("H100", 1, [])]


def test_a_metric_that_depends_on_the_host_is_left_out():
    assert fleet_metrics(results(VALUES, host_paced=True), infos(8)) == []
