from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmark.core.timing import Strain, Timer
from kernelmark.devices.fake import FakeDevice, Script
from kernelmark.measure.loop import Pace, Sampler
from kernelmark.measure.warmup import Warmup, is_settled, rewarm, warm_up, warm_up_by_samples


def sampler(device: FakeDevice, seconds: float) -> Sampler:
    return Sampler(
        device,
        lambda stream, index: device.advance(seconds),
        sets=3,
        timer=Timer.AUTO,
        strain=Strain.NONE,
    )


@given(st.floats(0.85, 0.97), st.floats(1e-6, 1.0))
def test_a_falling_time_is_not_settled(rate: float, start: float) -> None:
    assert not is_settled([start * rate**i for i in range(6)])


@given(st.floats(1e-6, 1.0))
def test_a_constant_time_is_settled(value: float) -> None:
    assert is_settled([value] * 6)
    assert not is_settled([value] * 5)


def test_noise_alone_settles_soon() -> None:
    rng = np.random.default_rng(2)
    tries = [is_settled(list(rng.normal(1.0, 0.05, 6))) for _ in range(400)]
    assert np.mean(tries) > 0.3


def test_a_moving_clock_is_not_settled() -> None:
    assert not is_settled([1.0] * 6, [1000.0, 1100.0, 1200.0, 1300.0, 1400.0, 1500.0])
    assert is_settled([1.0] * 6, [1000.0, 1001.0, 1000.0, 999.0, 1000.0, 1000.0])
    # One that flutters will not settle by waiting.
    assert is_settled([1.0] * 6, [1000.0, 1030.0, 1005.0, 1000.0, 1030.0, 1005.0])


def test_the_cap_ends_what_does_not_settle() -> None:
    falling = tuple(0.9**i for i in range(60))
    device = FakeDevice(script=Script(slow=falling))
    found = warm_up(sampler(device, 1e-3), cap_s=0.05, min_sample_s=5e-4)
    assert not found.settled
    assert 0.05 <= found.seconds < 0.08


def test_a_steady_kernel_stops_early() -> None:
    device = FakeDevice(script=Script(replay_s=0.0))
    found = warm_up(sampler(device, 1e-4), cap_s=1.0, min_sample_s=5e-4)
    assert found.settled
    assert found.seconds < 0.35
    assert abs(found.launch_s - 1e-4) < 1e-9


def test_one_launch_at_least() -> None:
    device = FakeDevice(script=Script(replay_s=0.0))
    found = warm_up(sampler(device, 2.0), cap_s=0.0, min_sample_s=5e-4)
    assert (found.trace_s, found.launch_s) == ((2.0,), 2.0)


def test_a_launch_of_no_time_ends_too() -> None:
    device = FakeDevice(script=Script(replay_s=1e-6))
    found = warm_up(sampler(device, 0.0), cap_s=2e-5, min_sample_s=1e-5)
    assert found.seconds >= 4e-6


def test_rewarming_takes_about_the_seconds_asked_for() -> None:
    device = FakeDevice(script=Script(replay_s=0.0))
    spent, _ = rewarm(sampler(device, 1e-4), launch_s=1e-4, seconds=0.1, method=Timer.LOOP)
    assert abs(spent - 0.1) < 1e-3


def by_samples(device: FakeDevice, seconds: float, cap_s: float) -> Warmup:
    def choose(launch_s: float, method: Timer) -> Pace:
        return Pace(launches=max(1, round(2e-4 / launch_s)), two_lengths=True)

    prepared: list[Pace] = []
    found = warm_up_by_samples(
        sampler(device, seconds), cap_s=cap_s, choose=choose, meanwhile=prepared.append
    )
    assert prepared == ([found.pace] if cap_s else [])  # once, with the pace that is timed
    return found


def test_samples_of_a_steady_kernel_end_after_the_least_share() -> None:
    found = by_samples(FakeDevice(script=Script(replay_s=1e-5)), 1e-5, cap_s=0.1)
    assert found.settled
    assert 0.02 <= found.seconds < 0.03
    assert abs(found.launch_s - 1e-5) < 1e-12
    # The first estimate holds a replay's fixed cost, so its pace is somewhat short.
    assert found.pace is not None
    assert 10 <= found.pace.launches <= 20


def test_a_slow_drift_shows_over_stretches_of_samples() -> None:
    """Each sample is within 0.1 % of the one before, but twenty of them are not."""
    drifting = tuple(0.9995**i for i in range(2000))
    found = by_samples(FakeDevice(script=Script(slow=drifting)), 1e-4, cap_s=0.1)
    assert not found.settled
    assert found.seconds >= 0.1


def test_samples_without_a_cap_are_one_estimate() -> None:
    found = by_samples(FakeDevice(script=Script(replay_s=0.0)), 1e-3, cap_s=0.0)
    assert found.launch_s == pytest.approx(1e-3)
    assert found.trace_s == (found.launch_s,)
