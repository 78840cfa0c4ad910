"""Events of a tuning run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.result import Case
from kernelmark.core.timing import Timing
from kernelmark.runners.events import DeviceLost, Note
from kernelmark.runners.forecast import Forecast
from kernelmark.tune.evaluate import final_timing, ladder
from kernelmark.tune.finals import set_timings, timings
from kernelmark.tune.journal import Trial
from kernelmark.tune.plans import TunePlan
from kernelmark.tune.results import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneProgress:
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

    progress: TuneProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A plan's search began; of at most `limit` candidates, `evaluated` are in its journal."""

    name: str
    device: str
    evaluated: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A trial was recorded; `best_s` is the best time of the plan's candidates so far."""

    name: str
    device: str
    trial: Trial
    best_s: float | None
    reference_s: float
    progress: TuneProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A plan has its outcome; `fresh` is False if it was read from the journal."""

    outcome: Outcome
    fresh: bool
    progress: TuneProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A plan cannot be tuned here, for `reason`."""

    name: str
    reason: str


Event = Expected | Began | Evaluated | Ended | Retired | DeviceLost | Note


# Mean number of timings per candidate, including those of higher steps.
_TIMINGS = 1.3
# Initial estimate of elapsed / expected seconds on a new machine. The excess is higher steps,
# neighbouring sizes and worker starts. On a GPU these weigh less: two first runs on an H200 took 60
# and 63 s, where 3.0 announces 107 and 136 s.
_OVERHEAD, _GPU_OVERHEAD = 3.0, 1.5
# Weight of earlier runs in the estimated pace, in timings.
_PRIOR_TIMINGS = 4


class Tally:
    """A count of candidates, and the ratio of elapsed to expected seconds of their timings."""

    def __init__(self, plans: Sequence[TunePlan], deadline: float, info: DeviceInfo) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._candidates = dict.fromkeys(self._plans, 0)
        self._limits: dict[str, int] = {}  # sizes of the spaces of begun plans
        self._finals = dict.fromkeys(self._plans, 0)  # timings of finals
        self._ended: dict[str, int] = {}  # evaluated candidates of plans with an outcome
        self._retired: set[str] = set()
        self._deadline = deadline
        self._begun = time.monotonic()
        self._fresh = 0
        self._forecast = Forecast.of_machine(info)
        # Relative weights of timings must not change with what other commands measure.
        model = Forecast(info)
        steps = ladder(info)[0].timing, final_timing(info, 1)
        self._search_s, self._final_s = (
            {p.name: model.seconds(_case(p, timing)) for p in plans} for timing in steps
        )
        known_s = sum(self._forecast.seconds(_case(p, steps[0])) for p in plans)
        overhead = _OVERHEAD if info.kind in ("cpu", "fake") else _GPU_OVERHEAD
        self._first_pace = overhead * known_s / max(1e-9, sum(self._search_s.values()))
        self._backends = {name for p in plans for name in (p.backend, p.reference_backend)}
        model_name = info.model or info.kind
        # Means of these backends if they were tuned here before, otherwise of any backend.
        self._keys = "/".join((model_name, *sorted(self._backends), "tune")), f"{model_name}/tune"
        self._expected_s = 0.0  # of the timings done so far
        self._announced_s = 0.0  # the same, with the expected number of timings of finals

    def began(self, name: str, evaluated: int, limit: int) -> None:
        """Count a plan whose journal has `evaluated` candidates and whose space has `limit`."""
        self._candidates[name] = evaluated
        self._limits[name] = limit

    def count_trial(self, name: str, *, candidate: bool, final: bool) -> None:
        self._expected_s += (self._final_s if final else self._search_s)[name]
        self._announced_s += 0.0 if final else self._search_s[name]
        self._candidates[name] += candidate
        self._fresh += candidate
        self._finals[name] += final

    def ended(self, outcome: Outcome) -> None:
        name = outcome.name
        if self._finals[name]:
            self._announced_s += timings(self._plans[name], self._limit(name)) * self._final_s[name]
        self._ended[name] = self._candidates[name] = outcome.evaluations

    def retired(self, name: str) -> None:
        self._retired.add(name)
        self._candidates[name] = 0

    def learn(self) -> None:
        """Save the pace of this run for the estimates of later runs."""
        if self._announced_s:
            for key in self._keys:
                self._forecast.means.learn(key, self._spent_s / self._announced_s)
            self._forecast.means.save()

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _pace(self) -> float:
        """Elapsed / expected seconds; the elapsed ones include compiling, starting and waiting."""
        pace = self._forecast.means.get(*self._keys)
        load_s = self._forecast.load_s(self._backends)
        prior_s = _PRIOR_TIMINGS * sum(self._search_s.values()) / max(1, len(self._search_s))
        before = prior_s * (self._first_pace if pace is None else pace)
        # Backends are started and loaded only once, so this does not slow the rest.
        spent = max(self._spent_s / 2, self._spent_s - load_s) if self._expected_s else 0.0
        return (before + spent) / (prior_s + self._expected_s)

    @property
    def progress(self) -> TuneProgress:
        going = self._plans.keys() - self._retired
        unfinished = going - self._ended.keys()
        pace = self._pace
        left_s = pace * sum(self._search_left_s(n) + self._final_left_s(n) for n in unfinished)
        if not self._expected_s:
            left_s += self._forecast.load_s(self._backends)
        left_s = min(left_s, max(0.0, self._deadline - time.monotonic()))
        return TuneProgress(
            plans_done=len(self._ended) + len(self._retired),
            plans=len(self._plans),
            candidates_done=sum(self._candidates.values()),
            # The budget may have been lowered below what was evaluated.
            candidates=sum(
                self._ended.get(name, max(self._limit(name), self._candidates[name]))
                for name in going
            ),
            per_minute=60 * self._fresh / max(self._spent_s, 1e-9),
            left_s=left_s,
        )

    def _limit(self, name: str) -> int:
        """Return the candidates that a plan's budget and space allow. Listing a space may take a
        second, so plans that are not begun are assumed to have spaces as large as the others'."""
        budget = self._plans[name].budget.evaluations
        return min(budget, self._limits.get(name, max(self._limits.values(), default=budget)))

    def _search_left_s(self, name: str) -> float:
        if self._finals[name]:  # the search is over, even if candidates are left
            return 0.0
        left = max(0, self._limit(name) - self._candidates[name])
        return _TIMINGS * left * self._search_s[name]

    def _final_left_s(self, name: str) -> float:
        plan, done = self._plans[name], self._finals[name]
        once, rounds = timings(plan, self._limit(name)), set_timings(plan)
        # A final that exceeds the forecast at least finishes its current set of rounds.
        left = once - done if done < once else rounds - (done - once) % rounds
        return left * self._final_s[name]


def _case(plan: TunePlan, timing: Timing) -> Case:
    return Case(problem=plan.problem, backend=plan.backend, timing=timing)
