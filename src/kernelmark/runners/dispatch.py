"""Dispatch: one run of a list of cases over the devices of a pool."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernelmark.core.reason import BRIEF, Reason, format_reason
from kernelmark.core.result import Case, Result, Status
from kernelmark.runners.ahead import FINAL, CompileAhead, Key, kernel_key
from kernelmark.runners.events import (
    CaseCompiled,
    CaseFinished,
    CasePhase,
    CaseStarted,
    DeviceLost,
    EnvironmentSeen,
    Event,
    Note,
    Progress,
    Waiting,
)
from kernelmark.runners.execute import failure, join
from kernelmark.runners.forecast import Forecast, compile_ahead_s
from kernelmark.runners.jobs import (
    CompileCase,
    Failure,
    MeasureCase,
    ReadEnvironment,
    compiles,
    threads_of,
)
from kernelmark.runners.pool import Finished, Outcome, Phase, Pool, Returned, Slot
from kernelmark.runners.votes import Doubt, SecondVotes


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """A case on its way to a result."""

    case: Case
    kernel: Key
    clock: float = 0.0  # when it was begun, on the monotonic clock; 0 while it waits
    parts: list[Result] = field(default_factory=list)  # one for each process
    phases: set[str] = field(default_factory=set)  # those that were reported
    doubt: Doubt | None = None  # it failed, and another device votes


class Dispatch:
    """Submits cases to the devices, and makes events of the outcomes."""

    def __init__(self, cases: Sequence[Case], pool: Pool) -> None:
        self.total = len(cases)
        self.done = 0
        self._pool = pool
        self._ahead = CompileAhead(pool)
        self._forecast = Forecast.of_machine(pool.devices[0].info)
        self._backends = sorted({case.backend for case in cases})
        self._queue = deque(Task(case=case, kernel=kernel_key(case)) for case in cases)
        self._events: deque[Event] = deque()
        self._active: dict[Slot, Task] = {}
        self._votes = SecondVotes(pool.devices)
        self._environment_read = False
        self._left_s = self._summed = 0.0
        kernels = {task.kernel: task.case for task in self._queue if compiles(task.case.backend)}
        self._to_compile = iter(list(kernels.values()))
        self._uncompiled = kernels if pool.compilers else {}
        self._compile_total = len(kernels)
        self._compiled = 0

    def events(self) -> Iterator[Event]:
        """Yield everything that happens until each case has a result.

        On a CPU a result is reported before the next case begins: storing and showing it would
        disturb the timing. A GPU is given its next case first, and does not wait for that."""
        at_once = self._pool.devices[0].info.kind != "cpu"
        try:
            while True:
                if at_once:
                    self._assign()
                while self._events:
                    yield self._events.popleft()
                if self.done == self.total and not self._pool.measuring:
                    return
                self._assign()
                if not self._events and (outcome := self._pool.poll()) is not None:
                    self._take(outcome)
        finally:
            self._forecast.means.save()

    # Handing out

    def _assign(self) -> None:
        may_time = self._ahead.start(self._to_compile)
        if self._compiled == self._compile_total:
            for slot in self._pool.compilers:
                if slot.idle:
                    slot.close()
        if not may_time:
            return
        for slot in self._pool.devices:
            if slot.idle and (task := self._next_task(slot)) is not None:
                self._begin(slot, task)
        for task in list(self._queue):
            if task.doubt and not self._votes.has_others(task.doubt.slot):
                self._queue.remove(task)
                self._settle(task, None)
        if all(slot.lost for slot in self._pool.devices):
            self._give_up()

    def _next_task(self, slot: Slot) -> Task | None:
        """Take the first task that is ready out of the queue; those that still compile wait."""
        for task in self._queue:
            if self._ahead.ready(task.kernel) and self._votes.may_take(slot, task.doubt):
                self._queue.remove(task)
                return task
        return None

    def _begin(self, slot: Slot, task: Task) -> None:
        task.clock = task.clock or time.monotonic()
        self._active[slot] = task
        process = len(task.parts)
        # Each process index is a process of its own; the first may be one that did other cases.
        job = MeasureCase(case=task.case, process=process, fresh=process > 0)
        self._pool.submit(slot, job)
        if process == 0:
            # After it was handed out: adding up a long queue takes as long as a short case.
            self._add_up()
            device = slot.info.name
            self._emit(CaseStarted(case=task.case, device=device, progress=self._progress()))

    def _give_up(self) -> None:
        first = self._pool.devices[0]
        self._to_compile = iter([])
        while self._queue:
            task = self._queue.popleft()
            if task.doubt is not None:
                self._settle(task, None)
                continue
            text = Reason("no-device-left", cause=first.lost)
            result = failure(task.case, first.info, Status.CRASHED, text, started=time.time())
            self._finish(task, result)

    # Taking in

    def _take(self, outcome: Outcome) -> None:
        slot = outcome.slot
        if isinstance(outcome, Returned) and outcome.loss is not None:
            self._emit(outcome.loss)
        if isinstance(outcome, Phase):
            self._take_phase(outcome)
        elif isinstance(outcome.job, CompileCase):
            self._ahead.take(outcome)
            if isinstance(outcome, Finished):
                self._take_compiled(slot, outcome.job.case)
        elif isinstance(outcome.job, MeasureCase):
            task = self._active.pop(slot)
            if isinstance(outcome, Finished):
                self._take_part(slot, task, outcome.value)
            elif task.parts and not slot.lost:
                # Its other processes are still of use, but only on this device.
                self._begin(slot, task)
            else:
                self._put_back(task)
        elif isinstance(outcome, Finished):
            if isinstance(outcome.value, Failure):
                self._emit(Note(text=format_reason(outcome.value.error, BRIEF)))
            else:
                seen = slot.without_own_variables(outcome.value)
                self._emit(EnvironmentSeen(environment=seen))

    def _take_phase(self, phase: Phase) -> None:
        device, task = phase.slot.info.name, self._active.get(phase.slot)
        if phase.name == "waiting":
            self._emit(Waiting(device=device, holder=phase.holder))
        elif task is not None and phase.name not in task.phases:
            # Each block goes through the phases again; reporting that would only make work for
            # a core that may be timing.
            task.phases.add(phase.name)
            self._emit(CasePhase(case=task.case, device=device, phase=phase.name))

    def _put_back(self, task: Task) -> None:
        """Make a task the next of whichever device is free first. It begins anew there: one result
        is of one device."""
        task.parts.clear()
        self._queue.appendleft(task)

    def _take_compiled(self, slot: Slot, case: Case) -> None:
        key = kernel_key(case)
        found = self._ahead.found(key)
        assert found is not None
        self._compiled += 1
        self._uncompiled.pop(key, None)
        self._forecast.learn_compiled(case, found.status, found.seconds)
        self._add_up()
        self._emit(
            CaseCompiled(
                case=case,
                status=found.status,
                seconds=found.seconds,
                done=self._compiled,
                total=self._compile_total,
                progress=self._progress(),
            )
        )
        if found.status in FINAL:
            for task in [task for task in self._queue if task.kernel == key]:
                self._queue.remove(task)
                text, now = found.error, time.time()
                self._finish(task, failure(task.case, slot.info, found.status, text, started=now))

    def _take_part(self, slot: Slot, task: Task, result: Result) -> None:
        task.parts.append(result)
        if result.status is Status.OK and len(task.parts) < task.case.timing.processes:
            self._begin(slot, task)
            return
        if task.doubt is not None:
            self._settle(task, join(task.parts))
        elif (doubt := self._votes.doubt(slot, task.case, result)) is not None:
            task.doubt = doubt
            self._put_back(task)
        else:
            self._finish(task, join(task.parts))
        if result.status is Status.OK and not self._environment_read:
            # The libraries of this case are loaded now: reading costs no start of its own.
            self._environment_read = True
            threads = threads_of(task.case, slot.info)
            self._pool.submit(slot, ReadEnvironment(backends=self._backends, threads=threads))

    def _settle(self, task: Task, second: Result | None) -> None:
        """Finish a case that failed on one device, after the vote of another."""
        assert task.doubt is not None
        slot, decision = task.doubt.slot, self._votes.settle(task.doubt, second)
        if decision.lost:
            # It may be busy with another device's doubt.
            if (held := self._active.pop(slot, None)) is not None:
                self._put_back(held)
            self._pool.give_up(slot, decision.lost)
            self._emit(DeviceLost(device=slot.info.name, reason=decision.lost))
        elif decision.note:
            self._emit(Note(text=decision.note))
        self._finish(task, decision.result)

    def _finish(self, task: Task, result: Result) -> None:
        if compile_s := self._ahead.collect_cost_s(task.kernel):
            cost = {**result.cost, "compile_ahead": compile_s}
            result = dataclasses.replace(result, cost=cost)
        self.done += 1
        if task.clock:
            self._forecast.learn(result, time.monotonic() - task.clock)
        self._emit(CaseFinished(result=result, progress=self._progress()))

    def _progress(self) -> Progress:
        now = time.monotonic()
        left = self._left_s + self._forecast.load_s(self._forecast.unloaded(self._backends))
        for task in self._active.values():
            left += max(0.0, self._forecast.seconds(task.case) - (now - task.clock))
        left /= max(1, sum(not slot.lost for slot in self._pool.devices))
        if self._uncompiled:
            cores = len(self._pool.compilers)
            compiling = compile_ahead_s(self._forecast, self._uncompiled.values(), cores)
            first = self._pool.devices[0].info.kind == "cpu"  # where all is compiled before
            left = left + compiling if first else max(left, compiling)
        return Progress(done=self.done, total=self.total, remaining_s=left)

    def _add_up(self) -> None:
        """Add up the queue's seconds, but not at each of many short cases."""
        now = time.monotonic()
        if now - self._summed > 1.0 or len(self._queue) < 100:
            self._left_s = sum(self._forecast.seconds(task.case) for task in self._queue)
            self._summed = now

    def _emit(self, event: Event) -> None:
        self._events.append(event)
