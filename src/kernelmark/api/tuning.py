"""Tune the kernels of a workload, from its log to faster configs: time its problems with the
reference backend, write their plans, and search.

    import kernelmark as km

    km.tuning.summarise("mymodel", backend="torch", device="cuda:0")
    km.tuning.plan("mymodel", backend="triton", device="cuda:0", thr=0.1)
    km.tuning.run("mymodel", devices=["cuda:0"]).metrics
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark import backends
from kernelmark.api.plan import own_ops, problems_of, require
from kernelmark.api.plan import plan as plan_cases
from kernelmark.api.roofs import known_roofs
from kernelmark.api.run import Conduct, measure
from kernelmark.api.selection import Selection
from kernelmark.backends import _memory
from kernelmark.backends._memory import Searched
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import user_path
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, RunState
from kernelmark.core.timing import Timing
from kernelmark.core.units import counted, join_and
from kernelmark.devices import registry as device_kinds
from kernelmark.gpu.architectures import absent
from kernelmark.host.signals import caught_stops
from kernelmark.runners import kernel_files, targets
from kernelmark.runners.events import CaseFinished, Event, Note
from kernelmark.runners.jobs import compiles
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.session import OnEvent
from kernelmark.stores import default_path
from kernelmark.tune import evaluate, families, journal, plans, results, strategies
from kernelmark.tune import summary as summaries
from kernelmark.tune.driver import Driver
from kernelmark.tune.driver import OnEvent as OnTuneEvent
from kernelmark.tune.evaluate import PlanCheck
from kernelmark.tune.folder import TuningFolder, check_writable, hinted, unwritable
from kernelmark.tune.plans import Acceptance, Budget, Draft, Fate, Refused, Settings, TunePlan
from kernelmark.tune.results import Metrics, Outcome
from kernelmark.tune.simulate import Simulated, quality, try_strategy
from kernelmark.tune.simulate import read as read_space
from kernelmark.tune.summary import Basis, Cost, Summary
from kernelmark.workloads import logs, select
from kernelmark.workloads import workload as workloads
from kernelmark.workloads.blas import F8_OCP, FNUZ_ARCHS, SHARED_BY
from kernelmark.workloads.workload import Call, Workload

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

# A candidate that takes longer is useless.
TIMEOUT_S = 30.0
COMPILE_TIMEOUT_S = 180.0
_KINDS = {"sm_": "cuda", "gfx": "hip", "fake": "fake"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The outcome of a tuning run: outcomes of this and earlier runs, plans that cannot be tuned
    with the reason (`retired`), and plans that were not reached in time. Plans with an outcome
    whose search ended early are in `cut` (time limit of the run) or `spent` (minutes of the plan,
    with the candidates that it requests). `unreadable` are other plans with a damaged file, whose
    outcome is unknown."""

    folder: TuningFolder
    outcomes: tuple[Outcome, ...]
    retired: Mapping[str, str]
    unreached: tuple[str, ...]
    metrics: Metrics
    cut: tuple[str, ...] = ()
    spent: Mapping[str, int] = field(default_factory=FrozenDict)
    unreadable: Mapping[str, str] = field(default_factory=FrozenDict)
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Whether a plan failed: it could not be tuned, or no candidate was correct."""
        return bool(self.retired) or any(not o.tuned.verified for o in self.outcomes)


def run(
    place: str | os.PathLike[str],
    *,
    devices: Sequence[str] = (),
    only: Sequence[str] = (),
    jobs: int | None = None,
    minutes: float = 0.0,
    timeout_s: float = TIMEOUT_S,
    compile_timeout_s: float = COMPILE_TIMEOUT_S,
    retry_failed: bool = False,
    prior: bool = True,
    on_event: OnTuneEvent | None = None,
    store: Store | None = None,
) -> Tuned:
    """Run the search and the final re-measurement of every plan, and write the results.

    devices: devices to use; a bare number is a device of the plans' kind.
    only: names of the plans to run (default: all).
    jobs: processes that compile.
    minutes: time limit for the whole run; 0 is no limit.
    timeout_s, compile_timeout_s: limits for one candidate.
    retry_failed: repeat evaluations that may have failed because of the machine. Otherwise
        nothing that is in a journal is evaluated again.
    prior: start searches from what is known of other problems: see `memory`.
    store: its roofs reveal candidates faster than the device allows, which fail as `impossible`.

    Ctrl-C or SIGTERM ends all workers and returns what was reached.
    """
    if minutes < 0:
        raise UsageError(f"minutes={minutes} is not a number of at least 0", hint="0 is no limit")
    folder = TuningFolder.open(place)
    chosen = picked(folder, only)
    _require(folder, chosen, devices)
    with hinted(DEVICES):
        runner = LocalRunner(
            devices_of(folder, chosen, devices),
            timeout_s=timeout_s,
            compile_timeout_s=compile_timeout_s,
            jobs=jobs,
        )
    known = memory()  # also without a prior: a damaged file is reported before the search
    driver = Driver(
        chosen,
        runner,
        folder.trials,
        minutes=minutes,
        retry_failed=retry_failed,
        on_event=on_event,
        roofs=known_roofs(store, [info.name for info in runner.infos]),
        memory=known if prior else None,
    )
    try:
        with caught_stops():
            driver.run()
    except KeyboardInterrupt:
        return _written(folder, driver, interrupted=True)
    except BaseException as error:
        with suppress(OSError, KernelmarkError):  # a full disk must not hide the first error
            _written(folder, driver, interrupted=True)
        if isinstance(error, OSError) and error.filename:
            raise unwritable(Path(error.filename), error) from None
        raise
    return _written(folder, driver)


def picked(folder: TuningFolder, only: Sequence[str]) -> list[TunePlan]:
    """Return the plans that `only` names, or all of the folder. No other file is read, so that a
    mistake in one plan does not block the others."""
    plan_names = folder.names()
    if not plan_names:
        raise NothingToDo(
            f"{folder.path} has no plans", hint=f"kmark tune plan {folder.path} -b BACKEND"
        )
    for name in only:
        if name not in plan_names:
            shown = ", ".join(plan_names[:8])
            raise UsageError(f"unknown plan {name!r}", hint=f"there are: {shown}")
    return [plans.read_plan(folder.plan(name)) for name in dict.fromkeys(only or plan_names)]


def _require(folder: TuningFolder, chosen: Sequence[TunePlan], only: Sequence[str]) -> None:
    """Raise UsageError if the plans need a GPU that this machine does not have."""
    names = devices_of(folder, chosen, only)
    arch = next((plan.arch for plan in chosen if plan.arch.startswith(("sm_", "gfx"))), "")
    kind = device_kinds.get(names[0].partition(":")[0]) if arch and not only else None
    if kind is not None and (reason := kind.available()) is not None:
        where = shlex.quote(str(folder.path))
        check = f"; 'kmark tune check {where}' compiles candidates without it"
        compiled = all(compiles(plan.backend) for plan in chosen)
        raise UsageError(
            f"the plans are for {arch}, and no such GPU is here: {reason}",
            hint=f"run them where there is one{check if compiled else ''}",
        )


def devices_of(
    folder: TuningFolder, chosen: Sequence[TunePlan], only: Sequence[str]
) -> tuple[str, ...]:
    """Return the device names. A bare number is a device of the plans' kind. The default is the
    device of the summary, else the first of that kind."""
    arch = next((plan.arch for plan in chosen if plan.arch), "")
    kind = next((name for start, name in _KINDS.items() if arch.startswith(start)), "cpu")
    if only:
        return tuple(f"{kind}:{name}" if name.isdigit() else name for name in only)
    summary = summaries.read(folder.summary)
    if summary is not None and summary.basis.arch == arch:
        return tuple(summary.basis.device.split(","))
    return (kind if kind in ("cpu", "fake") else f"{kind}:0",)


def _written(folder: TuningFolder, driver: Driver, *, interrupted: bool = False) -> Tuned:
    """Write the results of this run, and of the plans that it did not run."""
    run_plans = {plan.name: plan for plan in driver.plans}
    other_outcomes, broken = journal.readable(folder, but=run_plans)
    before = journal.valid_outcomes(folder, [*run_plans.values(), *other_outcomes])
    reached = before.outcomes | driver.outcomes
    names = list(dict.fromkeys((*folder.names(), *run_plans)))  # a file may be deleted by now
    outcomes = tuple(reached[name] for name in names if name in reached)
    unreached = tuple(
        name for name in names if name in run_plans and name not in driver.outcomes | driver.retired
    )
    unread = before.unreadable | broken
    metrics = results.write(folder, outcomes, retired=driver.retired, unreached=unreached)
    if any(info.kind != "fake" for info in driver.infos):
        memory(searches_of(folder, driver.outcomes))
    return Tuned(
        folder=folder,
        outcomes=outcomes,
        retired=driver.retired,
        unreached=unreached,
        metrics=metrics,
        cut=tuple(driver.cut),
        spent=FrozenDict(driver.spent),
        unreadable=FrozenDict({name: why for name, why in unread.items() if name not in run_plans}),
        interrupted=interrupted,
    )


def memory_path() -> Path | None:
    """Return the file of all searches: $KERNELMARK_MEMORY, by default beside the user's store; None
    if the variable is empty."""
    path = os.environ.get("KERNELMARK_MEMORY")
    if path is None:
        return default_path().with_name("memory.json.gz")
    return Path(path).expanduser() if path else None


def memory(more: Iterable[Searched] = ()) -> list[Searched]:
    """Return the times of all searches on this machine, from which later searches on other problems
    and GPUs start. `more` is added to them."""
    path = memory_path()
    known = _memory.load(path) if path is not None and path.exists() else []
    new = list(more)
    whole = _memory.merged([*known, *new])
    if new and path is not None:
        with suppress(OSError):  # reported when the file is written
            path.parent.mkdir(parents=True, exist_ok=True)
        write_memory(path, whole)
    return whole


def write_memory(path: Path, searches: Iterable[Searched]) -> None:
    """Write the times of searches to a file, which `read_memory` reads on another machine."""
    try:
        _memory.save(path, searches)
    except OSError as error:
        raise unwritable(path, error) from None


def read_memory(path: str | os.PathLike[str]) -> list[Searched]:
    """Return the times of the searches in a file of memory, or in a tuning folder."""
    place = Path(path).expanduser()
    if not place.is_dir():
        return _memory.load(place)
    folder = TuningFolder.open(place)
    return searches_of(folder, [p.stem for p in sorted(folder.trials.glob("*.jsonl"))])


def searches_of(folder: TuningFolder, names: Iterable[str]) -> list[Searched]:
    """Return the times in these journals of a tuning folder, by backend. Those of kernel files are
    left out, which may be another kernel tomorrow."""
    found: list[Searched] = []
    for name in names:
        header, trials, _ = journal.load_journal(folder.journal(name))
        if header is None:
            continue
        whole = families.searched(header, journal.reached(trials, evaluate.STEPS))
        for backend in backends.names_of(header.backend):
            if not backends.is_file(backend):
                found += _memory.of_backend(whole, backend)
    return found


def check(
    place: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    candidates: int = 16,
    jobs: int | None = None,
    compile_timeout_s: float = COMPILE_TIMEOUT_S,
) -> Iterator[PlanCheck]:
    """Compile a sample of the candidates of every plan, or of those that `only` names, and yield a
    `PlanCheck` for each plan. Nothing is written to the folder."""
    chosen = picked(TuningFolder.open(place), only)
    with hinted("'kmark doctor' says what is missing for it"):
        return evaluate.check(
            chosen, candidates=candidates, jobs=jobs, compile_timeout_s=compile_timeout_s
        )


__all__ = [
    "Acceptance",
    "Budget",
    "PlanCheck",
    "Planned",
    "Selection",
    "Simulated",
    "Summary",
    "Tuned",
    "check",
    "memory",
    "plan",
    "quality",
    "read_space",
    "run",
    "summarise",
    "try_strategy",
]


def __dir__() -> list[str]:
    return __all__


FolderPath = str | os.PathLike[str]

# The default reference is the first of these that is available: what a program would call.
_REFERENCES = ("torch", "cublaslt", "numpy", "fake")
_CHECKPOINT_S = 1.0
DEVICES = "'kmark list devices' says which devices there are, 'kmark doctor' what is missing"


def summarise(
    place: FolderPath,
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
        infos = targets.parse_devices(devices)
    reference_backend = backends.parse(backend or _reference(infos[0]))
    require(reference_backend, infos[0])
    basis = Basis(
        backend=reference_backend.name,
        version=kernel_files.load(reference_backend).version(),
        model=infos[0].model,
        arch=infos[0].arch,
        timing=timing,
        device=",".join(info.name for info in infos),
    )
    book = _Book(folder, basis, summaries.counts(workload), thr, retry_failed=retry_failed)
    notify = on_event or (lambda event: None)
    for text in (*_lost_notes(workload), *_summary_notes(folder, basis, book)):
        notify(Note(text=text))
    todo = book.todo
    if todo:
        check_writable(folder.summary)
        selection = Selection(
            problems=tuple(problem.key for problem in todo),
            backends=(reference_backend,),
            devices=devices,
        )
        label = f"tune {folder.path.name}".replace(".", "-")  # a suffix would name a file
        results = measure(
            plan_cases(selection, Timing.load(timing)),
            # By its argv, `latest` leaves the run out.
            conduct=Conduct(label=label, argv=tuple(argv) or ("tune", "summarise")),
            store=store,
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


def _summary_notes(folder: TuningFolder, basis: Basis, book: _Book) -> Iterator[str]:
    if book.kept:
        yield f"{book.kept} of {book.problems} problems are timed already"
    before = summaries.read(folder.summary)
    if before is not None and (before.basis.model, before.basis.arch) != (basis.model, basis.arch):
        old = before.basis.model or before.basis.arch
        yield f"the times of {folder.summary} are of {old}: those of {basis.model} replace them"
    if other_archs := sorted(
        {arch for _, arch in journal.planned_targets(folder)} - {"", basis.arch}
    ):
        planned = f"{folder.path} has plans for {', '.join(other_archs)}"
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
    plans.learn_ops(folder)
    with hinted(f"mend it, or read its log again: {again} --force"):
        workload = workloads.read(folder.workload)
    if not workload.calls:
        raise NothingToDo(f"{folder.workload} has no problems", hint=again)
    return workload


def check_percent(thr: float) -> None:
    if not (math.isfinite(thr) and 0 <= thr <= 100):
        raise UsageError(
            f"a threshold is from 0 to 100 percent, not {thr:g}", hint="0.1 means 0.1 %"
        )


def _reference(info: DeviceInfo) -> str:
    """Return the first of the default references that is available for the device."""
    for name in _REFERENCES:
        backend = kernel_files.find(name)
        here = info.kind in backend.device_kinds and backend.available() is None
        if here and not backend.missing_on(info.kind):
            return name
    raise UsageError(
        f"no reference is available on {info.name}", hint="name one with -b; see kmark doctor"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The outcome of `plan`: a draft for each problem with the fate of its file, problems that
    cannot be tuned, and problems that were not selected. `hint` says what to do if nothing was
    planned."""

    drafts: tuple[Draft, ...]
    fates: Mapping[str, Fate]
    refused: tuple[Refused, ...]
    left_out: tuple[Cost, ...]
    notes: tuple[str, ...] = ()
    hint: str = ""


