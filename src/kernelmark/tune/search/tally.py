"""Tally: the progress of a tuning run, its speed, and the expected time left."""

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

    def __init__(self, plans: Sequence[TunePlan], deadline: float | None, info: DeviceInfo) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._candidates = dict.fromkeys(self._plans, 0)
        self._limits: dict[str, int] = {}  # sizes of the spaces of begun plans
        self._finals = dict.fromkeys(self._plans, 0)
        self._ended: dict[str, int] = {}  # evaluated candidates of plans with an outcome
        self._retired: set[str] = set()
        self._deadline = deadline
        self._begun = time.monotonic()
        self._fresh = 0
        self._forecast = Forecast.of_machine(info)
        # Relative weights of timings must not change with what other commands measure.
        model = Forecast(info)
        steps = ladder(info)[0].timing, final_timing(info, 1)
        self._searching, self._finishing = (
            {p.name: model.seconds(_case(p, timing)) for p in plans} for timing in steps
        )
        known_s = sum(self._forecast.seconds(_case(p, steps[0])) for p in plans)
        overhead = _OVERHEAD if info.kind in ("cpu", "fake") else _GPU_OVERHEAD
        self._first_pace = overhead * known_s / max(1e-9, sum(self._searching.values()))
        self._backends = {name for p in plans for name in (p.backend, p.reference_backend)}
        model_name = info.model or info.kind
        # Means of these backends if they were tuned here before, otherwise of any backend.
        self._keys = "/".join((model_name, *sorted(self._backends), "tune")), f"{model_name}/tune"
        self._expected = 0.0  # seconds, of the timings done so far

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
        """Save the pace of this run for the estimates of later runs."""
        if self._expected:
            for key in self._keys:
                self._forecast.means.learn(key, self._spent_s / self._expected)
            self._forecast.means.save()

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _pace(self) -> float:
        """Elapsed / expected seconds; the elapsed ones include compiling, starting and waiting."""
        known = self._forecast.means.get(*self._keys)
        load_s = self._forecast.load_s(self._backends)
        prior = _PRIOR_TIMINGS * sum(self._searching.values()) / max(1, len(self._searching))
        before = prior * (self._first_pace if known is None else known)
        # Backends are started and loaded only once, so this does not slow the rest.
        spent = max(self._spent_s / 2, self._spent_s - load_s) if self._expected else 0.0
        return (before + spent) / (prior + self._expected)

    @property
    def progress(self) -> Progress:
        going = self._plans.keys() - self._retired
        total = sum(self._ended.get(n, self._total(n)) for n in going)
        open_plans = going - self._ended.keys()
        pace = self._pace
        finals_s = {name: self._final_left(name) * pace for name in open_plans}
        left_s = sum(map(self._search_left, open_plans)) * pace + sum(finals_s.values())
        if not self._expected:
            left_s += self._forecast.load_s(self._backends)
        if self._deadline is not None:
            # The deadline ends searches. The finals of begun plans follow it.
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

    def _total(self, name: str) -> int:
        """Return the total candidates of a plan, at least the evaluated ones: the budget may have
        been lowered since."""
        return max(self._limit(name), self._candidates[name])

    def _limit(self, name: str) -> int:
        """Return the candidates that a plan's budget and space allow. Listing a space may take a
        second, so plans that are not begun are assumed to have spaces as large as the others'."""
        asked = self._plans[name].budget.evaluations
        if name in self._limits:
            return min(asked, self._limits[name])
        return min(asked, max(self._limits.values(), default=asked))

    def _search_left(self, name: str) -> float:
        """Return the expected seconds of the timings left in a plan's search."""
        if self._finals[name]:  # the search is over, even if candidates are left
            return 0.0
        tries = _TIMINGS * max(0, self._limit(name) - self._candidates[name])
        return tries * self._searching[name]

    def _final_left(self, name: str) -> float:
        """Return the expected seconds of the timings left in a plan's final."""
        plan, done = self._plans[name], self._finals[name]
        once, rounds = timings(plan, self._limit(name)), set_timings(plan)
        # A final without a clear winner is extended, by the mean factor of earlier finals.
        known = self._forecast.means.get(*(f"{key}/finals" for key in self._keys))
        expected = once * (1.0 if known is None else known) - done
        # A final that exceeds the forecast at least finishes its current set of rounds.
        rest = once - done if done < once else rounds - (done - once) % rounds
        return max(expected, rest) * self._finishing[name]


def _case(plan: TunePlan, timing: Timing) -> Case:
    return Case(problem=plan.problem, backend=plan.backend, timing=timing)
