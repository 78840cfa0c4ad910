from __future__ import annotations

import math

from hypothesis import given, settings

from kernelmark.core.errors import StoreError
from kernelmark.core.result import Block, Case, Mode, Result, Status, Telemetry
from kernelmark.stores.packing import binary_hash, pack, seal, unpack
from kernelmark.testing.stores import problem, results, same
from kernelmark_dev.raising import raises
from kernelmark_dev.results import make_measurement, make_result

CASE = Case(problem=problem(1), backend="numpy")


def through(result: Result, version: bytes = b"") -> Result:
    exact = {"flops": result.flops, "bytes": result.bytes}
    packed = pack(result, exact)
    return unpack(
        version + packed[len(version) :],
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


@settings(deadline=None)
@given(result=results())
def test_the_hash_of_the_binary_is_read_alone(result: Result) -> None:
    packed = pack(result, {})
    assert binary_hash(packed) == result.kernel.binary_hash
    assert binary_hash(seal(packed, "context")) == result.kernel.binary_hash


def test_none_is_not_nan_and_zero_keeps_its_sign() -> None:
    telemetry = Telemetry(clock_mhz=math.nan, power_w=-0.0, throttle=("heat",))
    block = Block(process=1, allocation=2, samples_s=(5e-324, 1.0), telemetry=telemetry)
    result = make_result(CASE, measurement=make_measurement(block, 2.0, low_s=math.nan))
    back = through(result)
    assert back.measurement is not None
    found = back.measurement.blocks[0]
    assert found.telemetry.load is None
    assert math.isnan(found.telemetry.clock_mhz or 0.0)
    assert str(found.telemetry.power_w) == "-0.0"
    assert same(back, result)


def test_samples_take_eight_bytes_each() -> None:
    few, many = make_result(CASE, (0.1,) * 10), make_result(CASE, (0.1,) * 99)
    assert len(pack(many, {})) - len(pack(few, {})) == 89 * 8


def test_a_form_from_the_future_is_refused() -> None:
    result = make_result(CASE, status=Status.SKIPPED)
    with raises(StoreError, version=9) as error:
        through(result, version=b"\x09")
    assert error.value.hint == "upgrade kernelmark"


def test_modes_come_after_everything_else_of_a_measurement() -> None:
    modes = (Mode(value_s=0.1, share=0.9), Mode(value_s=0.2, share=0.1))
    samples = (0.1,) * 10
    plain = make_result(CASE, samples)
    mixed = make_result(CASE, measurement=make_measurement(samples, modes=modes))
    assert same(through(mixed), mixed)
    # Without modes a row is what it was before there were any: what old rows hold is still read.
    assert len(pack(mixed, {})) - len(pack(plain, {})) == 4 * 8 + len(",2")