def plan(
    place: FolderPath,
    *,
    backend: str,
    reference: str | None = None,
    device: str | None = None,
    arch: str | None = None,
    thr: float | None = None,
    selection: Selection | None = None,
    strategy: str = "kmark",
    seed: int = 1,
    budget: Budget | None = None,
    acceptance: Acceptance | None = None,
    family: int = 0,
    threads: int = 0,
    force: bool = False,
) -> Planned:
    """Write a plan for each problem of a tuning folder that is worth tuning.

    backend: the backend to tune, or several with commas between them: the winner of a problem is
        the best config of all.
    reference: the backend to beat (default: that of the summary, else the default config).
    device, arch: the target device, or its architecture if it is not in this machine.
    thr: least share of the workload's time, in percent (default: the summary's selection).
    selection: problems to add to the folder, which is created if missing. With only a filter or
        limit, it selects among the problems of the folder.
    strategy, seed, budget: how to search, and for how long.
    acceptance: least improvement that is kept.
    family: candidates of a problem that follows one of similar sizes; 0 searches each in full.
    threads: CPU threads, 0 for every core; a single one is timed by CPU time.
    force: overwrite plans that were edited by hand.
    """
    backend = backends.canonical(backend)
    requested = dataclasses.replace(selection or Selection(), backends=(backends.parse(backend),))
    folder, workload, added = _workload_for(place, requested)
    summary = _summary_for(folder, thr)
    info = _target(device, arch, summary)
    chosen = Settings(
        backend=backend,
        reference=backends.canonical(
            reference or (summary.basis.backend if summary else backends.names_of(backend)[0])
        ),
        strategy=strategy,
        seed=seed,
        budget=budget or Budget(),
        acceptance=acceptance or Acceptance(),
        threads=threads,
    )
    targets.check_threads(info, threads)
    info = plans.used_by(info, threads)
    _check_settings(chosen, info, here=arch is None, named=reference is not None)
    journal.check_backend(folder, backend, info.arch)
    costs = _picked(plans.costs_of(workload, summary, thr), requested, folder)
    names = plans.plan_names(folder, [cost.problem for cost in costs])
    drafts, refused = plans.drafts(
        [cost for cost in costs if cost.selected],
        names=names,
        blas=_logged(workload),
        settings=chosen,
        info=info,
        # Times from another architecture, or of more threads, weight the problems, but are no
        # reference times here.
        timed_by=summary.basis.backend
        if summary and summary.basis.arch == info.arch and not threads
        else "",
    )
    if family:
        followed = families.joined([draft.plan for draft in drafts], family)
        drafts = [
            dataclasses.replace(draft, plan=plan)
            for draft, plan in zip(drafts, followed, strict=True)
        ]
    if drafts and added:
        with hinted("make room or allow writing there, then give the same command again"):
            workloads.write(TuningFolder.make(place).workload, workload)
    fates = plans.write_plans(folder, drafts, names, force=force) if drafts else {}
    floats = _other_floats(folder, refused, info)
    notes = _lost_notes(workload)
    if drafts:
        notes += _share_notes(folder, summary, info, costs)
        notes += [*_plan_notes(folder, drafts, fates), *floats]
    return Planned(
        drafts=tuple(drafts),
        fates=fates,
        refused=tuple(refused),
        left_out=tuple(cost for cost in costs if not cost.selected),
        notes=tuple(notes),
        hint="" if drafts else "; ".join(floats) or _way_out(backend, refused, info),
    )


