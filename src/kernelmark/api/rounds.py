"""Expected duration of a comparison, learned from finished rounds."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from kernelmark.api.ab import AbPlan
from kernelmark.runners.ab import Budget, Event, Measured, Row
from kernelmark.runners.forecast import Forecast
from kernelmark.runners.targets import find

# Start-up time of a round divided by the load time of the slower side, before any round was
# measured: both processes start at the same time and compete for cores.
_SHARED = 1.2


_START = "start/ab-without-loading"


class Rounds:
    """A model of a comparison's duration. A round consists of starting and loading both sides,
    learned in seconds, and of its pairs, learned as a factor over the plain model of their cases.
    Both are independent of what other commands learn."""

    def __init__(
        self,
        plan: AbPlan,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        info = find(plan.device)[1]
        self.looks = plan.rule.looks
        self.pairs = len(plan.pairs)  # undecided ones
        self.done = 0
        self.budget = budget or Budget()
        self._clock = clock
        self._machine = Forecast.of_machine(info)
        cases = [case for pair in plan.pairs for case in pair.cases]
        loaded = [{pair.cases[side].backend for pair in plan.pairs} for side in (0, 1)]
        self._load_s = max(map(self._machine.load_s, loaded))
        model = Forecast(info)
        self._pair_s = sum(map(model.seconds, cases)) / max(1, self.pairs)
        self._first_factor = sum(map(self._machine.seconds, cases)) / max(
            1e-9, self._pair_s * self.pairs
        )
        place, names = info.model or info.kind, "+".join(sorted(set.union(*loaded)))
        self.command = f"ab/{names}"  # key of the learned start-up time
        self._around = f"{place}/{names}/round", f"{place}/slower-side"
        self._factor = f"{place}/{names}/pair", f"{place}/pair"
        kernels = Counter(case.backend for case in cases)
        self._compiled_s = self._machine.compile_ahead_s(kernels, plan.jobs) if plan.jobs else 0.0
        self._begun = self._paired = clock()
        self._first_s = 0.0  # seconds of the current round up to the end of its first pair

    @property
    def round_s(self) -> float:
        """Expected seconds of a round of the undecided pairs."""
        return self._around_s + self.pairs * self._pair_s * self._pair_factor

    @property
    def _around_s(self) -> float:
        means = self._machine.means
        known = means.get(self._around[0])
        if known is not None:
            return known
        share = means.get(self._around[1])
        return self._load_s * (_SHARED if share is None else share)

    @property
    def _pair_factor(self) -> float:
        known = self._machine.means.get(*self._factor)
        return self._first_factor if known is None else known

    def learn_start(self, seconds: float) -> None:
        """Learn the seconds that the command took outside its rounds."""
        self._machine.means.learn(f"start/{self.command}", seconds)
        self._machine.means.learn(_START, max(0.0, seconds - self._load_s))

    @property
    def start_s(self) -> float | None:
        """Expected seconds before the first round; None before the first such command."""
        return self._machine.means.get(f"start/{self.command}")

    @property
    def whole_s(self) -> tuple[float, float]:
        """Expected seconds of the command up to its first look, and up to its last."""
        start = self.start_s
        if start is None:
            # Capturing the environments loads both sides.
            rest = self._machine.means.get(_START)
            start = self._load_s + (self._machine.start_s() if rest is None else rest)
        start += self._compiled_s
        first, last = self.looks.rounds[0], self.looks.last
        return start + first * self.round_s, start + last * self.round_s

    @property
    def left_s(self) -> tuple[float, float]:
        """Expected seconds to the next look and to the last, if no pair is decided before; at most
        what is left of the budget."""
        begun = min(self._clock() - self._begun, self.round_s)
        next_look = self.looks.after(self.done) or self.looks.last
        ends = (next_look - self.done, self.looks.last - self.done)
        near, far = (max(0.0, rounds * self.round_s - begun) for rounds in ends)
        most = max(0.0, self.budget.left_s)
        return min(near, most), min(far, most)

    @property
    def last(self) -> int:
        """The last round, if no pair is decided before: that of the last look, or the last one that
        fits into the budget."""
        if math.isinf(self.budget.seconds):
            return self.looks.last
        fitting = int(max(0.0, self.budget.left_s) / max(1e-9, self.round_s))
        return min(self.looks.last, max(1, self.done + fitting))

    def take(self, event: Event) -> None:
        """Update the model with an event."""
        if isinstance(event, Row):
            self.pairs -= 1
        if not isinstance(event, Measured):
            return
        now = self._clock()
        if event.done == 1:
            self._first_s, self._paired = now - self._begun, now
        if event.done == event.total:
            self._learn(event.total, now - self._paired)
            self.done, self._begun = event.round, now

    def _learn(self, pairs: int, others_s: float) -> None:
        """Learn from a round whose pairs, except for the first, took `others_s`."""
        means = self._machine.means
        pair_s = self._pair_s * self._pair_factor
        if pairs > 1:
            pair_s = others_s / (pairs - 1)
            for name in self._factor:
                means.learn(name, pair_s / self._pair_s)
        around_s = max(0.0, self._first_s - pair_s)
        means.learn(self._around[0], around_s)
        means.learn(self._around[1], around_s / max(1e-9, self._load_s))

    def save(self) -> None:
        self._machine.means.save()
