"""Time the problems of a tuning folder with the reference backend."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kernelmark import backends
from kernelmark.api.plan import plan as plan_cases
from kernelmark.api.plan import require
from kernelmark.api.run import Conduct, measure
from kernelmark.api.selection import Selection
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, RunState
from kernelmark.core.timing import Timing
from kernelmark.runners import targets
from kernelmark.runners.events import CaseFinished, Event, Note
from kernelmark.runners.session import OnEvent
from kernelmark.tune.folder import TuningFolder, check_writable, hinted
from kernelmark.tune.plans import planfile
from kernelmark.tune.plans import summary as summaries
from kernelmark.tune.plans.summary import Basis, Cost, Summary
from kernelmark.tune.records import ownership
from kernelmark.workloads import workload as workloads
from kernelmark.workloads.workload import Workload

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

Place = str | os.PathLike[str]

# The default reference is the first of these that is available: what a program would call.
_REFERENCES = ("torch", "cublaslt", "numpy", "fake")
_CHECKPOINT_S = 1.0
DEVICES = "'kmark list devices' says which devices there are, 'kmark doctor' what is missing"


def summarise(
    place: Place,
    *,
    backend: str | None = None,
    device: str | Sequence[str] = "cpu",
    timing: str = "quick",
    thr: float | None = None,
    store: Store | None = None,
    retry_failed: bool = False,
    argv: Sequence[str] = (),
    on_event: OnEvent | None = None,
) -> Summary:
    """Time each distinct problem of a tuning folder with the reference, and weight it by its calls.

    backend: the reference (default: the first available of torch, cublaslt and numpy).
    device: one device or several.
    timing: a preset or a TOML file.
    thr: least share of the workload's time, in percent (0.1 is 0.1 %); plans leave out problems
        below it.
    store: open store that the run is saved in.
    retry_failed: time problems again that failed before.

    Times in summary.csv from the same backend, version, device and timing are reused. Ctrl-C raises
    KeyboardInterrupt after the times so far are written to the file."""
    if thr is not None:
        check_percent(thr)
    folder = TuningFolder.open(place)
    workload = read_workload(folder)
    devices = (device,) if isinstance(device, str) else tuple(device)
    with hinted(DEVICES):
        infos = targets.expand(devices)
    reference = backends.parse(backend or _reference(infos[0]))
    require(reference, infos[0])
    basis = Basis(
        backend=reference.name,
        version=reference.load().version(),
        model=infos[0].model,
        arch=infos[0].arch,
        timing=timing,
        device=",".join(info.name for info in infos),
    )
    book = _Book(folder, basis, summaries.counts(workload), thr, retry_failed=retry_failed)
    notify = on_event or (lambda event: None)
    for text in _notes(folder, basis, book):
        notify(Note(text=text))
    todo = book.todo
    if todo:
        check_writable(folder.summary)
        selection = Selection(
            problems=tuple(problem.key for problem in todo), backends=(reference,), devices=devices
        )
        label = f"tune {folder.path.name}".replace(".", "-")  # a suffix would name a file
        results = measure(
            plan_cases(selection, Timing.load(timing)),
            conduct=Conduct(label=label, roofs="none"),
            store=store,
            argv=argv,
            on_event=book.saving_before(notify),
        )
        for result in results:
            book.take(result, results.run.id if store is not None else "")
        if results.run.state is RunState.INTERRUPTED:
            book.write()
            raise KeyboardInterrupt(
                f"interrupted; what was timed so far is in {folder.summary}, and the same "
                "command goes on with the rest"
            )
    return book.write()


def _notes(folder: TuningFolder, basis: Basis, book: _Book) -> Iterator[str]:
    if book.kept:
        yield f"{book.kept} of {book.problems} problems are timed already"
    before = summaries.read(folder.summary)
    if before is not None and (before.basis.model, before.basis.arch) != (basis.model, basis.arch):
        old = before.basis.model or before.basis.arch
        yield f"the times of {folder.summary} are of {old}: those of {basis.model} replace them"
    if others := sorted({arch for _, arch in ownership.planned(folder)} - {"", basis.arch}):
        planned = f"{folder.path} has plans for {', '.join(others)}"
        yield f"{planned}, and these times are of {basis.arch}: -d names a device"


class _Book:
    """The costs of a folder during the measurement, saved every few seconds."""

    def __init__(
        self,
        folder: TuningFolder,
        basis: Basis,
        called: Mapping[Problem, int],
        thr: float | None,
        *,
        retry_failed: bool,
    ) -> None:
        self._path = folder.summary
        self._basis = basis
        self._thr = thr
        self._costs = {p: Cost(problem=p, count=count) for p, count in called.items()}
        self._written = time.monotonic()
        before = summaries.read(self._path)
        self._thr_before = before.thr if before else None
        if before is not None:
            self._keep(before, timed=before.basis == basis, retry_failed=retry_failed)
        self.kept = sum(cost.status is not None for cost in self._costs.values())

    @property
    def problems(self) -> int:
        return len(self._costs)

    @property
    def todo(self) -> list[Problem]:
        return [problem for problem, cost in self._costs.items() if cost.status is None]

    def saving_before(self, notify: OnEvent) -> OnEvent:
        """Return a callback that saves finished cases and then calls `notify`."""

        def on_event(event: Event) -> None:
            if isinstance(event, CaseFinished):
                self.take(event.result)
                if time.monotonic() - self._written > _CHECKPOINT_S:
                    self.write()
            notify(event)

        return on_event

    def take(self, result: Result, run: str = "") -> None:
        problem = result.case.problem
        before = self._costs[problem]
        cost = summaries.timed(problem, before.count, result, run)
        self._costs[problem] = dataclasses.replace(cost, selected=before.selected)

    def write(self) -> Summary:
        summary = summaries.summary(self._basis, self._costs.values(), thr=self._thr)
        if self._thr is None:  # the selection is unchanged, and so is its threshold
            summary = dataclasses.replace(summary, thr=self._thr_before)
        summaries.write(self._path, summary)
        self._written = time.monotonic()
        return summary

    def _keep(self, before: Summary, *, timed: bool, retry_failed: bool) -> None:
        """Take over the selection of an earlier summary, and its times if they were `timed` in the
        same way."""
        for cost in before.costs:
            again = not timed or (cost.status is not None and cost.status.failed and retry_failed)
            if cost.problem not in self._costs:
                continue
            fresh = self._costs[cost.problem]
            self._costs[cost.problem] = (
                dataclasses.replace(fresh, selected=cost.selected)
                if again
                else summaries.counted(cost, fresh.count)
            )


def read_workload(folder: TuningFolder) -> Workload:
    """Return the problems of a folder with their counts; raise NothingToDo if there are none."""
    again = f"kmark import LOG --workload {folder.path}"
    planfile.learn_ops(folder)
    with hinted(f"mend it, or read its log again: {again} --force"):
        workload = workloads.read(folder.workload)
    if not workload.calls:
        raise NothingToDo(Reason("workload-empty", file=str(folder.workload)), hint=again)
    return workload


def check_percent(thr: float) -> None:
    if not (math.isfinite(thr) and 0 <= thr <= 100):
        raise UsageError(Reason("threshold-not-percent", given=thr), hint="0.1 means 0.1 %")


def _reference(info: DeviceInfo) -> str:
    """Return the first of the default references that is available for the device."""
    for name in _REFERENCES:
        backend = backends.find(name)
        here = info.kind in backend.device_kinds and backend.available() is None
        if here and not backend.missing_on(info.kind):
            return name
    raise UsageError(
        Reason("no-reference-backend", device=info.name), hint="name one with -b; see kmark doctor"
    )
