"""Candidates of a search: hopeless ones end with their first launch, checked like any other."""

from __future__ import annotations

from typing import Any

import pytest

from kernelmark.core.result import Fault, StopReason
from kernelmark.measure.audit import Audit
from kernelmark.measure.check import PendingCheck

# The shortest step of a GPU's ladder: one block.
SHORT = {"allocations": 1, "max_allocations": 1, "max_s": 0.008, "warmup_s": 0.004}
LARGE = 100_000  # elements, of which two sets exceed the cache


def test_a_hopeless_candidate_is_launched_once_and_checked(bench: Any) -> None:
    outcome = bench(n=LARGE, seconds=0.05, cutoff_s=0.01, **SHORT)
    (kernel,) = bench.kernels
    assert len(kernel.launched) == 1
    measured = outcome.measurement
    assert measured.stop is StopReason.CUTOFF
    assert measured.median_s == pytest.approx(0.05, rel=1e-3)
    assert outcome.check.passed
    assert outcome.check.positions > 0


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("off", Fault.VALUES),
        ("short", Fault.UNWRITTEN),
        ("overrun", Fault.GUARDS),
        ("zeroes inputs", Fault.INPUTS),
        ("writes all", Fault.STRAY),
    ],
)
@pytest.mark.parametrize("seconds", [0.05, 0.008])
def test_a_wrong_candidate_is_wrong_with_and_without_the_cutoff(
    bench: Any, fault: str, found: Fault, seconds: float
) -> None:
    outcome = bench(n=LARGE, seconds=seconds, fault=fault, cutoff_s=0.01, **SHORT)
    assert found in outcome.check.faults


def test_a_long_candidate_is_timed_on_new_inputs_only(bench: Any, audits: list[int]) -> None:
    """The launch of 0.008 s whose inputs were just rewritten needs no audit."""
    outcome = bench(n=LARGE, seconds=0.008, cutoff_s=0.01, **SHORT)
    (kernel,) = bench.kernels
    assert len(kernel.launched) == 3  # the first, the warm-up, the timed one
    assert outcome.measurement.stop is StopReason.FIXED
    assert outcome.measurement.also == {}
    assert outcome.check.passed
    assert not audits


@pytest.mark.parametrize("fault", ["skips", "stale"])
def test_a_long_candidate_gains_nothing_by_remembering(bench: Any, fault: str) -> None:
    outcome = bench(n=LARGE, seconds=0.008, fault=fault, cutoff_s=0.01, **SHORT)
    assert not outcome.check.passed


def test_a_short_candidate_is_audited(bench: Any, audits: list[int]) -> None:
    outcome = bench(seconds=50e-6, cutoff_s=1.0, **SHORT)
    assert outcome.measurement.samples > 1
    assert audits


def test_several_blocks_are_audited(bench: Any, audits: list[int]) -> None:
    blocks = {**SHORT, "allocations": 3, "max_allocations": 3}
    bench(n=LARGE, seconds=0.008, cutoff_s=1.0, **blocks)
    assert audits


def test_a_slow_short_candidate_ends_after_the_warm_up(bench: Any, audits: list[int]) -> None:
    """The fixed cost of a replay hides how slow its first launch is."""
    outcome = bench(seconds=40e-6, cutoff_s=30e-6, **SHORT)
    assert outcome.measurement.stop is StopReason.CUTOFF
    assert outcome.measurement.samples == 1
    assert outcome.measurement.median_s == pytest.approx(40e-6)
    assert outcome.check.passed
    assert not audits


def test_a_slow_first_launch_alone_does_not_cut_a_short_candidate(bench: Any) -> None:
    times = iter([2e-3])
    outcome = bench(seconds=lambda index: next(times, 50e-6), cutoff_s=100e-6, **SHORT)
    assert outcome.measurement.stop is StopReason.FIXED


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each audit."""
    seen: list[int] = []
    run = Audit.run

    def count(self: Audit, retime: Any) -> PendingCheck:
        seen.append(1)
        return run(self, retime)

    monkeypatch.setattr(Audit, "run", count)
    return seen
