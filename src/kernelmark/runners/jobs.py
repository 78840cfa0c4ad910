"""Jobs: requests to a worker, and the values of their replies or failures."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kernelmark import backends
from kernelmark.backends.base import Backend
from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.reason import NO_REASON, Reason, in_phase, read_reason, suffixed
from kernelmark.core.result import Case, KernelInfo, Result, Status, check_result
from kernelmark.core.timing import MOST_S, Timing
from kernelmark.runners.execute import failure
from kernelmark.runners.protocol import Message

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why a job has no reply. `started` is False if no worker was ready for it."""

    status: Status
    error: Reason
    phase: str = "start"
    started: bool = False


class Job(ABC, Generic[R]):
    """One request to a worker. `started` is the submission time in seconds since the epoch."""

    fresh: bool = False  # whether it needs a process that has run no other job
    reads_versions: bool = False  # whether it may run after a failure that damaged the process

    @property
    @abstractmethod
    def request(self) -> Message: ...

    @abstractmethod
    def read(self, info: DeviceInfo, reply: Message, started: float) -> R:
        """Return the value in a worker's reply."""

    @abstractmethod
    def fail(self, info: DeviceInfo, failure: Failure, started: float) -> R:
        """Return the value for a job without a reply."""

    def threads_on(self, info: DeviceInfo) -> int:
        """Return the number of threads that the job's worker is started with."""
        return 0

    def spoils(self, value: R) -> bool:
        """Return whether the worker that returned this value must be replaced."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasureCase(Job[Result]):
    """Measure a case. With `keep_wrong`, a worker whose result is wrong is kept if the guards
    around the output are intact. `cutoff_s` is that of a candidate of a search, inf for none."""

    case: Case
    process: int = 0
    fresh: bool = False
    keep_wrong: bool = False
    cutoff_s: float | None = None

    @property
    def request(self) -> Message:
        case = codec.to_document(self.case)
        request = {"kind": "measure", "process": self.process, "case": case}
        if self.cutoff_s is not None:
            request["cutoff_s"] = min(self.cutoff_s, MOST_S)
        return request

    def threads_on(self, info: DeviceInfo) -> int:
        return threads_of(self.case, info)

    def read(self, info: DeviceInfo, reply: Message, started: float) -> Result:
        try:
            result = codec.from_document(reply.get("result"), Result)
            check_result(result, "result")
        except CodecError as error:
            problem = Reason(f"the worker's result cannot be read: {error.message}")
        else:
            if result.case.id != self.case.id:
                problem = Reason("the worker answered with another case's result")
            elif (result.device, result.arch) != (info.name, info.arch):
                problem = Reason(
                    f"the worker answered with a result of {result.device} ({result.arch})"
                )
            else:
                return result
        return failure(self.case, info, Status.CRASHED, problem, started=started)

    def fail(self, info: DeviceInfo, failure_: Failure, started: float) -> Result:
        error = failure_.error
        if failure_.started and "phase" not in error.fields:
            error = suffixed(error, in_phase(failure_.phase))
        cost = {"total": time.time() - started}
        return failure(self.case, info, failure_.status, error, started=started, cost=cost)

    def spoils(self, value: Result) -> bool:
        guarded = value.status is Status.WRONG and value.check and value.check.guards_intact
        return not (harmless(value) or (self.keep_wrong and guarded))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasureInTurns(Job[tuple[Result, ...]]):
    """Measure several cases of a device by turns. If the worker is lost there are
    no results, as any of the cases may be the reason."""

    cases: Sequence[Case]

    @property
    def request(self) -> Message:
        return {"kind": "interleave", "cases": [codec.to_document(case) for case in self.cases]}

    def threads_on(self, info: DeviceInfo) -> int:
        return threads_of(self.cases[0], info)

    def read(self, info: DeviceInfo, reply: Message, started: float) -> tuple[Result, ...]:
        documents = reply.get("results")
        if not isinstance(documents, list) or len(documents) != len(self.cases):
            return ()
        return tuple(
            MeasureCase(case=case).read(info, {"result": document}, started)
            for case, document in zip(self.cases, documents, strict=True)
        )

    def fail(self, info: DeviceInfo, failure_: Failure, started: float) -> tuple[Result, ...]:
        return ()

    def spoils(self, value: tuple[Result, ...]) -> bool:
        return not value or not all(map(harmless, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The result of compiling a case; `seconds` is the time on one core."""

    status: Status
    error: Reason = NO_REASON
    kernel: KernelInfo = field(default_factory=KernelInfo)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompileCase(Job[Compiled]):
    """Fill the compile cache of a case's backend."""

    case: Case

    @property
    def request(self) -> Message:
        return {"kind": "compile", "case": codec.to_document(self.case)}

    def read(self, info: DeviceInfo, reply: Message, started: float) -> Compiled:
        try:
            kernel = codec.read(reply.get("kernel"), KernelInfo, "kernel")
        except CodecError:
            kernel = KernelInfo()  # unknown resources do not reject a config
        return Compiled(
            status=Status(reply["status"]),
            error=read_reason(reply.get("error")),
            kernel=kernel,
            seconds=float(reply.get("seconds", 0.0)),
        )

    def fail(self, info: DeviceInfo, failure_: Failure, started: float) -> Compiled:
        return Compiled(status=failure_.status, error=failure_.error)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadEnvironment(Job[Environment | Failure]):
    """Read the environment of a worker, with the versions of the libraries of `backends`."""

    backends: Sequence[str] = ()
    threads: int = 0
    reads_versions = True

    @property
    def request(self) -> Message:
        return {"kind": "environment", "backends": list(self.backends)}

    def threads_on(self, info: DeviceInfo) -> int:
        return self.threads

    def read(self, info: DeviceInfo, reply: Message, started: float) -> Environment | Failure:
        try:
            return codec.from_document(reply.get("environment"), Environment)
        except CodecError as error:
            reason = Reason(f"the worker's environment cannot be read: {error.message}")
            return Failure(status=Status.CRASHED, error=reason, phase="load", started=True)

    def fail(self, info: DeviceInfo, failure_: Failure, started: float) -> Environment | Failure:
        return failure_


def threads_of(case: Case, info: DeviceInfo) -> int:
    """Return the number of threads that a case's worker is started with; 0 on a GPU, where cases of
    any thread count share a worker."""
    return threads_on(case.timing, info)


def threads_on(timing: Timing, info: DeviceInfo) -> int:
    """Return the number of threads that a worker is started with for a timing."""
    return timing.threads if info.kind in ("cpu", "fake") else 0


def compile_jobs(jobs: int | None, infos: Sequence[DeviceInfo]) -> int:
    """Return how many kernels are compiled at a time. The default is the number of cores, minus one
    for each GPU that is timed."""
    if jobs is not None:
        if jobs < 0:
            raise UsageError("jobs must not be negative")
        return jobs
    cores = len(os.sched_getaffinity(0))
    return cores if infos[0].kind == "cpu" else max(1, cores - len(infos))


def harmless(result: Result) -> bool:
    """Return whether the worker can continue after this result. Otherwise its memory or its device
    context may be damaged."""
    return result.status in (Status.OK, Status.UNSUPPORTED, Status.COMPILE_ERROR)


def compiles(name: str) -> bool:
    """Return whether a backend has anything to compile ahead."""
    if len(names := backends.names_of(name)) > 1:
        return any(map(compiles, names))
    if backends.is_file(name):  # not executed here
        return not name.endswith(".py")
    try:
        backend = backends.find(name)
    except UsageError:
        return False
    return type(backend).compile is not Backend.compile
