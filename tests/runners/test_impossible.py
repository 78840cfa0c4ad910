"""What is faster than its device can be, at the limits of the rule."""

from __future__ import annotations

import dataclasses
import math

import pytest

from kernelmark import ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Case, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.runners.impossible import LEAST_S, excess, flag_impossible
from kernelmark_dev.results import make_measurement, make_result, make_roof

GPU = DeviceInfo(
    name="cuda:0", kind="cuda", model="M", arch="sm_90", units=132, cache_bytes=50 * 2**20
)
CPU = DeviceInfo(name="cpu", kind="cpu", model="M", arch="x86_64", units=2, cache_bytes=2**20)
BIG = "gemm m=4096 n=4096 k=4096 dtype=bf16"
FLAT = "gemm m=16 n=8192 k=8192 dtype=bf16"
COLD, HOT = Timing(), Timing(cache=Cache.HOT)


def roof(kind, name, value, info=GPU, **given):
    unit = "" if kind == "bytes" else "vector" if info is CPU else "matrix"
    fields = {"unit": unit, "threads": info.units if info is CPU else 0, "model": info.model}
    return make_roof(kind, name, value, device=info.name, arch=info.arch, **fields | given)


ROOFS = (roof("flops", "bf16", 1e15), roof("flops", "i8", 2e15), roof("bytes", "dram", 4e12))
CPU_ROOFS = (roof("flops", "f32", 1e11, CPU), roof("bytes", "dram", 2e10, CPU))


def result(problem, median_s, info=GPU, *, timing=COLD, status=Status.OK, sets=64, high_s=None):
    parsed = ops.parse(problem)
    op = ops.registry.get(parsed.op)
    return make_result(
        Case(problem=parsed, backend="torch", timing=timing),
        device=info.name,
        status=status,
        arch=info.arch,
        flops=op.flops(parsed),
        bytes=op.bytes(parsed),
        measurement=make_measurement(
            median_s,
            high_s=math.inf if high_s is None else high_s,
            launches=64,
            sets=sets,
            footprint_bytes=op.bytes(parsed),
        ),
    )


def flops(problem):
    parsed = ops.parse(problem)
    return ops.registry.get(parsed.op).flops(parsed)


def nbytes(problem):
    parsed = ops.parse(problem)
    return ops.registry.get(parsed.op).bytes(parsed)


@pytest.mark.parametrize(("factor", "status"), [(1.49, Status.OK), (1.51, Status.IMPOSSIBLE)])
@pytest.mark.parametrize("timing", [COLD, HOT])
def test_compute_on_a_gpu(factor, status, timing):
    one = result(BIG, flops(BIG) / 1e15 / factor, timing=timing)
    assert flag_impossible(one, ROOFS, GPU).status is status


@pytest.mark.parametrize(("factor", "status"), [(1.99, Status.OK), (2.01, Status.IMPOSSIBLE)])
def test_memory_on_a_gpu(factor, status):
    assert flag_impossible(result(FLAT, nbytes(FLAT) / 4e12 / factor), ROOFS, GPU).status is status


@pytest.mark.parametrize(
    ("problem", "work", "value", "margin"),
    [
        ("gemm m=512 n=512 k=512 dtype=f32", flops, 1e11, 3.0),
        ("gemm m=1 n=2048 k=2048 dtype=f32", nbytes, 2e10, 4.0),
    ],
)
def test_a_cpu_has_twice_the_margin(problem, work, value, margin):
    for factor, status in ((0.99 * margin, Status.OK), (1.01 * margin, Status.IMPOSSIBLE)):
        one = result(problem, work(problem) / value / factor, CPU)
        assert flag_impossible(one, CPU_ROOFS, CPU).status is status


def test_what_is_impossible_keeps_its_measurement_and_has_a_reason():
    before = result(FLAT, 1e-7)
    after = flag_impossible(before, ROOFS, GPU)
    assert after.status is Status.IMPOSSIBLE
    assert after.status.failed
    assert after.error
    assert dataclasses.replace(after, status=Status.OK, error="") == before
    found = excess(before, ROOFS, GPU)
    assert found is not None
    assert found.bound == "memory"
    assert found.roof == ROOFS[2]
    assert found.margin == 2.0
    assert found.rate == pytest.approx(nbytes(FLAT) / 1e-7)


def test_a_wide_interval_is_no_excuse():
    assert flag_impossible(result(FLAT, 1e-7, high_s=1.0), ROOFS, GPU).status is Status.IMPOSSIBLE


@pytest.mark.parametrize("status", [one for one in Status if one is not Status.OK])
def test_another_status_stays(status):
    one = result(FLAT, 1e-9, status=status)
    assert flag_impossible(one, ROOFS, GPU) is one


