"""Pool: worker slots, their jobs, time limits, and the handling of lost workers.

Only this module starts workers and handles their loss. Commands decide which job goes to which slot
and what its outcome means; they have no access to workers. Workers are processes of this machine
(`process.LocalWorkers`) or come from another implementation of `Workers`, such as that of a Ray
cluster (`ray.RayWorkers`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeVar

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.reason import NO_REASON, Reason, in_phase, shorten
from kernelmark.core.result import Case, Status, config_key
from kernelmark.core.units import duration_text
from kernelmark.devices.base import DeviceKind
from kernelmark.runners import places
from kernelmark.runners.events import DeviceLost, Note
from kernelmark.runners.jobs import CompileCase, Compiled, Failure, Job, compiles
from kernelmark.runners.process import LocalWorkers, Loss, WorkerSpec
from kernelmark.runners.protocol import Message, encode

R = TypeVar("R")
OnWait = Callable[[str], object]  # called with the process that holds the device

# A device on which this many workers in a row fail to start is given up.
START_ATTEMPTS = 3
NOT_STARTED = "worker-not-started"
# A job is repeated if its machine is lost. After this many times the job may be the reason.
MACHINE_ATTEMPTS = 3
MACHINE_LOST = "machine-lost"
_IDS = itertools.count(1)
# A worker ends a profiler that takes too long, and then still has to send its result.
_PROFILER_GRACE_S = 30.0


class Worker(Protocol):
    """A started worker. It handles one request at a time; no method blocks for long."""

    @property
    def spec(self) -> WorkerSpec: ...
    @property
    def ready(self) -> bool: ...
    @property
    def alive(self) -> bool: ...
    def send(self, request: Message) -> None: ...
    def dump_stacks(self) -> None: ...
    def with_tail(self, reason: Reason) -> Reason: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class Workers(Protocol):
    """Starts workers, and waits for messages of several. `start` raises OSError on failure."""

    def start(self, spec: WorkerSpec) -> Worker: ...
    def wait(
        self, workers: Sequence[Any], timeout_s: float | None
    ) -> Sequence[tuple[Worker, Message | Loss]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits in seconds: for compiling and loading libraries, for all other phases together,
    and for a worker to become ready. Waiting for a device has no limit. A profiler may take as long
    as the other phases, in addition to them."""

    timeout_s: float = 300.0
    compile_timeout_s: float = 600.0
    start_timeout_s: float = 120.0

    def of(self, phase: str) -> tuple[str, float | None]:
        """Return the name of the limit that applies to a phase, and its seconds."""
        if phase == "start":
            return phase, self.start_timeout_s
        if phase == "waiting":
            return phase, None
        if phase in ("load", "compile"):
            return "compile", self.compile_timeout_s
        if phase == "profile":
            return phase, self.timeout_s + _PROFILER_GRACE_S
        return "timing", self.timeout_s


