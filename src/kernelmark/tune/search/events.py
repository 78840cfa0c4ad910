"""Events of a tuning run."""

from __future__ import annotations

from dataclasses import dataclass

from kernelmark.runners.events import DeviceLost, Note
from kernelmark.tune.records.journal import Trial
from kernelmark.tune.records.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Plans and candidates done and in all, candidates a minute so far, seconds still expected."""

    plans_done: int
    plans: int
    candidates_done: int
    candidates: int
    per_minute: float
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Before anything is timed: what there is to do, and how long it is expected to take."""

    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """`known` candidates are in its journal already."""

    name: str
    device: str
    known: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A trial was recorded; `best_s` is the best time of the plan's candidates so far."""

    name: str
    device: str
    trial: Trial
    best_s: float | None
    reference_s: float
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """`fresh` is False where the outcome was in the journal."""

    outcome: Outcome
    fresh: bool
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A plan that cannot be tuned here, and why."""

    name: str
    reason: str


Event = Expected | Began | Tried | Ended | Retired | DeviceLost | Note
