"""A session: cases through a runner into a store, so that nothing finished is ever lost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kernelmark.core.environment import difference
from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import Case, Result, ResultSet, Run, RunState
from kernelmark.core.roof import Roof
from kernelmark.core.stopping import caught_stops, interruptible
from kernelmark.runners.capture import refined
from kernelmark.runners.events import CaseFinished, EnvironmentSeen, Event, Note, Runner
from kernelmark.runners.possible import judged

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

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
    roofs: Sequence[Roof] = (),
) -> ResultSet:
    """Run `cases`, storing each result before the next begins on its device.

    Ctrl-C (or SIGTERM, SIGHUP, SIGQUIT) ends the workers and gives what there is, in state
    `interrupted`; a second one raises at once, and so does an error, both with the store told. With
    `resume`, `run` is one that the store knows: what it has a result for is not measured again,
    failures included, because a failure is a result too and would most likely fail again;
    `retry_failed` asks for those once more. A result that `roofs` show to be faster than its
    device can be is stored as `impossible`.
    """
    kept: list[Result] = []
    if resume and store is not None:
        kept = _kept(run, store, retry_failed=retry_failed)
    have = {result.case.id for result in kept}
    # A runner that refuses the cases does so here, before the store knows of a run.
    events = runner.run([case for case in cases if case.id not in have])
    run = dataclasses.replace(run, cases=len({case.id for case in cases}), state=RunState.RUNNING)
    session = _Session(
        run=run,
        store=store,
        on_event=on_event or (lambda event: None),
        retrying=resume and retry_failed,
        roofs=roofs,
    )
    with caught_stops():
        try:
            if store is not None:
                (store.update_run if resume else store.add_run)(run)
            run = session.ended(session.drive(events, keep_environment=bool(kept)))
        except BaseException as error:
            # A store that refuses the run may hold another one of the same id.
            if session.begun or not isinstance(error, KernelmarkError):
                with suppress(KernelmarkError):  # what ended the run may be the store itself
                    session.ended(RunState.INTERRUPTED)
            raise
    # Several devices work off the longest cases first, and a resumed run has some already.
    asked = list(dict.fromkeys(case.id for case in cases))
    places = {name: place for place, name in enumerate(asked)}
    found = sorted([*kept, *session.results], key=lambda r: places.get(r.case.id, len(asked)))
    return ResultSet(run=run, results=tuple(found))


def _kept(run: Run, store: Store, *, retry_failed: bool) -> list[Result]:
    stored = store.results(run.id)
    return [result for result in stored if not (retry_failed and result.status.failed)]


class _Session:
    """The state of a run while it goes on."""

    def __init__(
        self,
        *,
        run: Run,
        store: Store | None,
        on_event: OnEvent,
        retrying: bool,
        roofs: Sequence[Roof],
    ) -> None:
        self.run = run
        self.results: list[Result] = []
        self.begun = False
        self._store = store
        self._on_event = on_event
        self._retrying = retrying
        self._roofs = roofs

    def drive(self, events: Iterator[Event], *, keep_environment: bool) -> RunState:
        self.begun = True
        try:
            with interruptible() as guard:
                for event in events:
                    with guard.finishing():
                        if isinstance(event, CaseFinished):
                            event = dataclasses.replace(event, result=self._judged(event.result))
                            self._keep(event.result)
                        elif isinstance(event, EnvironmentSeen):
                            self._see(event, keep=keep_environment)
                    self._on_event(event)
        except KeyboardInterrupt:
            return RunState.INTERRUPTED
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()
        return RunState.DONE

    def ended(self, state: RunState) -> Run:
        """The run as it ended, and as it is stored."""
        self.run = dataclasses.replace(self.run, state=state, finished=time.time())
        if self._store is not None:
            self._store.update_run(self.run)
        return self.run

    def _judged(self, result: Result) -> Result:
        infos = (info for info in self.run.environment.devices if info.name == result.device)
        return judged(result, self._roofs, next(infos, None))

    def _keep(self, result: Result) -> None:
        if self._store is not None:
            # What it takes the place of may be the failure of another device.
            self._store.add_results(self.run.id, [result], alone=self._retrying)
        self.results.append(result)

    def _see(self, event: EnvironmentSeen, *, keep: bool) -> None:
        environment = refined(self.run.environment, event.environment)
        if keep:
            for what, before, now in difference(self.run.environment, environment):
                text = f"since this run began, {what} changed from {before!r} to {now!r}"
                self._on_event(Note(text=text))
            return
        self.run = dataclasses.replace(self.run, environment=environment)
        if self._store is not None:
            self._store.update_run(self.run)
