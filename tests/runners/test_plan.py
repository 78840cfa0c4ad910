from __future__ import annotations

import dataclasses

import pytest

from kernelmark.core.problem import Problem
from kernelmark.core.result import Block, Case, Measurement, Result, Status, StopReason
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.plan import Forecast, budget_s, estimate_s, order, work


def gemm(size: int, **timing: int) -> Case:
    problem = parse(f"gemm m={size} n={size} k={size} a=f32 b=f32 c=f32")
    return Case(problem=problem, backend="numpy", timing=Timing(**timing))


def result(case: Case, median_s: float) -> Result:
    block = Block(process=0, allocation=0, samples_s=(median_s,))
    measurement = Measurement(
        blocks=(block,),
        low_s=median_s,
        high_s=median_s,
        method="loop",
        launches=1,
        sets=1,
        footprint_bytes=1,
        stop=StopReason.PRECISE,
        warmup_s=0.0,
        timed_s=median_s,
    )
    return Result(case=case, device="cpu", status=Status.OK, measurement=measurement)


def test_longest_first_on_several_devices_and_as_given_on_one():
    small, large, middle = gemm(64), gemm(1024), gemm(256)
    assert order([small, large, middle], 2) == [large, middle, small]
    assert order([small, large, middle], 1) == [small, large, middle]


def test_cases_of_one_thread_count_stay_together():
    cases = [gemm(64, threads=1), gemm(64, threads=2), gemm(32, threads=1)]
    assert [case.timing.threads for case in order(cases, 1)] == [1, 1, 2]


def test_replication_counts_as_length():
    once, thrice = gemm(300), gemm(256, processes=3)
    assert order([once, thrice], 2) == [thrice, once]


def test_unknown_sizes_keep_the_order():
    strange = Case(problem=Problem(op="strange", dims={"m": 1}, dtypes={}), backend="x")
    assert work(strange) is None
    assert order([gemm(64), strange, gemm(1024)], 4) == [gemm(64), strange, gemm(1024)]


def test_before_anything_is_known_the_budget_is_expected():
    case = gemm(64, processes=2)
    assert Forecast().seconds(case) == budget_s(case)
    assert estimate_s([case, case], devices=2) == budget_s(case)


def test_a_backend_that_refused_one_case_may_still_take_long_for_others():
    forecast, case = Forecast(), gemm(64)
    refused = dataclasses.replace(result(case, 1e-6), status=Status.UNSUPPORTED, measurement=None)
    for _ in range(3):
        forecast.learn(refused, 1e-3)
    assert forecast.seconds(case) == budget_s(case)
    forecast.learn(result(case, 1e-6), budget_s(case))
    assert 0.3 * budget_s(case) <= forecast.seconds(case) < budget_s(case)
    never, refuses = Forecast(), dataclasses.replace(refused, case=gemm(65))
    for _ in range(20):
        never.learn(refuses, 1e-3)
    assert never.seconds(case) < 0.1 * budget_s(case)


def test_the_forecast_learns_what_share_of_the_budget_cases_take():
    forecast, case = Forecast(), gemm(64)
    for _ in range(3):
        forecast.learn(result(case, 1e-6), budget_s(case) / 4)
    assert forecast.seconds(gemm(65)) == pytest.approx(budget_s(case) / 4)
    other = Case(problem=case.problem, backend="torch")
    assert forecast.seconds(other) == pytest.approx(budget_s(case) / 4)


def test_a_large_problem_is_expected_to_exceed_the_budget():
    forecast, small, large = Forecast(), gemm(512), gemm(1024)
    forecast.learn(result(small, 0.1), 0.5)
    launches = large.timing.allocations * large.timing.min_samples + 1
    assert forecast.seconds(large) >= launches * 0.1 * 2**3


def test_a_small_problem_says_nothing_of_a_huge_one_or_another_op():
    """16 ms for a launch on a busy machine, scaled up, would be hours."""
    forecast, small, huge = Forecast(), gemm(8), gemm(4096)
    forecast.learn(result(small, 16e-3), 1.0)
    assert forecast.seconds(huge) == budget_s(huge)
    copy = Case(problem=parse("copy n=64 dtype=f32"), backend="numpy")
    assert forecast.seconds(copy) == budget_s(copy)


def test_the_first_of_a_backend_starts_a_worker_as_no_other_does():
    forecast, case = Forecast(), gemm(64)
    forecast.learn(result(case, 1e-6), 20 * budget_s(case))
    assert forecast.seconds(case) == budget_s(case)
    forecast.learn(result(case, 1e-6), budget_s(case) / 2)
    assert forecast.seconds(case) == pytest.approx(budget_s(case) / 2)
