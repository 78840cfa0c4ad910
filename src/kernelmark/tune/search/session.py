"""Session: the search for one plan, from the default config to an outcome.

A session yields requests and reads the results from its journal; the driver measures them. Its next
request depends on earlier results only. A session that is restarted with the same journal therefore
repeats the same requests, without measuring, up to where it was interrupted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kernelmark import backends
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue, config_key
from kernelmark.host.cache import digest
from kernelmark.runners.capture import kernelmark_version
from kernelmark.tune import strategies
from kernelmark.tune.plans.plan import (
    TunePlan,
    decision_digest,
    plan_digest,
    search_digest,
    space_of,
)
from kernelmark.tune.points import Points
from kernelmark.tune.records.journal import (
    COMPILE,
    Finished,
    Header,
    Journal,
    Trial,
    candidates,
    load,
    minutes_spent,
    now,
)
from kernelmark.tune.records.results import Outcome
from kernelmark.tune.records.status import weighed
from kernelmark.tune.search.evaluate import Evaluator, Work
from kernelmark.tune.search.finals import finals, nothing_found

_MOST_STARTS = 3  # winners of similar problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The best config that a search found for a problem, whether it was kept or not."""

    problem: Problem
    backend: str
    arch: str
    config: Config


def starts_from(
    plan: TunePlan, arch: str, winners: Iterable[Winner], points: Points, most: int = _MOST_STARTS
) -> list[Config]:
    """Return winners of problems that differ from the plan's in sizes only, mapped to points of
    its space, nearest problem first."""
    near = [
        (distance(plan.problem, winner.problem), config_key(winner.config), winner)
        for winner in winners
        if winner.backend == plan.backend and winner.arch == arch
    ]
    near = sorted((n for n in near if math.isfinite(n[0])), key=lambda n: n[:2])
    configs: dict[str, Config] = {}
    for _, _, winner in near:
        config = mapped(winner.config, points)
        if config is not None:
            configs.setdefault(config_key(config), config)
        if len(configs) == most:
            break
    return list(configs.values())


def distance(problem: Problem, other: Problem) -> float:
    """Return the distance between sizes in doublings, infinite if anything else differs."""
    if (problem.op, problem.dtypes, problem.options) != (other.op, other.dtypes, other.options):
        return math.inf
    if problem.dims.keys() != other.dims.keys():
        return math.inf
    return math.sqrt(sum(_doublings(problem.dims[n], other.dims[n]) ** 2 for n in problem.dims))


def mapped(config: Config, points: Points) -> Config | None:
    """Return `config` with each value replaced by the nearest of the space, None if the result is
    not a point."""
    if set(config) != set(points.names):
        return None
    near = {
        name: _nearest(config[name], values)
        for name, values in zip(points.names, points.values, strict=True)
    }
    nearest = FrozenDict(near)
    return None if points.index(nearest) is None else nearest


def _nearest(value: ConfigValue, values: tuple[ConfigValue, ...]) -> ConfigValue:
    if value in values or isinstance(value, str | bool):
        return value
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return min(numbers, key=lambda v: _doublings(v, value), default=value)


def _doublings(one: float, other: float) -> float:
    if one <= 0 or other <= 0:
        return abs(one - other)
    return abs(math.log2(one / other))


