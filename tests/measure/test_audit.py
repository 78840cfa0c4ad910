"""What an audit decides from the times of its replays. Kernels are run by test_fakes.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kernelmark.core.result import Fault
from kernelmark.core.timing import Timer
from kernelmark.measure import audit as module
from kernelmark.measure.audit import MORE_ROUNDS, Audit, Replays, TimedBlock
from kernelmark.measure.check import PendingCheck, combine

Seconds = Callable[[int], float]  # of the nth replay on new values


class TimedReplays(Replays):
    """Replays of one launch, which takes the scripted seconds on new values and on the same."""

    def __init__(self, new_s: Seconds, same_s: float, *, enqueues: bool) -> None:
        self._device: Any = SimpleNamespace(enqueues=enqueues)
        self._evict = True
        self.launches = 1
        self._elapsed_s: list[float] = []
        self.new_s, self.same_s = new_s, same_s
        self.events: list[str] = []

    def on_new(self) -> float:
        self.events.append("replay")
        self._elapsed_s.append(self.new_s(len(self._elapsed_s)))
        return self._elapsed_s[-1]

    def on_same(self) -> float:
        self.events.append("replay")
        return self.same_s

    def on_new_checked(self) -> PendingCheck:
        self.events.append("checked replay")
        self._elapsed_s.append(self.new_s(len(self._elapsed_s)))
        return lambda: combine([])

    def close(self) -> None:
        pass

    @property
    def count(self) -> int:
        return len(self._elapsed_s)


def audit(
    monkeypatch: pytest.MonkeyPatch,
    new_s: Seconds | float,
    same_s: float = 1.0,
    *,
    enqueues: bool = False,
) -> tuple[Audit, TimedReplays]:
    """An audit of a block whose launches took a second."""
    spend = new_s if callable(new_s) else lambda number: new_s
    replays = TimedReplays(spend, same_s, enqueues=enqueues)
    monkeypatch.setattr(module, "Replays", lambda *settings: replays)
    monkeypatch.setattr(module, "_draw_single", lambda *settings: [0])

    def launch_alone(*settings: object) -> PendingCheck:
        replays.events.append("alone")
        return lambda: combine([])

    monkeypatch.setattr(module, "single_launches", launch_alone)
    device: Any = SimpleNamespace(real_time=True, enqueues=enqueues)
    nothing: Any = None
    block = TimedBlock(
        device=device,
        checker=nothing,
        kernel=nothing,
        arena=nothing,
        timer=Timer.AUTO,
        threads=1,
        evict=True,
        timed_s=1.0,
    )
    return Audit(block), replays


@pytest.mark.parametrize("enqueues", [False, True])
def test_nothing_runs_between_launches_alone_and_the_checked_replay(
    monkeypatch: pytest.MonkeyPatch, *, enqueues: bool
) -> None:
    """A kernel that computes in every nth launch of a set may else compute in both."""
    for _ in range(20):
        examined, replays = audit(monkeypatch, 1.0, enqueues=enqueues)
        examined.run(lambda: 1.0)
        events = replays.events
        assert events.count("checked replay") >= 1
        assert [before for before, after in pairwise(events) if after == "checked replay"] == [
            "alone"
        ] * events.count("checked replay")


@pytest.mark.parametrize("enqueues", [False, True])
@pytest.mark.parametrize(
    ("new_s", "same_s", "faults"),
    [
        (1.0, 1.0, ()),
        (1.04, 1.0, ()),
        (1.08, 1.0, (Fault.LESS_WORK,)),
        (30.0, 1.0, (Fault.LESS_WORK,)),
        (1.3, 1.3, ()),
        (1.0, 1.3, ()),
    ],
)
def test_launches_on_new_values_are_compared_with_those_on_the_same(
    monkeypatch: pytest.MonkeyPatch,
    new_s: float,
    same_s: float,
    faults: tuple[Fault, ...],
    enqueues: bool,
) -> None:
    made, _ = audit(monkeypatch, new_s, same_s, enqueues=enqueues)
    check = made.run(lambda: 1.0)()
    assert check.faults == faults
    assert made.repeatable
    assert made.slow_s is None
    assert check.fresh_ratio == pytest.approx(1 + new_s - same_s)


@pytest.mark.parametrize(
    ("retimed_s", "enqueues", "repeatable", "faults", "slow_s"),
    [
        (1.8, False, False, (), None),  # the device is slower, or the kernel works from now on
        (1.8, True, False, (), None),
        (1.0, False, True, (), 1.8),  # rewriting slows a CPU
        (1.0, True, True, (Fault.LESS_WORK,), None),  # the kernel recognises the audit
    ],
)
def test_slow_launches_are_compared_with_retimed_ones(
    monkeypatch: pytest.MonkeyPatch,
    retimed_s: float,
    enqueues: bool,
    repeatable: bool,
    faults: tuple[Fault, ...],
    slow_s: float | None,
) -> None:
    made, replays = audit(monkeypatch, 1.8, 1.8, enqueues=enqueues)
    assert made.run(lambda: retimed_s)().faults == faults
    assert made.repeatable is repeatable
    assert made.slow_s == slow_s
    assert made.refuse().faults == (Fault.LESS_WORK,)
    assert replays.count <= 3 + MORE_ROUNDS


def test_a_fast_replay_ends_a_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    made, replays = audit(monkeypatch, lambda number: 1.0 if number == 4 else 1.8, 1.8)
    assert made.run(lambda: 1.0)().faults == ()
    assert made.repeatable
    assert made.slow_s is None
    assert replays.count == 5
