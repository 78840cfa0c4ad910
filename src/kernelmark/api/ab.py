"""Two sides compared: environments captured, rounds measured, both sides stored as runs."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelmark.api.reading import check_name
from kernelmark.api.roofs import known_roofs
from kernelmark.compare.fail_on import FailOn
from kernelmark.core.environment import Environment
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.exit_codes import INTERRUPTED, NOTHING, REGRESSION, SOME_FAILED
from kernelmark.core.reason import Reason
from kernelmark.core.result import Run, RunState
from kernelmark.core.roof import Roof
from kernelmark.core.stopping import interruptible
from kernelmark.core.verdict import VerdictStatus
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
    compile_ahead,
    local_opener,
)
from kernelmark.runners.alive import hold_run_locks
from kernelmark.runners.environments import Side, environment_of
from kernelmark.runners.events import Waiting
from kernelmark.runners.jobs import threads_of
from kernelmark.runners.possible import flag_impossible
from kernelmark.runners.targets import find
from kernelmark.stores import new_run_id

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

Environments = tuple[Environment, Environment]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbPlan:
    """What is compared, where, and when to stop."""

    sides: tuple[Side, Side]
    pairs: tuple[Pair, ...]
    device: str
    rule: Rule
    suite: str = ""
    label: str = ""
    timeout_s: float = 300.0
    budget_s: float | None = None  # after which pairs that are still open stay unsure
    jobs: int = 0  # host cores that compile before the first round

    def __post_init__(self) -> None:
        check_name(self.label)

    @property
    def names(self) -> tuple[str, str]:
        return self.sides[0].name, self.sides[1].name

    def budget(self, spent_s: float = 0.0) -> Budget:
        """The seconds that it may take, of which `spent_s` have passed already."""
        return Budget(seconds=math.inf if self.budget_s is None else self.budget_s, before=spent_s)


def outcome(report: AbReport, limits: FailOn | None = None) -> int:
    """The exit code of a comparison; `limits` are what counts as a regression."""
    if report.base.state is RunState.INTERRUPTED:
        return INTERRUPTED
    if failing(report, limits):
        return REGRESSION
    if any(row.base.status.failed and row.head.status.failed for row in report.rows):
        return SOME_FAILED
    # Without rounds only a failure of one side is a verdict; that is none on the unmeasured pairs.
    judged = [row for row in report.rows if _judged(row)]
    if report.unmeasured:
        judged = [row for row in judged if row.paired is not None]
    return 0 if judged else NOTHING


def _judged(row: Row) -> bool:
    """Whether there is a verdict, if only that the rounds do not decide; not if the time ended
    before the first look."""
    if row.status is VerdictStatus.UNSURE:
        return row.paired is not None
    return row.status is not VerdictStatus.IGNORED


def failing(report: AbReport, limits: FailOn | None = None) -> list[Row]:
    """The rows that make a comparison fail."""
    wanted = limits or FailOn()
    pairs = zip(report.rows, report.verdicts(), strict=True)
    return [row for row, verdict in pairs if verdict in wanted]


def captured(plan: AbPlan) -> Environments:
    """Both environments as their own workers see them."""

    def of(place: int) -> Environment:
        backends = dict.fromkeys(pair.cases[place].backend for pair in plan.pairs)
        return environment_of(plan.sides[place], plan.device, list(backends))

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
    """Measure until every pair has its verdict. Ctrl-C gives what there is, in runs whose state
    is `interrupted`. The runs are labelled `LABEL-side`. `opener` measures elsewhere than in
    workers of this machine; `budget` is one that is being spent already, else that of the plan
    begins now."""
    if not plan.pairs:
        raise NothingToDo("there is nothing to compare")
    runs = _Runs(plan, environments, store, argv)
    roofs = known_roofs(store, [plan.device])
    with hold_run_locks(runs.ids if store is not None else []):
        try:
            return _measured(plan, runs, roofs, on_event, opener, budget or plan.budget())
        except BaseException as error:
            # What was asked for wrongly leaves no run behind.
            if runs.begun or not isinstance(error, UsageError):
                with contextlib.suppress(KernelmarkError):  # it may be the store that fails
                    runs.finished(RunState.INTERRUPTED)
            raise


def _measured(
    plan: AbPlan,
    runs: _Runs,
    roofs: Sequence[Roof],
    on_event: OnEvent | None,
    opener: Opener | None,
    budget: Budget,
) -> AbReport:
    info = find(plan.device)[1]
    threads = threads_of(plan.pairs[0].base, info)
    tell: Callable[..., None] = on_event or (lambda event: None)

    def wait(holder: str) -> None:
        tell(Waiting(device=plan.device, holder=holder))

    state = RunState.DONE
    experiment = Experiment(
        plan.pairs,
        plan.rule,
        opener or local_opener(plan.sides, plan.device, plan.timeout_s, threads, wait),
        judge=lambda result: flag_impossible(result, roofs, info),
        budget=budget,
    )
    try:
        for place in (0, 1) if plan.jobs else ():
            cases = [pair.cases[place] for pair in plan.pairs]
            compile_ahead(plan.sides[place], cases, plan.device, plan.jobs)
        with interruptible() as guard, contextlib.closing(experiment.events()) as events:
            for event in _sifted(events, plan.names):
                with guard.finishing():
                    runs.begin()
                    if isinstance(event, Row):
                        runs.keep(event)
                tell(event)
    except KeyboardInterrupt:
        state = RunState.INTERRUPTED
    for row in experiment.open_rows():
        runs.keep(row)
        tell(row)
    return runs.finished(state)


def _sifted(events: Iterator[Event], names: tuple[str, str]) -> Iterator[Event]:
    """Yield the events; raise if a side refuses its config for every pair: that is a mistake in
    the command, not a regression. Only a backend's worker can check the names of its options, so
    refusals are kept until the first event that is none."""
    held: list[Event] = []
    for event in events:
        held.append(event)
        measured = isinstance(event, Measured) and event.ratio is not None
        if measured or (isinstance(event, Row) and not _refusals(event)):
            break
    else:
        _refuse_typo([event for event in held if isinstance(event, Row)], names)
    yield from held
    yield from events


def _refuse_typo(rows: Sequence[Row], names: tuple[str, str]) -> None:
    for place, name in enumerate(names):
        if rows and all(place in _refusals(row) for row in rows):
            cause = (rows[0].base, rows[0].head)[place].error
            raise UsageError(
                Reason("config-refused", side=name, cause=cause),
                hint="look at the names given by --config; nothing was compared",
            )


def _refusals(row: Row) -> list[int]:
    """The sides (0 is base) that do not know a name of their config."""
    results = (row.base, row.head)
    return [i for i, one in enumerate(results) if one.error.root.code == "config-unknown-name"]


class _Runs:
    """The two runs while they go on."""

    def __init__(
        self,
        plan: AbPlan,
        environments: Environments,
        store: Store | None,
        argv: Sequence[str],
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
                argv=tuple(argv) or ("ab",),  # by which history knows it
                cases=len(plan.pairs),
            )
            for name, environment in zip(plan.names, environments, strict=True)
        ]

    def begin(self) -> None:
        """Let the store know of them, once."""
        if self._store is not None and not self.begun:
            for run in self._runs:
                self._store.add_run(run)
        self.begun = True

    @property
    def ids(self) -> list[str]:
        return [run.id for run in self._runs]

    def keep(self, row: Row) -> None:
        self._rows.append(row)
        if self._store is not None:
            for run, result in zip(self._runs, (row.base, row.head), strict=True):
                self._store.add_results(run.id, [result])

    def finished(self, state: RunState) -> AbReport:
        """Store the final state, and return the report. Interrupted runs without a result are
        deleted."""
        ended = [dataclasses.replace(run, state=state, finished=time.time()) for run in self._runs]
        if state is RunState.INTERRUPTED and not self._rows:
            if self._store is not None and self.begun:
                for run in ended:
                    self._store.delete_run(run.id)
        elif self._store is not None:
            self.begin()
            for run in ended:
                self._store.update_run(run)
        return AbReport(
            names=self._plan.names,
            base=ended[0],
            head=ended[1],
            rule=self._plan.rule,
            rows=tuple(self._rows),
        )
