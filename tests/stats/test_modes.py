"""Modes: what is found, what is none, and how often either is wrong (seeded simulation)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from kernelmark.core.result import Mode
from kernelmark.stats.interval import find_modes, mean_of, modes_text

Blocks = list[np.ndarray]
Family = Callable[[np.random.Generator], Blocks]
THREE = (35.2e-6, 36.8e-6, 38.2e-6)
UNIMODAL_DRAWS = 200
MULTIMODAL_DRAWS = 100


def blocks(
    rng: np.random.Generator,
    noise: Callable[[int], np.ndarray],
    placement: float = 0.005,
    count: int = 4,
) -> Blocks:
    """Blocks of 15 to 32 samples; `noise` and the block's own offset are in logarithms."""
    sizes = rng.integers(15, 33, count)
    return [36e-6 * np.exp(noise(int(n)) + placement * rng.standard_normal()) for n in sizes]


def disturbed(rng: np.random.Generator, n: int, share: float, sd: float) -> np.ndarray:
    """Normal noise with a share of samples that are 5 to 50 % slow."""
    slow = np.where(rng.random(n) < share, np.log(rng.uniform(1.05, 1.5, n)), 0.0)
    return sd * rng.standard_normal(n) + slow


def drifting(rng: np.random.Generator) -> Blocks:
    slope = np.linspace(0, 0.05, 96) + rng.uniform(0.0005, 0.005) * rng.standard_normal(96)
    return list(np.split(36e-6 * np.exp(slope), 4))


def ticking(rng: np.random.Generator, time_s: float, sd: float, step: float = 32e-9) -> Blocks:
    return [
        np.round(time_s / 36e-6 * block / step) * step
        for block in blocks(rng, lambda n: sd * rng.standard_normal(n))
    ]


UNIMODAL: dict[str, Family] = {
    "normal": lambda rng: blocks(rng, lambda n: 0.015 * rng.standard_normal(n)),
    "power-limited, IQR 5 %": lambda rng: blocks(rng, lambda n: 0.037 * rng.standard_normal(n)),
    "heavy tails": lambda rng: blocks(rng, lambda n: 0.01 * rng.standard_t(3, n)),
    "skewed": lambda rng: blocks(rng, lambda n: np.log1p(0.05 * rng.lognormal(size=n))),
    "other work": lambda rng: blocks(rng, lambda n: disturbed(rng, n, 0.04, 0.005)),
    "noisy, other work": lambda rng: blocks(rng, lambda n: disturbed(rng, n, 0.04, 0.02)),
    "drift of 5 %": drifting,
    "jitter": lambda rng: blocks(rng, lambda n: rng.uniform(0, 0.08, n)),
    "placement": lambda rng: blocks(rng, lambda n: 0.0005 * rng.standard_normal(n), 0.0075),
    "coarse clock, 2 µs": lambda rng: ticking(rng, 2.03e-6, 0.01),
    "coarse clock, 1 µs": lambda rng: ticking(rng, 1.008e-6, 0.02),
    "few samples": lambda rng: [np.exp(rng.uniform(0, 0.1, 3)) for _ in range(4)],
}


def mixture(
    rng: np.random.Generator, values: tuple[float, ...], shares: tuple[float, ...]
) -> Blocks:
    """Every sample draws its mode; 60 to 130 samples in 4 blocks, noise of 0.2 to 0.5 %."""
    sd = rng.uniform(0.002, 0.005)

    def noise(n: int) -> np.ndarray:
        drawn = rng.choice(np.log(values), p=shares, size=n)
        return drawn - math.log(36e-6) + sd * rng.standard_normal(n)

    return blocks(rng, noise)


def settled(rng: np.random.Generator, *values: float, placement: float = 0.005) -> Blocks:
    """Every block sits on one value."""
    return [
        value / 36e-6 * block
        for value in values
        for block in blocks(rng, lambda n: 0.003 * rng.standard_normal(n), placement, 1)
    ]


