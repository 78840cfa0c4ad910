"""Driver: many sessions over the devices and cores of this machine.

Each device times one case at a time. Cores compile what the sessions request next: while one
session's batch is compiled, another's is timed. Sessions open in a window over the list of plans,
longest first, so that the winners a session starts from depend on the list, and not on which
session ended first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelmark.core.errors import KernelmarkError
from kernelmark.core.metric import Roof
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Status
from kernelmark.runners.events import Note
from kernelmark.runners.forecast import work
from kernelmark.runners.impossible import flag_impossible
from kernelmark.runners.jobs import CompileCase, MeasureCase, compiles
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.locks import describe_others
from kernelmark.runners.pool import FINAL, CompileAhead, Finished, Phase, Returned, Slot, kernel_key
from kernelmark.runners.pool import Outcome as JobOutcome
from kernelmark.tune.plans.plan import TunePlan
from kernelmark.tune.records.journal import Journal, Trial, out_of_minutes
from kernelmark.tune.records.results import Outcome
from kernelmark.tune.search.evaluate import (
    Request,
    Round,
    Work,
    compiled_trial,
    static_reason,
    trial_of,
)
from kernelmark.tune.search.progress import Began, Ended, Event, Expected, Retired, Tally, Tried
from kernelmark.tune.search.session import Pipeline, Session, Winner

# Sessions that are open on a device at once: enough that one of them has something to time.
OPEN = 6
_LARGEST_BATCH = 16

OnEvent = Callable[[Event], None]


@dataclass(slots=True, kw_only=True, eq=False)
class Live:
    """An open session, and the requests of its round that are not done yet."""

    session: Session
    work: Work[Outcome | None]
    slot: Slot
    round: Round = field(default_factory=lambda: Round(requests=()))
    waiting: list[Request] = field(default_factory=list)
    timed: Request | None = None

    @property
    def name(self) -> str:
        return self.session.plan.name

    @property
    def engaged(self) -> bool:
        """Whether a round has begun whose requests must be timed in succession."""
        return self.round.together and 0 < len(self.waiting) < len(self.round.requests)


class Driver:
    """One tuning run. `outcomes` has the outcomes by plan, `retired` the plans that cannot be
    tuned, with the reason; a plan in neither was not reached in time. Of the plans with an outcome,
    `cut` lists those whose search ended with the time of the run, and `spent` those whose search
    ended with the minutes of the plan, with the number of candidates that the plan requests."""

    def __init__(
        self,
        plans: Sequence[TunePlan],
        runner: LocalRunner,
        trials: Path,
        *,
        minutes: float = 0.0,
        retry_failed: bool = False,
        on_event: OnEvent | None = None,
        roofs: Sequence[Roof] = (),
    ) -> None:
        self.plans = sorted(plans, key=lambda plan: (-_cost(plan), plan.name))
        self.outcomes: dict[str, Outcome] = {}
        self.retired: dict[str, Reason] = {}
        self.cut: list[str] = []
        self.spent: dict[str, int] = {}
        self._trials = trials
        self._retry_failed = retry_failed
        self._roofs = tuple(roofs)
        self._emit: OnEvent = on_event or (lambda event: None)
        jobs = runner.jobs if any(compiles(plan.backend) for plan in plans) else 0
        self.pool = runner.pool(jobs)
        self._ahead = CompileAhead(self.pool)
        self._devices = self.pool.devices
        self._window = min(len(plans), OPEN * len(self._devices))
        self._pipeline = self._choose_pipeline(jobs, runner.infos[0].kind)
        self._live: list[Live] = []
        self._next = 0
        self._timing: dict[Slot, Live] = {}
        self._deadline = time.monotonic() + 60 * minutes if minutes else None
        self._tally = Tally(self.plans, self._deadline, runner.infos[0])

    def _choose_pipeline(self, jobs: int, kind: str) -> Pipeline:
        """Return batches small enough to learn between them, and large enough to keep every core
        busy."""
        sessions = max(1, self._window // len(self._devices))
        cores = max(1, jobs // len(self._devices))
        if kind == "cpu":
            return Pipeline(batch=max(2, min(cores, _LARGEST_BATCH)))
        if sessions == 1:
            return Pipeline(batch=max(2, min(cores, _LARGEST_BATCH)), ahead=2)
        return Pipeline(batch=max(2, min(-(-3 * cores // (2 * sessions)), _LARGEST_BATCH)))

    def run(self) -> None:
        """Tune until every plan has its outcome or time is up. All workers end with it."""
        try:
            self._open_sessions()
            self._emit(Expected(progress=self._tally.progress))
            for slot in self._devices:
                if others := describe_others(slot.info):
                    text = f"{slot.info.name} is in use by {others}: times may be disturbed"
                    self._emit(Note(text=text))
            while self._live:
                if self._out_of_time:
                    for live in self._live:
                        live.session.stop = True
                self._assign()
                if (outcome := self.pool.poll()) is not None:
                    self._on_outcome(outcome)
                self._open_sessions()
        finally:
            self._close()

    def _close(self) -> None:
        self.pool.close()
        self._tally.learn()
        for live in self._live:
            live.session.journal.close()

    # Sessions

    def _open_sessions(self) -> None:
        """Open as many sessions as the window allows. A session is opened after all sessions whose
        winners it may start from have ended, so that the search is the same on a faster machine."""
        while self._next < len(self.plans) and not self._out_of_time:
            before = self.plans[: max(0, self._next - self._window + 1)]
            if any(p.name not in self.outcomes and p.name not in self.retired for p in before):
                return
            self._next += 1
            self._open(self.plans[self._next - 1], [p.name for p in before])
            self._assign()  # listing a large space takes a while: keep the devices busy

    @property
    def _out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _open(self, plan: TunePlan, before: Sequence[str]) -> None:
        slot = self._freest()
        ended = [self.outcomes[name] for name in before if name in self.outcomes]
        winners = [_winner(outcome) for outcome in ended if outcome.tuned.config]
        journal = None
        try:
            journal = Journal(self._trials / f"{plan.name}.jsonl", retry_failed=self._retry_failed)
            session = Session(plan, slot.info, journal, pipeline=self._pipeline, winners=winners)
        except KernelmarkError as error:
            if journal is not None:
                journal.close()
            self._retire(plan.name, error)
            return
        live = Live(session=session, work=session.work(), slot=slot)
        self._live.append(live)
        if (done := session.done) is not None:
            self._end(live, done, fresh=False)
            return
        known = len(journal.reached(session.steps))
        self._tally.began(plan.name, known, session.limit)
        self._emit(Began(name=plan.name, device=slot.info.name, known=known, limit=session.limit))
        self._advance(live)

    def _freest(self) -> Slot:
        left = [slot for slot in self._devices if not slot.lost]
        return min(left, key=lambda slot: sum(live.slot is slot for live in self._live))

    def _advance(self, live: Live) -> None:
        """Continue a session to its next round, or to its outcome."""
        try:
            live.round = next(live.work)
        except StopIteration as stop:
            if stop.value is None:  # out of time before there was anything to compare
                self._forget(live)
            else:
                self._end(live, stop.value, fresh=True)
        except KernelmarkError as error:
            self._forget(live)
            self._retire(live.name, error)
        else:
            live.waiting = list(live.round.requests)

    def _end(self, live: Live, outcome: Outcome, *, fresh: bool) -> None:
        self._forget(live)
        self.outcomes[live.name] = outcome
        plan = live.session.plan
        if fresh and live.session.stop:
            self.cut.append(live.name)
        elif out_of_minutes(plan, live.session.journal.trials):
            self.spent[live.name] = plan.budget.evaluations
        self._tally.ended(outcome)
        self._emit(Ended(outcome=outcome, fresh=fresh, progress=self._tally.progress))

    def _forget(self, live: Live) -> None:
        live.session.journal.close()
        self._live.remove(live)
        self._ahead.forget(live.session.plan.problem.key)

    def _retire(self, name: str, error: KernelmarkError) -> None:
        reason = error.message
        if error.hint:
            reason = Reason(f"{reason}; {error.hint}")
        self.retired[name] = reason
        self._tally.retired(name)
        self._emit(Retired(name=name, reason=reason))

    # Assigning cases

    def _assign(self) -> None:
        while self._record_compiled():
            pass
        if not self._ahead.start(self._cases()):
            return
        for slot in self._devices:
            if slot.idle:
                self._time(slot)

    def _cases(self) -> Iterator[Case]:
        """Yield the cases to compile: first those that sessions wait for."""
        for live in self._live:
            yield from (request.case for request in live.waiting)
        for live in self._live:
            yield from live.round.ahead

    def _record_compiled(self) -> bool:
        """Record the trials that compiling alone decides. Return whether a session advanced."""
        advanced = False
        for live in list(self._live):
            for request in list(live.waiting):
                trial = self._decided_by_compiling(live, request)
                if trial is not None:
                    live.waiting.remove(request)
                    self._record(live, trial)
            if not live.waiting and live.timed is None:
                self._advance(live)
                advanced = True
        return advanced

    def _decided_by_compiling(self, live: Live, request: Request) -> Trial | None:
        """Return the trial of a candidate that does not compile or exceeds a limit of the device;
        None if it is not compiled yet or has to be timed."""
        compiled = self._ahead.result(kernel_key(request.case))
        if compiled is None:
            return None
        status, error = compiled.status, compiled.error
        if status is Status.OK:
            if request.step not in live.session.steps:
                return None  # a reference is timed even if it spills
            reason = static_reason(compiled.kernel.resources, live.slot.info)
            if reason is None:
                return None
            status, error = Status.SKIPPED, reason
        elif status not in FINAL:
            return None
        cost_s = self._compile_cost_s(request)
        return compiled_trial(request, status, error, compiled.kernel, cost_s, live.session.plan)

    def _compile_cost_s(self, request: Request) -> float:
        """Return the compile seconds of a case divided by the number of cores, at the first call
        only: several requests may share a kernel."""
        seconds = self._ahead.collect_cost_s(kernel_key(request.case))
        return seconds / max(1, len(self.pool.compilers))

    def _time(self, slot: Slot) -> None:
        """Submit the next case of an idle device: of a round that has begun, else of the oldest
        session."""
        mine = [live for live in self._live if live.slot is slot]
        for live in [live for live in mine if live.engaged] or mine:
            ready = [
                waiting for waiting in live.waiting if self._ahead.ready(kernel_key(waiting.case))
            ]
            if not ready or (live.round.together and len(ready) < len(live.waiting)):
                continue
            request = ready[0]
            live.waiting.remove(request)
            live.timed = request
            self._timing[slot] = live
            # Candidates are often wrong. One that wrote only into its own output leaves the worker
            # intact, and starting a new one takes longer than timing.
            job = MeasureCase(case=request.case, process=request.process, keep_wrong=True)
            self.pool.submit(slot, job)
            return

    # Handling outcomes

    def _on_outcome(self, outcome: JobOutcome) -> None:
        if isinstance(outcome, Phase):
            return
        if isinstance(outcome.job, CompileCase):
            self._ahead.on_outcome(outcome)
        else:
            live = self._timing.pop(outcome.slot)
            request, live.timed = live.timed, None
            assert request is not None
            if isinstance(outcome, Finished):
                self._on_timed(live, request, outcome)
            else:
                live.waiting.insert(0, request)
        if isinstance(outcome, Returned) and outcome.loss is not None:
            self._emit(outcome.loss)
            self._move_sessions(outcome.slot)

    def _on_timed(self, live: Live, request: Request, outcome: Finished) -> None:
        result = flag_impossible(outcome.value, self._roofs, outcome.slot.info)
        cost_s = self._compile_cost_s(request)
        self._record(live, trial_of(request, result, live.session.plan, cost_s))
        if not live.waiting:
            self._advance(live)

    def _record(self, live: Live, trial: Trial) -> None:
        session = live.session
        new, final = session.is_new(trial), trial.step.startswith("final")
        self._tally.tried(live.name, candidate=new, final=final)
        session.record(trial)
        self._emit(
            Tried(
                name=live.name,
                device=live.slot.info.name,
                trial=trial,
                best_s=session.best_s,
                reference_s=session.plan.reference_s,
                progress=self._tally.progress,
            )
        )

    def _move_sessions(self, lost: Slot) -> None:
        """Move the sessions of a lost device to the others."""
        if all(slot.lost for slot in self._devices):
            raise KernelmarkError(
                f"no device is left: {lost.lost}", hint="'kmark doctor' checks the devices"
            )
        for live in self._live:
            if live.slot is lost:
                live.slot = self._freest()


def _winner(outcome: Outcome) -> Winner:
    tuned = outcome.tuned
    return Winner(
        problem=outcome.problem, backend=tuned.backend, arch=outcome.arch, config=tuned.config
    )


def _cost(plan: TunePlan) -> float:
    """Return the expected cost of a plan relative to others."""
    size = work(Case(problem=plan.problem, backend=plan.backend)) or 1.0
    return size * plan.budget.evaluations
