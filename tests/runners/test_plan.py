from __future__ import annotations

from kernelmark.core.problem import Problem
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.ops import parse
from kernelmark.runners.dispatch import order
from kernelmark.runners.forecast import work


def gemm(size: int, **timing: int) -> Case:
    problem = parse(f"gemm m={size} n={size} k={size} a=f32 b=f32 c=f32")
    return Case(problem=problem, backend="numpy", timing=Timing(**timing))


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
