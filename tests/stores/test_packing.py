from __future__ import annotations

import dataclasses
import math

from hypothesis import given, settings

from kernelmark.core.errors import StoreError
from kernelmark.core.result import (
    Block,
    Case,
    Measurement,
    Mode,
    Result,
    Status,
    StopReason,
    Telemetry,
)
from kernelmark.stores.packing import pack, unpack
from kernelmark.testing.stores import problem
from kernelmark.testing.strategies import results, same
from kernelmark_dev.raising import raises


def through(result: Result) -> Result:
    exact = {"flops": result.flops, "bytes": result.bytes}
    return unpack(
        pack(result, exact),
        case=result.case,
        device=result.device,
        arch=result.arch,
        status=result.status.value,
        flops=0.0,
        bytes=0.0,
        error=result.error,
    )


@settings(deadline=None)
@given(result=results())
def test_what_is_packed_comes_back(result: Result) -> None:
    assert same(through(result), result)


def test_none_is_not_nan_and_zero_keeps_its_sign() -> None:
    telemetry = Telemetry(clock_mhz=math.nan, power_w=-0.0, throttle=("heat",))
    block = Block(process=1, allocation=2, samples_s=(5e-324, 1.0), telemetry=telemetry)
    measurement = Measurement(
        blocks=(block, Block(process=0, allocation=0, samples_s=(2.0,))),
        low_s=math.nan,
        high_s=1.0,
        method="loop",
        launches=1,
        sets=1,
        footprint_bytes=1,
        stop=StopReason.TIME,
        warmup_s=0.0,
        timed_s=0.0,
    )
    result = Result(
        case=Case(problem=problem(1), backend="numpy"),
        device="cpu",
        status=Status.OK,
        measurement=measurement,
    )
    back = through(result)
    assert back.measurement is not None
    found = back.measurement.blocks[0]
    assert found.telemetry.load is None
    assert math.isnan(found.telemetry.clock_mhz or 0.0)
    assert str(found.telemetry.power_w) == "-0.0"
    assert same(back, result)


def test_samples_take_eight_bytes_each() -> None:
    base = Result(
        case=Case(problem=problem(1), backend="numpy"),
        device="cpu",
        status=Status.OK,
        measurement=Measurement(
            blocks=(Block(process=0, allocation=0, samples_s=(0.1,) * 10),),
            low_s=0.1,
            high_s=0.1,
            method="loop",
            launches=1,
            sets=1,
            footprint_bytes=1,
            stop=StopReason.TIME,
            warmup_s=0.0,
            timed_s=0.0,
        ),
    )
    assert base.measurement is not None
    more = dataclasses.replace(
        base,
        measurement=dataclasses.replace(
            base.measurement, blocks=(Block(process=0, allocation=0, samples_s=(0.1,) * 99),)
        ),
    )
    assert len(pack(more, {})) - len(pack(base, {})) == 89 * 8


def test_a_form_from_the_future_is_refused() -> None:
    result = Result(
        case=Case(problem=problem(1), backend="numpy"), device="cpu", status=Status.SKIPPED
    )
    packed = b"\x09" + pack(result, {})[1:]
    with raises(StoreError, version=9) as error:
        unpack(
            packed,
            case=result.case,
            device="cpu",
            arch="",
            status="ok",
            flops=0.0,
            bytes=0.0,
            error="",
        )
    assert error.value.hint == "upgrade kernelmark"


def test_modes_come_after_everything_else_of_a_measurement() -> None:
    measurement = Measurement(
        blocks=(Block(process=0, allocation=0, samples_s=(0.1,) * 10),),
        low_s=0.1,
        high_s=0.1,
        method="loop",
        launches=1,
        sets=1,
        footprint_bytes=1,
        stop=StopReason.TIME,
        warmup_s=0.0,
        timed_s=0.0,
    )
    plain = Result(
        case=Case(problem=problem(1), backend="numpy"),
        device="cpu",
        status=Status.OK,
        measurement=measurement,
    )
    modes = (Mode(value_s=0.1, share=0.9), Mode(value_s=0.2, share=0.1))
    mixed = dataclasses.replace(plain, measurement=dataclasses.replace(measurement, modes=modes))
    assert same(through(mixed), mixed)
    # Without modes a row is what it was before there were any: what old rows hold is still read.
    assert len(pack(mixed, {})) - len(pack(plain, {})) == 4 * 8 + len(",2")
