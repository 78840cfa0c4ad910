"""LocalRunner: run cases on the devices of this machine, one worker per device.

A case that fails on one device is tried once on another before it counts as failed; meanwhile the
first device gets no new case. A device that fails twice in a row where others succeed is given up:
a broken device fails quickly, and would get more cases than the healthy ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernelmark import devices as device_kinds
from kernelmark import ops
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import NO_REASON, Reason, shorten
from kernelmark.core.result import Case, Result, Status
from kernelmark.core.timing import Timer
from kernelmark.runners import places
from kernelmark.runners.events import (
    CaseCompiled,
    CaseFinished,
    CasePhase,
    CaseStarted,
    DeviceLost,
    EnvironmentRead,
    Event,
    Note,
    Progress,
    Waiting,
)
from kernelmark.runners.execute import failure, join
from kernelmark.runners.forecast import Forecast, work
from kernelmark.runners.jobs import (
    CompileCase,
    Failure,
    MeasureCase,
    MeasureInTurns,
    ReadEnvironment,
    compile_jobs,
    compiles,
    harmless,
    threads_of,
)
from kernelmark.runners.locks import describe_others
from kernelmark.runners.pool import (
    FINAL,
    MACHINE_LOST,
    CompileAhead,
    Finished,
    Key,
    Limits,
    Outcome,
    Phase,
    Pool,
    Returned,
    Slot,
    Workers,
    kernel_key,
)
from kernelmark.runners.process import WorkerSpec
from kernelmark.runners.targets import check_threads, parse_devices

# Which cases are measured by turns, in one process.
#
# At a power cap the work before decides the clock for seconds: the same cuBLAS kernel took 173.8 µs
# by one backend and 189.1 µs by another that was measured after it (bf16 4096³ on an H200). Blocks
# by turns (A B, B A, A B, …) find the device in the same state.

# FLOPs per byte from which a kernel may be compute-bound. Only such kernels draw enough power to
# reach the cap of a GPU.
_INTENSITY = 100.0
# Cases in a process at once, each with memory for its argument sets.
MOST_INTERLEAVED = 4
# On a CPU the clock, the neighbours on a shared machine and the placement of a process change times
# by 1 to 3 % within seconds. Blocks that follow each other directly agree on a time that the next
# run does not repeat: on a shared Xeon their standard deviation was 0.9 %, and 1.5 % with the
# blocks of seven other cases between them, which took no longer. Of equal rows of two runs, a tenth
# differed by more than 5.6 % with 8 cases by turns (6 s), and by more than 3.9 % with 27 (20 s).
# Cases whose expected seconds add up to this many alternate; their results arrive together, and
# what is interrupted is lost.
SPREAD_S = 30.0
_MOST_SPREAD = 32
_PROGRAMS = (Timer.PROFILER, Timer.IREE)


# Whether the backends of a problem are measured by turns; auto: on a GPU, problems with many FLOPs
# per byte; on a CPU, all cases of one timing.
Interleave = Literal["auto", "yes", "no"]


def is_interleaved(case: Case, info: DeviceInfo, mode: Interleave) -> bool:
    """Return whether a case is measured by turns with others of its problem and timing."""
    timing = case.timing
    # Several processes of a case, and other programs, are measured one after the other.
    if mode == "no" or timing.processes > 1 or timing.timer in _PROGRAMS:
        return False
    if mode == "yes" or info.kind == "cpu":
        return True
    try:
        op = ops.registry.get(case.problem.op)
        flops, nbytes = op.flops(case.problem), op.bytes(case.problem)
    except KernelmarkError:  # an op of a kernel file
        return False
    return info.kind in ("cuda", "hip") and flops >= _INTENSITY * nbytes


# A device is given up after failing this many cases in a row that another device could run.
MOST_STRIKES = 2
# After this many confirmed failures of a backend, its further failures are not put to a vote,
# unless a device fails as many cases in a row.
_CONFIRMED = 3


@dataclass(slots=True, kw_only=True, eq=False)
class PendingVote:
    """A failure that another device votes on."""

    slot: Slot
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result that counts, and a note about the first device or the reason to give it up."""

    result: Result
    note: str = ""
    lost: Reason = NO_REASON