class Slot:
    """A worker slot: on a device, or for a compiler that does not open the device."""

    def __init__(
        self, kind: DeviceKind, info: DeviceInfo, spec: WorkerSpec, limits: Limits | None = None
    ) -> None:
        self.info = info
        self.spec = spec
        self.lost = NO_REASON  # why no more workers are started
        self.job: Job[Any] | None = None  # until its outcome has been polled
        self.worker: Worker | None = None
        self.is_spoiled = False  # whether its worker may only read versions from now on
        self._kind = kind
        self._limits = limits or Limits()
        self._failed_starts = 0
        self._id = 0  # of the request without a reply
        self._is_begun = False  # whether a worker has started on it
        self._started = 0.0  # submission time of the job, in seconds since the epoch
        self._phase = "start"
        self._since = 0.0
        self._used_s: dict[str, float] = {}

    @property
    def idle(self) -> bool:
        return self.job is None and not self.lost

    def without_own_variables(self, environment: Environment) -> Environment:
        """Drop the variables that only pin a worker to its device: the timing's `threads` has the
        same information."""
        own = self._own_variables(1)
        kept = {name: value for name, value in environment.variables.items() if name not in own}
        return dataclasses.replace(environment, variables=kept)

    def _own_variables(self, threads: int) -> dict[str, str]:
        own = self._kind.worker_variables(self.info.index, threads)
        # A library may read any of several variables. If the user set one of them, the worker's
        # defaults must not override it through another.
        return {} if own.keys() & self.spec.variables.keys() else own

    def spec_for(self, threads: int) -> WorkerSpec:
        """Return the spec of a worker with this number of threads."""
        variables = {**self._own_variables(threads), **self.spec.variables}
        return dataclasses.replace(self.spec, threads=threads, variables=variables)

    def _enter(self, phase: str, at: float) -> None:
        account, _ = self._limits.of(self._phase)
        self._used_s[account] = self._used_s.get(account, 0.0) + max(0.0, at - self._since)
        self._phase, self._since = phase, at

    @property
    def deadline(self) -> float | None:
        """Return the monotonic time at which the job runs out of time."""
        account, limit = self._limits.of(self._phase)
        if not self._id or limit is None:
            return None
        return self._since + limit - self._used_s.get(account, 0.0)

    def retire(self) -> None:
        """End the worker; the next job gets a new one."""
        if self.worker is not None:
            self.worker.close()
            self.worker, self.is_spoiled = None, False

    def close(self) -> None:
        """Let an idle worker exit; kill a busy one."""
        if self.worker is not None and not self._id:
            self.worker.stop()
        self.job, self._id = None, 0
        self.retire()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A job entered a phase; in phase `waiting`, `holder` is the process that holds the device."""

    slot: Slot
    job: Job[Any]
    name: str
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job is done; `value` comes from its reply or its failure."""

    slot: Slot
    job: Job[Any]
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """No worker began a job: it must be submitted again, to this or another slot.
    `lost` is the reason if the slot has just been given up."""

    slot: Slot
    job: Job[Any]
    lost: Reason = NO_REASON

    @property
    def loss(self) -> DeviceLost | Note | None:
        """Return the event to report if the slot has been given up."""
        if not self.lost:
            return None
        if self.slot.spec.opens_device:
            return DeviceLost(device=self.slot.info.name, reason=self.lost)
        return Note(text=f"a compile worker cannot be started: {self.lost}")


Outcome = Phase | Finished | Returned


