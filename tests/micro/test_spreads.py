"""Every time and rate that a microbenchmark reports has the spread of its launches, so that figures
which other work disturbed are marked."""

from __future__ import annotations

import statistics
from typing import ClassVar

import pytest

from kernelmark.core.metric import WIDE, Metric, with_spreads
from kernelmark.core.result import Status
from kernelmark.micro import _kernels, registry
from kernelmark.micro._cpu_rig import Passes
from kernelmark.micro.base import GPUS, SPREAD
from kernelmark.micro.benchmarks import roofline
from kernelmark.micro.execute import execute, open_rig
from kernelmark.micro.rig import spread_of, widest
from kernelmark_dev import emulator

KIB, MIB = 2**10, 2**20
TIMED = ("B/s", "FLOP/s", "1/s", "B/clk", "FLOP/clk", "1/clk", "s", "ns", "cycles")
ON_CPU = {
    "cache": {"sizes": (16 * KIB,)},
    "incore": {"ops": ("fma_f32",)},
    "instructions": {"ops": ("fma_f32",)},
    "latency": {"sizes": (8 * KIB, 16 * KIB)},
    "memcpy": {"sizes": (MIB,)},
    "roofline": {"steps": (0, 512), "dtypes": ("f32",), "seconds": 0.01},
    "stream": {"kernels": ("copy",), "nbytes": 8 * MIB},
    "vector": {"dtypes": ("f32",), "passes": 4},
}
ON_GPU = {
    "atomics": {"seconds": 1e-5, "turns": 4, "samples": 3, "units": 3, "patterns": ("same",)},
    "cache": {"sizes": (4 * KIB,), "seconds": 1e-5, "samples": 2},
    "incore": {"ops": ("fma_f32",), "cycles": 500, "samples": 2, "seconds": 1e-5},
    "instructions": {"ops": ("fma_f32",), "cycles": 300, "samples": 2},
    "l2_cache": {"sizes": (640 * KIB,), "seconds": 1e-5, "samples": 2},
    "l2_stream": {"sizes": (640 * KIB,), "seconds": 1e-5, "samples": 2, "kernels": ("copy",)},
    "latency": {"sizes": (4 * KIB, 8 * KIB), "samples": 2, "most": 64, "refine": 0},
    "lines": {"bisections": 1},
    "loaded_latency": {"pauses": (500, 0), "hops": 64, "nbytes": 8 * MIB},
    "matrix": {"seconds": 1e-5, "sustained": 1e-3, "rest": 0.0, "samples": 2},
    "memcpy": {"sizes": (4 * KIB,), "samples": 2},
    "peer": {"nbytes": MIB, "repeats": 2},
    "roofline": {"steps": (0, 16), "dtypes": ("f64",), "seconds": 1e-5, "most": 64 * MIB},
    "shared": {"rounds": 3, "samples": 2, "hops": 320, "strides": (1, 32)},
    "small_kernels": {"sizes": (16 * KIB, 32 * KIB), "launches": 10, "samples": 2},
    "stream": {"nbytes": MIB, "samples": 2, "threads": (64,), "kernels": ("copy",)},
    "strides": {"rounds": 2, "samples": 2, "strides": (1,)},
    "tlb": {"span": 2 * MIB, "strides": (64 * KIB,), "hops": 64, "samples": 2},
    "um_stream": {"sizes": (3 * MIB,), "samples": 2},
}


def benchmarks_of(*kinds):
    return [name for name in registry.names() if set(kinds) & set(registry.get(name).kinds)]


def check_spreads(name, result):
    benchmark = registry.get(name)
    timed = [metric for metric in result.metrics if metric.unit in TIMED]
    # A clock that stands still has no spread.
    missing = {one.name for one in timed if one.spread is None and one.value > 0}
    assert missing <= set(benchmark.no_spread), result.error
    assert all(one.spread is None or one.spread >= 0 for one in timed)
    assert not {one.name for one in timed if one.spread is not None} & set(benchmark.no_spread)
    if {one.name for one in timed} - set(benchmark.no_spread):
        assert SPREAD in benchmark.columns


