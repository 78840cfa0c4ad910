"""Driver: many sessions over the devices and cores of this machine; a session is the search for one
plan, from the default config to an outcome.

A session yields requests and reads the results from its journal; the driver measures them. Its next
request depends on earlier results only. A session that is restarted with the same journal therefore
repeats the same requests, without measuring, up to where it was interrupted.

Each device times one case at a time. Cores compile what the sessions may request next: each session
has a pool of candidates, of which it times the most promising by all results so far. Sessions open
in a window over the list of plans, longest first, so that what a session starts from depends on the
list, and not on which session ended first.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kernelmark.backends import _memory, names_of
from kernelmark.backends._memory import Searched
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Config, Space, Status, config_key, join_config
from kernelmark.host.cache import digest
from kernelmark.runners import kernel_files
from kernelmark.runners.capture import kernelmark_version
from kernelmark.runners.events import Note
from kernelmark.runners.forecast import work
from kernelmark.runners.impossible import flag_impossible
from kernelmark.runners.jobs import CompileCase, MeasureCase, compiles
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.locks import describe_others
from kernelmark.runners.pool import FINAL, CompileAhead, Phase, Returned, Slot, kernel_key
from kernelmark.runners.pool import Finished as JobFinished
from kernelmark.runners.pool import Outcome as JobOutcome
from kernelmark.tune import strategies
from kernelmark.tune.evaluate import (
    STEPS,
    Evaluator,
    Request,
    TrialRound,
    Work,
    compiled_trial,
    static_reason,
    trial_of,
)
from kernelmark.tune.families import ranked, searched
from kernelmark.tune.finals import finals, nothing_found, timings
from kernelmark.tune.journal import (
    COMPILE,
    FINAL_STEP,
    Finished,
    Header,
    Journal,
    Trial,
    candidates,
    load_journal,
    minutes_spent,
    now,
    out_of_minutes,
    reached,
    weighed,
)
from kernelmark.tune.plans import (
    TunePlan,
    decision_digest,
    narrowed,
    plan_digest,
    search_digest,
    space_of,
)
from kernelmark.tune.progress import Began, Ended, Evaluated, Event, Expected, Retired, Tally
from kernelmark.tune.results import Outcome
from kernelmark.tune.strategies.base import ONE_AT_A_TIME, Pipeline, Points, Proposals

_MOST_STARTS = 3  # configs that memory predicts to be the best


def starts_from(
    plan: TunePlan, info: DeviceInfo, memory: Iterable[Searched], space: Space
) -> list[Config]:
    """Return the configs of the plan's space that memory predicts to be the best, each relative to
    the best of its backend."""
    searches = list(memory)
    names = names_of(plan.backend)
    best: list[tuple[float, str, Config]] = []
    for name in names:
        own = [search for search in searches if search.backend == name]
        part = space.alternatives.get(name, space)
        for config, slowdown in _memory.predicted(plan.problem, info.arch, own, part)[
            :_MOST_STARTS
        ]:
            start = join_config(name, config) if len(names) > 1 else config
            best.append((slowdown, config_key(start), start))
    return [config for _, _, config in sorted(best, key=lambda item: item[:2])[:_MOST_STARTS]]


# A search ends after this many failed candidates without a success. In a space in which nine of ten
# fail, 1 of 100 searches does.
MAX_FAILURES = 44


class Session:
    """The search of one plan on one device. Setting `stop` ends it after the current candidate."""

    def __init__(
        self,
        plan: TunePlan,
        info: DeviceInfo,
        journal: Journal,
        *,
        pipeline: Pipeline | None = None,
        pool: Sequence[Config] = (),
        memory: Iterable[Searched] = (),
    ) -> None:
        self.plan = plan
        self.info = info = plan.device(info)
        self.journal = journal
        self.stop = False
        self.best: Trial | None = None
        self.best_s: float | None = None  # includes results not yet reported to the search
        self._failures = 0
        self._final_timings = 0
        # Without finals: a search that is continued after a final would have fewer minutes left.
        self._costs: dict[tuple[str, str, str, str], float] = {}
        if plan.arch and plan.arch != info.arch:
            raise UsageError(
                f"{plan.name} was planned for {plan.arch}, and {info.name} is {info.arch}",
                hint="run it on such a device, or plan for this one in another folder",
            )
        space = self._searched = space_of(plan, info)
        pipeline = pipeline or Pipeline()
        starts = [*([space.default] if space.default else []), *space.seeds]
        own_starts = len(starts)
        if journal.header is not None:
            starts = list(journal.header.starts)
        elif plan.follows:
            starts += pool[: plan.budget.evaluations]
        else:
            starts += starts_from(plan, info, memory, space)
        # Of one that follows, only what the starts have: listing the whole space takes a second.
        if plan.follows and len(starts) > own_starts:
            self._searched = _spanned(space, starts)
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
                pool=pipeline.pool,
                refill=pipeline.refill,
                lag=pipeline.lag,
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
        return Points.of(self._searched)

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
        self._final_timings += trial.step.startswith(FINAL_STEP)
        if trial.ok and not trial.problem and not trial.backend and trial.step in self.steps:
            self.best_s = min(self.best_s or math.inf, trial.seconds or math.inf)

    def work(self) -> Work[Outcome | None]:
        """Run the search and the final; return None if stopped without a successful candidate."""
        yield from self._search()
        # Includes candidates of an earlier search with a larger budget.
        timed = self.journal.reached(self.steps)
        # Read from the file: `retry_failed` drops trials that a lowered budget may not repeat.
        evaluated = candidates(load_journal(self.journal.path)[1])
        if any(trial.ok for trial in timed):
            outcome = yield from finals(self.plan, self.info, self.journal, timed, evaluated)
        elif self.stop:
            return None
        else:
            outcome = nothing_found(self.plan, self.info, self.journal, evaluated)
        # A stopped or disturbed session is continued by the next run.
        plan_id = "" if self.stop or outcome.disturbed else plan_digest(self.plan)
        decision = decision_digest(self.plan)
        self.journal.finish(Finished(plan=plan_id, decision=decision, outcome=outcome))
        return outcome

    def _search(self) -> Work[None]:
        numbers = (self._points.index(config) for config in self.header.starts)
        search = strategies.registry.get(self.plan.strategy).search(
            self._points,
            budget=self.limit,
            seed=self.plan.seed,
            starts=[number for number in numbers if number is not None],
        )
        header = self.header
        pipeline = Pipeline(pool=header.pool, refill=header.refill, lag=header.lag)
        proposals = Proposals(search, pipeline, self.limit)
        while not self._over and (point := proposals.next()) is not None:
            ahead = [self._points.config(later) for later in proposals.waiting]
            trial = yield from self._evaluator.evaluate(self._points.config(point), ahead)
            search.tell(point, trial.seconds if trial.ok else None)
            self._learn(trial)

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
    def finals_s(self) -> float:
        """Seconds that the final will still take, if a timing takes as long as one of the search's
        last step, or of any step if no candidate has reached it."""
        if not self._costs:
            return 0.0
        last = [cost_s for (*_, step), cost_s in self._costs.items() if step == self.steps[-1]]
        each_s = statistics.fmean(last or self._costs.values())
        return max(0, timings(self.plan, len(self._costs)) - self._final_timings) * each_s

    @property
    def cost_s(self) -> float:
        """Seconds that the search has used for compiling and timing."""
        return sum(self._costs.values())


def _spanned(space: Space, configs: Sequence[Config]) -> Space:
    """Return `space` with the values that occur in these configs only."""
    used = {
        name: tuple(v for v in values if any(config.get(name) == v for config in configs))
        for name, values in space.parameters.items()
    }
    return narrowed(space, {name: values for name, values in used.items() if values})


def library_version(backend: str) -> str:
    """Return the version of a backend's library, "" if it is not available."""
    library = kernel_files.find(backend)
    return "" if library.available() is not None else library.version()


