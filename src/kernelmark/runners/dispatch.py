"""Dispatch: one run of a list of cases over lanes, as a loop that never blocks on one of them."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kernelmark import backends
from kernelmark.backends.base import Backend
from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.reason import BRIEF, NO_REASON, Reason, format_reason, read_reason
from kernelmark.core.result import Case, Result, Status
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
from kernelmark.runners.lane import (
    Answer,
    Failure,
    Item,
    Lane,
    Phase,
    failed_result,
    gather_items,
    harmless,
    measure_request,
    read_result,
    threads_of,
)
from kernelmark.runners.opinions import Doubt, SecondOpinions
from kernelmark.runners.plan import Forecast

START_ATTEMPTS = 3
# What compiling ahead settles. Anything else may come from compiling many at once, and the case
# is tried again alone, on its device.
_FINAL = (Status.COMPILE_ERROR, Status.UNSUPPORTED, Status.TIMEOUT)


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """A case on its way to a result."""

    case: Case
    to_compile: bool
    compile_s: float = 0.0
    started: float = 0.0  # seconds since the epoch; 0 while it waits
    clock: float = 0.0
    parts: list[Result] = field(default_factory=list)  # one for each process
    phases: set[str] = field(default_factory=set)  # those already told
    doubt: Doubt | None = None  # it failed, and another device is asked


class Dispatch:
    """Gives tasks to lanes, and makes events of what comes back."""

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        lanes: Sequence[Lane],
        builder: Callable[[], Lane],
        jobs: int,
    ) -> None:
        self.lanes = list(lanes)
        self.forecast = Forecast()
        self.total = len(cases)
        self.done = 0
        self.backends = sorted({case.backend for case in cases})
        self._queue = deque(Task(case=c, to_compile=compiles(c.backend)) for c in cases)
        self._news: deque[Event] = deque()
        self._active: dict[Lane, Task] = {}
        self._opinions = SecondOpinions(self.lanes)
        self._asked: Lane | None = None  # for the environment it sees
        self._left_s = self._summed = 0.0
        self._compile_queue = self._worth_compiling(jobs)
        self._compile_total = len(self._compile_queue)
        self._compiled = 0
        count = min(jobs, self._compile_total)
        self._builders = [builder() for _ in range(count)]
        # On the CPU a compiler would disturb what is being timed.
        self._compile_first = self.lanes[0].info.kind == "cpu"

    def _worth_compiling(self, jobs: int) -> deque[Task]:
        """Tasks to compile ahead: none when there is nothing to do at the same time."""
        tasks = deque(task for task in self._queue if task.to_compile)
        if jobs == 0 or len(tasks) < 2:
            for task in tasks:
                task.to_compile = False
            tasks.clear()
        return tasks

    def events(self) -> Iterator[Event]:
        """Everything that happens until each case has a result.

        A result is told before its device gets the next case: what a killed parent loses is what
        was on the devices, and nothing that had come back."""
        while True:
            while self._news:
                yield self._news.popleft()
            if self.done == self.total and (self._asked is None or not self._asked.busy):
                return
            self._assign()
            if self._news:
                continue
            for lane, item in gather_items([*self.lanes, *self._builders]):
                self._take(lane, item)

    def close(self) -> None:
        """End every worker."""
        for lane in [*self.lanes, *self._builders]:
            lane.close()

    # Handing out

    def _assign(self) -> None:
        self._assign_compiling()
        if self._compile_first and self._compiled < self._compile_total:
            return
        for lane in self.lanes:
            if lane.idle and (task := self._next_task(lane)) is not None:
                self._begin(lane, task)
        for task in [t for t in self._queue if t.doubt and not self._opinions.others(t.doubt.lane)]:
            self._queue.remove(task)
            self._settle(task, None)
        if all(lane.dead for lane in self.lanes):
            self._give_up()

    def _assign_compiling(self) -> None:
        for lane in self._builders:
            if lane.idle and self._compile_queue:
                task = self._compile_queue.popleft()
                self._active[lane] = task
                request = {"do": "compile", "case": codec.to_document(task.case)}
                self._take_all(lane, lane.give(request))
        if not self._compile_queue:
            for lane in self._builders:
                if lane.idle:
                    lane.close()
        if self._builders and all(lane.dead for lane in self._builders):
            for task in self._compile_queue:
                task.to_compile = False
                self._compiled += 1
            self._compile_queue.clear()

    def _next_task(self, lane: Lane) -> Task | None:
        """The first task that is ready; one whose turn it is but which still compiles waits."""
        for task in self._queue:
            if not task.to_compile and self._opinions.may_take(lane, task.doubt):
                self._queue.remove(task)
                return task
        return None

    def _begin(self, lane: Lane, task: Task) -> None:
        if not task.started:
            task.started, task.clock = time.time(), time.monotonic()
        self._active[lane] = task
        if not task.parts:
            self._tell(CaseStarted(case=task.case, device=lane.info.name, progress=self._so_far()))
        process = len(task.parts)
        request = measure_request(task.case, process)
        threads = threads_of(task.case, lane.info)
        # Each process index is a process of its own; the first may be one that did other cases.
        self._take_all(lane, lane.give(request, threads=threads, fresh=process > 0))

    def _give_up(self) -> None:
        info, reason = self.lanes[0].info, self.lanes[0].dead
        self._compile_queue.clear()
        while self._queue:
            task = self._queue.popleft()
            if task.doubt is not None:
                self._settle(task, None)
                continue
            text = Reason("no-device-left", cause=reason)
            result = failure(task.case, info, Status.CRASHED, text, started=time.time())
            self._finish(task, result)

    # Taking in

    def _take_all(self, lane: Lane, items: Sequence[Item]) -> None:
        for item in items:
            self._take(lane, item)

    def _take(self, lane: Lane, item: Item) -> None:
        if lane.dead:  # said before it was given up, and its task is another's by now
            return
        task = self._active.get(lane)
        if isinstance(item, Phase):
            self._take_phase(lane, task, item)
        elif isinstance(item, Failure) and not item.started:
            self._active.pop(lane, None)
            self._not_started(lane, task, item)
        elif lane in self._builders:
            self._active.pop(lane, None)
            if task is not None:
                self._take_compiled(lane, task, item)
        elif task is None:
            self._take_environment(lane, item)
        else:
            self._active.pop(lane)
            self._take_part(lane, task, item)

    def _take_phase(self, lane: Lane, task: Task | None, item: Phase) -> None:
        if item.phase == "waiting":
            self._tell(Waiting(device=lane.info.name, holder=item.holder))
        elif task is not None and item.phase not in task.phases:
            # Each block goes through the phases again; telling that would only make work for
            # a core that may be timing.
            task.phases.add(item.phase)
            device = lane.info.name
            self._tell(CasePhase(case=task.case, device=device, phase=item.phase))

    def _not_started(self, lane: Lane, task: Task | None, item: Failure) -> None:
        building = lane in self._builders
        if lane.start_failures >= START_ATTEMPTS:
            lane.dead = format_reason(item.error, BRIEF)
            if building:
                self._tell(Note(text=f"a compile worker cannot be started: {lane.dead}"))
            else:
                self._tell(DeviceLost(device=lane.info.name, reason=lane.dead))
        if task is None:
            return
        if building:
            self._compile_queue.appendleft(task)
        elif task.parts and not lane.dead:
            # Its other processes are still of use, but only on this device.
            self._begin(lane, task)
        else:
            self._put_back(task)

    def _put_back(self, task: Task) -> None:
        """Make a task the next of whichever device is free first. It begins anew there: one result
        is of one device."""
        task.parts.clear()
        self._queue.appendleft(task)

    def _take_compiled(self, lane: Lane, task: Task, item: Item) -> None:
        self._compiled += 1
        task.to_compile = False
        status, error = Status.OK, NO_REASON
        if isinstance(item, Answer):
            status = Status(item.message["status"])
            error = read_reason(item.message.get("error"))
            task.compile_s = float(item.message.get("seconds", 0.0))
        elif isinstance(item, Failure):
            status, error = item.status, item.error
        self._tell(
            CaseCompiled(
                case=task.case,
                status=status,
                seconds=task.compile_s,
                done=self._compiled,
                total=self._compile_total,
            )
        )
        if status in _FINAL and task in self._queue:
            self._queue.remove(task)
            self._finish(task, failure(task.case, lane.info, status, error, started=time.time()))

    def _take_part(self, lane: Lane, task: Task, item: Item) -> None:
        if isinstance(item, Answer):
            result = read_result(task.case, lane.info, item.message, task.started)
        else:
            assert isinstance(item, Failure)
            result = failed_result(task.case, lane.info, item, task.started)
        task.parts.append(result)
        if not harmless(result):
            lane.retire()
        if result.status is Status.OK and len(task.parts) < task.case.timing.processes:
            self._begin(lane, task)
            return
        if task.doubt is not None:
            self._settle(task, join(task.parts))
        elif (doubt := self._opinions.doubt(lane, task.case, result)) is not None:
            task.doubt = doubt
            self._put_back(task)
        else:
            self._finish(task, join(task.parts))
        if result.status is Status.OK and self._asked is None:
            # The libraries of this case are loaded now: asking costs no start of its own.
            self._asked = lane
            request = {"do": "environment", "backends": self.backends}
            self._take_all(lane, lane.give(request, threads=threads_of(task.case, lane.info)))

    def _settle(self, task: Task, second: Result | None) -> None:
        """Finish a case that failed on one device, after what another said."""
        assert task.doubt is not None
        lane, opinion = task.doubt.lane, self._opinions.settle(task.doubt, second)
        if opinion.lost:
            lane.dead = opinion.lost
            # It may be busy with another device's doubt.
            if (held := self._active.pop(lane, None)) is not None:
                self._put_back(held)
            lane.close()
            self._tell(DeviceLost(device=lane.info.name, reason=opinion.lost))
        elif opinion.note:
            self._tell(Note(text=opinion.note))
        self._finish(task, opinion.result)

    def _take_environment(self, lane: Lane, item: Item) -> None:
        if not isinstance(item, Answer):
            return
        try:
            seen = codec.from_document(item.message.get("environment"), Environment)
        except CodecError as error:
            self._tell(Note(text=f"the worker's environment cannot be read: {error.message}"))
            return
        variables = {n: v for n, v in seen.variables.items() if n not in lane.added_variables}
        self._tell(EnvironmentSeen(environment=dataclasses.replace(seen, variables=variables)))

    def _finish(self, task: Task, result: Result) -> None:
        if task.compile_s:
            cost = {**result.cost, "compile_ahead": task.compile_s}
            result = dataclasses.replace(result, cost=cost)
        self.done += 1
        if task.clock:
            self.forecast.learn(result, time.monotonic() - task.clock)
        self._tell(CaseFinished(result=result, progress=self._so_far()))

    def _so_far(self) -> Progress:
        now = time.monotonic()
        # Adding up a long queue at each event would take longer than short cases do.
        if now - self._summed > 1.0 or len(self._queue) < 100:
            self._left_s = self.forecast.total_s(task.case for task in self._queue)
            self._summed = now
        left = self._left_s
        for lane, task in self._active.items():
            if lane not in self._builders:
                left += max(0.0, self.forecast.seconds(task.case) - (now - task.clock))
        working = sum(not lane.dead for lane in self.lanes)
        return Progress(done=self.done, total=self.total, remaining_s=left / max(1, working))

    def _tell(self, event: Event) -> None:
        self._news.append(event)


def compiles(name: str) -> bool:
    """Whether a backend has anything to compile ahead."""
    try:
        backend = backends.find(name)
    except UsageError:
        return False
    return type(backend).compile is not Backend.compile
