"""Tally: how far a tuning run is, how fast it goes and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kernelmark.tune.events import Progress
from kernelmark.tune.finals import timings
from kernelmark.tune.outcome import Outcome
from kernelmark.tune.plan import TunePlan

# Timings a candidate takes, those that climb included.
_TIMINGS = 1.3


class Tally:
    """Counts candidates, and the timings of searches and finals, which take about as long."""

    def __init__(self, plans: Sequence[TunePlan], deadline: float | None) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._candidates = dict.fromkeys(self._plans, 0)
        self._finals = dict.fromkeys(self._plans, 0)
        self._ended: dict[str, int] = {}  # candidates that were asked for in the end
        self._retired: set[str] = set()
        self._deadline = deadline
        self._begun = time.monotonic()
        self._fresh = 0
        self._timings = 0

    def began(self, name: str, known: int) -> None:
        """A plan is begun, with so many candidates in its journal."""
        self._candidates[name] = known

    def tried(self, name: str, *, candidate: bool, final: bool) -> None:
        self._timings += 1
        self._candidates[name] += candidate
        self._fresh += candidate
        self._finals[name] += final

    def ended(self, outcome: Outcome) -> None:
        self._ended[outcome.name] = self._candidates[outcome.name] = outcome.evaluations

    def retired(self, name: str) -> None:
        self._retired.add(name)
        self._candidates[name] = 0

    @property
    def progress(self) -> Progress:
        spent_s = max(time.monotonic() - self._begun, 1e-9)
        going = self._plans.keys() - self._retired
        total = sum(self._ended.get(n, self._asked(n)) for n in going)
        left_s = 0.0
        if self._timings:
            open_ = going - self._ended.keys()
            left_s = sum(map(self._left, open_)) * spent_s / self._timings
        if self._deadline is not None:
            left_s = min(left_s, max(0.0, self._deadline - time.monotonic()))
        return Progress(
            plans_done=len(self._ended) + len(self._retired),
            plans=len(self._plans),
            candidates_done=sum(self._candidates.values()),
            candidates=total,
            per_minute=60 * self._fresh / spent_s,
            left_s=left_s,
        )

    def _asked(self, name: str) -> int:
        """Candidates of a plan; a budget that was lowered is less than there were already."""
        return max(self._plans[name].budget.evaluations, self._candidates[name])

    def _left(self, name: str) -> float:
        """Timings that a plan still needs."""
        plan = self._plans[name]
        search = _TIMINGS * (plan.budget.evaluations - self._candidates[name])
        return max(0.0, search) + max(0, timings(plan) - self._finals[name])