class SecondVotes:
    """The devices whose failures are put to a vote, and the outcomes of earlier votes."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._doubted: set[Slot] = set()
        self._strikes: Counter[Slot] = Counter()
        self._streaks: Counter[Slot] = Counter()  # consecutive failures, whatever the cause
        self._confirmed: Counter[str] = Counter()  # failures on two devices, by backend

    def doubt(self, slot: Slot, case: Case, result: Result) -> PendingVote | None:
        """Return the failure to put to a vote, or None if the result counts without one."""
        if harmless(result):
            self._streaks[slot] = 0
            if result.status is Status.OK:
                self._strikes[slot] = 0
            return None
        self._streaks[slot] += 1
        confirmed = self._confirmed[case.backend] >= _CONFIRMED
        is_known = confirmed and self._streaks[slot] < _CONFIRMED
        if is_known or not self.has_others(slot):
            return None
        self._doubted.add(slot)
        return PendingVote(slot=slot, result=result)

    def has_others(self, slot: Slot) -> bool:
        """Return whether any other device is left."""
        return any(not other.lost and other is not slot for other in self._slots)

    def may_take(self, slot: Slot, doubt: PendingVote | None) -> bool:
        """Return whether the slot may run a case: a slot with a doubtful failure only votes on the
        failures of others, and no slot votes on its own."""
        return slot not in self._doubted if doubt is None else doubt.slot is not slot

    def settle(self, doubt: PendingVote, second: Result | None) -> Decision:
        """Decide which result counts, given another device's result or None."""
        slot, first = doubt.slot, doubt.result
        self._doubted.discard(slot)
        if second is None:
            return Decision(result=first)
        if not harmless(second):
            self._confirmed[first.case.backend] += 1
            self._strikes[slot] = 0
            return Decision(result=first)
        self._strikes[slot] += 1
        error = first.error or Reason(first.status.value, "failed", status=first.status.value)
        if self._strikes[slot] < MOST_STRIKES or slot.lost:
            why = shorten(error)
            note = f"failed on {slot.info.name} ({why}) and not on {second.device}"
            return Decision(result=second, note=f"{first.case.problem.key}: {note}")
        lost = Reason(
            f"it failed {MOST_STRIKES} cases in a row that pass on {second.device}:"
            f" {shorten(error)}"
        )
        return Decision(result=second, lost=lost)


# Weight of the forecast against finished cases, in expected seconds of cases: at least one and
# about three of them end before their pace counts as much as that of earlier commands.
_FORECAST_CASES = 3


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """A case that has no result yet."""

    case: Case
    kernel: Key
    expected_s: float
    begun: float = 0.0  # on the monotonic clock; 0 while queued
    parts: list[Result] = field(default_factory=list)  # one per process
    phases: set[str] = field(default_factory=set)  # already reported
    doubt: PendingVote | None = None  # the failure that another device votes on
    is_alone: bool = False  # whether measuring it by turns with others has failed


