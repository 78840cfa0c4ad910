"""When there are enough blocks, and those of several processes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.result import Block, Measurement, StopReason, Telemetry
from kernelmark.core.timing import Duty, Timing
from kernelmark.core.units import NOISY
from kernelmark.devices.fake import Script
from kernelmark.measure.blocks import (
    block_seconds,
    block_warnings,
    interval_of,
    interval_warnings,
    merge,
    stop_reason,
)
from kernelmark.stats.interval import Interval, measured_interval


def blocks(*medians: float) -> list[Block]:
    return [Block(process=0, allocation=i, samples_s=(m,) * 3) for i, m in enumerate(medians)]


def reason(*medians: float, timed_s: float = 0.1, **timing: object) -> StopReason | None:
    chosen = Timing(**timing)  # type: ignore[arg-type]
    return stop_reason(blocks(*medians), timing=chosen, timed_s=timed_s, next_s=0.1)


def test_not_before_the_blocks_asked_for() -> None:
    assert reason(1.0, 1.0) is None
    assert reason(1.0, 1.0, 1.0) is StopReason.PRECISE


def test_wide_goes_on_to_a_cap() -> None:
    assert reason(1.0, 1.2, 0.9) is None
    assert reason(1.0, 1.2, 0.9, timed_s=1.99) is StopReason.TIME
    assert reason(1.0, 1.2, 0.9, 1.1, max_allocations=4) is StopReason.BLOCKS
    assert reason(1.0, 1.2, allocations=2, max_allocations=2) is StopReason.FIXED
    assert reason(1.0, timed_s=5.0) is StopReason.TIME


def test_precise_goes_before_time() -> None:
    assert reason(1.0, 1.0, 1.0, timed_s=50.0) is StopReason.PRECISE


def test_a_block_lasts_several_times_its_set_up() -> None:
    timing = Timing(max_s=2.0, allocations=4, max_allocations=10)
    assert block_seconds(timing, 0.0) == pytest.approx(0.2)
    assert block_seconds(timing, 0.05) == pytest.approx(0.3)
    assert block_seconds(timing, 9.0) == pytest.approx(0.5)
    assert block_seconds(timing, 0.0, enqueued=True) == pytest.approx(0.05)
    quick = Timing(max_s=0.4, allocations=4, max_allocations=20)
    assert block_seconds(quick, 0.0, enqueued=True) == pytest.approx(0.014)
    assert block_seconds(timing, 0.1, enqueued=True) == pytest.approx(0.2)
    assert block_seconds(timing, 9.0, enqueued=True) == pytest.approx(0.5)


SLOW = [pytest.param(spread, marks=pytest.mark.slow) for spread in (0.02, 0.06)]


@pytest.mark.parametrize("spread", [0.003, 0.01, *SLOW])
def test_looking_often_keeps_its_coverage(spread: float) -> None:
    """The interval that is reported after stopping when narrow still holds the truth."""
    rng = np.random.default_rng(23)
    timing = Timing()
    held = 0
    rounds = 500
    for _ in range(rounds):
        found: list[float] = []
        while True:
            found.append(math.exp(rng.normal(0.0, spread)))
            made = blocks(*found)
            if stop_reason(made, timing=timing, timed_s=0.0, next_s=0.1) is not None:
                break
        interval = interval_of(made, timing)
        held += interval.low_s <= 1.0 <= interval.high_s
    assert held / rounds >= 0.92


def test_a_width_that_means_nothing_is_not_spelt_out() -> None:
    (wide,) = interval_warnings(Interval(low_s=1e-9, high_s=1e3), 0.02)
    assert NOISY in wide
    (usual,) = interval_warnings(Interval(low_s=1.0, high_s=1.1), 0.02)
    assert "±4.8 %" in usual


@given(
    st.integers(0, 2**32),
    st.integers(3, 8),
    st.sampled_from([0.001, 0.01, 0.05]),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.sampled_from([4, 20, 60]),
)
def test_the_shortcuts_of_the_stop_rule_do_not_change_it(
    seed: int, count: int, noise: float, gap: float, samples: int
) -> None:
    rng = np.random.default_rng(seed)
    logs = rng.normal(0, noise, (count, samples)) + rng.normal(0, 0.01, (count, 1))
    logs += gap * (rng.random((count, samples)) < 0.4)
    made = [
        Block(process=0, allocation=i, samples_s=tuple(row)) for i, row in enumerate(np.exp(logs))
    ]
    timing = Timing()
    found = stop_reason(made, timing=timing, timed_s=0.0, next_s=0.1)
    precise = interval_of(made, timing).rel_half_width <= timing.target_rel_ci
    assert (found is StopReason.PRECISE) == precise


def test_blocks_that_agree_on_one_of_two_modes_are_not_precise() -> None:
    """Every block's median is on the lower mode, but 52 to 48 samples do not say that the median
    is."""
    noise = np.random.default_rng(2).normal(0, 0.001, (4, 100))
    values = np.repeat([1.0, 1.08], [52, 48])
    made = [
        Block(process=0, allocation=i, samples_s=tuple(values * np.exp(row)))
        for i, row in enumerate(noise)
    ]
    timing = Timing(max_allocations=5)
    assert stop_reason(made, timing=timing, timed_s=0.0, next_s=0.1) is None
    assert interval_of(made, timing).high_s > 1.05
    low = [replace(block, samples_s=block.samples_s[:52]) for block in made]
    assert stop_reason(low, timing=timing, timed_s=0.0, next_s=0.1) is StopReason.PRECISE


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
    made = [
        replace(block, telemetry=Telemetry(load=load))
        for block, load in zip(blocks(1.0, 1.0, 1.0), loads, strict=True)
    ]
    warnings = block_warnings(made, cores, Duty.SUSTAINED)
    measured = replace(measurement(*made), warnings=tuple(warnings))
    assert measured.reliable is not unreliable
    assert {warning.code for warning in warnings} <= {"other-load"}
