"""Journal: all evaluations of one plan, in an append-only file; the progress of each plan, and
which outcomes are valid for the current plans.

One JSON object per line: a header, a trial for each evaluation, an outcome at the end. A line is
synced to disk before the search continues, so a killed run loses only the case on the device. A
truncated last line is dropped on reading.

One folder tunes one backend on one architecture.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from kernelmark.core import codec
from kernelmark.core.errors import CodecError, KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import file_unreadable
from kernelmark.core.reason import prefixed
from kernelmark.core.result import OPTIONAL, Config, KernelInfo, Status, config_key, is_time
from kernelmark.tune import results
from kernelmark.tune.folder import TuningFolder
from kernelmark.tune.plans import (
    TunePlan,
    decision_digest,
    plan_digest,
    read_plan,
    search_digest,
    target,
)
from kernelmark.tune.results import Outcome

COMPILE = "compile"  # the step of a trial that was not timed
FINAL_STEP = "final "  # prefix of the steps of finals
SCREENING_STEP = "heat"  # screening of finalists; the stored word is that of older versions


def is_screening(step: str) -> bool:
    """Return whether a step of a final belongs to the screening."""
    return f" {SCREENING_STEP} " in step


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of a journal: what its trials are valid for. The second group of fields makes
    a continued search request the same candidates in the same order."""

    plan: str  # search_digest of the plan
    space: str  # digest of the parameters and their values
    problem: str
    backend: str
    version: str  # of the library underneath
    kernelmark_version: str
    arch: str
    model: str

    device: str
    pool: int
    refill: int
    lag: int
    starts: tuple[Config, ...] = ()
    at: float = 0.0


