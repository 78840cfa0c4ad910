"""Roofs out of what an H200 gave, through the store, into percentages."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path

from kernelmark.api import roofs as api
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.metric import Metric
from kernelmark.core.result import ResultSet, Run
from kernelmark.micro.hardware import Hardware
from kernelmark.report.results import share
from kernelmark.stores import open_store
from kernelmark.stores.roofs import roofs_of
from kernelmark.testing.micro import micro_result

GPU = DeviceInfo(name="cuda:0", kind="cuda", model="NVIDIA H200", arch="sm_90", units=132)
RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_micro.json"


ROOFS = {
    "incore peak_": "flops {} vector",
    "matrix flops_": "flops {} matrix",
    "stream read": "bytes dram",
    "l2-cache l2_read": "bytes l2",
    "cache l1_bytes_per_s": "bytes l1",
}


def recorded():
    """The roofs that an H200 gave, as results."""
    figures = json.loads(RECORDED.read_text("utf-8"))["figures"]
    return [
        micro_result(
            name.partition(" ")[0],
            started=time.time(),
            metrics=(Metric(name="x", value=value, unit="", roof=roof.format(name[len(begin) :])),),
        )
        for name, value in figures["metrics"].items()
        for begin, roof in ROOFS.items()
        if name.startswith(begin)
    ]


def test_what_an_h200_gave_becomes_percentages(tmp_path, make_result):
    with open_store(tmp_path / "store.sqlite") as store:
        every = [roof for result in recorded() for roof in roofs_of(result, GPU)]
        store.add_roofs(every, host=platform.node())
        roofs = api.known_roofs(store, [GPU.name])
    hardware = Hardware.of(GPU)
    for found in roofs:
        if found.kind == "flops":
            assert 0.4 < found.value / hardware.flops(found.unit, found.name).value < 1.01
        elif found.kind == "bytes":
            assert 0.5 < found.value / hardware.bandwidth(found.name).value < 1.01
    names = {(found.unit, found.name) for found in roofs if found.kind == "flops"}
    assert {("vector", "f32"), ("matrix", "bf16"), ("matrix", "f8e4m3")} <= names

    product = make_result(
        "gemm m=8192 n=8192 k=8192 dtype=bf16", device="cuda:0", arch="sm_90", median_s=1.625e-3
    )
    found = share(product, roofs, GPU)
    assert found is not None
    assert (found.bound, found.roof.unit) == ("compute", "matrix")
    assert 0.65 < found.value < 0.8
    vector = make_result(
        "gemm m=1 n=8192 k=8192 dtype=bf16", device="cuda:0", arch="sm_90", median_s=4e-5
    )
    found = share(vector, roofs, GPU)
    assert found is not None
    assert found.bound == "memory"
    assert 0.5 < found.value < 1


def test_a_stored_run_keeps_the_roofs_that_it_was_measured_with(tmp_path, make_result, make_roof):
    """The share of a stored result does not move when its roof is measured again."""
    info = DeviceInfo(name="cpu", kind="cpu", model="a CPU", arch="aarch64", units=2)
    product = make_result("gemm m=512 n=512 k=512 dtype=f32")
    runs = {
        name: Run(id=name, started=at, environment=Environment(host="here", devices=(info,)))
        for name, at in (("before", 5.0), ("first", 15.0), ("second", 25.0))
    }
    found = {}
    with open_store(tmp_path / "store.sqlite") as store:
        for run in runs.values():
            store.add_result_set(ResultSet(run=run, results=(product,)))
        for measured, value in ((10.0, 1e11), (20.0, 5e10), (30.0, 2e10)):
            for kind, name in (("flops", "f32"), ("bytes", "dram")):
                made = make_roof(kind, name, value, measured=measured)
                store.add_roofs([made], host="here")
            for name in runs:
                known = api.stored_roofs(store, store.result_set(name))
                found.setdefault(name, []).append({roof.value for roof in known})
    assert found["first"] == [{1e11}] * 3
    assert found["second"] == [{1e11}, {5e10}, {5e10}]
    assert found["before"] == [{1e11}] * 3  # nothing was known: the first that came
