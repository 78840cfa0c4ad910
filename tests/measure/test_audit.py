"""What an audit decides from the times of its launches. Kernels are run by test_fakes.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kernelmark.core.result import Fault
from kernelmark.measure.audit import MORE_ROUNDS, Audit
from kernelmark.measure.check import PendingCheck, combine

N = 2  # launches of the shorter replay


class TimedAudit(Audit):
    """An audit whose replays take the seconds of `rounds`: (shorter, longer), the last one on."""

    def __init__(self, rounds: list[tuple[float, float]], *, enqueues: bool) -> None:
        info = SimpleNamespace(cache_bytes=0)
        device: Any = SimpleNamespace(real_time=True, enqueues=enqueues, info=info)
        arena: Any = SimpleNamespace(sets=[{}] * (2 * N + 2))
        nothing: Any = None
        super().__init__(
            device=device, checker=nothing, kernel=nothing, arena=arena, timer=nothing, evict=True
        )
        self.rounds = rounds
        self.count = 0

    def _single_launches(self, timed_s: float) -> PendingCheck:
        return lambda: combine([])

    def _round(self) -> list[PendingCheck]:
        short_s, long_s = self.rounds[min(self.count, len(self.rounds) - 1)]
        self._short_s.append(short_s)
        self._long_s.append(long_s)
        self.count += 1
        return []


def on_cpu(launch_s: float) -> TimedAudit:
    return TimedAudit([(launch_s, 2 * launch_s)], enqueues=False)  # one launch and two


@pytest.mark.parametrize(
    ("audited_s", "retimed_s", "repeatable", "faults"),
    [
        (1.0, 1.0, True, ()),
        (1.4, 1.0, True, ()),
        (1.8, 1.8, False, ()),  # the device is slower, or the kernel works from now on
        (2.1, 1.45, False, ()),
        (1.8, 1.0, False, (Fault.LESS_WORK,)),
        (30.0, 1.0, False, (Fault.LESS_WORK,)),
    ],
)
def test_audited_launches_are_compared_with_timed_and_retimed_ones(
    audited_s: float, retimed_s: float, repeatable: bool, faults: tuple[Fault, ...]
) -> None:
    audit = on_cpu(audited_s)
    check = audit.run(1.0, lambda: retimed_s)()
    assert audit.repeatable is repeatable
    assert check.faults == faults
    assert audit.count <= 1 + MORE_ROUNDS
    assert audit.refuse(1.0).faults == (Fault.LESS_WORK,)


def test_one_fast_round_ends_a_suspicion() -> None:
    audit = TimedAudit([(5.0, 10.0), (5.0, 10.0), (1.0, 2.0)], enqueues=False)
    assert audit.run(1.0, lambda: 1.0)().faults == ()
    assert audit.repeatable
    assert audit.count == 3


def test_a_kernel_whose_time_depends_on_the_data_is_not_slow_by_a_difference() -> None:
    # Launches of 1 or 2 ms: two fast ones in the shorter replay, two of four in the longer.
    by_data = TimedAudit([(2e-3, 6e-3)], enqueues=True)
    assert by_data.run(1e-3, lambda: 1e-3)().faults == ()
    # The first launch of a replay does the work of all.
    slow = TimedAudit([(4e-3, 8e-3)], enqueues=True)
    assert slow.run(1e-3, lambda: 1e-3)().faults == (Fault.LESS_WORK,)
