"""Gains of simulated kernels: found where there are any, and only there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelmark.measure.audit import EqualDuty, Finding

TRIALS = 60


def judged(
    seed: int,
    *,
    gain: float = 0.0,
    noise: float = 0.0,
    by_data: float = 0.0,
    cooling: float = 0.0,
    bursts: bool = False,
) -> Finding:
    """The finding about a kernel whose launches take a second on new values and `gain` less on the
    same. `noise` and `by_data` are deviations of a launch and between values; with `bursts` a tenth
    of the launches wait for other work. `cooling` is what the first launch takes longer."""
    rng = np.random.default_rng(seed)
    duty = EqualDuty(1.0)
    number, pairs = 0, 3
    values = rng.normal(0, by_data)

    def launch(extra: float = 0.0) -> float:
        nonlocal number
        number += 1
        wait = rng.exponential(10 * noise) if bursts and rng.random() < 0.1 else 0.0
        drift = cooling * math.exp(-number / 6)
        return float((1 + values + extra) * (1 + rng.normal(0, noise)) + wait + drift)

    while True:
        same_s, new_s = [launch()], []
        for _ in range(pairs):
            values = rng.normal(0, by_data)
            new_s.append(launch(gain))
            same_s.append(launch())
        duty.extend(same_s, new_s)
        finding = duty.finding()
        if finding is not Finding.OPEN:
            return finding
        pairs = max(16, 2 * duty.pairs) - duty.pairs


@pytest.mark.parametrize("noise", [0.002, 0.02, 0.1])
@pytest.mark.parametrize("more", [{}, {"cooling": 0.15}, {"bursts": True}, {"by_data": 0.2}])
def test_an_honest_kernel_gains_nothing(noise: float, more: dict[str, float]) -> None:
    findings = [judged(seed, noise=noise, **more) for seed in range(TRIALS)]  # type: ignore[arg-type]
    assert Finding.GAIN not in findings


@pytest.mark.parametrize("gain", [0.1, 0.5, 9.0])
@pytest.mark.parametrize("more", [{}, {"cooling": 0.15}, {"bursts": True}, {"by_data": 0.2}])
def test_a_tenth_of_the_work_is_found(gain: float, more: dict[str, float]) -> None:
    findings = [judged(seed, gain=gain, noise=0.02, **more) for seed in range(TRIALS)]  # type: ignore[arg-type]
    assert set(findings) == {Finding.GAIN}


def test_times_that_depend_on_the_data_are_told_from_memory() -> None:
    findings = [judged(seed, noise=0.01, by_data=0.2) for seed in range(TRIALS)]
    assert findings.count(Finding.DATA_DEPENDENT) > TRIALS / 2
    plain = [judged(seed, noise=0.01) for seed in range(TRIALS)]
    assert Finding.DATA_DEPENDENT not in plain


def test_a_gain_is_a_fraction_of_the_shorter_of_timed_and_repeated_launches() -> None:
    duty = EqualDuty(2.0)
    duty.extend([1.0, 1.0, 1.0], [1.5, 1.5])
    assert duty.gain == 0.5
    duty = EqualDuty(0.5)
    duty.extend([1.0, 1.0, 1.0], [1.5, 1.5])
    assert duty.gain == 1.0