class Pool:
    """Slots that time on devices, and slots that compile. A slot's first job starts its worker.
    Closing the pool, or leaving its `with` block, ends all workers. With `keeps_spoiled`, a worker
    that must be replaced is kept until the next job, unless that only reads the environment: a
    fresh worker would import all libraries again for it."""

    def __init__(
        self,
        devices: Sequence[Slot],
        compilers: Sequence[Slot] = (),
        workers: Workers | None = None,
        *,
        keeps_spoiled: bool = False,
    ) -> None:
        self.devices = list(devices)
        self.compilers = list(compilers)
        self._slots = [*self.devices, *self.compilers]
        place = places.current()
        self._workers: Workers = workers or (LocalWorkers() if place is None else place.workers)
        self._keeps_spoiled = keeps_spoiled
        self._outcomes: deque[Outcome] = deque()
        self._machine_losses: Counter[bytes] = Counter()  # by request

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def measuring(self) -> bool:
        """Return whether a device has a job whose outcome was not polled yet."""
        return any(slot.job for slot in self.devices)

    def submit(self, slot: Slot, job: Job[Any]) -> None:
        """Start a job on an idle slot. If the slot is lost, the job's outcome is `Returned`."""
        if slot.lost:
            self._outcomes.append(Returned(slot=slot, job=job))
            return
        spec, worker = slot.spec_for(job.threads_on(slot.info)), slot.worker
        # A worker that died while idle must not count as this job's crash.
        may_not = job.fresh or (slot.is_spoiled and not job.reads_versions)
        if worker is not None and (may_not or worker.spec != spec or not worker.alive):
            slot.retire()
        slot.job, slot._id, slot._used_s = job, next(_IDS), {}
        slot._started, slot._since = time.time(), time.monotonic()
        slot._phase = "start" if slot.worker is None else "load"
        slot._is_begun = slot.worker is None
        if slot.worker is None:
            try:
                slot.worker = self._workers.start(spec)
            except OSError as error:
                reason = Reason(f"cannot start {spec.python}: {error}")
                self._fail(slot, Status.CRASHED, reason)
                return
        slot.worker.send({**job.request, "id": slot._id, "profile_s": slot._limits.timeout_s})

    def poll(self, until: float = math.inf) -> Outcome | None:
        """Wait for the next outcome, at most `until`, by the monotonic clock. Return None if there
        is none by then, and immediately if no job is running."""
        while not self._outcomes and any(slot._id for slot in self._slots):
            self._wait(until)
            if time.monotonic() >= until:
                break
        outcome = self._outcomes.popleft() if self._outcomes else None
        if isinstance(outcome, Finished | Returned):
            outcome.slot.job = None
        return outcome

    def run_all(
        self, jobs: Iterable[Job[R]], slots: Sequence[Slot], on_wait: OnWait | None = None
    ) -> Iterator[tuple[Job[R], R]]:
        """Run `jobs` on any of `slots`, and yield each job with its value. When all slots are lost,
        the remaining jobs are dropped."""
        waiting = deque(jobs)
        while True:
            for slot in slots:
                if slot.idle and waiting:
                    self.submit(slot, waiting.popleft())
            outcome = self.poll()
            if outcome is None:
                return
            if isinstance(outcome, Finished):
                yield outcome.job, outcome.value
            elif isinstance(outcome, Returned):
                waiting.appendleft(outcome.job)
            elif isinstance(outcome, Phase) and outcome.name == "waiting" and on_wait is not None:
                on_wait(outcome.holder)

    def call(self, job: Job[R], on_wait: OnWait | None = None) -> R:
        """Run one job on the first device, and wait for its value."""
        slot = self.devices[0]
        for _, value in self.run_all([job], [slot], on_wait):
            return value
        return job.fail(slot.info, Failure(status=Status.CRASHED, error=slot.lost), time.time())

    def give_up(self, slot: Slot, reason: Reason) -> None:
        """Stop using a slot. Its current job gets no outcome."""
        slot.lost = reason
        self._outcomes = deque(o for o in self._outcomes if o.slot is not slot)
        slot.close()

    def close(self) -> None:
        """End every worker."""
        for slot in self._slots:
            slot.close()

    def _wait(self, until: float = math.inf) -> None:
        """Wait for messages, lost workers, the next deadline or `until`, and handle them."""
        by_worker = {id(slot.worker): slot for slot in self._slots if slot.worker is not None}
        deadlines = [d for slot in by_worker.values() if (d := slot.deadline) is not None]
        first = min([*deadlines, until])
        timeout_s = None if first == math.inf else max(0.0, first - time.monotonic())
        workers = [slot.worker for slot in by_worker.values()]
        for worker, message in self._workers.wait(workers, timeout_s):
            slot = by_worker[id(worker)]
            if slot.worker is worker:
                self._on_message(slot, message)
        for slot in by_worker.values():
            # After the messages, so that a reply in time does not count as late.
            if slot.deadline is not None and time.monotonic() >= slot.deadline:
                self._expire(slot)

    def _on_message(self, slot: Slot, message: Message | Loss) -> None:
        if isinstance(message, Loss):
            if slot._id and slot._is_begun and not self._may_repeat(slot, message):
                self._fail(slot, message.status, message.error)
                return
            slot.retire()
            if slot.job is not None and slot._id:
                # The worker died of its last job, for example while freeing memory, or its machine
                # was lost.
                slot._id = 0
                self._outcomes.append(Returned(slot=slot, job=slot.job))
        elif message["kind"] == "ready":
            slot._failed_starts = 0
            slot._enter("load", time.monotonic())
        elif slot.job is None or not slot._id or message.get("id") != slot._id:
            return
        elif message["kind"] == "phase":
            slot._is_begun = True
            slot._enter(str(message.get("phase")), float(message.get("at", time.monotonic())))
            holder = str(message.get("holder", ""))
            self._outcomes.append(Phase(slot=slot, job=slot.job, name=slot._phase, holder=holder))
        else:
            self._finish(slot, slot.job, slot.job.read(slot.info, message, slot._started))

    def _may_repeat(self, slot: Slot, loss: Loss) -> bool:
        """Return whether a started job is to be repeated because its machine was lost."""
        started = slot.job is not None and slot.worker is not None and slot.worker.ready
        if not (started and loss.error.code == MACHINE_LOST):
            return False
        assert slot.job is not None
        request = encode(slot.job.request)
        self._machine_losses[request] += 1
        return self._machine_losses[request] < MACHINE_ATTEMPTS

    def _expire(self, slot: Slot) -> None:
        _, limit = slot._limits.of(slot._phase)
        assert slot.worker is not None
        if slot._phase == "start":
            reason = Reason(f"the worker was not ready within {duration_text(limit or 0.0)}")
            self._fail(slot, Status.CRASHED, reason)
            return
        slot.worker.dump_stacks()
        seconds = duration_text(limit or 0.0)
        reason = Reason(
            f"no reply within {seconds}{in_phase(slot._phase)}",
            "no-answer",
            limit_s=limit or 0.0,
            phase=slot._phase,
        )
        self._fail(slot, Status.TIMEOUT, slot.worker.with_tail(reason))

    def _fail(self, slot: Slot, status: Status, error: Reason) -> None:
        job = slot.job
        assert job is not None
        started = slot.worker is not None and slot.worker.ready
        slot.retire()
        if started:
            failure = Failure(status=status, error=error, phase=slot._phase, started=True)
            self._finish(slot, job, job.fail(slot.info, failure, slot._started))
            return
        slot._id = 0
        slot._failed_starts += 1
        if slot._failed_starts >= START_ATTEMPTS:
            code = MACHINE_LOST if error.code == MACHINE_LOST else NOT_STARTED
            slot.lost = Reason(shorten(error), code)
        self._outcomes.append(Returned(slot=slot, job=job, lost=slot.lost))

    def _finish(self, slot: Slot, job: Job[R], value: R) -> None:
        slot._id = 0
        if job.spoils(value):
            slot.is_spoiled = True
            if not self._keeps_spoiled:
                slot.retire()
        self._outcomes.append(Finished(slot=slot, job=job, value=value))