def test_memory_is_judged_for_cold_data_alone():
    assert flag_impossible(result(FLAT, 1e-6, timing=HOT), ROOFS[2:], GPU).status is Status.OK
    flush = Timing(cache=Cache.FLUSH)
    assert flag_impossible(result(FLAT, 1e-6, timing=flush), ROOFS[2:], GPU).status is Status.OK
    # The sets fit the cache to more than a third.
    assert flag_impossible(result(FLAT, 1e-6, sets=1), ROOFS[2:], GPU).status is Status.OK
    assert flag_impossible(result(FLAT, 1e-6, sets=2), ROOFS[2:], GPU).status is Status.IMPOSSIBLE


@pytest.mark.parametrize(
    "change",
    [
        {"steady": False},
        {"limit": False},
        {"model": ""},
        {"model": "another"},
        {"device": "cuda:1"},
        {"arch": "sm_80"},
        {"threads": 2},
        {"name": "l2"},
    ],
)
def test_roofs_that_do_not_count(change):
    memory = dataclasses.replace(ROOFS[2], **change)
    assert flag_impossible(result(FLAT, 1e-9), [memory], GPU).status is Status.OK


def test_without_roofs_or_device_nothing_is_judged():
    one = result(FLAT, 1e-9)
    assert flag_impossible(one, (), GPU) is one
    assert flag_impossible(one, ROOFS, None) is one


def test_a_problem_that_takes_less_than_a_launch_is_not_judged():
    small = "gemm m=16 n=512 k=512 dtype=bf16"
    assert nbytes(small) / 4e12 < LEAST_S
    assert flag_impossible(result(small, 1e-9, sets=4096), ROOFS, GPU).status is Status.OK


def test_wide_inputs_may_be_computed_in_16_bit_parts():
    problem = "gemm m=4096 n=4096 k=4096 dtype=f32"
    vector = roof("flops", "f32", 6e13, unit="vector")
    three_products = result(problem, 3 * flops(problem) / 1e15)
    assert flag_impossible(three_products, [*ROOFS, vector], GPU).status is Status.OK
    # Without the roof of 16-bit inputs it is not known how fast that could be.
    assert flag_impossible(three_products, [vector], GPU).status is Status.OK
    too_fast = result(problem, flops(problem) / 2e15)
    assert flag_impossible(too_fast, [*ROOFS[:2], vector], GPU).status is Status.IMPOSSIBLE


def test_the_narrowest_input_decides():
    problem = "batched_gemm_quant batch=16 m=4096 n=4096 k=4096 scheme=a8w8_group"
    in_8_bits = result(problem, flops(problem) / 2e15)
    assert flag_impossible(in_8_bits, ROOFS, GPU).status is Status.OK
    assert (
        flag_impossible(result(problem, flops(problem) / 4e15), ROOFS, GPU).status
        is Status.IMPOSSIBLE
    )
    # Without a matrix roof of 8 bits nothing is known of it.
    only = [one for one in ROOFS if one.name == "bf16"]
    assert flag_impossible(result(problem, flops(problem) / 4e15), only, GPU).status is Status.OK


@pytest.mark.parametrize("isa", ["avx512f amx_tile", "asimd bf16"])
def test_a_cpu_with_a_matrix_unit_is_not_judged_by_its_vectors(isa):
    info = dataclasses.replace(CPU, attributes={"isa": isa})
    one = result("gemm m=2048 n=2048 k=2048 dtype=f32", 2e-2, CPU)
    assert flag_impossible(one, CPU_ROOFS, CPU).status is Status.IMPOSSIBLE
    assert flag_impossible(one, CPU_ROOFS, info).status is Status.OK


def test_a_convolution_has_no_least_flops_and_may_step_over_pixels():
    whole = "conv n=8 c=64 h=256 w=256 k=4 r=3 s=3 pad=1 dtype=bf16 layout=nhwc"
    stepping = "conv n=8 c=64 h=256 w=256 k=4 r=1 s=1 stride=2 dtype=bf16 layout=nhwc"
    big = "conv n=64 c=256 h=64 w=64 k=256 r=3 s=3 pad=1 dtype=bf16"
    assert flag_impossible(result(big, flops(big) / 1e15 / 4), ROOFS[:2], GPU).status is Status.OK
    assert (
        flag_impossible(result(whole, nbytes(whole) / 4e12 / 3), ROOFS, GPU).status
        is Status.IMPOSSIBLE
    )
    assert (
        flag_impossible(result(stepping, nbytes(stepping) / 4e12 / 3), ROOFS, GPU).status
        is Status.OK
    )
    copied = "copy n=100000000 x=f32"
    assert (
        flag_impossible(result(copied, nbytes(copied) / 4e12 / 3), ROOFS, GPU).status
        is Status.IMPOSSIBLE
    )


def test_an_op_that_is_not_installed_is_not_judged():
    one = result(FLAT, 1e-9)
    problem = dataclasses.replace(one.case.problem, op="elsewhere")
    other = dataclasses.replace(one, case=dataclasses.replace(one.case, problem=problem))
    assert flag_impossible(other, ROOFS, GPU).status is Status.OK
