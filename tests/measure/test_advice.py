"""Warnings about a measurement: their codes and fields."""

from __future__ import annotations

import math

import pytest

from kernelmark.core.result import Block
from kernelmark.measure.blocks import reliability_warnings
from kernelmark.stats.interval import Interval


def disagreement(low_s: float, high_s: float, *medians_s: float) -> dict[str, float]:
    blocks = [
        Block(process=0, allocation=i, samples_s=(median_s,))
        for i, median_s in enumerate(medians_s)
    ]
    (found,) = reliability_warnings(blocks, Interval(low_s=low_s, high_s=high_s), 2)
    assert found.code == "blocks-disagree"
    return dict(found.fields)


def test_an_interval_wider_than_its_blocks_explains_itself() -> None:
    """Two blocks that differ by 12 % left ±120 %, which the times of the blocks do not show."""
    found = disagreement(30e-6, 218e-6, 76.59e-6, 85.57e-6)
    assert found == {
        "low_s": 76.59e-6,
        "high_s": 85.57e-6,
        "interval_low_s": 30e-6,
        "interval_high_s": 218e-6,
    }


@pytest.mark.parametrize("bounds", [(20e-6, 90e-6), (0.0, math.inf)])
def test_bounds_that_add_nothing_are_left_out(bounds: tuple[float, float]) -> None:
    assert disagreement(*bounds, 20e-6, 90e-6) == {"low_s": 20e-6, "high_s": 90e-6}
