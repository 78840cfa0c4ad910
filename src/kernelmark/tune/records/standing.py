"""Standing: the progress of each plan, from its file and journal."""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kernelmark.core.errors import KernelmarkError
from kernelmark.core.reason import Reason
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plans import planfile
from kernelmark.tune.plans.plan import TunePlan, plan_digest, search_digest
from kernelmark.tune.records import journal, results
from kernelmark.tune.records.journal import candidates, out_of_minutes, searched
from kernelmark.tune.records.outcome import Outcome
from kernelmark.tune.records.ownership import stale, weighed


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
class Standing:
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


def standings(folder: TuningFolder) -> list[Standing]:
    """Return the standings of all plans of a folder, largest share of the workload first."""
    retired = _retired(folder)
    every = [standing(folder, name, retired.get(name, "")) for name in folder.names()]
    return sorted(every, key=lambda plan_state: -plan_state.plan.share if plan_state.plan else 0.0)


def standing(folder: TuningFolder, name: str, retired: str = "") -> Standing:
    """Return the standing of a plan; if its file cannot be read, the error is the reason.
    `retired` is why the last run could not tune it, or ""."""
    try:
        plan = planfile.read(folder.plan(name))
    except KernelmarkError as error:
        return Standing(name=name, state=State.FAILED, reason=error.message)
    path = folder.journal(name)
    if not path.exists():
        state = State.FAILED if retired else State.NOT_STARTED
        return Standing(name=name, state=state, plan=plan, reason=retired)
    try:
        header, trials, last = journal.load(path)
    except KernelmarkError as error:
        return Standing(name=name, state=State.FAILED, plan=plan, reason=error.message)
    if header is not None and header.backend != plan.backend:
        foreign = Reason(
            "trials-of-another",
            file=str(path),
            tried_backend=header.backend,
            backend=plan.backend,
        )
        return Standing(name=name, state=State.FAILED, plan=plan, reason=foreign)
    reason = stale(plan, header, last) if header is not None else ""
    edited = bool(reason) and not _locked(path)
    if edited and header is not None and header.plan != search_digest(plan):
        # None of the journal's candidates belongs to this plan.
        return Standing(name=name, state=State.EDITED, plan=plan, reason=reason)
    own = searched(trials)
    good = [trial for trial in own if trial.ok]
    return Standing(
        name=name,
        state=State.EDITED if edited else _state(path, plan, trials, last, retired=bool(retired)),
        plan=plan,
        evaluations=candidates(own),
        failures=candidates(own) - candidates(good),
        best_s=min((t.seconds for t in good if t.seconds is not None), default=math.nan),
        outcome=weighed(last.outcome, plan) if last and not reason else None,
        reason=reason if edited else _reason(path, last, retired),
    )


def _reason(path: Path, last: journal.Finished | None, retired: str) -> str:
    if last is not None:
        return last.outcome.reason
    return "" if _locked(path) else retired  # outdated while a process tries again


def _state(
    path: Path,
    plan: TunePlan,
    trials: Sequence[journal.Trial],
    last: journal.Finished | None,
    *,
    retired: bool,
) -> State:
    if _locked(path):
        return State.RUNNING
    if last is None:
        begun = State.STOPPED if trials else State.NOT_STARTED
        return State.FAILED if retired else begun
    if not any(trial.ok for trial in searched(trials)):
        return State.FAILED
    # A search that was stopped, or whose budget was raised since, will be continued.
    if last.plan != plan_digest(plan):
        return State.STOPPED
    return State.TIME_UP if out_of_minutes(plan, trials) else State.DONE


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
