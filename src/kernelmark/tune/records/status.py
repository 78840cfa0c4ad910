"""Status: the progress of each plan, and which outcomes are valid for the current plans.

One folder tunes one backend on one architecture."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import file_unreadable
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plans import planfile
from kernelmark.tune.plans.plan import TunePlan, decision_digest, plan_digest, search_digest
from kernelmark.tune.records import journal, results
from kernelmark.tune.records.journal import candidates, out_of_minutes, searched
from kernelmark.tune.records.results import Outcome


def check(folder: TuningFolder, backend: str, arch: str) -> None:
    """Raise UsageError if the folder has plans or trials of another backend or architecture."""
    elsewhere = f"take another folder, with a copy of {folder.workload}"
    away = f"{elsewhere}; or move its plans, trials and results away"
    for theirs, listed_for in planned(folder):
        if theirs != backend:
            raise UsageError(f"{folder.path} has plans for {theirs}, not for {backend}", hint=away)
        if listed_for not in ("", arch):
            raise UsageError(
                f"{folder.path} has plans for {theirs} on {listed_for}, not on {arch}",
                hint=f"give -d or --arch as before, or {away}",
            )
    for path in sorted(folder.trials.glob("*.jsonl")):
        header = journal.header(path)
        if header is not None and (header.backend, header.arch) != (backend, arch):
            before = "give -d or --arch as before, or " if header.backend == backend else ""
            raise UsageError(
                f"{path} has trials of {header.backend}"
                + (f" on {header.arch}" if header.arch else "")
                + f", not of {backend}"
                + (f" on {arch}" if arch else ""),
                hint=f"{before}{elsewhere}; or move its trials and results away",
            )


def planned(folder: TuningFolder) -> list[tuple[str, str]]:
    """Return the backend and architecture of each readable plan; other plans may be overwritten."""
    targets = []
    for name in folder.names():
        with suppress(KernelmarkError):
            targets.append(planfile.target(folder.plan(name)))
    return targets


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentOutcomes:
    """The outcomes that are valid for the current plans, by name. `stale` has the reasons why other
    outcomes are not; `unreadable` is the subset whose file cannot be read."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    stale: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def outcomes(folder: TuningFolder, plans: Iterable[TunePlan]) -> CurrentOutcomes:
    """Return the current outcomes from journals, without the result files."""
    current = CurrentOutcomes()
    for plan in plans:
        path = folder.journal(plan.name)
        try:
            header, _, last = journal.load(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            current.unreadable[plan.name] = file_unreadable(path, error)
            continue
        except KernelmarkError as error:
            current.unreadable[plan.name] = error.message
            continue
        if header is None or last is None:
            continue
        if reason := stale(plan, header, last):
            current.stale[plan.name] = reason
        else:
            current.outcomes[plan.name] = weighed(last.outcome, plan)
    current.stale.update(current.unreadable)
    return current


def readable(
    folder: TuningFolder, *, but: Container[str] = ()
) -> tuple[list[TunePlan], dict[str, str]]:
    """Return the readable plans of a folder in the order of names, and the errors of the others,
    by name. Names in `but` are left out."""
    plans: list[TunePlan] = []
    broken: dict[str, str] = {}
    for name in folder.names():
        if name in but:
            continue
        try:
            plans.append(planfile.read(folder.plan(name)))
        except KernelmarkError as error:
            broken[name] = error.message
    return plans, broken


def current(folder: TuningFolder) -> CurrentOutcomes:
    """Return the outcomes of a folder: from its plans and journals, which are complete even if a
    run was killed before it wrote its results; without plans, from outcomes.json."""
    if not folder.names():
        return CurrentOutcomes(outcomes={outcome.name: outcome for outcome in results.read(folder)})
    plans, broken = readable(folder)
    found = outcomes(folder, plans)
    if not (found.outcomes or found.stale or broken):
        raise NothingToDo(f"{folder.path} has no results yet", hint=f"kmark tune run {folder.path}")
    return CurrentOutcomes(
        outcomes=found.outcomes, stale=found.stale | broken, unreadable=found.unreadable | broken
    )


def outdated(folder: TuningFolder, plans: Iterable[TunePlan]) -> list[str]:
    """Return the names of plans whose journal belongs to another search: it cannot be continued."""
    names = []
    for plan in plans:
        path = folder.journal(plan.name)
        header = journal.read(path)[0] if path.exists() else None
        if header is not None and header.plan != search_digest(plan):
            names.append(plan.name)
    return names


def stale(plan: TunePlan, header: journal.Header, last: journal.Finished | None) -> str:
    """Return why a journal is not valid for the current plan, "" if it is."""
    if header.plan != search_digest(plan):
        return (
            "its plan was edited since: another problem, space, seed or strategy; go back to what "
            f"it was, or move trials/{plan.name}.jsonl away and tune again"
        )
    if last is None:
        return ""
    if last.decision:
        decided = last.decision == decision_digest(plan)
    else:
        decided = last.plan in ("", plan_digest(plan))
    if not decided:
        return (
            "its plan was edited since: another reference, or more is asked of a winner; "
            "'kmark tune run' decides anew"
        )
    return ""


def weighed(outcome: Outcome, plan: TunePlan) -> Outcome:
    """Return the outcome with the plan's current calls and share, which a later summary may have
    changed."""
    return dataclasses.replace(outcome, count=plan.count, share=plan.share, blas=plan.blas)


class State(StrEnum):
    """The state of a plan's tuning."""

    NOT_STARTED = "not started"  # no trial yet, also if `kmark tune run` was stopped before
    RUNNING = "running"  # a process has its journal open
    STOPPED = "stopped"  # `kmark tune run` continues it
    EDITED = "edited"  # the plan was edited since, so its results do not apply
    DONE = "done"
    TIME_UP = "time was up"  # done, but the search ended by the plan's minutes
    FAILED = "failed"  # its plan or journal cannot be read, or no candidate succeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus:
    """The progress of one plan. `evaluations` counts candidates, `failures` those that never
    succeeded; `best_s` is the shortest time of the search."""

    name: str
    state: State
    plan: TunePlan | None = None
    evaluations: int = 0
    failures: int = 0
    best_s: float = math.nan
    outcome: Outcome | None = None
    reason: str = ""


def plan_statuses(folder: TuningFolder) -> list[PlanStatus]:
    """Return the progress of all plans of a folder, largest share of the workload first."""
    retired = _retired(folder)
    every = [plan_status(folder, name, retired.get(name, "")) for name in folder.names()]
    return sorted(every, key=lambda status: -status.plan.share if status.plan else 0.0)


def plan_status(folder: TuningFolder, name: str, retired: str = "") -> PlanStatus:
    """Return the progress of a plan; if its file cannot be read, the error is the reason.
    `retired` is why the last run could not tune it, or ""."""
    try:
        plan = planfile.read(folder.plan(name))
    except KernelmarkError as error:
        return PlanStatus(name=name, state=State.FAILED, reason=error.message)
    path = folder.journal(name)
    if not path.exists():
        state = State.FAILED if retired else State.NOT_STARTED
        return PlanStatus(name=name, state=state, plan=plan, reason=retired)
    try:
        header, trials, last = journal.load(path)
    except KernelmarkError as error:
        return PlanStatus(name=name, state=State.FAILED, plan=plan, reason=error.message)
    if header is not None and header.backend != plan.backend:
        reason = f"{path} has trials of {header.backend}, not of {plan.backend}"
        return PlanStatus(name=name, state=State.FAILED, plan=plan, reason=reason)
    running = _locked(path)
    edited = stale(plan, header, last) if header is not None else ""
    if edited and not running and header is not None and header.plan != search_digest(plan):
        # None of the journal's candidates belongs to this plan.
        return PlanStatus(name=name, state=State.EDITED, plan=plan, reason=edited)
    own = searched(trials)
    good = [trial for trial in own if trial.ok]
    if running:
        state = State.RUNNING
    elif edited:
        state = State.EDITED
    elif last is None and not retired:
        state = State.STOPPED if trials else State.NOT_STARTED
    elif last is None or not good:
        state = State.FAILED
    elif last.plan != plan_digest(plan):
        state = State.STOPPED  # or its budget was raised since: it will be continued
    else:
        state = State.TIME_UP if out_of_minutes(plan, trials) else State.DONE
    if state is State.EDITED:
        reason = edited
    elif last is not None:
        reason = last.outcome.reason
    else:
        reason = "" if running else retired  # outdated while a process tries again
    return PlanStatus(
        name=name,
        state=state,
        plan=plan,
        evaluations=candidates(own),
        failures=candidates(own) - candidates(good),
        best_s=min((t.seconds for t in good if t.seconds is not None), default=math.nan),
        outcome=weighed(last.outcome, plan) if last and not edited else None,
        reason=reason,
    )


def _locked(path: Path) -> bool:
    """Return whether a process has the journal open for writing."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _retired(folder: TuningFolder) -> dict[str, str]:
    """Return the plans that the last run could not tune, with the reasons in its metrics file."""
    try:
        document = json.loads(results.metrics_file(folder).read_text(encoding="utf-8"))
        return {str(name): str(why) for name, why in document["retired"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