# Sessions that are open on a device at once: enough that one of them has something to time.
OPEN = 6
# On recorded spaces, after 50 evaluations: .93 one at a time and with 6 or 8, .90 to .92 with 16.
_LARGEST_POOL = 8

OnEvent = Callable[[Event], None]


@dataclass(slots=True, kw_only=True, eq=False)
class Live:
    """An open session, and the requests of its round that are not done yet."""

    session: Session
    work: Work[Outcome | None]
    slot: Slot
    round: TrialRound = field(default_factory=lambda: TrialRound(requests=()))
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
    ended with the minutes of the plan, with the number of candidates that the plan requests.

    Searches start from what `memory`, the times that backends ship, and the searches of the run
    that ended before predict; with `memory` None they do not.

    `minutes` from now on searches end, early enough for their finals; what still runs at the end of
    them is stopped, and continued by the next run."""

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
        memory: Sequence[Searched] | None = (),
    ) -> None:
        # Those that follow another one come after all that are searched in full.
        self.plans = sorted(plans, key=lambda plan: (bool(plan.follows), -_cost(plan), plan.name))
        self._families: dict[str, Searched] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.retired: dict[str, Reason] = {}
        self.cut: list[str] = []
        self.spent: dict[str, int] = {}
        self._trials = trials
        self._retry_failed = retry_failed
        self._memory = memory
        self._roofs = tuple(roofs)
        self._emit: OnEvent = on_event or (lambda event: None)
        jobs = runner.jobs if any(compiles(plan.backend) for plan in plans) else 0
        self.pool = runner.pool(jobs)
        self._ahead = CompileAhead(self.pool)
        self._devices = self.pool.devices
        self._window = min(len(plans), OPEN * len(self._devices))
        self.infos = tuple(runner.infos)
        self._pipeline = self._choose_pipeline(jobs, runner.infos[0].kind)
        self._live: list[Live] = []
        self._next = 0
        self._timing: dict[Slot, Live] = {}
        self._searches_end = False
        self._deadline = time.monotonic() + 60 * minutes if minutes else math.inf
        self._tally = Tally(self.plans, self._deadline, runner.infos[0])

    def _choose_pipeline(self, jobs: int, kind: str) -> Pipeline:
        """Return pools that keep every core busy. On a CPU, where compilers would disturb the
        timing, a pool is compiled as a whole."""
        if not jobs:
            return ONE_AT_A_TIME
        cores = jobs // len(self._devices)
        if kind == "cpu":
            return Pipeline(pool=max(1, min(cores, _LARGEST_POOL)), refill=0, lag=0)
        sessions = max(1, self._window // len(self._devices))
        pool = max(3, min(-(-9 * cores // (4 * sessions)), _LARGEST_POOL))
        return Pipeline(pool=pool, refill=pool - 1, lag=2 * pool // 3)

    def run(self) -> None:
        """Tune until every plan has its outcome or time is up. All workers end with it."""
        try:
            self._open_sessions()
            self._emit(Expected(progress=self._tally.progress))
            for slot in self._devices:
                if processes := describe_others(slot.info):
                    text = f"{slot.info.name} is in use by {processes}: times may be disturbed"
                    self._emit(Note(text=text))
            while self._live and time.monotonic() < self._deadline:
                if self._out_of_time:
                    for live in self._live:
                        live.session.stop = True
                self._assign()
                if (outcome := self.pool.poll(self._deadline)) is not None:
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
            follows = self.plans[self._next].follows
            last = max(0, self._next - self._window + 1)
            before = [plan for n, plan in enumerate(self.plans) if n < last or plan.name == follows]
            if any(p.name not in self.outcomes and p.name not in self.retired for p in before):
                return
            self._next += 1
            self._open(self.plans[self._next - 1], [p.name for p in before])
            self._assign()  # listing a large space takes a while: keep the devices busy

    @property
    def _out_of_time(self) -> bool:
        """Whether the searches must end now, so that their finals end in time, or had to before."""
        if self._deadline == math.inf or self._searches_end:
            return self._searches_end
        finals_s = [
            sum(live.session.finals_s for live in self._live if live.slot is slot)
            for slot in self._devices
        ]
        self._searches_end = time.monotonic() + max(finals_s) > self._deadline
        return self._searches_end

    def _open(self, plan: TunePlan, before: Sequence[str]) -> None:
        slot = self._freest()
        journal = None
        try:
            journal = Journal(self._trials / f"{plan.name}.jsonl", retry_failed=self._retry_failed)
            pool: list[Config] = []
            if plan.follows and journal.header is None:
                names = dict.fromkeys((*before, plan.follows))
                known = filter(None, map(self._searched, names))
                pool = ranked(plan, slot.info.arch, known)
            session = Session(
                plan,
                slot.info,
                journal,
                pipeline=self._pipeline,
                pool=pool,
                memory=self._starts_for(plan, slot.info, before) if journal.header is None else (),
            )
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
        evaluated = len(journal.reached(session.steps))
        self._tally.began(plan.name, evaluated, session.limit)
        self._emit(
            Began(name=plan.name, device=slot.info.name, evaluated=evaluated, limit=session.limit)
        )
        self._advance(live)

    def _starts_for(
        self, plan: TunePlan, info: DeviceInfo, before: Sequence[str]
    ) -> list[Searched]:
        """Return the searches that the starts of a plan may come from."""
        if self._memory is None or plan.follows:
            return []
        shipped = [_memory.shipped(name, info.arch) for name in names_of(plan.backend)]
        ended = filter(None, map(self._searched, before))
        return [*self._memory, *ended, *itertools.chain.from_iterable(shipped)]

    def _searched(self, name: str) -> Searched | None:
        """Return the search of a plan that has ended, also in an earlier run."""
        path = self._trials / f"{name}.jsonl"
        if name not in self._families and path.exists():
            header, trials, _ = load_journal(path)
            if header is not None:
                self._families[name] = searched(header, reached(trials, STEPS))
        return self._families.get(name)

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
        if compiled.status is Status.OK:
            if request.step not in live.session.steps:
                return None  # a reference is timed even if it spills
            reason = static_reason(compiled.kernel.resources, live.slot.info)
            if reason is None:
                return None
            compiled = dataclasses.replace(compiled, status=Status.SKIPPED, error=reason)
        elif compiled.status not in FINAL:
            return None
        return compiled_trial(request, compiled, self._compile_cost_s(request), live.session.plan)

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
            # On a CPU, whose first launches scatter, the ladder begins with a short look instead.
            job = MeasureCase(
                case=request.case,
                process=request.process,
                keep_wrong=True,
                cutoff_s=None if slot.info.kind == "cpu" else request.cutoff_s,
            )
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
            if isinstance(outcome, JobFinished):
                self._on_timed(live, request, outcome)
            else:
                live.waiting.insert(0, request)
        if isinstance(outcome, Returned) and outcome.loss is not None:
            self._emit(outcome.loss)
            self._move_sessions(outcome.slot)

    def _on_timed(self, live: Live, request: Request, outcome: JobFinished) -> None:
        result = flag_impossible(outcome.value, self._roofs, outcome.slot.info)
        cost_s = self._compile_cost_s(request)
        self._record(live, trial_of(request, result, live.session.plan, cost_s))
        if not live.waiting:
            self._advance(live)

    def _record(self, live: Live, trial: Trial) -> None:
        session = live.session
        new, final = session.is_new(trial), trial.step.startswith("final")
        self._tally.count_trial(live.name, candidate=new, final=final)
        session.record(trial)
        self._emit(
            Evaluated(
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


def _cost(plan: TunePlan) -> float:
    """Return the expected cost of a plan relative to others."""
    size = work(Case(problem=plan.problem, backend=plan.backend)) or 1.0
    return size * plan.budget.evaluations
