from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kernelmark.core.result import Block
from kernelmark.stats.interval import (
    block_interval,
    measured_interval,
    nested_interval,
    order_interval,
    paired_blocks,
    single_interval,
)

MEDIANS = st.lists(st.floats(1e-7, 10.0), min_size=2, max_size=12)


@given(MEDIANS, st.sampled_from([2.0**-10, 0.25, 8.0, 1024.0]))
def test_block_interval_scales_with_the_unit(medians: list[float], factor: float) -> None:
    low, high = block_interval(medians)
    scaled = block_interval([m * factor for m in medians])
    assert scaled == pytest.approx((low * factor, high * factor), rel=1e-9)


@given(MEDIANS)
def test_block_interval_holds_the_headline(medians: list[float]) -> None:
    low, high = block_interval(medians)
    assert 0 < low <= statistics.median(medians) <= high


@given(MEDIANS)
def test_a_higher_level_is_wider(medians: list[float]) -> None:
    low, high = block_interval(medians, 0.95)
    wider_low, wider_high = block_interval(medians, 0.99)
    assert wider_low <= low
    assert wider_high >= high


def test_block_interval_agrees_with_scipy() -> None:
    medians = [1.0, 1.1, 0.97, 1.03]
    logs = np.log(medians)
    low, high = stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs))
    assert block_interval(medians) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)


def test_blocks_cover_where_samples_do_not() -> None:
    """Blocks differ by 1 %, samples inside one by 0.2 %: only the block is a fair unit."""
    rng = np.random.default_rng(11)
    by_blocks = by_samples = 0
    rounds = 1500
    for _ in range(rounds):
        levels = rng.normal(0.0, 0.01, 5)
        samples = np.exp(levels[:, None] + rng.normal(0.0, 0.002, (5, 20)))
        low, high = block_interval([float(m) for m in np.median(samples, axis=1)])
        by_blocks += low <= 1.0 <= high
        bounds = order_interval([float(s) for s in samples[0]])
        assert bounds is not None
        by_samples += bounds[0] <= 1.0 <= bounds[1]
    assert 0.93 <= by_blocks / rounds <= 0.97
    assert by_samples / rounds < 0.3


def test_order_interval_covers_any_distribution() -> None:
    rng = np.random.default_rng(5)
    held = 0
    rounds = 2000
    for _ in range(rounds):
        bounds = order_interval([float(x) for x in rng.exponential(1.0, 15)])
        assert bounds is not None
        held += bounds[0] <= math.log(2) <= bounds[1]
    assert held / rounds >= 0.94


@given(st.integers(6, 200) | st.integers(200, 20_000))
def test_order_interval_takes_the_binomial_ranks(count: int) -> None:
    bounds = order_interval([float(i) for i in range(1, count + 1)])
    assert bounds is not None
    rank = int(bounds[0])
    assert bounds == (rank, count + 1 - rank)
    assert 2 * stats.binom.cdf(rank - 1, count, 0.5) <= 0.05 + 1e-9
    assert 2 * stats.binom.cdf(rank, count, 0.5) > 0.05 - 1e-9


def test_five_samples_are_too_few_for_order_statistics() -> None:
    assert order_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_single_block_is_honest() -> None:
    lone = single_interval([1e-3])
    assert (lone.low_s, lone.high_s) == (0.0, math.inf)
    assert lone.rel_half_width == math.inf
    assert lone.note.code == "interval-one-sample"
    few = single_interval([1.0, 1.01, 1.02])
    assert 0 < few.low_s < 1.0 < 1.02 < few.high_s
    assert (few.note.code, few.note.fields) == ("interval-one-block", {"samples": 3})


def test_nested_uses_processes_only_where_they_differ() -> None:
    alike = [[1.00, 1.02, 0.99], [1.01, 0.98, 1.02]]
    assert nested_interval(alike) == block_interval([t for g in alike for t in g])
    apart = [[1.00, 1.001, 0.999], [1.05, 1.051, 1.049], [0.96, 0.961, 0.959]]
    low, high = nested_interval(apart)
    flat_low, flat_high = block_interval([t for g in apart for t in g])
    assert low < flat_low
    assert high > flat_high


@pytest.mark.parametrize("process_spread", [0.0, 0.005, 0.02])
def test_nested_covers(process_spread: float) -> None:
    rng = np.random.default_rng(17)
    held = 0
    rounds = 1500
    for _ in range(rounds):
        level = rng.normal(0.0, process_spread, 5)[:, None] if process_spread else 0.0
        groups = np.exp(level + rng.normal(0.0, 0.01, (5, 4)))
        low, high = nested_interval([[float(t) for t in g] for g in groups])
        held += low <= 1.0 <= high
    assert held / rounds >= 0.90


def test_measured_interval_groups_by_process() -> None:
    blocks = [
        Block(process=p, allocation=a, samples_s=(base + a * 1e-6,) * 3)
        for p, base in enumerate((1e-3, 1.1e-3, 0.9e-3))
        for a in range(3)
    ]
    found = measured_interval(blocks)
    assert (found.low_s, found.high_s) == nested_interval(
        [[b.median_s for b in blocks if b.process == p] for p in range(3)]
    )
    assert measured_interval(blocks[:1]).note


def mixture(rng: np.random.Generator, shares: tuple[float, float]) -> list[Block]:
    return [
        Block(
            process=0,
            allocation=i,
            samples_s=tuple(
                rng.choice([35.2, 38.2], p=shares, size=30)
                * np.exp(0.003 * rng.standard_normal(30))
            ),
        )
        for i in range(4)
    ]


def test_a_multimodal_interval_covers_the_medians_mode() -> None:
    """Where the median could be on either mode, the interval holds both."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(100):
        blocks = mixture(rng, (0.5, 0.5))
        found = measured_interval(blocks)
        assert len(found.modes) == 2
        held += found.low_s < 36 and found.high_s > 37.4
    assert held >= 90


def test_a_multimodal_interval_is_the_union_of_both() -> None:
    blocks = mixture(np.random.default_rng(1), (0.55, 0.45))
    found = measured_interval(blocks)
    low, high = nested_interval([[block.median_s for block in blocks]])
    order = order_interval([s for block in blocks for s in block.samples_s])
    assert order is not None
    assert (found.low_s, found.high_s) == (min(low, order[0]), max(high, order[1]))


def test_a_unimodal_interval_stays_that_of_the_blocks() -> None:
    blocks = mixture(np.random.default_rng(1), (1.0, 0.0))
    found = measured_interval(blocks)
    assert found.modes == ()
    medians = [block.median_s for block in blocks]
    assert (found.low_s, found.high_s) == nested_interval([medians])


@pytest.mark.parametrize("more", [0, 1])
def test_blocks_by_turns_share_their_drift(more: int) -> None:
    """A clock that falls by a tenth in a block cancels in its samples, taken by turns."""

    def blocks(launch_s: float, samples: int) -> list[Block]:
        drift = np.linspace(1.0, 1.1, 8)[:samples]
        return [
            Block(process=0, allocation=number, samples_s=tuple(launch_s * level * drift))
            for number, level in enumerate((1.0, 1.5, 1.2))
        ]

    paired = paired_blocks(blocks(1.3e-4, 8), blocks(1e-4, 8 - more))
    assert paired is not None
    # Without the last of them the medians are of other times.
    assert paired[0] == pytest.approx(1.3, rel=0.01 * more or 1e-9)
    assert paired_blocks(blocks(1e-4, 8)[:1], blocks(1e-4, 8)) is None
