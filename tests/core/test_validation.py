"""Values that no measurement can have."""

from __future__ import annotations

import dataclasses
import math

import pytest

from kernelmark.core import validation
from kernelmark.core.environment import Environment
from kernelmark.core.errors import CodecError
from kernelmark.core.metric import PointColumn
from kernelmark.core.problem import Problem
from kernelmark.core.result import (
    Block,
    Case,
    Check,
    KernelInfo,
    Measurement,
    Result,
    ResultSet,
    Run,
    Status,
    StopReason,
)
from kernelmark.core.timing import Timing
from kernelmark.core.validation import check_results
from kernelmark.testing.micro import micro_result


def measured(samples: tuple[float, ...] = (1e-5,), **changes: object) -> Measurement:
    fields: dict[str, object] = {
        "blocks": (Block(process=0, allocation=0, samples_s=samples),),
        "low_s": 0.9e-5,
        "high_s": 1.1e-5,
        "method": "x",
        "launches": 1,
        "sets": 1,
        "footprint_bytes": 0,
        "stop": StopReason.FIXED,
        "warmup_s": 0.0,
        "timed_s": 0.0,
    }
    return Measurement(**(fields | changes))


def results(m: int = 8, measurement: Measurement | None = None, **changes: object) -> ResultSet:
    case = Case(problem=Problem(op="gemm", dims={"m": m}, dtypes={}), backend="b", timing=Timing())
    result = Result(
        case=case,
        device="cpu",
        status=Status.OK,
        measurement=measurement or measured(),
        started=1.0,
    )
    run = Run(id="r", started=1.0, environment=Environment(), cases=1)
    return ResultSet(run=run, results=(dataclasses.replace(result, **changes),))


CLOCKED = Block(process=0, allocation=0, samples_s=(1e-5,), clocks_mhz=(1e40,))
NAN = Check(positions=1, worst=math.inf, max_abs=math.nan, unwritten=0, guards_intact=True)


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
        results(check=Check(positions=-1, worst=0.0, max_abs=0.0, unwritten=0, guards_intact=True)),
        results(check=Check(positions=1, worst=-1.0, max_abs=0.0, unwritten=0, guards_intact=True)),
    ],
)
def test_what_is_not_is_refused_with_its_place(bad):
    with pytest.raises(CodecError) as refused:
        check_results(bad)
    assert "results.results[0]." in refused.value.message


def test_a_run_may_be_resumed_a_year_later():
    good = results()
    paused = dataclasses.replace(good, run=dataclasses.replace(good.run, paused_s=3.2e7))
    assert check_results(paused) is paused


def test_bounds_are_those_of_the_documentation():
    assert validation.is_time(1e-12)
    assert not validation.is_time(0.0)
    assert not validation.is_time(1e6)
    assert validation.bad_size(Problem(op="gemm", dims={"m": -1}, dtypes={})) == "m=-1"
    assert validation.bad_size(Problem(op="gemm", dims={"m": 2**48 - 1}, dtypes={})) == ""


def test_a_column_without_numbers_exceeds_no_limit():
    column = PointColumn(name="a", unit="s", limit=-1.0)
    assert micro_result(columns=(column,), rows=({"a": "word"},)).columns == (column,)


def test_rocblas_counts_tensile_s_solutions_downwards():
    check_results(results(kernel=KernelInfo(resources={"solution_index": -14})))
