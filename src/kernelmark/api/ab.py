"""Compare two sides: capture both environments, measure in rounds, store each side as a run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelmark.api.results import check_name
from kernelmark.api.roofs import known_roofs
from kernelmark.compare.alarms import FailOn
from kernelmark.core.environment import Environment
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.result import Run, RunState
from kernelmark.core.verdict import INTERRUPTED, NOTHING, REGRESSION, SOME_FAILED, VerdictStatus
from kernelmark.host.signals import interruptible
from kernelmark.report.ab import AbReport
from kernelmark.runners.ab import (
    Budget,
    Event,
    Experiment,
    Measured,
    OnEvent,
    Opener,
    Pair,
    Row,
    Rule,
    Side,
    compile_ahead,
    environment_of,
    local_opener,
)
from kernelmark.runners.events import Waiting
from kernelmark.runners.forecast import Forecast
from kernelmark.runners.impossible import flag_impossible
from kernelmark.runners.jobs import threads_of
from kernelmark.runners.locks import hold_run_locks
from kernelmark.runners.targets import find
from kernelmark.stores import new_run_id

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

Environments = tuple[Environment, Environment]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbPlan:
    """The pairs to compare, the device, and when to stop."""

    sides: tuple[Side, Side]
    pairs: tuple[Pair, ...]
    device: str
    rule: Rule
    suite: str = ""
    label: str = ""
    timeout_s: float = 300.0
    budget_s: float | None = None  # pairs that are undecided after this time stay `unsure`
    jobs: int = 0  # host cores that compile before the first round; 0: compile when needed

    def __post_init__(self) -> None:
        check_name(self.label)

    @property
    def names(self) -> tuple[str, str]:
        return self.sides[0].name, self.sides[1].name

    def budget(self, spent_s: float = 0.0) -> Budget:
        """Return the time budget, of which `spent_s` seconds have passed already."""
        return Budget(seconds=math.inf if self.budget_s is None else self.budget_s, before=spent_s)


def outcome(report: AbReport, limits: FailOn | None = None) -> int:
    """Return the exit code of a comparison; `limits` define what counts as a regression."""
    if report.base.state is RunState.INTERRUPTED:
        return INTERRUPTED
    if failing(report, limits) or (report.unmeasured and limits and limits.undecided):
        return REGRESSION
    if any(row.base.status.failed and row.head.status.failed for row in report.rows):
        return SOME_FAILED
    # Without rounds only a failure of one side is a verdict; that is none on the unmeasured pairs.
    judged = [row for row in report.rows if _judged(row)]
    if report.unmeasured:
        judged = [row for row in judged if row.paired is not None]
    return 0 if judged else NOTHING


def _judged(row: Row) -> bool:
    """Return whether the row was judged. `unsure` counts unless time ran out before the first
    look."""
    if row.status is VerdictStatus.UNSURE:
        return row.paired is not None
    return row.status is not VerdictStatus.IGNORED


def failing(report: AbReport, limits: FailOn | None = None) -> list[Row]:
    """Return the rows that make a comparison fail."""
    counting = limits or FailOn()
    pairs = zip(report.rows, report.verdicts(), strict=True)
    return [row for row, verdict in pairs if verdict in counting]


def captured(plan: AbPlan) -> Environments:
    """Return the environments of base and head, each captured by a worker of that side."""

    def of(side: int) -> Environment:
        backends = dict.fromkeys(pair.cases[side].backend for pair in plan.pairs)
        return environment_of(plan.sides[side], plan.device, list(backends))

    return of(0), of(1)


def compare_sides(
    plan: AbPlan,
    environments: Environments,
    *,
    store: Store | None = None,
    argv: Sequence[str] = (),
    on_event: OnEvent | None = None,
    opener: Opener | None = None,
    budget: Budget | None = None,
) -> AbReport:
    """Measure in rounds until every pair has a verdict. The two runs are labelled `LABEL-side`.

    Ctrl-C returns the rows so far, in runs whose state is `interrupted`. `opener` replaces the
    workers of this machine. `budget` continues a budget that has started already (default: the
    plan's budget, starting now)."""
    if not plan.pairs:
        raise NothingToDo("there is nothing to compare")
    runs = _Runs(plan, environments, store, argv)
    roofs = known_roofs(store, [plan.device])
    info = find(plan.device)[1]
    threads = threads_of(plan.pairs[0].base, info)
    notify: Callable[..., None] = on_event or (lambda event: None)

    def wait(holder: str) -> None:
        notify(Waiting(device=plan.device, holder=holder))

    experiment = Experiment(
        plan.pairs,
        plan.rule,
        opener or local_opener(plan.sides, plan.device, plan.timeout_s, threads, wait),
        judge=lambda result: flag_impossible(result, roofs, info),
        budget=budget or plan.budget(),
    )
    with hold_run_locks(runs.ids if store is not None else []):
        try:
            return _measured(plan, experiment, runs, notify)
        except BaseException as error:
            # A wrong request leaves no run behind.
            if runs.begun or not isinstance(error, UsageError):
                with contextlib.suppress(KernelmarkError):  # the error may come from the store
                    runs.finished(RunState.INTERRUPTED)
            raise


def _measured(
    plan: AbPlan, experiment: Experiment, runs: _Runs, notify: Callable[..., None]
) -> AbReport:
    state = RunState.DONE
    try:
        for side in (0, 1) if plan.jobs else ():
            cases = [pair.cases[side] for pair in plan.pairs]
            compile_ahead(plan.sides[side], cases, plan.device, plan.jobs)
        with interruptible() as guard, contextlib.closing(experiment.events()) as events:
            for event in _check_configs(events, plan.names):
                with guard.finishing():
                    runs.begin()
                    if isinstance(event, Row):
                        runs.keep(event)
                notify(event)
    except KeyboardInterrupt:
        state = RunState.INTERRUPTED
    for row in experiment.open_rows():
        runs.keep(row)
        notify(row)
    return runs.finished(state)


def _check_configs(events: Iterator[Event], names: tuple[str, str]) -> Iterator[Event]:
    """Yield the events; raise UsageError if a side refuses its config for every pair: that is a
    mistake in the command, not a regression. Only a backend's worker can check option names, so
    refusals are buffered until the first other event."""
    buffered: list[Event] = []
    for event in events:
        buffered.append(event)
        measured = isinstance(event, Measured) and event.ratio is not None
        if measured or (isinstance(event, Row) and not _refusals(event)):
            break
    else:
        _refuse_typo([event for event in buffered if isinstance(event, Row)], names)
    yield from buffered
    yield from events


def _refuse_typo(rows: Sequence[Row], names: tuple[str, str]) -> None:
    for side, name in enumerate(names):
        if rows and all(side in _refusals(row) for row in rows):
            cause = (rows[0].base, rows[0].head)[side].error
            raise UsageError(
                f"{name} refuses its config for every problem: {cause}",
                hint="look at the names given by --config; nothing was compared",
            )


def _refusals(row: Row) -> list[int]:
    """Return the sides (0: base, 1: head) that refused an unknown name in their config."""
    results = (row.base, row.head)
    return [
        i for i, result in enumerate(results) if result.error.root.code == "config-unknown-name"
    ]


class _Runs:
    """The two runs of a comparison in progress."""

    def __init__(
        self, plan: AbPlan, environments: Environments, store: Store | None, argv: Sequence[str]
    ) -> None:
        self._plan = plan
        self._store = store
        self._rows: list[Row] = []
        self.begun = False
        label = plan.label or "ab"
        self._runs = [
            Run(
                id=new_run_id(),
                started=time.time(),
                environment=environment,
                label=f"{label}-{name}",
                suite=plan.suite,
                argv=tuple(argv) or ("ab",),  # history leaves out runs of `ab` by this
                cases=len(plan.pairs),
            )
            for name, environment in zip(plan.names, environments, strict=True)
        ]

    def begin(self) -> None:
        """Add both runs to the store, once."""
        if self._store is not None and not self.begun:
            for run in self._runs:
                self._store.add_run(run)
        self.begun = True

    @property
    def ids(self) -> list[str]:
        return [run.id for run in self._runs]

    def keep(self, row: Row) -> None:
        self.begin()
        self._rows.append(row)
        if self._store is not None:
            for run, result in zip(self._runs, (row.base, row.head), strict=True):
                self._store.add_results(run.id, [result])

    def finished(self, state: RunState) -> AbReport:
        """Store the final state, and return the report. Runs without a result are deleted; stored
        runs that lack some, as the budget ended, are interrupted."""
        ended = [dataclasses.replace(run, state=state, finished=time.time()) for run in self._runs]
        if self._store is not None and self.begun:
            stored = state if len(self._rows) == len(self._plan.pairs) else RunState.INTERRUPTED
            for run in ended:
                if self._rows:
                    self._store.update_run(dataclasses.replace(run, state=stored))
                else:
                    self._store.delete_run(run.id)
        return AbReport(
            names=self._plan.names,
            base=ended[0],
            head=ended[1],
            rule=self._plan.rule,
            rows=tuple(self._rows),
        )


# Start-up time of a round divided by the load time of the slower side, before any round was
# measured: both processes start at the same time and compete for cores.
_SHARED = 1.2


class Rounds:
    """A model of a comparison's duration. A round consists of starting and loading both sides,
    learned in seconds, and of its pairs, learned as a factor over the model of their cases. Both
    are independent of what other commands learn."""

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
        self.budget = budget or plan.budget()
        self._clock = clock
        machine = Forecast.of_machine(info)
        self._means = machine.means
        cases = [case for pair in plan.pairs for case in pair.cases]
        sides = [{pair.cases[side].backend for pair in plan.pairs} for side in (0, 1)]
        self._load_s = max(map(machine.load_s, sides))
        model = Forecast(info)
        self._pair_s = sum(map(model.seconds, cases)) / max(1, self.pairs)
        backends = "+".join(sorted(set.union(*sides)))
        self._start = f"start/ab/{backends}"
        self._around = f"{info.model or info.kind}/{backends}/round"
        self._factor = f"{info.model or info.kind}/{backends}/pair"
        kernels = Counter(case.backend for case in cases)
        self._compiled_s = machine.compile_ahead_s(kernels, plan.jobs) if plan.jobs else 0.0
        self._begun = self._paired = clock()
        self._first_s = 0.0  # seconds of the current round up to the end of its first pair

    @property
    def round_s(self) -> float:
        """Expected seconds of a round of the undecided pairs."""
        around_s = self._means.get(self._around)
        around_s = self._load_s * _SHARED if around_s is None else around_s
        return around_s + self.pairs * self._expected_pair_s

    @property
    def _expected_pair_s(self) -> float:
        factor = self._means.get(self._factor)
        return self._pair_s * (1.0 if factor is None else factor)

    def learn_start(self, seconds: float) -> None:
        """Learn the seconds that the command took outside its rounds."""
        self._means.learn(self._start, seconds)

    @property
    def start_s(self) -> float | None:
        """Expected seconds before the first round; None before the first such command."""
        return self._means.get(self._start)

    @property
    def whole_s(self) -> tuple[float, float]:
        """Expected seconds of the command up to its first look, and up to its last."""
        start = self.start_s
        # Capturing the environments loads both sides.
        start = self._load_s if start is None else start
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

    def _learn(self, pairs: int, after_first_s: float) -> None:
        """Learn from a round whose pairs, except for the first, took `after_first_s`."""
        pair_s = self._expected_pair_s
        if pairs > 1 or pair_s > self._first_s:
            pair_s = after_first_s / (pairs - 1) if pairs > 1 else self._first_s
            self._means.learn(self._factor, pair_s / self._pair_s)
        self._means.learn(self._around, max(0.0, self._first_s - pair_s))

    def save(self) -> None:
        self._means.save()