def _lost_notes(workload: Workload) -> list[str]:
    """Return a note on calls that do more than their problem, such as another dtype or activation:
    what is timed and tuned is the problem."""
    more = [call for call in workload.calls if call.lost]
    if not more:
        return []
    count, every = (sum(call.count for call in calls) for calls in (more, workload.calls))
    lost = ", ".join(sorted({word for call in more for word in call.lost}))
    return [f"{count} of {counted(every, 'logged call')} do more than their problem: {lost}"]


def _way_out(backend: str, refused: Sequence[Refused], info: DeviceInfo) -> str:
    if any(refusal.by_reference for refusal in refused):
        return "--reference chooses another"
    bare = next((refusal.cost.problem for refusal in refused if refusal.bare), None)
    if bare is None:
        return ""
    if backends.is_file(backend):
        return f'add to {backend} what can be tried: space = {{"rows": [64, 128, 256]}}'
    names = ", ".join([*plans.tunable(bare, info), "a .py file of your own with a space"])
    return f"what can be tuned for it: {names}"


def _other_floats(
    folder: TuningFolder, refused: Sequence[Refused], info: DeviceInfo
) -> tuple[str, ...]:
    """Return a hint for OCP 8-bit floats on an architecture that only has FNUZ ones. BLAS logs use
    the same letters for both."""
    taken = {kind for refusal in refused for kind in refusal.cost.problem.dtypes.values()} & F8_OCP
    if not (taken and info.arch.startswith(FNUZ_ARCHS)):
        return ()
    if not SHARED_BY & logs.formats_of(folder.workload):
        names = ", ".join(f"{kind}fnuz instead of {kind}" for kind in sorted(taken))
        return (f"{info.arch} has FNUZ 8-bit floats: use {names}",)
    return (
        f"{info.arch} has FNUZ 8-bit floats, and the log's were read as OCP's; import it again: "
        f"kmark import LOG --workload {folder.path} --arch {info.arch}",
    )