class TestEveryBenchmark:
    @pytest.mark.usefixtures("compiler")
    @pytest.mark.parametrize("name", benchmarks_of("cpu"))
    def test_on_a_cpu(self, name):
        rig = open_rig("cpu", 1)
        try:
            result = execute(registry.get(name), rig, "brief", ON_CPU.get(name, {}))
        finally:
            rig.close()
        assert result.metrics, result.error
        check_spreads(name, result)

    @pytest.mark.usefixtures("compiler")
    @pytest.mark.parametrize("name", benchmarks_of(*GPUS))
    def test_on_an_emulated_gpu(self, name, tmp_path, monkeypatch):
        monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
        monkeypatch.setitem(roofline._MOST_FLOPS, True, 1.0)
        _kernels.library.cache_clear()
        with emulator.emulated(devices=2, block=64):
            rig = open_rig("cuda:0")
            result = execute(registry.get(name), rig, "quick", ON_GPU.get(name, {}))
            rig.close()
        _kernels.library.cache_clear()
        assert result.metrics, result.error
        check_spreads(name, result)


class TestSpreadOf:
    def test_of_a_median_is_the_range(self):
        assert spread_of([1.0, 1.1, 1.3]) == pytest.approx(0.3 / 1.1)

    def test_of_a_median_of_many_is_that_of_the_middle_half(self):
        seen = [1.0 + 0.01 * n for n in range(20)] + [9.0]
        assert spread_of(seen) == pytest.approx(0.10 / statistics.median(seen))

    def test_of_the_shortest_ignores_the_longer_ones(self):
        assert spread_of([3.0, 1.0, 1.02, 5.0], shortest=True) == pytest.approx(0.02)

    def test_of_the_shortest_has_its_time_without_a_core(self):
        waited = [0.1, 0.6, 0.2]
        assert spread_of([3.2, 3.0, 3.1], shortest=True, waited=waited) == 0.6
        assert spread_of([3.0, 3.1, 3.2], shortest=True, waited=waited) == 0.1

    def test_of_a_median_has_the_median_of_the_time_without_a_core(self):
        assert spread_of([3.0, 3.1, 3.2], waited=[0.6, 0.5, 0.7]) == 0.6

    @pytest.mark.parametrize("seen", [[], [1.0], [0.0, 0.0]])
    def test_needs_two_durations(self, seen):
        assert spread_of(seen) is None
        assert spread_of(seen, shortest=True) is None

    def test_widest_leaves_out_what_has_none(self):
        assert widest([None, 0.1, 0.3]) == 0.3
        assert widest([None]) is None


def test_a_metric_keeps_its_own_spread():
    rows = [{"ns": 2.0, "spread": 0.5}]
    columns = [SPREAD, *registry.get("latency").columns]
    own = Metric(name="x", value=2.0, unit="ns", spread=0.1)
    other = Metric(name="y", value=2.0, unit="ns")
    found = with_spreads([own, other], columns, rows)
    assert [one.spread for one in found] == [0.1, 0.5]


@pytest.mark.usefixtures("compiler")
class TestBusyCore:
    NAMES: ClassVar = ["roofline", "memcpy", "latency", "cache", "instructions", "incore"]

    def test_threads_that_share_a_core_wait_for_it(self):
        rig = open_rig("cpu", 1)
        try:
            out, clocks = rig.memory(64), rig.memory(64)
            given = ("micro_ops.cu", "chain_add_i64_1", 2**20, 1, 3, 0, clocks, out)
            call = rig.call(*given, grid=2, types={"T": "u64"})
            waited = rig.passes([call], 1).waited
        finally:
            rig.close()
        assert 0.2 < waited[0] < 1.0

    @pytest.mark.parametrize("waited", [0.0, 0.7])
    @pytest.mark.parametrize("name", NAMES)
    def test_figures_of_a_core_that_other_work_used_are_disturbed(self, name, waited, monkeypatch):
        """All launches take equally long, so that only the time without a core shows it."""
        rig = open_rig("cpu", 1)
        plain = rig.passes

        def passes(calls, count, launches=1):
            done = plain(calls, count, launches)
            return Passes(whole_s=(1e-3,) * count, alone_s=done.alone_s, waited=(waited,) * count)

        monkeypatch.setattr(rig, "passes", passes)
        monkeypatch.setattr(rig, "cycles", lambda clocks, blocks: [1e6] * blocks)
        try:
            result = execute(registry.get(name), rig, "brief", ON_CPU[name])
        finally:
            rig.close()
        timed = [one for one in result.metrics if one.unit in TIMED]
        assert timed, result.error
        if waited:
            assert all(one.disturbed for one in timed)
            assert all(one.spread >= waited > WIDE for one in timed)
        elif name != "latency":  # which reads real clocks
            assert result.status is Status.WRONG or not any(one.disturbed for one in timed)
