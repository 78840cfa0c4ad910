"""Expected seconds of a comparison, which it learns from the rounds that have ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from kernelmark.api.ab import AbPlan
from kernelmark.runners.ab import Budget, Event, Measured, Row
from kernelmark.runners.forecast import Forecast, compile_ahead_s
from kernelmark.runners.targets import find

# Seconds around the pairs of a round, over those in which the slower side loads, before any round
# was seen: their processes start at the same time, and take cores from each other.
_SHARED = 1.2


_START = "start/ab-without-loading"


class Rounds:
    """How long a comparison takes. A round is what starting and loading both sides takes, learnt as
    seconds, and its pairs, learnt as a factor over what a plain model says of their cases. Neither
    depends on what other commands learn."""

    def __init__(
        self,
        plan: AbPlan,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        info = find(plan.device)[1]
        self.looks = plan.rule.looks
        self.pairs = len(plan.pairs)  # that are open
        self.done = 0
        self.budget = budget or Budget()
        self._clock = clock
        self._machine = Forecast.of_machine(info)
        cases = [case for pair in plan.pairs for case in pair.cases]
        loaded = [{pair.cases[side].backend for pair in plan.pairs} for side in (0, 1)]
        self._load_s = max(map(self._machine.load_s, loaded))
        model = Forecast(info, self._machine.means.best_rates())
        self._pair_s = sum(map(model.seconds, cases)) / max(1, self.pairs)
        self._first_factor = sum(map(self._machine.seconds, cases)) / max(
            1e-9, self._pair_s * self.pairs
        )
        place, names = info.model or info.kind, "+".join(sorted(set.union(*loaded)))
        self.command = f"ab/{names}"  # by which the seconds before its rounds are known
        self._around = f"{place}/{names}/round", f"{place}/slower-side"
        self._factor = f"{place}/{names}/pair", f"{place}/pair"
        self._compiled_s = compile_ahead_s(self._machine, cases, plan.jobs) if plan.jobs else 0.0
        self._begun = self._paired = clock()
        self._first_s = 0.0  # seconds of the round at hand up to the end of its first pair

    @property
    def round_s(self) -> float:
        """Seconds of a round of the pairs that are open."""
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
        """Take in the seconds of the command besides its rounds."""
        self._machine.means.learn(f"start/{self.command}", seconds)
        self._machine.means.learn(_START, max(0.0, seconds - self._load_s))

    @property
    def start_s(self) -> float | None:
        """Seconds of the command before its first round; None where none like it was seen here."""
        return self._machine.means.get(f"start/{self.command}")

    @property
    def whole_s(self) -> tuple[float, float]:
        """Seconds of the command up to its first look, and to its last."""
        start = self.start_s
        if start is None:
            # Reading the environments loads both sides.
            rest = self._machine.means.get(_START)
            start = self._load_s + (self._machine.start_s() if rest is None else rest)
        start += self._compiled_s
        first, last = self.looks.rounds[0], self.looks.last
        return start + first * self.round_s, start + last * self.round_s

    @property
    def left_s(self) -> tuple[float, float]:
        """Seconds to the next look and to the last, if all pairs that are open stay so; at most
        those that the budget leaves."""
        begun = min(self._clock() - self._begun, self.round_s)
        next_look = self.looks.after(self.done) or self.looks.last
        ends = (next_look - self.done, self.looks.last - self.done)
        near, far = (max(0.0, rounds * self.round_s - begun) for rounds in ends)
        most = max(0.0, self.budget.left_s)
        return min(near, most), min(far, most)

    @property
    def last(self) -> int:
        """The round that ends it, if all pairs that are open stay so: that of the last look, or the
        last one that fits into the budget."""
        if math.isinf(self.budget.seconds):
            return self.looks.last
        fitting = int(max(0.0, self.budget.left_s) / max(1e-9, self.round_s))
        return min(self.looks.last, max(1, self.done + fitting))

    def take(self, event: Event) -> None:
        """Learn from what happened."""
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
        """Take in a round, of which all pairs but the first took `others_s`."""
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
