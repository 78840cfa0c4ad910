"""Warnings about blocks, and those of several processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernelmark.core.result import Block, Measurement, StopReason, Telemetry
from kernelmark.core.timing import Duty
from kernelmark.core.units import NOISY
from kernelmark.devices.fake import Script
from kernelmark.measure.blocks import block_warnings, interval_warnings, merge
from kernelmark.stats.interval import Interval, measured_interval


def test_a_width_that_means_nothing_is_not_spelt_out() -> None:
    (wide,) = interval_warnings(Interval(low_s=1e-9, high_s=1e3), 0.02)
    assert NOISY in wide
    (usual,) = interval_warnings(Interval(low_s=1.0, high_s=1.1), 0.02)
    assert "±4.8 %" in usual


def test_processes_are_joined(bench: Any) -> None:
    parts = [
        bench(seconds=s, process=i, script=Script(jitter=0.002, seed=i)).measurement
        for i, s in enumerate((50e-6, 52e-6, 49e-6))
    ]
    found = merge(parts, None)
    assert [b.process for b in found.blocks] == [b.process for p in parts for b in p.blocks]
    assert {b.process for b in found.blocks} == {0, 1, 2}
    interval = measured_interval(found.blocks)
    assert (found.low_s, found.high_s) == (interval.low_s, interval.high_s)
    assert found.low_s < 50e-6 < found.high_s
    assert found.high_s - found.low_s > max(p.high_s - p.low_s for p in parts)
    assert found.timed_s == pytest.approx(sum(p.timed_s for p in parts))
    assert found.stop is StopReason.PRECISE
    assert found.method == "loop"
    assert found.warnings == ()
    (told,) = merge(parts, 0.01).warnings
    assert told.startswith("interval: ±")
    assert "above the target of ±1.0 %" in told


def test_warnings_of_single_blocks_go_and_others_stay_once(bench: Any) -> None:
    parts = [
        bench(
            allocations=1,
            max_allocations=1,
            warmup_s=0.1,
            process=i,
            script=Script(throttle=(("heat",),)),
        ).measurement
        for i in range(2)
    ]
    assert all("interval-one-block" in [w.code for w in p.warnings] for p in parts)
    found = merge(parts, None)
    assert found.stop is StopReason.FIXED
    assert len(found.warnings) == 1
    assert (found.warnings[0].code, found.warnings[0].fields["by"]) == ("throttled", ("heat",))


def test_other_times_are_medians(bench: Any) -> None:
    parts = [bench(timer="graph", process=i).measurement for i in range(3)]
    found = merge(parts, None)
    assert found.also["host_s"] == sorted(p.also["host_s"] for p in parts)[1]


def test_processes_on_different_values_are_multimodal(bench: Any) -> None:
    """Four processes of which one is 8 % slower."""
    parts = [
        bench(seconds=s, process=i, allocations=1, script=Script(jitter=0.002, seed=i)).measurement
        for i, s in enumerate((50e-6, 50e-6, 54e-6, 50e-6))
    ]
    assert not any(part.modes for part in parts)
    found = merge(parts, None)
    assert [mode.value_s for mode in found.modes] == pytest.approx([50e-6, 54e-6], rel=0.01)
    assert [mode.share for mode in found.modes] == pytest.approx([0.75, 0.25], abs=0.1)


def test_processes_that_miss_blocks_have_enough_together_or_say_so(bench: Any) -> None:
    parts = [bench(seconds=1.0, max_s=2.0, allocations=4, process=i).measurement for i in range(4)]
    assert not any(part.reliable for part in parts)
    assert merge(parts, None).reliable
    few = [bench(seconds=9.0, max_s=2.0, allocations=4, process=i).measurement for i in range(2)]
    assert [w.code for w in merge(few, None).warnings if w.code == "few-blocks"] == ["few-blocks"]


def measurement(*made: Block) -> Measurement:
    return Measurement(
        blocks=made, low_s=0.9, high_s=1.1, method="loop", launches=1, sets=1, footprint_bytes=1,
        stop=StopReason.PRECISE, warmup_s=0.0, timed_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "loads", "unreliable"),
    [
        (2, (1.1, 1.1, 0.9), True),
        (2, (0.1, 0.2, 1.9), False),  # one disturbed block does not move the median
        (2, (0.3, 0.3, 0.3), False),
        (1, (0.9, 0.9, 0.9), False),  # a single thread waits for no other
        (16, (1.0, 1.0, 1.0), True),
    ],
)
def test_threads_that_wait_for_a_busy_core_are_unreliable(
    cores: int, loads: tuple[float, ...], unreliable: bool
) -> None:
    blocks = [Block(process=0, allocation=i, samples_s=(1.0,) * 3) for i in range(3)]
    made = [
        replace(block, telemetry=Telemetry(load=load))
        for block, load in zip(blocks, loads, strict=True)
    ]
    warnings = block_warnings(made, cores, Duty.SUSTAINED)
    measured = replace(measurement(*made), warnings=tuple(warnings))
    assert measured.reliable is not unreliable
    assert {warning.code for warning in warnings} <= {"other-load"}