def _workload_for(place: FolderPath, selection: Selection) -> tuple[TuningFolder, Workload, bool]:
    """Return the folder, its problems with the requested ones, and whether some were added."""
    if not _has_problems(selection):
        if selection.axes or selection.dtypes:
            if own := own_ops(selection.backends):
                return _workload_for(place, dataclasses.replace(selection, ops=own))
            raise UsageError("axes and dtypes need an op", hint="for example: -o gemm -a m=512")
        folder = TuningFolder.open(place)
        return folder, read_workload(folder), False
    problems = problems_of(selection, Timing())
    folder = TuningFolder(user_path(place))
    there = read_workload(folder).calls if folder.workload.is_file() else ()
    have = {call.problem for call in there}
    new = tuple(Call(problem=problem) for problem in problems if problem not in have)
    return folder, Workload(name=folder.path.name, calls=(*there, *new)), bool(new)


def _summary_for(folder: TuningFolder, thr: float | None) -> Summary | None:
    """Return the summary, if there is one; raise UsageError if a threshold needs it."""
    if thr is not None:
        check_percent(thr)
    summary = summaries.read(folder.summary)
    if summary is None and thr:
        raise UsageError(
            "a threshold needs the problems' shares, which are not known yet",
            hint=f"kmark tune summarise {folder.path}",
        )
    return summary


