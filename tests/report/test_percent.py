from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.timing import Timing
from kernelmark.report.results import share
from kernelmark_dev import results

INFO = DeviceInfo(name="cpu", kind="cpu", model="", arch="aarch64", units=2, cache_bytes=32 << 20)
MATVEC = "gemm m=1 n=2048 k=2048 dtype=f32"


def test_compute_bound(make_result, make_roof):
    roofs = [make_roof("flops", "f32", 80e9), make_roof("bytes", "dram", 50e9)]
    found = share(make_result(median_s=0.01), roofs, INFO)
    assert found is not None
    assert found.bound == "compute"
    assert found.value == pytest.approx(2 * 512**3 / 80e9 / 0.01)


def test_memory_bound(make_result, make_roof):
    roofs = [make_roof("flops", "f32", 80e9), make_roof("bytes", "dram", 50e9)]
    result = make_result(MATVEC, median_s=0.001)
    found = share(result, roofs, INFO)
    assert found is not None
    assert found.bound == "memory"
    assert found.value == pytest.approx(result.bytes / 50e9 / 0.001)


def test_is_not_clamped(make_result, make_roof):
    roofs = [make_roof("flops", "f32", 1e9)]
    found = share(make_result(median_s=0.01), roofs, INFO)
    assert found is not None
    assert found.value > 20


def test_only_roofs_of_the_same_place_and_threads_count(make_result, make_roof):
    result = make_result(timing=Timing(threads=1))
    assert share(result, [make_roof("flops", "f32", 80e9)], INFO) is None
    assert share(result, [make_roof("flops", "f32", 80e9, arch="x86_64", threads=1)], INFO) is None
    assert share(result, [make_roof("flops", "f32", 80e9, device="cuda:0", threads=1)]) is None
    assert share(result, [make_roof("flops", "f32", 40e9, threads=1)], INFO) is not None


def test_newest_roof_wins_and_the_matrix_unit_before_it(make_result, make_roof):
    old, new = make_roof("flops", "f32", 1e9), make_roof("flops", "f32", 2e9, measured=2.0)
    matrix = make_roof("flops", "f32", 3e9, unit="matrix")
    found = share(make_result(), [new, old], INFO)
    assert found is not None
    assert found.roof == new
    found = share(make_result(), [old, matrix, new], INFO)
    assert found is not None
    assert found.roof == matrix


def test_hot_and_small_is_not_bound_by_memory(make_result, make_roof):
    roofs = [make_roof("bytes", "dram", 50e9), make_roof("flops", "f32", 80e9)]
    hot = Timing(cache="hot")  # type: ignore[arg-type]
    small = share(make_result(MATVEC, timing=hot), roofs, INFO)
    assert small is not None
    assert small.bound == "compute"
    large = share(make_result("gemm m=1 n=8192 k=8192 dtype=f32", timing=hot), roofs, INFO)
    assert large is not None
    assert large.bound == "memory"


def test_an_op_without_flops_has_no_compute_roof(make_result, make_roof):
    roofs = [make_roof("bytes", "dram", 50e9), make_roof("flops", "f32", 80e9)]
    hot = Timing(cache="hot")  # type: ignore[arg-type]
    assert share(make_result(MATVEC, timing=hot, flops=0), roofs, INFO) is None
    assert share(make_result(flops=0, bytes=0), roofs, INFO) is None
    assert share(make_result(flops=0), roofs[1:], INFO) is None
    for known in (roofs, roofs[:1]):
        cold = share(make_result(MATVEC, flops=0), known, INFO)
        assert cold is not None
        assert cold.bound == "memory"


def test_a_dtype_without_roof_counts_only_where_memory_surely_binds(make_result, make_roof):
    roofs = [make_roof("flops", "f32", 80e9), make_roof("bytes", "dram", 50e9)]
    assert share(make_result("gemm m=512 n=512 k=512 dtype=bf16"), roofs, INFO) is None
    matvec = share(make_result("gemm m=1 n=2048 k=2048 dtype=bf16"), roofs, INFO)
    assert matvec is not None
    assert matvec.bound == "memory"
    assert share(make_result("gemm m=1 n=2048 k=2048 dtype=i8"), roofs, INFO) is None


def test_nothing_measured_has_no_share(make_result, make_roof):
    assert share(make_result(median_s=None), [make_roof("flops", "f32", 1e9)], INFO) is None


@given(flops=st.floats(1e6, 1e15), bandwidth=st.floats(1e6, 1e13), median_s=st.floats(1e-9, 1e3))
def test_the_bound_is_the_roof_that_allows_less(flops, bandwidth, median_s):
    work = {"flops": 2 * 64**3, "bytes": 3 * 64 * 64 * 4}
    problem = "gemm m=64 n=64 k=64 dtype=f32"
    result = results.make_result(problem, median_s, arch="aarch64", **work)
    roofs = [
        results.make_roof("flops", "f32", flops),
        results.make_roof("bytes", "dram", bandwidth),
    ]
    found = share(result, roofs, INFO)
    assert found is not None
    attainable = min(flops, result.flops / result.bytes * bandwidth)
    assert found.value == pytest.approx(result.flops / median_s / attainable)
