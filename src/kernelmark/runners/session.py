"""Run cases and store each result immediately, so that no finished case is lost."""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kernelmark.core.environment import difference
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, ResultSet, Run, RunState
from kernelmark.host.signals import caught_stops, interruptible
from kernelmark.runners.capture import merge_worker_environment
from kernelmark.runners.events import CaseFinished, EnvironmentRead, Event, Note, Runner
from kernelmark.runners.impossible import flag_impossible

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

UNKNOWN_NAME = "config-unknown-name"

OnEvent = Callable[[Event], None]


def run_cases(
    *,
    run: Run,
    cases: Sequence[Case],
    runner: Runner,
    store: Store | None = None,
    on_event: OnEvent | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    refuse_config: bool = False,
    roofs: Sequence[Roof] = (),
    problems: int | None = None,
) -> ResultSet:
    """Run `cases`, storing each result before the next case begins on its device.

    Ctrl-C (or SIGTERM, SIGHUP, SIGQUIT) ends the workers and returns the results so far, in state
    `interrupted`. A second signal, or an error, raises; the state is stored in either case. With
    `resume`, `run` is already stored, and cases with a result are not measured again. That includes
    failures, which would most likely recur; `retry_failed` measures them again. With
    `refuse_config`, a config whose names no case accepts raises UsageError and leaves no run in the
    store. A result that `roofs` show to be faster than its device can be is stored as
    `impossible`. Of the results before `resume`, `problems` limits what is read and returned, as in
    `Store.result_set`.
    """
    kept: list[Result] = []
    done: set[str] = set()
    if resume and store is not None:
        stored = store.result_set(run.id, problems).results
        again = {r.case.id for r in stored if retry_failed and r.status.failed}
        run = _resumed(run, store.last_result(run.id))
        kept = [result for result in stored if result.case.id not in again]
        done = store.finished(run.id) - again
    # A runner that refuses the cases raises here, before the run is stored.
    events = runner.run([case for case in cases if case.id not in done])
    run = dataclasses.replace(run, cases=len({case.id for case in cases}), state=RunState.RUNNING)
    configured = {case.id for case in cases if case.config}
    session = _Session(
        run=run,
        store=store,
        on_event=on_event or (lambda event: None),
        retrying=resume and retry_failed,
        roofs=roofs,
        configured=len(configured) if refuse_config and not resume else 0,
        keeps_environment=bool(done) and run.environment.recorded,
    )
    with caught_stops():
        try:
            if store is not None:
                (store.update_run if resume else store.add_run)(run)
            run = session.finish(session.drive(events))
        except BaseException as error:
            if isinstance(error, UsageError) and error.message.code == UNKNOWN_NAME:
                if store is not None:
                    store.delete_run(run.id)
                raise
            # If the store refused the run, it may contain another run with the same id.
            if session.begun or not isinstance(error, KernelmarkError):
                with suppress(KernelmarkError):  # the error may come from the store itself
                    session.finish(RunState.INTERRUPTED)
            raise
    # In the order of `cases`: several devices run the longest cases first.
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys(case.id for case in cases))}
    results = sorted([*kept, *session.results], key=lambda r: ranks.get(r.case.id, len(ranks)))
    return ResultSet(run=run, results=tuple(results))


def _resumed(run: Run, last: Result | None) -> Run:
    """Return the run as resumed now, with the pause since its end added. A killed run has no stored
    end: it ended with its last result or when it was last resumed, which `finished` holds."""
    now = time.time()
    last_end = last.started + last.cost.get("total", 0.0) if last is not None else 0.0
    paused_s = now - max(run.started, run.finished or 0.0, last_end)
    return dataclasses.replace(run, finished=now, paused_s=run.paused_s + max(0.0, paused_s))


def unknown_config_error(reason: Reason) -> UsageError:
    """Return the error for a run in which no case accepts the names of its config."""
    close = difflib.get_close_matches(reason.fields["name"], reason.fields["known"], 1)
    meant = f"did you mean {close[0]}? " if close else ""
    return UsageError(reason, hint=f"{meant}nothing was measured or stored")


def _refuse_unknown_config(events: Iterator[Event], configured: int) -> Iterator[Event]:
    """Yield the events. Raise UsageError if all `configured` cases refuse the names of their
    config: that is a mistake in the request, not a result. Most backends check the names in the
    worker, so refusals are delayed until a case accepts its config."""
    refusals: list[Event] = []
    for event in events:
        if not (configured and isinstance(event, CaseFinished) and event.result.case.config):
            yield event
        elif (reason := event.result.error.root).code == UNKNOWN_NAME:
            refusals.append(event)
            if len(refusals) == configured:
                raise unknown_config_error(reason)
        else:
            configured = 0
            yield from refusals
            yield event


class _Session:
    """The state of a run in progress. `configured` is the number of cases of which at least one
    must accept the names of its config; 0 disables the check. `keeps_environment`: the run was
    resumed with results of the environment that is stored."""

    def __init__(
        self,
        *,
        run: Run,
        store: Store | None,
        on_event: OnEvent,
        retrying: bool,
        roofs: Sequence[Roof],
        configured: int,
        keeps_environment: bool,
    ) -> None:
        self.run = run
        self.results: list[Result] = []
        self.begun = False
        self._environment_read = False
        self._store = store
        self._on_event = on_event
        self._retrying = retrying
        self._roofs = roofs
        self._configured = configured
        self._keeps_environment = keeps_environment

    def drive(self, events: Iterator[Event]) -> RunState:
        self.begun = True
        try:
            with interruptible() as guard:
                for event in _refuse_unknown_config(events, self._configured):
                    with guard.finishing():
                        if isinstance(event, CaseFinished):
                            event = dataclasses.replace(event, result=self._checked(event.result))
                            self._store_result(event.result)
                        elif isinstance(event, EnvironmentRead):
                            self._on_environment(event)
                    self._on_event(event)
        except KeyboardInterrupt:
            return RunState.INTERRUPTED
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()
        return RunState.DONE

    def finish(self, state: RunState) -> Run:
        """Store the run's final state, and return the run."""
        environment = self.run.environment
        if not (self._environment_read or self._keeps_environment):
            # Versions and variables as this process sees them differ from those of a worker.
            environment = dataclasses.replace(environment, libraries={}, variables={})
        self.run = dataclasses.replace(
            self.run, state=state, finished=time.time(), environment=environment
        )
        if self._store is not None:
            self._store.update_run(self.run)
        return self.run

    def _checked(self, result: Result) -> Result:
        infos = (info for info in self.run.environment.devices if info.name == result.device)
        return flag_impossible(result, self._roofs, next(infos, None))

    def _store_result(self, result: Result) -> None:
        if self._store is not None:
            # A retried result also replaces a failure on another device.
            self._store.add_results(self.run.id, [result], alone=self._retrying)
        self.results.append(result)

    def _on_environment(self, event: EnvironmentRead) -> None:
        environment = merge_worker_environment(self.run.environment, event.environment)
        if self._keeps_environment:
            for what, before, now in difference(self.run.environment, environment):
                text = f"since this run began, {what} changed from {before!r} to {now!r}"
                self._on_event(Note(text=text))
            return
        self._environment_read = True
        self.run = dataclasses.replace(self.run, environment=environment)
        if self._store is not None:
            self._store.update_run(self.run)
