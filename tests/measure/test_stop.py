from __future__ import annotations

import math

import numpy as np
import pytest

from kernelmark.core.result import Block, StopReason
from kernelmark.core.timing import Timing
from kernelmark.measure.advice import interval_warnings
from kernelmark.measure.stop import block_seconds, interval_of, stop_reason
from kernelmark.stats.interval import Interval


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
    assert block_seconds(timing, 0.0, enqueued=True) == pytest.approx(0.12)
    assert block_seconds(timing, 0.1, enqueued=True) == pytest.approx(0.2)
    assert block_seconds(timing, 9.0, enqueued=True) == pytest.approx(0.5)


@pytest.mark.parametrize("spread", [0.003, 0.01, 0.02, 0.03, 0.06])
def test_looking_often_keeps_its_coverage(spread: float) -> None:
    """The interval that is reported after stopping when narrow still holds the truth."""
    rng = np.random.default_rng(23)
    timing = Timing()
    held = 0
    rounds = 600
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
    assert wide.startswith("interval: more than ±999% is above the target of ±2.0%")
    (usual,) = interval_warnings(Interval(low_s=1.0, high_s=1.1), 0.02)
    assert usual.startswith("interval: ±4.8% is above")