class Dispatch:
    """Submits cases to devices and converts the outcomes into events."""

    def __init__(self, cases: Sequence[Case], pool: Pool, interleave: Interleave = "no") -> None:
        self._interleave = interleave
        self.total = len(cases)
        self.done = 0
        self._pool = pool
        self._ahead = CompileAhead(pool)
        self._forecast = Forecast.of_machine(pool.devices[0].info)
        self._backends = sorted({case.backend for case in cases})
        self._queue = deque(
            Task(case=case, kernel=kernel_key(case), expected_s=self._forecast.seconds(case))
            for case in cases
        )
        self._in_doubt: list[Task] = []
        self._events: deque[Event] = deque()
        self._active: dict[Slot, list[Task]] = {}  # several are measured by turns
        self._votes = SecondVotes(pool.devices)
        self._environment_read = self._environment_asked = self._environment_last = False
        self._first = cases[0] if cases else None
        # Updated at each event: summing a queue of thousands would take longer than a case.
        self._open_s = sum(task.expected_s for task in self._queue)
        self._finished_s = self._elapsed_s = 0.0  # expected and elapsed seconds of finished cases
        self._prior_s = _FORECAST_CASES * self._open_s / max(1, self.total)
        can_compile = {name: compiles(name) for name in self._backends}
        kernels = {t.kernel: t.case for t in self._queue if can_compile[t.case.backend]}
        self._to_compile = iter(list(kernels.values()))
        self._uncompiled = Counter(case.backend for case in kernels.values())
        self._compile_total = len(kernels)
        self._compiled = 0

    def events(self) -> Iterator[Event]:
        """Yield events until each case has a result.

        On a CPU a result is reported before the next case begins: storing and showing it would
        disturb the timing. A GPU gets its next case before the result is reported."""
        assign_first = self._pool.devices[0].info.kind != "cpu"
        try:
            while True:
                if assign_first:
                    self._assign()
                while self._events:
                    yield self._events.popleft()
                ended = self.done == self.total and not self._pool.measuring
                if ended and not self._read_environment_last():
                    return
                self._assign()
                if not self._events and (outcome := self._pool.poll()) is not None:
                    self._on_outcome(outcome)
        finally:
            self._forecast.means.save()

    # Assigning cases

    def _assign(self) -> None:
        may_time = self._ahead.start(self._to_compile)
        if self._compiled == self._compile_total:
            for slot in self._pool.compilers:
                if slot.idle:
                    slot.close()
        if not may_time:
            return
        for slot in self._pool.devices:
            if slot.idle and (tasks := self._next_tasks(slot)):
                self._begin(slot, tasks)
        for task in list(self._in_doubt):
            if task in self._queue and task.doubt and not self._votes.has_others(task.doubt.slot):
                self._queue.remove(task)
                self._settle(task, None)
        if all(slot.lost for slot in self._pool.devices):
            self._give_up()

    def _next_tasks(self, slot: Slot) -> list[Task]:
        """Remove and return the first task whose kernel is ready and that the slot may run, with
        those to be measured by turns with it."""
        for task in self._queue:
            tasks = [task, *self._companions(slot, task)]
            ready = all(self._ahead.ready(each.kernel) for each in tasks)
            if ready and self._votes.may_take(slot, task.doubt):
                for each in tasks:
                    self._queue.remove(each)
                return tasks
        return []

    def _companions(self, slot: Slot, task: Task) -> list[Task]:
        """Return queued tasks of the same timing, and on a GPU of the same problem, if they are to
        be interleaved."""
        case, info = task.case, slot.info
        spread = info.kind == "cpu" and self._interleave == "auto"

        def can_join(each: Task) -> bool:
            return not (each.is_alone or each.doubt or each.parts)

        if not can_join(task) or not is_interleaved(case, info, self._interleave):
            return []
        others = (
            each
            for each in self._queue
            if each is not task
            and each.case.timing == case.timing
            and (spread or each.case.problem == case.problem)
            and can_join(each)
        )
        if not spread:
            return list(itertools.islice(others, MOST_INTERLEAVED - 1))
        left_s, companions = SPREAD_S - task.expected_s, []
        for each in itertools.islice(others, _MOST_SPREAD - 1):
            left_s -= each.expected_s
            if left_s < 0:
                break
            companions.append(each)
        return companions

    def _begin(self, slot: Slot, tasks: list[Task]) -> None:
        self._active[slot] = tasks
        for task in tasks:
            task.begun = task.begun or time.monotonic()
        task = tasks[0]
        process = len(task.parts)
        if len(tasks) > 1:
            self._pool.submit(slot, MeasureInTurns(cases=[task.case for task in tasks]))
        else:
            # Further processes of a case are fresh; the first may have run other cases.
            job = MeasureCase(case=task.case, process=process, fresh=process > 0)
            self._pool.submit(slot, job)
        if process == 0:
            device, progress = slot.info.name, self._progress()
            for task in tasks:
                self._emit(CaseStarted(case=task.case, device=device, progress=progress))

    def _give_up(self) -> None:
        first = self._pool.devices[0]
        if self._queue and any(slot.lost.code == MACHINE_LOST for slot in self._pool.devices):
            if self._events:
                return  # results that must be stored first
            # No fault of the cases: a resumed run must measure them.
            raise KernelmarkError(
                Reason(f"no device is left: {first.lost}", MACHINE_LOST),
                hint="what has a result is stored: kmark run --resume measures the rest",
            )
        self._to_compile = iter([])
        while self._queue:
            task = self._queue.popleft()
            if task.doubt is not None:
                self._settle(task, None)
                continue
            error = Reason(f"no device is left: {first.lost}")
            result = failure(task.case, first.info, Status.CRASHED, error, started=time.time())
            self._finish(task, result)

    # Handling outcomes

    def _on_outcome(self, outcome: Outcome) -> None:
        slot = outcome.slot
        if isinstance(outcome, Returned) and outcome.loss is not None:
            self._emit(outcome.loss)
        if isinstance(outcome, Phase):
            self._on_phase(outcome)
        elif isinstance(outcome.job, CompileCase):
            self._ahead.on_outcome(outcome)
            if isinstance(outcome, Finished):
                self._on_compiled(slot, outcome.job.case)
        elif isinstance(outcome.job, MeasureCase):
            (task,) = self._active.pop(slot)
            if isinstance(outcome, Finished):
                self._on_measured(slot, task, outcome.value)
            elif task.parts and not slot.lost:
                # Keep the results of the case's other processes, which ran on this device.
                self._begin(slot, [task])
            else:
                self._put_back(task)
        elif isinstance(outcome.job, MeasureInTurns):
            tasks = self._active.pop(slot)
            self._on_turns(slot, tasks, outcome.value if isinstance(outcome, Finished) else None)
        elif isinstance(outcome, Finished):
            if isinstance(outcome.value, Failure):
                self._emit(Note(text=shorten(outcome.value.error)))
            else:
                self._environment_read = True
                environment = slot.without_own_variables(outcome.value)
                self._emit(EnvironmentRead(environment=environment))

    def _on_phase(self, phase: Phase) -> None:
        device = phase.slot.info.name
        task = next(iter(self._active.get(phase.slot, ())), None)
        if phase.name == "waiting":
            self._emit(Waiting(device=device, holder=phase.holder))
        elif task is not None and phase.name not in task.phases:
            # Each block goes through the phases again. Report a phase once: reporting uses a core
            # that may be timing.
            task.phases.add(phase.name)
            self._emit(CasePhase(case=task.case, device=device, phase=phase.name))

    def _put_back(self, task: Task) -> None:
        """Put a task at the head of the queue and drop its results so far: a case is measured on
        one device."""
        task.parts.clear()
        self._queue.appendleft(task)

    def _on_compiled(self, slot: Slot, case: Case) -> None:
        key = kernel_key(case)
        compiled = self._ahead.result(key)
        assert compiled is not None
        self._compiled += 1
        self._uncompiled[case.backend] -= 1
        if compiled.status is Status.OK:
            self._forecast.learn_compiled(case, compiled.seconds)
        self._emit(
            CaseCompiled(
                case=case,
                status=compiled.status,
                seconds=compiled.seconds,
                done=self._compiled,
                total=self._compile_total,
                progress=self._progress(),
            )
        )
        if compiled.status in FINAL:
            for task in [task for task in self._queue if task.kernel == key]:
                self._queue.remove(task)
                status, error, now = compiled.status, compiled.error, time.time()
                self._finish(task, failure(task.case, slot.info, status, error, started=now))

    def _on_turns(
        self, slot: Slot, tasks: Sequence[Task], results: Sequence[Result] | None
    ) -> None:
        """Handle the results of tasks measured by turns. Those that failed, or whose worker was
        lost (`results` is empty), are measured alone: another of them may be the reason. None: the
        worker was lost before it began."""
        now = time.monotonic()
        by_task = dict(zip(tasks, results or (), strict=False))
        for task in reversed(tasks):
            result = by_task.get(task)
            if result is None or not (harmless(result) or result.status is Status.WRONG):
                task.is_alone = results is not None
                task.begun = 0.0
                self._put_back(task)
        for task, result in by_task.items():
            if task not in self._queue:
                task.begun = now - (now - task.begun) / len(tasks)
                self._on_measured(slot, task, result)

    def _on_measured(self, slot: Slot, task: Task, result: Result) -> None:
        task.parts.append(result)
        if result.status is Status.OK and len(task.parts) < task.case.timing.processes:
            self._begin(slot, [task])
            return
        if task.doubt is not None:
            self._settle(task, join(task.parts))
        elif (doubt := self._votes.doubt(slot, task.case, result)) is not None:
            task.doubt = doubt
            self._in_doubt.append(task)
            self._put_back(task)
        else:
            self._finish(task, join(task.parts))
        if result.status is Status.OK and not self._environment_asked:
            # This worker has loaded the case's libraries, so reading their versions is quick.
            self._environment_asked = True
            self._read_environment(slot, task.case)

    def _read_environment(self, slot: Slot, case: Case) -> None:
        threads = threads_of(case, slot.info)
        self._pool.submit(slot, ReadEnvironment(backends=self._backends, threads=threads))

    def _read_environment_last(self) -> bool:
        """Submit the job if no case was ok, or if the worker died; once. Return whether it was
        submitted."""
        slot = next((slot for slot in self._pool.devices if slot.idle), None)
        if self._environment_read or self._environment_last or not (slot and self._first):
            return False
        self._environment_last = True
        self._read_environment(slot, self._first)
        return True

    def _settle(self, task: Task, second: Result | None) -> None:
        """Finish a case that failed on one device, after the second vote."""
        assert task.doubt is not None
        self._in_doubt.remove(task)
        slot, decision = task.doubt.slot, self._votes.settle(task.doubt, second)
        if decision.lost:
            # The slot may be busy voting on another device's failure.
            for active in reversed(self._active.pop(slot, [])):
                self._put_back(active)
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
        self._open_s -= task.expected_s
        if task.begun:
            elapsed_s = time.monotonic() - task.begun
            self._finished_s += task.expected_s
            self._elapsed_s += elapsed_s
            # Only the first case of a backend loads it.
            loaded = self._forecast.unloaded([task.case.backend])
            self._elapsed_s -= min(elapsed_s, self._forecast.load_s(loaded))
            self._forecast.learn(result, elapsed_s)
        self._emit(CaseFinished(result=result, progress=self._progress()))

    def _progress(self) -> Progress:
        if self.done == self.total:
            return Progress(done=self.done, total=self.total, remaining_s=0.0)
        now, slots = time.monotonic(), sum(not slot.lost for slot in self._pool.devices)
        # Elapsed / expected seconds. Refused cases take none, and a busy machine slows all.
        pace = (self._prior_s + self._elapsed_s) / max(1e-9, self._prior_s + self._finished_s)
        left_s = pace * self._open_s
        for task in itertools.chain(*self._active.values()):
            left_s -= min(pace * task.expected_s, now - task.begun)
        left_s = max(0.0, left_s) + self._forecast.load_s(self._forecast.unloaded(self._backends))
        left_s /= max(1, slots)
        if compilers := len(self._pool.compilers):
            compile_s = self._forecast.compile_ahead_s(self._uncompiled, compilers)
            compiles_first = self._pool.devices[0].info.kind == "cpu"
            left_s = left_s + compile_s if compiles_first else max(left_s, compile_s)
        return Progress(done=self.done, total=self.total, remaining_s=left_s)

    def _emit(self, event: Event) -> None:
        self._events.append(event)