def _has_problems(selection: Selection) -> bool:
    return bool(selection.ops or selection.suites or selection.problems)


def _picked(costs: list[Cost], selection: Selection, folder: TuningFolder) -> list[Cost]:
    """Return the costs that match the filter and limit, which apply here only if the selection
    names no problems."""
    if not _has_problems(selection):
        keep = [cost.problem for cost in costs]
        if selection.filter is not None:
            keep = select.matching(keep, selection.filter)
        chosen = set(keep if selection.limit is None else keep[: selection.limit])
        costs = [cost for cost in costs if cost.problem in chosen]
    if not any(cost.selected for cost in costs):
        raise NothingToDo(
            f"no problem of {folder.path} is selected",
            hint="lower --thr, or leave --filter and --limit out",
        )
    return costs


def _target(device: str | None, arch: str | None, summary: Summary | None) -> DeviceInfo:
    if arch is not None:
        if device is not None:
            raise UsageError(
                "an architecture stands for a device that is not here: --arch and -d"
                " do not go together",
                hint="leave one of them out",
            )
        return absent(arch)
    name = device or (summary.basis.device.split(",")[0] if summary else "cpu")
    with hinted(DEVICES):
        return targets.find(name)[1]


def _check_settings(chosen: Settings, info: DeviceInfo, *, here: bool, named: bool) -> None:
    """Raise UsageError for illegal settings. `named`: the user named the reference; otherwise it is
    that of the summary."""
    acceptance = chosen.acceptance
    numbers = {
        "seed": chosen.seed,
        "minutes": chosen.budget.minutes,
        "min_ratio": acceptance.min_ratio,
        "min_gain_us": acceptance.min_gain_us,
    }
    for name, number in numbers.items():
        if not (math.isfinite(number) and number >= 0):
            raise UsageError(
                f"{name}={number} is not a number of at least 0",
                hint="0 minutes are no limit; a ratio of 1 and a gain of 0 keep all that is faster",
            )
    if reason := plans.too_few(acceptance.rounds):
        raise UsageError(reason, hint=f"ask for {plans.LEAST_ROUNDS}, or more")
    _check_backend(chosen.backend, info, here=here)
    if chosen.reference != chosen.backend:
        with _reference_in_errors(by_summary=not named):
            _check_backend(chosen.reference, info, here=here)
    strategies.registry.get(chosen.strategy)