# Fields of the header that must not change: with another value, the trials are not valid.
_SAME = {
    "plan": "plan",
    "space": "space",
    "version": "version of the backend's library",
    "kernelmark_version": "version of kernelmark",
    "arch": "architecture",
    "model": "model of device",
}
_DIGESTS = ("plan", "space")
# Statuses that the machine may have caused, or other work on it, instead of the candidate.
OF_THE_MACHINE = (
    *(Status.TIMEOUT, Status.CRASHED, Status.OUT_OF_MEMORY, Status.RUNTIME_ERROR),
    Status.IMPOSSIBLE,  # by noise in a single sample, or a roof that has been measured again since
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One evaluation of a config: compiled only, or timed at a fidelity (`step`). A failed trial
    has a status and an error. `cost_s` is the time it took to compile and measure.

    `backend` and `problem` are "" for the plan's own. `load` is the mean load of other work, in
    cores; None if unknown. If `is_cut`, `seconds` is a first launch, too slow to time others."""

    config: Config
    step: str
    status: Status
    seconds: float | None = None
    low_s: float = 0.0
    high_s: float = math.inf
    worst: float | None = None  # largest error in units of its tolerance; None if not checked
    kernel: KernelInfo = field(default_factory=KernelInfo)
    error: str = ""
    cost_s: float = 0.0
    at: float = 0.0
    backend: str = ""
    problem: str = ""
    load: float | None = field(default=None, metadata={OPTIONAL: True})
    is_cut: bool = field(default=False, metadata={OPTIONAL: True})

    @property
    def ok(self) -> bool:
        return self.status is Status.OK and self.seconds is not None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.backend, self.problem, config_key(self.config), self.step

    @property
    def of_search(self) -> bool:
        """Whether the trial belongs to the search: not to a final or a neighbouring size."""
        return not (self.backend or self.problem or self.step.startswith(FINAL_STEP))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The outcome, with the plan_digest and decision_digest of its plan. `plan` is "" if the next
    run continues: the search was stopped or the final disturbed. `decision` is "" in journals of
    older versions."""

    plan: str
    outcome: Outcome
    decision: str = ""


_TYPES: dict[str, Any] = {"header": Header, "trial": Trial, "finished": Finished}
Line = Header | Trial | Finished


class Journal:
    """The journal of one plan, locked by one process. `header` is None while it is new.
    `retry_failed` drops trials that may have failed because of the machine: their lines stay in the
    file, and later lines replace them."""

    def __init__(self, path: Path, *, retry_failed: bool = False) -> None:
        self.path = path
        self.header: Header | None = None
        self.finished: Finished | None = None
        self.trials: list[Trial] = []
        self._by_key: dict[tuple[str, str, str, str], Trial] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("a+b")
        try:
            self._lock()
            self._load()
            if retry_failed:
                self._forget()
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"{self.path} is being written by another kmark tune run",
                hint="wait for it, or stop it: it can be continued",
            ) from None

    def _load(self) -> None:
        self._file.seek(0)
        data = self._file.read()
        lines, whole = _lines(data, self.path)
        for line in lines:
            self._take(line)
        if whole < len(data):
            self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)

    def _forget(self) -> None:
        again = {key for key, trial in self._by_key.items() if trial.status in OF_THE_MACHINE}
        if again:
            self.finished = None
            self._drop(again)

    def _drop(self, keys: Container[tuple[str, str, str, str]]) -> None:
        """Forget trials so that they are repeated; their lines stay in the file."""
        self.trials = [trial for trial in self.trials if trial.key not in keys]
        self._by_key = {trial.key: trial for trial in self.trials}

    def _take(self, line: Line) -> None:
        if isinstance(line, Header):
            self.header = line
        elif isinstance(line, Finished):
            self.finished = line
            if line.outcome.disturbed:
                self._drop({key for key in self._by_key if key[-1].startswith(FINAL_STEP)})
        else:
            self.finished = reopened(self.finished)
            self.trials.append(line)
            self._by_key[line.key] = line

    def begin(self, header: Header) -> Header:
        """Return the header in the file; write `header` if the journal is new. Raise UsageError if
        the trials in the file are not valid for `header`."""
        if self.header is None:
            self._write(header)
            return header
        for name, what in _SAME.items():
            mine, expected = getattr(self.header, name), getattr(header, name)
            if mine != expected:
                raise UsageError(
                    f"{self.path} was made for another {what}"
                    + (f": {mine} there, {expected} here" if name not in _DIGESTS else ""),
                    hint="go back to what it was, or move the file away to tune from the start",
                )
        return self.header

    def record(self, trial: Trial) -> None:
        """Append a trial, and sync it to disk."""
        self._write(trial)

    def finish(self, finished: Finished) -> None:
        self._write(finished)

    def _write(self, line: Line) -> None:
        name = next(name for name, kind in _TYPES.items() if type(line) is kind)
        text = json.dumps(
            {"line": name, **codec.plain(line)}, separators=(",", ":"), allow_nan=False
        )
        try:
            self._file.write(text.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = str(self.path)  # the OSError of a full disk has no file name
            raise
        self._take(line)

    def find(
        self, *, config: Config, step: str, backend: str = "", problem: str = ""
    ) -> Trial | None:
        """Return the trial of a config at a step, or None. A trial that was only compiled counts at
        every step."""
        text = config_key(config)
        return self._by_key.get((backend, problem, text, step)) or self._by_key.get(
            (backend, problem, text, COMPILE)
        )

    def reached(self, steps: Sequence[str]) -> list[Trial]:
        """Return each candidate's trial of the highest step, in the order of first trials."""
        return reached(self.trials, steps)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def read_journal(path: Path) -> tuple[Header | None, list[Trial], Outcome | None]:
    """Load a journal without locking it, so that it can be read while a run writes it."""
    header, trials, last = load_journal(path)
    return header, trials, last.outcome if last else None


def load_journal(path: Path) -> tuple[Header | None, list[Trial], Finished | None]:
    """Load a journal as `read` does, with the digests of the outcome's plan."""
    header, last, trials = None, None, []
    lines, _ = _lines(path.read_bytes(), path)
    for line in lines:
        if isinstance(line, Header):
            header = line
        elif isinstance(line, Finished):
            last = line
        else:
            last = reopened(last)
            trials.append(line)
    return header, trials, last


def reopened(last: Finished | None) -> Finished | None:
    """Return `last` marked as unfinished, for an outcome that is followed by trials: the search was
    continued and has not ended again."""
    return dataclasses.replace(last, plan="") if last is not None and last.plan else last


def header_of(path: Path) -> Header | None:
    """Return the header of a journal, None if its first line is not a valid one."""
    try:
        with path.open("rb") as file:
            line = _line(file.readline(), 1)
    except (OSError, CodecError):
        return None
    return line if isinstance(line, Header) else None


def searched(trials: Iterable[Trial]) -> list[Trial]:
    """Return the latest trial of each candidate and step of a search."""
    return list({trial.key: trial for trial in trials if trial.of_search}.values())


def reached(trials: Iterable[Trial], steps: Sequence[str]) -> list[Trial]:
    """Return each candidate's trial of the highest step, in the order of first trials."""
    order = {COMPILE: -1} | {step: i for i, step in enumerate(steps)}
    best: dict[str, Trial] = {}
    for trial in trials:
        if trial.step not in order or trial.backend or trial.problem:
            continue
        text = config_key(trial.config)
        if text not in best or order[trial.step] >= order[best[text].step]:
            best[text] = trial
    return list(best.values())


def candidates(trials: Iterable[Trial]) -> int:
    """Return the number of candidates that a search has evaluated."""
    return len({config_key(trial.config) for trial in trials if trial.of_search})


def minutes_spent(plan: TunePlan, cost_s: float) -> bool:
    """Return whether a search that took this long has used up the minutes of its plan."""
    return bool(plan.budget.minutes) and cost_s >= 60 * plan.budget.minutes


def out_of_minutes(plan: TunePlan, trials: Sequence[Trial]) -> bool:
    """Return whether an ended search was ended by the minutes of its plan."""
    spent = minutes_spent(plan, sum(trial.cost_s for trial in searched(trials)))
    return spent and candidates(trials) < plan.budget.evaluations


def now() -> float:
    """Return seconds since the epoch, to the millisecond."""
    return round(time.time(), 3)


def _lines(data: bytes, path: Path) -> tuple[list[Line], int]:
    """Return the lines and their size in bytes, without a truncated last line."""
    lines: list[Line] = []
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        try:
            lines.append(_line(data[at:end], len(lines) + 1))
        except CodecError as error:
            if data.find(b"\n", end + 1) < 0:  # a power loss can corrupt the last line
                break
            reason = prefixed(error.message, f"{path}: ")
            raise UsageError(reason, hint=_repair_hint(len(lines))) from None
        if not isinstance(lines[0], Header):
            raise UsageError(f"{path}: line 1 is not a journal's header", hint=_repair_hint(0))
        at = end + 1
    return lines, at


def _repair_hint(before: int) -> str:
    anew = "move the file away to tune from the start"
    # Without the header it is unknown what the trials are valid for.
    return f"delete that line: what it held is asked again; or {anew}" if before else anew


def _line(data: bytes, number: int) -> Line:
    try:
        document = codec.parse(data)
    except CodecError:
        # The parser's error has a line number too, relative to this line.
        raise CodecError(f"line {number} is not JSON") from None
    kind = _TYPES.get(str(document.pop("line", ""))) if isinstance(document, dict) else None
    if kind is None:
        raise CodecError(f"line {number} is no line of a journal")
    line: Line = codec.read(document, kind, f"line {number}")
    if isinstance(line, Trial) and line.seconds is not None and not is_time(line.seconds):
        raise CodecError(f"line {number}: a time of {line.seconds:g} s is not possible")
    return line


def check_backend(folder: TuningFolder, backend: str, arch: str) -> None:
    """Raise UsageError if the folder has plans or trials of another backend or architecture."""
    elsewhere = f"take another folder, with a copy of {folder.workload}"
    away = f"{elsewhere}; or move its plans, trials and results away"
    for theirs, listed_for in planned_targets(folder):
        if theirs != backend:
            raise UsageError(f"{folder.path} has plans for {theirs}, not for {backend}", hint=away)
        if listed_for not in ("", arch):
            raise UsageError(
                f"{folder.path} has plans for {theirs} on {listed_for}, not on {arch}",
                hint=f"give -d or --arch as before, or {away}",
            )
    for path in sorted(folder.trials.glob("*.jsonl")):
        header = header_of(path)
        if header is not None and (header.backend, header.arch) != (backend, arch):
            before = "give -d or --arch as before, or " if header.backend == backend else ""
            raise UsageError(
                f"{path} has trials of {header.backend}"
                + (f" on {header.arch}" if header.arch else "")
                + f", not of {backend}"
                + (f" on {arch}" if arch else ""),
                hint=f"{before}{elsewhere}; or move its trials and results away",
            )


def planned_targets(folder: TuningFolder) -> list[tuple[str, str]]:
    """Return the backend and architecture of each readable plan; other plans may be overwritten."""
    targets = []
    for name in folder.names():
        with suppress(KernelmarkError):
            targets.append(target(folder.plan(name)))
    return targets


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentOutcomes:
    """The outcomes that are valid for the current plans, by name. `stale` has the reasons why other
    outcomes are not; `unreadable` is the subset whose file cannot be read."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    stale: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def valid_outcomes(folder: TuningFolder, plans: Iterable[TunePlan]) -> CurrentOutcomes:
    """Return the current outcomes from journals, without the result files."""
    current = CurrentOutcomes()
    for plan in plans:
        path = folder.journal(plan.name)
        try:
            header, _, last = load_journal(path)
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
            plans.append(read_plan(folder.plan(name)))
        except KernelmarkError as error:
            broken[name] = error.message
    return plans, broken


def current_outcomes(folder: TuningFolder) -> CurrentOutcomes:
    """Return the outcomes of a folder: from its plans and journals, which are complete even if a
    run was killed before it wrote its results; without plans, from outcomes.json."""
    if not folder.names():
        return CurrentOutcomes(outcomes={outcome.name: outcome for outcome in results.read(folder)})
    plans, broken = readable(folder)
    outcomes_of_plans = valid_outcomes(folder, plans)
    if not (outcomes_of_plans.outcomes or outcomes_of_plans.stale or broken):
        raise NothingToDo(f"{folder.path} has no results yet", hint=f"kmark tune run {folder.path}")
    return CurrentOutcomes(
        outcomes=outcomes_of_plans.outcomes,
        stale=outcomes_of_plans.stale | broken,
        unreadable=outcomes_of_plans.unreadable | broken,
    )


def outdated_plans(folder: TuningFolder, plans: Iterable[TunePlan]) -> list[str]:
    """Return the names of plans whose journal belongs to another search: it cannot be continued."""
    names = []
    for plan in plans:
        path = folder.journal(plan.name)
        header = read_journal(path)[0] if path.exists() else None
        if header is not None and header.plan != search_digest(plan):
            names.append(plan.name)
    return names


def stale(plan: TunePlan, header: Header, last: Finished | None) -> str:
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


class PlanState(StrEnum):
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
    state: PlanState
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
        plan = read_plan(folder.plan(name))
    except KernelmarkError as error:
        return PlanStatus(name=name, state=PlanState.FAILED, reason=error.message)
    path = folder.journal(name)
    if not path.exists():
        state = PlanState.FAILED if retired else PlanState.NOT_STARTED
        return PlanStatus(name=name, state=state, plan=plan, reason=retired)
    try:
        header, trials, last = load_journal(path)
    except KernelmarkError as error:
        return PlanStatus(name=name, state=PlanState.FAILED, plan=plan, reason=error.message)
    if header is not None and header.backend != plan.backend:
        reason = f"{path} has trials of {header.backend}, not of {plan.backend}"
        return PlanStatus(name=name, state=PlanState.FAILED, plan=plan, reason=reason)
    running = _locked(path)
    edited = stale(plan, header, last) if header is not None else ""
    if edited and not running and header is not None and header.plan != search_digest(plan):
        # None of the journal's candidates belongs to this plan.
        return PlanStatus(name=name, state=PlanState.EDITED, plan=plan, reason=edited)
    own = searched(trials)
    good = [trial for trial in own if trial.ok]
    if running:
        state = PlanState.RUNNING
    elif edited:
        state = PlanState.EDITED
    elif last is None and not retired:
        state = PlanState.STOPPED if trials else PlanState.NOT_STARTED
    elif last is None or not good:
        state = PlanState.FAILED
    elif last.plan != plan_digest(plan):
        state = PlanState.STOPPED  # or its budget was raised since: it will be continued
    else:
        state = PlanState.TIME_UP if out_of_minutes(plan, trials) else PlanState.DONE
    if state is PlanState.EDITED:
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
