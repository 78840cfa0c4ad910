"""The stop rule: when there are enough blocks, and how long they are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.result import Block, StopReason
from kernelmark.core.timing import Timing
from kernelmark.measure.stop import block_seconds, interval_of, stop_reason


def blocks(*medians: float) -> list[Block]:
    return [Block(process=0, allocation=i, samples_s=(m,) * 3) for i, m in enumerate(medians)]


def reason(*medians: float, timed_s: float = 0.1, **timing: object) -> StopReason | None:
    chosen = Timing(**timing)  # type: ignore[arg-type]
    return stop_reason(blocks(*medians), timing=chosen, timed_s=timed_s, next_s=0.1)


def test_not_before_the_blocks_asked_for() -> None:
    assert reason(1.0, 1.0) is None
    assert reason(1.0, 1.0, 1.0) is StopReason.PRECISE


def test_one_block_is_never_precise() -> None:
    """Differences between blocks need two, whatever the timing asks for."""
    assert reason(1.0, allocations=1) is None
    assert reason(1.0, 1.0, allocations=1) is StopReason.PRECISE
    assert reason(1.0, allocations=1, max_allocations=1) is StopReason.FIXED


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
