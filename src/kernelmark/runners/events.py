"""Events that a runner reports during a run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from kernelmark.core.environment import Environment
from kernelmark.core.result import Case, Result, Status

_WAIT_REPORT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Number of cases done, number of all cases, and the expected remaining seconds."""

    done: int
    total: int
    remaining_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStarted:
    case: Case
    device: str
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePhase:
    """A case enters `phase`: load, inputs, compile, warmup, timing, check."""

    case: Case
    device: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCompiled:
    """A case was compiled ahead, the `done`-th of `total`, in `seconds` on one core."""

    case: Case
    status: Status
    seconds: float
    done: int
    total: int
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFinished:
    result: Result
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLost:
    """A device was given up: its worker cannot be started, or it fails cases that others can run.
    Its cases go to the other devices."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Another kernelmark on this machine is timing on the device."""

    device: str
    holder: str

    def __str__(self) -> str:
        return f"waiting for {self.device}: {self.holder or 'another process'} is timing on it"


class WaitLimiter:
    """Limits reports of waiting to one a minute and device: two processes that alternate on a
    device wait for each other at every case."""

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}

    def is_due(self, device: str) -> bool:
        """Return whether to report a wait now; if so, the next minute begins."""
        now = time.monotonic()
        if now - self._reported.get(device, -math.inf) < _WAIT_REPORT_S:
            return False
        self._reported[device] = now
        return True

    def forget(self) -> None:
        """Report the next wait for every device."""
        self._reported.clear()


# Of this process: a script may call km.run and km.bench in a loop.
WAITS = WaitLimiter()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRead:
    """The environment of a worker, with exact library versions."""

    environment: Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    text: str


Event = (
    CaseStarted
    | CasePhase
    | CaseCompiled
    | CaseFinished
    | DeviceLost
    | Waiting
    | EnvironmentRead
    | Note
)


class Runner(Protocol):
    """Executes cases. Closing the iterator ends every process that the runner started."""

    def run(self, cases: Iterable[Case]) -> Iterator[Event]: ...
