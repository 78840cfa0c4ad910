"""benchmarks/gpu/micro.py on made-up results: what its bars compare, and what it writes."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from kernelmark.core.metric import Metric
from kernelmark.core.result import KernelInfo
from kernelmark.testing.micro import micro_result


@pytest.fixture(scope="module")
def script(benchmark_script) -> ModuleType:
    return benchmark_script("gpu/micro.py")


def result(benchmark, metrics=(), rows=(), **more):
    return micro_result(
        benchmark,
        metrics=tuple(
            Metric(
                name=name,
                value=value,
                unit="",
                headline=not name.startswith("_"),
                roof={"init": "bytes dram", "plain_empty_ns": "launches plain"}.get(name, ""),
            )
            for name, value in dict(metrics).items()
        ),
        rows=tuple(rows),
        **more,
    )


def test_every_metric_is_counted_and_what_roofs_use_is_repeated(script):
    def session(n):
        return [
            result("stream", {"init": 4e12 + n * 1e10, "_scale": 4e12 + n * 1e12}),
            result("small-kernels", {"graph_ns": 900.0, "_x": 1.0, "plain_empty_ns": 3e3 + n}),
        ]

    briefs, quicks = [session(n) for n in range(3)], [session(n) for n in range(3)]
    (heads, roofs), figures = script.repeatability(briefs, quicks)
    assert heads[0] == "3 runs, every headline metric (3 of 5 metrics) within 2 %"
    assert "of 2 other metrics in 3 quick runs 1 are over 2 %" in heads[1]
    assert heads[2]
    assert figures["headline"] == "3 of 5"
    assert figures["others"]["spread"] == {
        "stream _scale": pytest.approx(0.4),
        "small-kernels _x": 0.0,
    }
    assert roofs[0] == "3 runs, every roof of FLOP/s and bytes/s within 2 %"
    assert roofs[2]
    assert figures["roofs"]["spread"] == {"bytes dram": pytest.approx(0.005, rel=0.01)}
    assert list(figures["launch_roofs"]["spread"]) == ["launches plain"]
    briefs[0] = briefs[0][:1]
    assert not script.repeatability(briefs, quicks)[0][0][2]


def test_compilations_ahead_and_in_workers_are_counted(script, monkeypatch):
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.devices import registry
    from kernelmark.micro import session as micro_session
    from kernelmark.runners.pool import Pool, Slot
    from kernelmark.runners.process import WorkerSpec

    monkeypatch.setattr(micro_session, "build_all", lambda info: 9)
    info = DeviceInfo(name="cuda:0", kind="cuda", model="H200", arch="sm_90", units=132)
    pool = Pool([Slot(registry.get("cuda"), info, WorkerSpec(device="cuda:0"))])

    def measure(names, *, tell, on_result, **given):
        assert list(micro_session._run_all(pool, [], tell)) == []
        once = KernelInfo(resources={"compilations": 1})
        found = [result("cache"), result("latency", kernel=once)]
        for one in found:
            on_result(one)
        return SimpleNamespace(micro=found)

    monkeypatch.setattr(script.api, "measure", measure)
    session = script.run("cuda:0", "quick", ["cache", "latency"])
    assert session.compilations == 10
    assert script.of_session(session)["compilations"] == 10
    ((_, told, holds),) = script.completion(session, "quick", 90.0)
    assert "10 compilations included" in told
    assert holds
