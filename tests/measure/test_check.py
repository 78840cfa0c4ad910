from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelmark.core.dtype import dtype
from kernelmark.core.reason import Reason
from kernelmark.core.result import Check, Fault, KernelInfo
from kernelmark.core.tensor import Tolerance
from kernelmark.devices.base import ArgumentSet
from kernelmark.devices.cpu import CpuDevice, array
from kernelmark.devices.fake import FakeDevice
from kernelmark.measure.check import REWRITTEN_SETS, Checker, combine, compare, poison_byte
from kernelmark.measure.sets import Arena, fill_inputs, make_arena
from kernelmark.numerics.floats import decode, encode, storage
from kernelmark.ops.base import Reference
from kernelmark_dev.raising import tells

EXACT = Tolerance(per_magnitude=0.0, per_value=0.0, absolute=0.0, why="exact")
LOOSE = Tolerance(per_magnitude=0.01, per_value=0.0, absolute=0.0, why="1 % of the terms")


def ratio(got: float, expected: float, kind: str, tolerance: Tolerance = LOOSE) -> float:
    reference = Reference(value=np.array([expected]), magnitude=np.abs(np.array([expected])))
    return float(compare(np.array([got]), reference, tolerance, dtype(kind)).ratio[0])


def doubled(arguments: ArgumentSet) -> NDArray[Any]:
    kind = arguments["x"].spec.dtype
    return encode(2 * decode(array(arguments["x"]).view(storage(kind)), kind), kind)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("short", Fault.UNWRITTEN),
        ("overrun", Fault.GUARDS),
        ("nan", Fault.VALUES),
        ("off", Fault.VALUES),
        ("skips", Fault.UNWRITTEN),
        ("stale", Fault.VALUES),
        ("last set", Fault.VALUES),
        ("zeroes inputs", Fault.INPUTS),
        ("writes all", Fault.STRAY),
    ],
)
def test_faults_are_found(bench: Any, fault: str, code: Fault) -> None:
    outcome = bench(fault=fault, n=5000)  # few enough sets for all to be launched
    assert not outcome.check.passed
    assert code in outcome.check.faults
    assert outcome.check.detail
    assert outcome.measurement.median_s == pytest.approx(50e-6, rel=1e-6)


def test_the_worst_position_is_shown_with_both_values(bench: Any) -> None:
    detail = bench(fault="off").check.detail
    assert "expected" in detail
    assert "±" in detail


@pytest.mark.parametrize(
    "kind", ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "i8"]
)
def test_right_answers_pass_in_every_dtype(bench: Any, kind: str) -> None:
    """i8 and fnuz outputs hold the poison as a right answer now and then."""
    outcome = bench(dtype=kind, n=3000)
    assert outcome.check.passed, outcome.check.detail
    assert outcome.check.worst <= 1.0