def order(cases: Sequence[Case], devices: int) -> list[Case]:
    """Order cases longest first if several devices share them, so that the devices finish at about
    the same time. Cases of equal thread count stay adjacent: another count needs another worker."""
    groups: dict[int, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.timing.threads, []).append(case)
    if devices > 1:
        for group in groups.values():
            sizes = {id(case): work(case) for case in group}
            if all(size is not None for size in sizes.values()):
                group.sort(key=lambda c: -(sizes[id(c)] or 0.0) * c.timing.processes)
    return [case for group in groups.values() for case in group]


class LocalRunner:
    """Runs cases on `devices` (cpu, cuda:0, cuda:0-7, fake:1 …), which share the cases.

    While a GPU is timed, kernels are compiled ahead on `jobs` host cores (0: not ahead). On the CPU
    compiling would disturb the timing, so everything is compiled first. Timing is exclusive on a
    device, also across runs. `python` is another interpreter for the workers, `variables` are set
    in their environment, `folder` is their working directory, `memory_bytes` caps a worker's
    address space, `workers` starts them, `interleave` measures the backends of a problem by turns.

    A case that crashes, hangs or exhausts memory ends its worker and becomes a result; the next
    case gets a new worker. A device on which workers fail to start three times in a row is given
    up.
    """

    def __init__(
        self,
        devices: Sequence[str],
        *,
        timeout_s: float = Limits().timeout_s,
        compile_timeout_s: float = Limits().compile_timeout_s,
        start_timeout_s: float = Limits().start_timeout_s,
        jobs: int | None = None,
        interleave: Interleave = "no",
        python: str | None = None,
        variables: Mapping[str, str] | None = None,
        folder: str = "",
        memory_bytes: int = 0,
        workers: Workers | None = None,
    ) -> None:
        if not all(0 < s < math.inf for s in (timeout_s, compile_timeout_s, start_timeout_s)):
            raise UsageError("a time limit must be a positive number of seconds")
        if python is not None and shutil.which(python) is None:
            raise UsageError(
                f"{python!r} is not a program", hint="give the path of a Python interpreter"
            )
        self.infos = parse_devices(devices)
        self.limits = Limits(
            timeout_s=timeout_s,
            compile_timeout_s=compile_timeout_s,
            start_timeout_s=start_timeout_s,
        )
        place = places.current()
        default = None if place is None else place.compilers
        self.jobs = compile_jobs(default if jobs is None else jobs, self.infos)
        self.interleave: Interleave = interleave
        self.python = python or sys.executable
        self.variables = FrozenDict(variables or {})
        self.folder = folder
        self.memory_bytes = memory_bytes
        self._workers = workers

    def pool(self, jobs: int = 0, *, keeps_spoiled: bool = False) -> Pool:
        """Return a pool with a slot for each device and `jobs` compile slots. No worker is started
        yet."""
        compilers = [self.compile_slot() for _ in range(jobs)]
        slots = [self.slot(info) for info in self.infos]
        return Pool(slots, compilers, self._workers, keeps_spoiled=keeps_spoiled)

    def slot(self, info: DeviceInfo, *, opens_device: bool = True) -> Slot:
        """Return a slot for a device, or one that compiles for it."""
        spec = WorkerSpec(
            device=info.name,
            python=self.python,
            variables=self.variables,
            folder=self.folder,
            memory_bytes=self.memory_bytes,
            opens_device=opens_device,
        )
        return Slot(device_kinds.registry.get(info.kind), info, spec, self.limits)

    def compile_slot(self) -> Slot:
        """Return a slot that compiles for the devices. Elsewhere it needs only the architecture of
        GPUs, so that the node can be one without them."""
        slot = self.slot(self.infos[0], opens_device=False)
        if places.current() is not None and self.infos[0].kind != "cpu":
            slot.spec = dataclasses.replace(slot.spec, device=self.infos[0].arch)
        return slot

    def run(self, cases: Iterable[Case]) -> Iterator[Event]:
        """Check the cases, and return an iterator of events. Closing it, or an exception, ends all
        workers."""
        cases = list(cases)
        for case in cases:
            check_threads(self.infos[0], case.timing.threads)
        return self._run(cases)

    def _run(self, cases: Sequence[Case]) -> Iterator[Event]:
        by_id: dict[str, Case] = {}
        for case in cases:
            by_id.setdefault(case.id, case)
        unique = list(by_id.values())
        if len(unique) < len(cases):
            yield Note(text=f"{len(cases) - len(unique)} cases were asked for twice; once is run")
        for info in self.infos if places.current() is None else ():
            if other_processes := describe_others(info):
                yield Note(
                    text=f"{info.name} is in use by {other_processes}: times may be disturbed"
                )
        # A single compilation cannot run ahead of any timing.
        to_compile = sum(compiles(case.backend) for case in unique)
        jobs = self.jobs if to_compile > 1 else 0
        # With several devices, a failure is put to a vote while its device waits.
        with self.pool(jobs, keeps_spoiled=len(self.infos) == 1) as pool:
            cases_in_order = order(unique, len(self.infos))
            yield from Dispatch(cases_in_order, pool, self.interleave).events()


def compile_pool(info: DeviceInfo, jobs: int, timeout_s: float) -> Pool:
    """Return a pool of slots that compile for an architecture, with or without a device of it."""
    spec = WorkerSpec(device=info.arch, opens_device=False)
    kind, limits = device_kinds.registry.get(info.kind), Limits(compile_timeout_s=timeout_s)
    return Pool([], [Slot(kind, info, spec, limits) for _ in range(jobs)])
