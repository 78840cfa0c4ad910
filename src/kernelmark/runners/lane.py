"""Lane: one place where requests are done, one at a time, by a worker that may be replaced."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CodecError
from kernelmark.core.plausible import check_result
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Result, Status
from kernelmark.devices.base import DeviceKind
from kernelmark.runners.execute import failure
from kernelmark.runners.process import Loss, WorkerProcess, WorkerSpec, gather
from kernelmark.runners.protocol import Message

_NUMBERS = itertools.count(1)
# A worker ends a profiler that takes too long by itself, and then still has to say its result.
_ENDING_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that a case may take: in its compiler (with the loading of libraries), in all
    other phases together, and a worker until it is ready. Waiting for a device is free. A profiler
    may take as long as the other phases, and costs a case that was measured nothing."""

    timeout_s: float = 300.0
    compile_timeout_s: float = 600.0
    start_timeout_s: float = 120.0

    def of(self, phase: str) -> tuple[str, float | None]:
        """The account that a phase is booked on, and its limit."""
        if phase == "start":
            return phase, self.start_timeout_s
        if phase == "waiting":
            return phase, None
        if phase in ("load", "compile"):
            return "compile", self.compile_timeout_s
        if phase == "profile":
            return phase, self.timeout_s + _ENDING_S
        return "timing", self.timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    phase: str
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The request will not be answered. `started` is False when there was no worker to do it."""

    status: Status
    error: Reason
    phase: str
    started: bool


Item = Phase | Answer | Failure


class Lane:
    """Requests for one device (or its compiler), their time limits, and the worker."""

    def __init__(
        self, kind: DeviceKind, info: DeviceInfo, spec: WorkerSpec, limits: Limits
    ) -> None:
        self.info = info
        self.limits = limits
        self.dead = ""  # why no more worker is started
        self.start_failures = 0
        self.worker: WorkerProcess | None = None
        self._kind = kind
        self._spec = spec
        self._number: int | None = None
        self._phase = "start"
        self._since = 0.0
        self._used: dict[str, float] = {}

    @property
    def idle(self) -> bool:
        return self._number is None and not self.dead

    @property
    def busy(self) -> bool:
        """Whether a request is still to be answered."""
        return self._number is not None and not self.dead

    def give(self, request: Message, *, threads: int = 0, fresh: bool = False) -> list[Item]:
        """Start on a request; [] unless there is already something to tell."""
        spec = self._spec_for(threads)
        # One that died while idle must not be this request's crash.
        if self.worker is not None and (fresh or self.worker.spec != spec or not self.worker.alive):
            self.retire()
        self._number = next(_NUMBERS)
        self._used = {}
        self._since = time.monotonic()
        if self.worker is None:
            self._phase = "start"
            try:
                self.worker = WorkerProcess(spec)
            except OSError as error:
                return [
                    self._fail(
                        Status.CRASHED,
                        Reason("worker-not-started", python=spec.python, error=str(error)),
                    )
                ]
        else:
            self._phase = "load"
        self.worker.send({**request, "id": self._number, "profile_s": self.limits.timeout_s})
        return []

    @property
    def added_variables(self) -> set[str]:
        """Variables that the pinning of a worker to its device has set, whatever they were before:
        a timing's threads say the same."""
        return set(self._own_variables(1))

    def _own_variables(self, threads: int) -> dict[str, str]:
        own = self._kind.worker_variables(self.info.index, threads)
        # Libraries read one of several: who sets one for these workers would be overruled by
        # the others.
        return {} if own.keys() & self._spec.variables.keys() else own

    def _spec_for(self, threads: int) -> WorkerSpec:
        own = self._own_variables(threads)
        variables = {**own, **self._spec.variables}
        return dataclasses.replace(self._spec, threads=threads, variables=variables)

    def hear(self, said: Message | Loss) -> Item | None:
        """What a message of the worker means for the request."""
        if isinstance(said, Loss):
            if self._number is None:
                self.retire()
                return None
            return self._fail(said.status, said.error)
        if said["say"] == "ready":
            self.start_failures = 0
            self._enter("load", time.monotonic())
            return None
        if self._number is None or said.get("id") != self._number:
            return None
        if said["say"] == "phase":
            self._enter(str(said.get("phase")), float(said.get("at", time.monotonic())))
            return Phase(phase=self._phase, holder=str(said.get("holder", "")))
        self._number = None
        return Answer(message=said)

    def _enter(self, phase: str, at: float) -> None:
        account, _ = self.limits.of(self._phase)
        self._used[account] = self._used.get(account, 0.0) + max(0.0, at - self._since)
        self._phase, self._since = phase, at

    @property
    def deadline(self) -> float | None:
        """When the request runs out of time, on the monotonic clock."""
        account, limit = self.limits.of(self._phase)
        if self._number is None or limit is None:
            return None
        return self._since + limit - self._used.get(account, 0.0)

    def expire(self) -> Failure | None:
        """End a request that has run out of time. Listen to the worker before calling this."""
        deadline = self.deadline
        if deadline is None or time.monotonic() < deadline or self.worker is None:
            return None
        if self._phase == "start":
            limit_s = self.limits.start_timeout_s
            return self._fail(Status.CRASHED, Reason("worker-not-ready", limit_s=limit_s))
        self.worker.stacks()
        late = Reason("no-answer", limit_s=self.limits.of(self._phase)[1] or 0.0)
        return self._fail(Status.TIMEOUT, self.worker.with_tail(late.having(phase=self._phase)))

    def _fail(self, status: Status, error: Reason) -> Failure:
        started = self.worker is not None and self.worker.ready
        phase = self._phase
        self._number = None
        self.retire()
        if not started:
            self.start_failures += 1
        return Failure(status=status, error=error, phase=phase, started=started)

    def retire(self) -> None:
        """End the worker; the next request gets a new one."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def close(self) -> None:
        """Let an idle worker end by itself, end a busy one."""
        if self.worker is not None and self._number is None:
            self.worker.stop()
        self._number = None
        self.retire()

    def measure(
        self,
        case: Case,
        process: int = 0,
        *,
        fresh: bool = False,
        on_wait: Callable[[str], object] | None = None,
    ) -> Result:
        """One case, waited for; a failure of any sort is its result. `on_wait` is told who holds
        the device."""
        request = measure_request(case, process)
        started = time.time()
        items = self.give(request, threads=threads_of(case, self.info), fresh=fresh)
        while True:
            for item in items:
                if isinstance(item, Answer):
                    return read_result(case, self.info, item.message, started)
                if isinstance(item, Failure):
                    return failed_result(case, self.info, item, started)
                if on_wait is not None and item.phase == "waiting":
                    on_wait(item.holder)
            items = [item for _, item in gather_items([self])]


def gather_items(lanes: Iterable[Lane]) -> list[tuple[Lane, Item]]:
    """Wait until something happens in one of `lanes`: a message, a loss, the end of a limit; []
    at once where no worker runs, as a wait for nobody would never end."""
    by_worker = {lane.worker.pid: lane for lane in lanes if lane.worker is not None}
    if not by_worker:
        return []
    deadlines = [d for lane in by_worker.values() if (d := lane.deadline) is not None]
    wait_s = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
    items: list[tuple[Lane, Item]] = []
    workers = [lane.worker for lane in by_worker.values() if lane.worker is not None]
    for worker, said in gather(workers, wait_s):
        lane = by_worker[worker.pid]
        item = lane.hear(said) if lane.worker is worker else None
        if item is not None:
            items.append((lane, item))
    for lane in by_worker.values():
        if (late := lane.expire()) is not None:
            items.append((lane, late))
    return items


def threads_of(case: Case, info: DeviceInfo) -> int:
    """Threads that a worker is started with; on a GPU they mean nothing and need no new one."""
    return case.timing.threads if info.kind in ("cpu", "fake") else 0


def measure_request(case: Case, process: int) -> Message:
    return {"do": "measure", "process": process, "case": codec.to_document(case)}


def read_result(case: Case, info: DeviceInfo, message: Message, started: float) -> Result:
    """The result in a worker's answer; one that cannot be read is `crashed`."""
    try:
        result = codec.from_document(message.get("result"), Result)
        check_result(result, "result")
    except CodecError as error:
        text = Reason("result-unreadable", cause=error.message)
        return failure(case, info, Status.CRASHED, text, started=started)
    if result.case.id != case.id:
        text = Reason("result-of-another-case")
        return failure(case, info, Status.CRASHED, text, started=started)
    if (result.device, result.arch) != (info.name, info.arch):
        text = Reason("result-of-another-device", device=result.device, arch=result.arch)
        return failure(case, info, Status.CRASHED, text, started=started)
    return result


def failed_result(case: Case, info: DeviceInfo, item: Failure, started: float) -> Result:
    cost = {"total": time.time() - started}
    error = item.error.having(phase=item.phase) if item.started else item.error
    return failure(case, info, item.status, error, started=started, cost=cost)


def harmless(result: Result) -> bool:
    """Whether the worker is as good as new after it. After anything else its memory, or its
    device's context, may be damaged."""
    return result.status in (Status.OK, Status.UNSUPPORTED, Status.COMPILE_ERROR)
