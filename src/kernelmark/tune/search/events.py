"""Events of a tuning run."""

from __future__ import annotations

from dataclasses import dataclass

from kernelmark.runners.events import DeviceLost, Note
from kernelmark.tune.records.journal import Trial
from kernelmark.tune.records.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Plans and candidates, done and total; candidates per minute; expected seconds left."""

    plans_done: int
    plans: int
    candidates_done: int
    candidates: int
    per_minute: float
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected amount of work, before anything is timed."""

    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A plan's search began; `known` of at most `limit` candidates are in its journal already."""

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
    """A plan has its outcome; `fresh` is False if it was read from the journal."""

    outcome: Outcome
    fresh: bool
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A plan cannot be tuned here, for `reason`."""

    name: str
    reason: str


Event = Expected | Began | Tried | Ended | Retired | DeviceLost | Note
