"""Values that no measurement can have."""

import dataclasses
import math

import pytest

from kernelmark.core.errors import CodecError
from kernelmark.core.metric import PointColumn
from kernelmark.core.problem import Problem
from kernelmark.core.result import Block, Case, KernelInfo, bad_size, check_results, is_time
from kernelmark.core.timing import Timing
from kernelmark.testing.micro import micro_result
from kernelmark_dev.results import make_check, make_measurement, make_result, make_set


def measured(samples=(1e-5,), **changes):
    return make_measurement(samples, **{"low_s": 0.9e-5, "high_s": 1.1e-5} | changes)


def results(m=8, measurement=None, **changes):
    case = Case(problem=Problem(op="gemm", dims={"m": m}, dtypes={}), backend="b", timing=Timing())
    result = make_result(case, measurement=measurement or measured(), started=1.0)
    return make_set(dataclasses.replace(result, **changes), cases=1)


CLOCKED = Block(process=0, allocation=0, samples_s=(1e-5,), clocks_mhz=(1e40,))
NAN = make_check(worst=math.inf, max_abs=math.nan)


def resumed(good):
    return dataclasses.replace(good, run=dataclasses.replace(good.run, paused_s=3.2e7))


@pytest.mark.parametrize(
    "good",
    [
        results(),
        results(m=2**47),
        results(measurement=measured((9e5,))),
        results(measurement=measured(low_s=0.0, high_s=math.inf)),
        results(measurement=measured(high_s=1e10)),
        results(cost={"timed": -1e-9}),
        results(check=NAN),
        results(kernel=KernelInfo(resources={"solution_index": -14})),  # Tensile's, of rocBLAS
        resumed(results()),  # a year later
    ],
)
def test_what_is_possible_is_left_alone(good):
    assert check_results(good) is good


@pytest.mark.parametrize(
    "bad",
    [
        results(m=-1),
        results(m=2**64),
        results(measurement=measured((1e40,))),
        results(measurement=measured((1e6,))),
        results(measurement=measured(low_s=-1.0)),
        results(measurement=measured(low_s=2.0, high_s=1.0)),
        results(measurement=measured(launches=-1)),
        results(flops=-1),
        results(bytes=2**64),
        results(started=-9e9),
        results(started=1e40),
        results(cost={"total": 1e9}),
        results(measurement=measured(high_s=math.nan)),
        results(measurement=measured(warmup_s=-1e40)),
        results(measurement=measured(also={"host_s": 1e40})),
        results(measurement=measured(blocks=(Block(process=-1, allocation=0, samples_s=(1e-5,)),))),
        results(measurement=measured(blocks=(CLOCKED,))),
        results(kernel=KernelInfo(compile_s=math.inf)),
        results(kernel=KernelInfo(resources={"registers": 2**64})),
        results(kernel=KernelInfo(resources={"registers": -1})),
        results(kernel=KernelInfo(resources={"solution_index": -(2**31)})),
        results(check=make_check(positions=-1)),
        results(check=make_check(worst=-1.0)),
    ],
)
def test_what_is_not_is_refused_with_its_place(bad):
    with pytest.raises(CodecError) as refused:
        check_results(bad)
    assert "results.results[0]." in refused.value.message


def test_bounds_are_those_of_the_documentation():
    assert is_time(1e-12)
    assert not is_time(0.0)
    assert not is_time(1e6)
    assert bad_size(Problem(op="gemm", dims={"m": -1}, dtypes={})) == "m=-1"
    assert bad_size(Problem(op="gemm", dims={"m": 2**48 - 1}, dtypes={})) == ""


def test_a_column_without_numbers_exceeds_no_limit():
    column = PointColumn(name="a", unit="s", limit=-1.0)
    assert micro_result(columns=(column,), rows=({"a": "word"},)).columns == (column,)
