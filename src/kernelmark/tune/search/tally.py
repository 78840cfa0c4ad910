"""Tally: how far a tuning run is, how fast it goes and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.runners.forecast import Forecast
from kernelmark.tune.plans.plan import TunePlan
from kernelmark.tune.records.outcome import Outcome
from kernelmark.tune.search.evaluate import final_timing, ladder
from kernelmark.tune.search.events import Progress
from kernelmark.tune.search.finals import set_timings, timings

# Timings a candidate takes, those that climb included.
_TIMINGS = 1.3
# Seconds for one of a timing, before anything was tuned here: candidates that climb, sizes next to
# the problem's, and fresh workers.
_OTHERS = 3.0
# Timings for which the experience of earlier runs counts, beside those of this one.
_BEFORE = 4


class Tally:
    """Counts candidates, and compares the expected seconds of timings with the elapsed ones."""

    def __init__(self, plans: Sequence[TunePlan], deadline: float | None, info: DeviceInfo) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._candidates = dict.fromkeys(self._plans, 0)
        self._limits: dict[str, int] = {}  # what the space of a begun plan has
        self._finals = dict.fromkeys(self._plans, 0)
        self._ended: dict[str, int] = {}  # candidates that were asked for in the end
        self._retired: set[str] = set()
        self._deadline = deadline
        self._begun = time.monotonic()
        self._fresh = 0
        self._forecast = Forecast.of_machine(info)
        # What timings are weighed by does not depend on what other commands learn.
        model = Forecast(info, self._forecast.means.best_rates())
        steps = ladder(info)[0].timing, final_timing(info, 1)
        self._searching, self._finishing = (
            {p.name: model.seconds(_case(p, timing)) for p in plans} for timing in steps
        )
        known_s = sum(self._forecast.seconds(_case(p, steps[0])) for p in plans)
        self._first_pace = _OTHERS * known_s / max(1e-9, sum(self._searching.values()))
        self._backends = {name for p in plans for name in (p.backend, p.reference_backend)}
        place = info.model or info.kind
        # Of these backends if they were tuned here before, otherwise of any.
        self._keys = "/".join((place, *sorted(self._backends), "tune")), f"{place}/tune"
        self._expected = 0.0  # seconds, of the timings that were made

    def began(self, name: str, known: int, limit: int) -> None:
        """Count a plan whose journal has `known` candidates and whose space has `limit`."""
        self._candidates[name] = known
        self._limits[name] = limit

    def tried(self, name: str, *, candidate: bool, final: bool) -> None:
        self._expected += (self._finishing if final else self._searching)[name]
        self._candidates[name] += candidate
        self._fresh += candidate
        self._finals[name] += final

    def ended(self, outcome: Outcome) -> None:
        if self._finals[outcome.name]:
            plan = self._plans[outcome.name]
            sets = self._finals[outcome.name] / timings(plan, self._limit(outcome.name))
            for key in self._keys:
                self._forecast.means.learn(f"{key}/finals", sets)
        self._ended[outcome.name] = self._candidates[outcome.name] = outcome.evaluations

    def retired(self, name: str) -> None:
        self._retired.add(name)
        self._candidates[name] = 0

    def learn(self) -> None:
        """Keep how long timings took, for later runs."""
        if self._expected:
            for key in self._keys:
                self._forecast.means.learn(key, self._spent_s / self._expected)
            self._forecast.means.save()

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _pace(self) -> float:
        """Elapsed over expected seconds: elapsed ones include compiling, starting and waiting."""
        known = self._forecast.means.get(*self._keys)
        load_s = self._forecast.load_s(self._backends)
        few = _BEFORE * sum(self._searching.values()) / max(1, len(self._searching))
        before = few * (self._first_pace if known is None else known)
        # Starting and loading come once.
        spent = max(self._spent_s / 2, self._spent_s - load_s) if self._expected else 0.0
        return (before + spent) / (few + self._expected)

    @property
    def progress(self) -> Progress:
        going = self._plans.keys() - self._retired
        total = sum(self._ended.get(n, self._asked(n)) for n in going)
        open_plans = going - self._ended.keys()
        pace = self._pace
        finals_s = {name: self._final_left(name) * pace for name in open_plans}
        left_s = sum(map(self._search_left, open_plans)) * pace + sum(finals_s.values())
        if not self._expected:
            left_s += self._forecast.load_s(self._backends)
        if self._deadline is not None:
            # The deadline ends searches. Plans that are begun still have their finals.
            begun_s = sum(finals_s[name] for name in open_plans & self._limits.keys())
            left_s = min(left_s, max(0.0, self._deadline - time.monotonic()) + begun_s)
        return Progress(
            plans_done=len(self._ended) + len(self._retired),
            plans=len(self._plans),
            candidates_done=sum(self._candidates.values()),
            candidates=total,
            per_minute=60 * self._fresh / max(self._spent_s, 1e-9),
            left_s=left_s,
        )

    def _asked(self, name: str) -> int:
        """Candidates of a plan; a budget that was lowered is less than there were already."""
        return max(self._limit(name), self._candidates[name])

    def _limit(self, name: str) -> int:
        """Candidates that a plan's budget and its space allow. Listing a space may take a second:
        those of plans that are not begun are taken to be like the others'."""
        asked = self._plans[name].budget.evaluations
        if name in self._limits:
            return min(asked, self._limits[name])
        return min(asked, max(self._limits.values(), default=asked))

    def _search_left(self, name: str) -> float:
        """Seconds expected of the timings that a plan's search still needs."""
        if self._finals[name]:  # the search is over, even if candidates are left
            return 0.0
        tries = _TIMINGS * max(0, self._limit(name) - self._candidates[name])
        return tries * self._searching[name]

    def _final_left(self, name: str) -> float:
        """Seconds expected of the timings that a plan's final still needs."""
        plan, done = self._plans[name], self._finals[name]
        once, rounds = timings(plan, self._limit(name)), set_timings(plan)
        # A final without a clear winner goes on. The factor is the mean of earlier ones.
        known = self._forecast.means.get(*(f"{key}/finals" for key in self._keys))
        expected = once * (1.0 if known is None else known) - done
        # A final that exceeds the forecast at least finishes its current set of rounds.
        rest = once - done if done < once else rounds - (done - once) % rounds
        return max(expected, rest) * self._finishing[name]


def _case(plan: TunePlan, timing: Timing) -> Case:
    return Case(problem=plan.problem, backend=plan.backend, timing=timing)