# Compile results that are final. Any other failure may come from compiling many kernels at once, so
# the device's worker compiles the case again.
FINAL = (Status.COMPILE_ERROR, Status.UNSUPPORTED, Status.TIMEOUT)

Key = tuple[str, str, str]


def kernel_key(case: Case) -> Key:
    """Return the identity of a case's kernel, shared by cases that differ only in their timing."""
    return case.problem.key, case.backend, config_key(case.config)


class CompileAhead:
    """The compile slots of a pool and their results. If the pool has no compile slot, every case is
    ready."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        # On the CPU a compiler would disturb the timing.
        self._exclusive = pool.devices[0].info.kind == "cpu"
        self._compiles = functools.cache(compiles)
        self._results: dict[Key, Compiled] = {}
        self._under_way: set[Key] = set()
        self._returned: list[Case] = []

    def result(self, key: Key) -> Compiled | None:
        """Return the result of compiling a kernel, or None before it is done."""
        return self._results.get(key)

    def ready(self, key: Key) -> bool:
        """Return whether a kernel is compiled, or need not be compiled ahead."""
        return key not in self._under_way and not self._must_compile(key)

    def _must_compile(self, key: Key) -> bool:
        is_known = key in self._results or key in self._under_way
        alive = any(not slot.lost for slot in self._pool.compilers)
        return alive and not is_known and self._compiles(key[1])

    def start(self, cases: Iterable[Case]) -> bool:
        """Submit the next of `cases` that must be compiled to idle slots. Return whether timing on
        devices is allowed now."""
        if self._exclusive and any(slot.job for slot in self._pool.devices):
            return False
        waiting = (
            case for case in chain(self._returned, cases) if self._must_compile(kernel_key(case))
        )
        for slot in self._pool.compilers:
            if slot.idle and (case := next(waiting, None)) is not None:
                self._under_way.add(kernel_key(case))
                self._pool.submit(slot, CompileCase(case=case))
        return not (self._exclusive and self._under_way)

    def on_outcome(self, outcome: Finished | Returned) -> None:
        """Record the outcome of a compile job. A returned job is submitted first at the next
        start."""
        assert isinstance(outcome.job, CompileCase)
        case = outcome.job.case
        self._under_way.discard(kernel_key(case))
        if isinstance(outcome, Finished):
            self._results[kernel_key(case)] = outcome.value
        else:
            self._returned.append(case)

    def collect_cost_s(self, key: Key) -> float:
        """Return the core seconds of compiling a kernel, and 0 from the second call on: they are
        attributed to one of the cases that share the kernel."""
        result = self._results.get(key)
        if result is None:
            return 0.0
        self._results[key] = dataclasses.replace(result, seconds=0.0)
        return result.seconds

    def forget(self, problem: str) -> None:
        """Drop the results of a finished problem."""
        self._returned = [case for case in self._returned if case.problem.key != problem]
        for key in [key for key in self._results if key[0] == problem]:
            del self._results[key]