def test_integers_left_unwritten_are_found(bench: Any) -> None:
    outcome = bench(dtype="i8", fault="skips", n=3000)
    assert outcome.check.unwritten > 0
    assert Fault.UNWRITTEN in outcome.check.faults


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz"])
def test_poison_of_floats_is_no_number(kind: str) -> None:
    bits = dtype(kind).bits
    raw = np.array([int.from_bytes(bytes([poison_byte(dtype(kind))]) * (bits // 8), "little")])
    assert np.isnan(decode(raw.astype(f"u{bits // 8}"), kind)[0])


def test_errors_count_in_units_of_the_tolerance() -> None:
    assert ratio(1.005, 1.0, "f32") == pytest.approx(0.5)
    assert ratio(1.02, 1.0, "f32") == pytest.approx(2.0)
    assert ratio(1.0, 1.0, "f32", EXACT) == 0.0
    assert ratio(1.0 + 1e-9, 1.0, "f32", EXACT) == np.inf


def test_not_a_number_is_infinitely_wrong_unless_expected() -> None:
    assert ratio(np.nan, 1.0, "f32") == np.inf
    assert ratio(np.inf, 1.0, "f32") == np.inf
    assert ratio(1.0, np.nan, "f32") == np.inf
    assert ratio(np.nan, np.nan, "f32") == 0.0
    assert ratio(-np.inf, -np.inf, "f32") == 0.0


@pytest.mark.parametrize(
    ("got", "expected", "kind", "right"),
    [
        (np.inf, 70_000.0, "f16", True),
        (65504.0, 70_000.0, "f16", True),
        (-np.inf, 70_000.0, "f16", False),
        (np.nan, 70_000.0, "f16", False),
        (np.nan, 500.0, "f8e4m3", True),
        (448.0, 500.0, "f8e4m3", True),
        (-448.0, 500.0, "f8e4m3", False),
        (np.inf, 100.0, "f16", False),
        (127.0, 300.0, "i8", True),
        (-128.0, -300.0, "i8", True),
        (44.0, 300.0, "i8", False),
    ],
)
def test_beyond_the_range(got: float, expected: float, kind: str, right: bool) -> None:
    assert (ratio(got, expected, kind) <= 1.0) is right


def test_combining_keeps_the_worst_and_cuts_the_details() -> None:
    parts = [
        Check(
            positions=10,
            worst=float(i),
            max_abs=i / 10,
            unwritten=i,
            guards_intact=i != 2,
            detail=f"fault {i}" if i else "",
        )
        for i in range(6)
    ]
    found = combine(parts)
    assert (found.positions, found.worst, found.unwritten) == (60, 5.0, 15)
    assert not found.guards_intact
    assert tells(found.detail, findings=("fault 1", "fault 2", "fault 3"), more=2)
    assert combine([]).passed


def test_combining_keeps_one_detail_of_each_kind() -> None:
    unwritten = [
        Reason("not written", "not-written", set=i, count=1, elements=8, tensor="d")
        for i in range(3)
    ]
    changed = Reason("inputs changed", "inputs-changed", count=1)

    def of(*findings: Reason) -> Check:
        return Check(
            positions=1,
            worst=2.0,
            max_abs=0.0,
            unwritten=1,
            guards_intact=True,
            detail=Reason("check failed", "check-failed", findings=findings),
        )

    found = combine([of(*unwritten), of(changed)]).detail
    assert found.fields["findings"] == (unwritten[0], changed, unwritten[1])
    assert found.fields["more"] == 1


class Races:
    """y = 2·x, but while launches follow closely the elements `lost` keep what they held."""

    info = KernelInfo()

    def __init__(self, arguments: ArgumentSet, lost: NDArray[np.int64]) -> None:
        self._arguments = arguments
        self._lost = lost
        self.alone = False

    def launch(self, stream: int, set_index: int) -> None:
        y = array(self._arguments["y"])
        held = y[self._lost].copy()
        y[...] = doubled(self._arguments).view(y.dtype)
        if not self.alone:
            y[self._lost] = held

    def collect(self, set_index: int) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("kind", ["i8", "f8e4m3", "f8e4m3fnuz", "f32"])
def test_what_only_a_launch_of_its_own_writes_was_not_written(twice: Any, kind: str) -> None:
    problem = twice.problem(n=3000, x=kind)
    device = FakeDevice()
    rng = np.random.default_rng(0)
    buffer, sets = make_arena(device, twice.tensors(problem), 1, rng)
    arena = Arena(buffer=buffer, sets=sets, numbers=[*range(len(sets))])
    fill_inputs(device, arena, 0)
    raw = doubled(sets[0]).view(np.uint8).reshape(3000, -1)
    poison = (raw == poison_byte(dtype(kind))).all(axis=1)
    assert poison.any() == (kind == "i8")  # among its right answers
    for lost, unwritten in ((np.flatnonzero(~poison)[100:164], 64), (np.flatnonzero(poison), 0)):
        kernel = Races(sets[0], lost)
        checker = Checker(problem, twice, device, 0)
        device.poison(sets[0]["y"], poison_byte(dtype(kind)))
        for _ in range(3):
            kernel.launch(device.stream, 0)
        kernel.alone = True
        assert checker.verify(kernel, arena, [0])().unwritten == unwritten
    device.free(buffer)


def test_sets_that_are_named_are_all_rewritten(twice: Any) -> None:
    """Also more of them than are rewritten before timing."""
    device = CpuDevice(1)
    problem = twice.problem(n=64, x="f32")
    buffer, sets = make_arena(device, twice.tensors(problem), 40, np.random.default_rng(0))
    arena = Arena(buffer=buffer, sets=sets, numbers=[*range(40)])
    checker = Checker(problem, twice, device, 0)
    assert checker.refresh(arena, range(40)) == [*range(40)]
    assert all(device.count_poison(one["y"], 0xFF) == 64 for one in sets)
    assert min(arena.numbers) > 40
    assert len(checker.refresh(arena)) == REWRITTEN_SETS
    device.free(buffer)
    device.close()