# A search ends after this many failed candidates without a success.
MAX_FAILURES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The candidates per batch, and the number of batches in progress: with two, one is compiled
    while the other is timed."""

    batch: int = 4
    ahead: int = 1


class Session:
    """The search of one plan on one device. Setting `stop` ends it after the current batch."""

    def __init__(
        self,
        plan: TunePlan,
        info: DeviceInfo,
        journal: Journal,
        *,
        pipeline: Pipeline | None = None,
        winners: Iterable[Winner] = (),
    ) -> None:
        self.plan = plan
        self.info = info
        self.journal = journal
        self.stop = False
        self.best: Trial | None = None
        self.best_s: float | None = None  # includes results not yet reported to the search
        self._failures = 0
        # Without finals: a search that is continued after a final would have fewer minutes left.
        self._costs: dict[tuple[str, str, str, str], float] = {}
        if plan.arch and plan.arch != info.arch:
            raise UsageError(
                f"{plan.name} was planned for {plan.arch}, and {info.name} is {info.arch}",
                hint="run it on such a device, or plan for this one in another folder",
            )
        self._space = space = space_of(plan, info)
        pipeline = pipeline or Pipeline()
        starts = [*([space.default] if space.default else []), *space.seeds]
        if journal.header is None:
            starts += starts_from(plan, info.arch, winners, self._points)
        self.header = journal.begin(
            Header(
                plan=search_digest(plan),
                space=digest(*(f"{n}={v!r}" for n, v in space.parameters.items()))[:16],
                problem=plan.problem.key,
                backend=plan.backend,
                version=library_version(plan.backend),
                kernelmark_version=kernelmark_version(),
                arch=info.arch,
                model=info.model,
                device=info.name,
                batch=pipeline.batch,
                ahead=pipeline.ahead,
                starts=tuple(starts),
                at=now(),
            )
        )
        self._evaluator = Evaluator(plan, info, journal)
        for trial in journal.trials:
            self._notice(trial)

    @cached_property
    def _points(self) -> Points:
        """The points of the space, listed when needed: this can take a second, and a plan that is
        done does not need them."""
        return Points.of(self._space)

    @property
    def limit(self) -> int:
        """The number of candidates that the search may evaluate."""
        return min(self.plan.budget.evaluations, len(self._points))

    @property
    def done(self) -> Outcome | None:
        """The outcome, if the journal has one and the plan has not changed since."""
        last = self.journal.finished
        if last is None or last.plan != plan_digest(self.plan):
            return None
        return weighed(last.outcome, self.plan)

    @property
    def steps(self) -> list[str]:
        """The names of the fidelities of candidates, in order."""
        return [step.name for step in self._evaluator.steps]

    def is_new(self, trial: Trial) -> bool:
        """Return whether this is the first trial of a candidate."""
        own = not trial.backend and not trial.problem
        return own and trial.step in (COMPILE, self.steps[0])

    def record(self, trial: Trial) -> None:
        """Write the trial of a request to the journal."""
        self.journal.record(trial)
        self._notice(trial)

    def _notice(self, trial: Trial) -> None:
        if trial.of_search:
            self._costs[trial.key] = trial.cost_s
        if trial.ok and not trial.problem and not trial.backend and trial.step in self.steps:
            self.best_s = min(self.best_s or math.inf, trial.seconds or math.inf)

    def work(self) -> Work[Outcome | None]:
        """Run the search and the final; return None if stopped without a successful candidate."""
        yield from self._search()
        # Includes candidates of an earlier search with a larger budget.
        reached = self.journal.reached(self.steps)
        # Read from the file: `retry_failed` drops trials that a lowered budget may not repeat.
        known = candidates(load(self.journal.path)[1])
        if any(trial.ok for trial in reached):
            outcome = yield from finals(self.plan, self.info, self.journal, reached, known)
        elif self.stop:
            return None
        else:
            outcome = nothing_found(self.plan, self.info, self.journal, known)
        # A stopped or disturbed session is continued by the next run.
        asked = "" if self.stop or outcome.disturbed else plan_digest(self.plan)
        decision = decision_digest(self.plan)
        self.journal.finish(Finished(plan=asked, decision=decision, outcome=outcome))
        return outcome

    def _search(self) -> Work[None]:
        numbers = (self._points.index(config) for config in self.header.starts)
        search = strategies.registry.get(self.plan.strategy).begin(
            self._points,
            budget=self.limit,
            seed=self.plan.seed,
            starts=[number for number in numbers if number is not None],
        )
        batches: deque[list[int]] = deque()
        asked = 0
        while not self._over:
            while len(batches) < self.header.ahead and asked < self.limit:
                batch = search.ask(min(self.header.batch, self.limit - asked))
                if not batch:
                    break
                asked += len(batch)
                batches.append(batch)
            if not batches:
                return
            batch = batches.popleft()
            ahead = [self._points.config(point) for later in batches for point in later]
            trials = yield from self._evaluator.batch(self._configs(batch), ahead)
            for point, trial in zip(batch, trials, strict=True):
                search.tell(point, trial.seconds if trial.ok else None)
                self._learn(trial)

    def _configs(self, batch: list[int]) -> list[Config]:
        return [self._points.config(point) for point in batch]

    def _learn(self, trial: Trial) -> None:
        if not trial.ok or trial.seconds is None:
            self._failures += 1
        elif self.best is None or trial.seconds < (self.best.seconds or 0.0):
            self.best = trial

    @property
    def _over(self) -> bool:
        if self.best is None and self._failures >= MAX_FAILURES:
            return True
        return self.stop or minutes_spent(self.plan, self.cost_s)

    @property
    def cost_s(self) -> float:
        """Seconds that the search has used for compiling and timing."""
        return sum(self._costs.values())


def library_version(backend: str) -> str:
    """Return the version of a backend's library, "" if it is not available."""
    library = backends.find(backend)
    return "" if library.available() is not None else library.version()
