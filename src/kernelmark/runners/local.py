"""LocalRunner: run cases on the devices of this machine, one worker per device."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kernelmark import devices as device_kinds
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.result import Case
from kernelmark.runners.dispatch import Dispatch, order
from kernelmark.runners.events import Event, Note
from kernelmark.runners.jobs import compiles
from kernelmark.runners.locks import describe_others
from kernelmark.runners.pool import Limits, Pool, Slot, Workers
from kernelmark.runners.process import WorkerSpec
from kernelmark.runners.targets import check_threads, expand


class LocalRunner:
    """Runs cases on `devices` (cpu, cuda:0, cuda:0-7, fake:1 …), which share the cases.

    While a GPU is timed, kernels are compiled ahead on `jobs` host cores (0: not ahead). On the CPU
    compiling would disturb the timing, so everything is compiled first. Timing is exclusive on a
    device, also across runs. `python` is another interpreter for the workers, `variables` are set
    in their environment, `folder` is their working directory, `memory_bytes` caps a worker's
    address space, `workers` starts them.

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
        python: str | None = None,
        variables: Mapping[str, str] | None = None,
        folder: str = "",
        memory_bytes: int = 0,
        workers: Workers | None = None,
    ) -> None:
        if not all(0 < s < math.inf for s in (timeout_s, compile_timeout_s, start_timeout_s)):
            raise UsageError("a time limit must be a positive number of seconds")
        if jobs is not None and jobs < 0:
            raise UsageError("jobs must not be negative")
        if python is not None and shutil.which(python) is None:
            raise UsageError(
                f"{python!r} is not a program", hint="give the path of a Python interpreter"
            )
        self.infos = expand(devices)
        self.limits = Limits(
            timeout_s=timeout_s,
            compile_timeout_s=compile_timeout_s,
            start_timeout_s=start_timeout_s,
        )
        self.jobs = self._default_jobs() if jobs is None else jobs
        self.python = python or sys.executable
        self.variables = FrozenDict(variables or {})
        self.folder = folder
        self.memory_bytes = memory_bytes
        self._workers = workers

    def _default_jobs(self) -> int:
        """Return the number of cores, minus one for each GPU that is timed."""
        cores = len(os.sched_getaffinity(0))
        return cores if self.infos[0].kind == "cpu" else max(1, cores - len(self.infos))

    def pool(self, jobs: int = 0) -> Pool:
        """Return a pool with a slot for each device and `jobs` compile slots. No worker is started
        yet."""
        compilers = [self._slot(self.infos[0], opens_device=False) for _ in range(jobs)]
        return Pool([self._slot(info) for info in self.infos], compilers, self._workers)

    def _slot(self, info: DeviceInfo, *, opens_device: bool = True) -> Slot:
        spec = WorkerSpec(
            device=info.name,
            python=self.python,
            variables=self.variables,
            folder=self.folder,
            memory_bytes=self.memory_bytes,
            opens_device=opens_device,
        )
        return Slot(device_kinds.registry.get(info.kind), info, spec, self.limits)

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
        for info in self.infos:
            if others := describe_others(info):
                yield Note(text=f"{info.name} is in use by {others}: times may be disturbed")
        # A single compilation cannot run ahead of any timing.
        to_compile = sum(compiles(case.backend) for case in unique)
        with self.pool(self.jobs if to_compile > 1 else 0) as pool:
            yield from Dispatch(order(unique, len(self.infos)), pool).events()


def compile_pool(info: DeviceInfo, jobs: int, timeout_s: float) -> Pool:
    """Return a pool of slots that compile for an architecture, with or without a device of it."""
    spec = WorkerSpec(device=info.arch, opens_device=False)
    kind, limits = device_kinds.registry.get(info.kind), Limits(compile_timeout_s=timeout_s)
    return Pool([], [Slot(kind, info, spec, limits) for _ in range(jobs)])