def _check_backend(name: str, info: DeviceInfo, *, here: bool) -> None:
    if here:
        require(backends.parse(name), info)
    elif info.kind not in (kinds := kernel_files.find(name).device_kinds):
        raise UsageError(
            Reason(
                f"{name} runs on {join_and(kinds)}, not on {info.kind}"
                + (f" ({info.arch})" if info.arch else ""),
                "device-unsupported",
                backend=name,
                kinds=kinds,
                kind=info.kind,
                arch=info.arch,
            )
        )


@contextmanager
def _reference_in_errors(*, by_summary: bool) -> Iterator[None]:
    """Add to a UsageError that the backend is the reference."""
    try:
        yield
    except UsageError as error:
        named = " that summary.csv names" if by_summary else ""
        hint = f"{error.hint}; " if error.hint else ""
        raise UsageError(
            f"{error.message}; it is the reference{named}",
            hint=f"{hint}--reference chooses another",
        ) from None


def _logged(workload: Workload) -> dict[Problem, Mapping[str, str]]:
    """Return the BLAS fields that were logged for each problem's most frequent call."""
    fields: dict[Problem, Mapping[str, str]] = {}
    for call in sorted(workload.calls, key=lambda call: -call.count):
        if call.blas:
            fields.setdefault(call.problem, call.blas)
    return fields


