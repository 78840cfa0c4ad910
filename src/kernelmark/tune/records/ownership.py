"""Whose trials a folder holds: one folder tunes one backend on one architecture, and what was found
for another is nobody's result."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.reason import Reason
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plans import planfile
from kernelmark.tune.plans.plan import TunePlan, decision_digest, plan_digest, search_digest
from kernelmark.tune.records import journal, results
from kernelmark.tune.records.outcome import Outcome


def check(folder: TuningFolder, backend: str, arch: str) -> None:
    """Refuse to plan for a backend or architecture that is not that of the folder."""
    elsewhere = f"take another folder, with a copy of {folder.workload}"
    away = f"{elsewhere}; or move its plans, trials and results away"
    for theirs, listed_for in planned(folder):
        if theirs != backend:
            raise UsageError(
                Reason(
                    "plans-of-backend", folder=str(folder.path), planned=theirs, backend=backend
                ),
                hint=away,
            )
        if listed_for not in ("", arch):
            raise UsageError(
                Reason(
                    "plans-of-arch",
                    folder=str(folder.path),
                    backend=theirs,
                    planned=listed_for,
                    arch=arch,
                ),
                hint=f"give -d or --arch as before, or {away}",
            )
    for path in sorted(folder.trials.glob("*.jsonl")):
        header = journal.header(path)
        if header is not None and (header.backend, header.arch) != (backend, arch):
            before = "give -d or --arch as before, or " if header.backend == backend else ""
            raise UsageError(
                Reason(
                    "trials-of-another",
                    file=str(path),
                    tried_backend=header.backend,
                    tried_arch=header.arch,
                    backend=backend,
                    arch=arch,
                ),
                hint=f"{before}{elsewhere}; or move its trials and results away",
            )


def planned(folder: TuningFolder) -> list[tuple[str, str]]:
    """Backend and architecture of each plan that says them; any other may be written anew."""
    targets = []
    for name in folder.names():
        with suppress(KernelmarkError):
            targets.append(planfile.target(folder.plan(name)))
    return targets


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentOutcomes:
    """What the journals of plans have come to, by name: outcomes of the plans as they are now, and
    why the others are not. `unreadable` are those of the latter whose file is at fault."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    stale: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def outcomes(folder: TuningFolder, plans: Iterable[TunePlan]) -> CurrentOutcomes:
    """From journals alone, whatever files of results say."""
    held = CurrentOutcomes()
    for plan in plans:
        path = folder.journal(plan.name)
        try:
            header, _, last = journal.load(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            held.unreadable[plan.name] = Reason(
                "file-unreadable", file=str(path), error=error.strerror or str(error)
            )
            continue
        except KernelmarkError as error:
            held.unreadable[plan.name] = error.message
            continue
        if header is None or last is None:
            continue
        if reason := stale(plan, header, last):
            held.stale[plan.name] = reason
        else:
            held.outcomes[plan.name] = weighed(last.outcome, plan)
    held.stale.update(held.unreadable)
    return held


def readable(
    folder: TuningFolder, *, but: Container[str] = ()
) -> tuple[list[TunePlan], dict[str, str]]:
    """Return the plans of a folder in the order of their names, and why some cannot be read. Those
    that `but` has are left out."""
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
    """Return the outcomes of a folder: from plans and journals where there are any, also where a
    run was killed before it wrote its results; else from the file of results, which can stand
    alone."""
    if not folder.names():
        return CurrentOutcomes(outcomes={outcome.name: outcome for outcome in results.read(folder)})
    plans, broken = readable(folder)
    held = outcomes(folder, plans)
    if not (held.outcomes or held.stale or broken):
        raise NothingToDo(
            Reason("no-tuning-results", folder=str(folder.path)),
            hint=f"kmark tune run {folder.path}",
        )
    return CurrentOutcomes(
        outcomes=held.outcomes,
        stale=held.stale | broken,
        unreadable=held.unreadable | broken,
    )


def outdated(folder: TuningFolder, plans: Iterable[TunePlan]) -> list[str]:
    """Return the names of plans whose journal is of another search and cannot be continued."""
    names = []
    for plan in plans:
        path = folder.journal(plan.name)
        header = journal.read(path)[0] if path.exists() else None
        if header is not None and header.plan != search_digest(plan):
            names.append(plan.name)
    return names


def stale(plan: TunePlan, header: journal.Header, last: journal.Finished | None) -> str:
    """Why what a journal holds is not of the plan as it is now, "" if it is."""
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
    """With the calls and the share that the plan has by now: a later summary knows them better."""
    return dataclasses.replace(outcome, count=plan.count, share=plan.share, blas=plan.blas)
