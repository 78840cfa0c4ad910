"""The CPU benchmarks for real, against something that is not ours: NumPy, the kernel's own files,
or a formula. Bounds are wide: other work may share the machine."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from kernelmark.core.result import Status
from kernelmark.micro import registry, roofs
from kernelmark.micro.execute import execute, open_rig

pytestmark = pytest.mark.usefixtures("compiler")
CACHE = Path("/sys/devices/system/cpu/cpu0/cache")


@pytest.fixture(scope="module")
def rig():
    made = open_rig("cpu", 1)
    yield made
    made.close()


def measured(rig, name, **parameters):
    result = execute(registry.get(name), rig, "brief", parameters)
    assert result.status is Status.OK, result.error
    return result


def numpy_copy_per_s(nbytes):
    """Bytes copied a second by NumPy, the best of several."""
    a, b = np.ones(nbytes // 8), np.ones(nbytes // 8)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        np.copyto(a, b)
        times.append(time.perf_counter() - start)
    return nbytes / min(times)


def test_memcpy_is_as_fast_as_numpys_copy(rig):
    found = measured(rig, "memcpy", sizes=64 * 2**20).metric("one_core_host").value
    assert 0.4 < found / numpy_copy_per_s(64 * 2**20) < 2.5


def test_stream_copy_counts_both_arrays(rig):
    result = measured(rig, "stream", kernels="copy,read", samples=7)
    assert 0.4 < result.metric("copy").value / (2 * numpy_copy_per_s(64 * 2**20)) < 2.5


def test_the_roofline_ends_at_the_quick_roofs(rig, monkeypatch):
    monkeypatch.setattr(roofs, "_stream_bytes", lambda info, parts: 2**26)  # only FLOP/s are used
    known, found = dict.fromkeys(("f32", "f64"), 0.0), dict.fromkeys(("f32", "f64"), 0.0)
    for _ in range(5):  # other work on the machine slows either down, and nothing speeds one up
        quick = {(r.kind, r.name): r.value for r in roofs.quick("cpu", 1)}
        result = measured(rig, "roofline", seconds=0.15)
        for dtype in known:
            known[dtype] = max(known[dtype], quick["flops", dtype])
            found[dtype] = max(found[dtype], result.metric(f"flops_{dtype}").value)
        ratios = {dtype: found[dtype] / known[dtype] for dtype in known}
        if all(0.6 < ratio < 1.2 for ratio in ratios.values()):
            break
    else:
        pytest.fail(f"by the roofline, in units of the quick roofs: {ratios}")
    by_intensity = [r for r in result.rows if r["dtype"] == "f32"]
    # A sum alone, then one multiply-add and a sum.
    assert [r["intensity"] for r in by_intensity[:2]] == pytest.approx([1 / 4, 3 / 4])
    assert by_intensity[-1]["flops_per_s"] > by_intensity[0]["flops_per_s"]


def test_steps_that_no_kernel_does_are_measured_as_the_next(rig):
    result = measured(rig, "roofline", steps="3,12,100,110", dtypes="f32", seconds=0.01)
    assert [row["steps"] for row in result.rows] == [4, 16, 96, 112]
    (note,) = result.notes
    assert note.endswith(": measured 3 as 4, 12 as 16, 100 as 96, 110 as 112")
    assert "0, 1, 2, 4, 8 or a multiple of 16" in registry.get("roofline").parameters["steps"].help


def test_no_clock_is_told_that_was_not_read(rig):
    """One that was measured before is the same at every point."""
    from kernelmark.report.micro import points_table
    from kernelmark.report.micro_figure import figure

    for name, given in (("roofline", {"steps": 1, "seconds": 0.01}), ("cache", {"sizes": 16384})):
        result = measured(rig, name, **given)
        assert all(row["clock_mhz"] is None for row in result.rows)
        assert "clock_mhz" not in [column.name for column in points_table(result).columns]
        assert "core clock" not in str(figure(result))


def test_latencies_and_throughputs_fit_each_other(rig):
    result = measured(rig, "incore")
    cycles = {(r["op"], r["warps"], r["ilp"]): r["cycles"] for r in result.rows}
    latency = result.metric("latency_fma_f32").value
    # Every core that this runs on needs 2 to 8 cycles, and has a pipe or more.
    assert 2 < latency < 9
    assert result.metric("latency_fma_f64").value == pytest.approx(latency, rel=0.5)
    assert 0.1 < cycles["fma_f32", 1, 8] < 1.5
    # Eight chains cannot be more than eight times as fast as one.
    assert cycles["fma_f32", 1, 8] > latency / 8 * 0.9


def test_the_first_cache_is_where_the_kernel_says(rig):
    result = measured(rig, "latency", sizes="8192,16384,24576,393216,524288,100663296,134217728")
    near = result.metric("l1_cycles").value
    assert 1.5 < near < 9
    by_size = {row["size_bytes"]: row["cycles"] for row in result.rows}
    assert by_size[524288] > 1.5 * near
    assert by_size[134217728] > 4 * near
    if (CACHE / "index0" / "size").exists():
        first = int((CACHE / "index0" / "size").read_text().strip().rstrip("K")) * 1024
        assert by_size[8192] < 2 * near or first < 8192


def test_the_first_cache_is_faster_than_memory(rig):
    result = measured(rig, "cache", sizes=f"16384,{256 * 2**20}", most=2**30)
    near, far = (row["bytes_per_s"] for row in result.rows)
    assert near > 1.5 * far
    # A core loads 4 bytes a cycle at least, and 256 at most.
    assert 4 < result.metric("l1_bytes_per_clk").value <= 256


def test_both_headlines_of_the_cache_are_of_one_of_its_fastest_points(rig):
    result = measured(rig, "cache", sizes="4096,8192,16384,49152,65536,98304,131072,262144")
    names = ("bytes_per_s", "bytes_per_clk")
    told = tuple(result.metric(f"l1_{name}").value for name in names)
    assert told in [tuple(row[name] for name in names) for row in result.rows]
    assert told[0] >= 0.8 * max(row["bytes_per_s"] for row in result.rows)


def test_the_clock_is_that_of_a_core(rig):
    assert 500 < rig.clock_mhz < 8000
    result = measured(rig, "instructions", ops="add_i64", samples=9)
    # The ruler measured by itself.
    assert result.metric("latency_add_i64").value == pytest.approx(1.0, rel=0.15)