MULTIMODAL: dict[str, tuple[int, Family]] = {
    "three": (3, lambda rng: mixture(rng, THREE, (0.55, 0.2, 0.25))),
    "rare": (2, lambda rng: mixture(rng, THREE, (0.85, 0.0, 0.15))),
    "4 % apart": (2, lambda rng: mixture(rng, (36e-6, 37.44e-6), (0.7, 0.3))),
    "7 % apart": (2, lambda rng: mixture(rng, (36e-6, 38.52e-6), (0.5, 0.5))),
    "by block": (2, lambda rng: settled(rng, 35e-6, 35e-6, 38e-6, 35e-6)),
    "by block, evenly": (2, lambda rng: settled(rng, 35e-6, 38e-6, 38e-6, 35e-6)),
    "by block, far apart": (2, lambda rng: settled(rng, 428e-6, 428e-6, 22.5e-3, 428e-6)),
}


@pytest.mark.parametrize("name", UNIMODAL)
def test_false_flags_are_rare(name):
    rng = np.random.default_rng(17)
    flagged = sum(bool(find_modes(UNIMODAL[name](rng))) for _ in range(UNIMODAL_DRAWS))
    assert flagged < 0.01 * UNIMODAL_DRAWS


@pytest.mark.parametrize("name", MULTIMODAL)
def test_modes_are_found(name):
    count, family = MULTIMODAL[name]
    rng = np.random.default_rng(17)
    found = [len(find_modes(family(rng))) for _ in range(MULTIMODAL_DRAWS)]
    assert sum(map(bool, found)) > 0.95 * MULTIMODAL_DRAWS
    assert found.count(count) >= 0.9 * MULTIMODAL_DRAWS


def test_values_and_shares_are_those_drawn():
    rng = np.random.default_rng(3)
    modes = find_modes(mixture(rng, THREE, (0.55, 0.2, 0.25)))
    assert [mode.value_s for mode in modes] == pytest.approx(THREE, rel=0.01)
    assert [mode.share for mode in modes] == pytest.approx((0.55, 0.2, 0.25), abs=0.15)
    assert sum(mode.share for mode in modes) == pytest.approx(1)


def test_what_differs_between_blocks_hides_no_mode():
    rng = np.random.default_rng(4)
    values = np.array([35.2e-6, 37e-6])
    moved = [
        shift * rng.permutation(np.repeat(values, 15)) * np.exp(0.002 * rng.standard_normal(30))
        for shift in (0.99, 1.0, 1.0, 1.01)
    ]
    assert len(find_modes(moved)) == 2


def test_strays_belong_to_the_nearest_mode():
    rng = np.random.default_rng(5)
    base = [np.repeat([1.0, 1.1], 15) * np.exp(0.002 * rng.standard_normal(30)) for _ in range(4)]
    base[0][0] = 1.6
    modes = find_modes(base)
    assert [mode.share for mode in modes] == pytest.approx((59 / 120, 61 / 120))


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [[1.0]],
        [[1.0, 1.0, 1.1, 1.1, 1.0, 1.1, 1.0]],  # seven
        [[1.0] * 30] * 4,
        [[1.0] * 30, [1.1] * 30],  # nothing says how blocks on one value differ
        [[1.0] * 20 + [1.02] * 10] * 4,  # below the least gap
    ],
)
def test_too_little_shows_no_modes(samples):
    assert find_modes(samples) == ()


def test_many_samples_are_searched_as_well():
    rng = np.random.default_rng(6)
    many = [rng.choice([1.0, 1.1], 1000) * np.exp(0.01 * rng.standard_normal(1000))]
    assert len(find_modes(many)) == 2


def test_the_mean_is_weighted_and_geometric():
    modes = (Mode(value_s=1.0, share=0.75), Mode(value_s=16.0, share=0.25))
    assert mean_of(modes) == pytest.approx(2.0)
    assert modes_text(modes) == "1.000 s (75 %), 16.00 s (25 %)"