def _share_notes(
    folder: TuningFolder, summary: Summary | None, info: DeviceInfo, costs: Sequence[Cost]
) -> list[str]:
    """Return notes on shares of the workload's time that are missing or from another machine."""
    notes = []
    untimed = sum(cost.status is None for cost in costs)
    where = "" if info.kind == "cpu" else f" -d {info.name}"
    again = f"kmark tune summarise {folder.path}{where}"
    if summary is not None and summary.basis.arch != info.arch:
        notes.append(
            f"the shares, and {summary.basis.backend} as what is to be beaten if no --reference is "
            f"given, are from a summary on {summary.basis.arch}, not on {info.arch}: {again}"
        )
    if summary is None:
        notes.append(f"shares are not known, so the order is by calls × work: {again}")
    elif untimed:
        notes.append(f"{untimed} of {len(costs)} problems are not timed yet: {again}")
    return notes


def _plan_notes(
    folder: TuningFolder, drafts: Sequence[Draft], fates: Mapping[str, Fate]
) -> list[str]:
    """Return notes on plans of the folder that are not what was planned now."""
    notes = []
    other_plans = [name for name in folder.names() if name not in fates]
    if other_plans:
        notes.append(
            f"{len(other_plans)} other plans from before are in {folder.plans} and will run too: "
            f"{_some(other_plans)}"
        )
    for name, fate in fates.items():
        if fate is plans.Fate.UNREADABLE:
            wrong = plans.complaint(folder.plan(name))
            notes.append(f"{wrong}; mend it, or --force writes it anew")
    changed = [draft.plan for draft in drafts if fates[draft.plan.name] is plans.Fate.CHANGED]
    if old := journal.outdated_plans(folder, changed):
        notes.append(
            f"{_some(old)} asked for another search before: move its file in {folder.trials} away "
            "to begin anew, or give the plan its former settings to go on"
        )
    return notes


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
