"""Apply: write winners to the files of their library, checked on a copy first, with backups; and
compare reference and winner again.

The comparison repeats the final re-measurement; the search is not repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelmark import backends, devices
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Pool
from kernelmark.tune.folder import write_whole
from kernelmark.tune.install.emitters.base import (
    NO_OPTIONS,
    Change,
    Emitter,
    Options,
    Skipped,
    text_at,
)
from kernelmark.tune.plans.plan import Acceptance, TunePlan
from kernelmark.tune.records.journal import Journal, Trial
from kernelmark.tune.records.results import Outcome
from kernelmark.tune.search.evaluate import Work, trial_of
from kernelmark.tune.search.finals import finals


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The written files, and the backups of their previous content."""

    files: tuple[Path, ...]
    backups: tuple[Path, ...]


def prepare(
    emitter: Emitter, outcomes: Sequence[Outcome], into: Path, options: Options = NO_OPTIONS
) -> Change:
    """Return the change that would be written to `into`, without writing it. It is checked on a
    copy: all winners are found, and all other lookups are unchanged."""
    outdated: dict[str, str] = {}
    notes: dict[str, None] = {}
    for outcome in outcomes:
        tuned = outcome.tuned
        if not outcome.kept or not tuned.version:
            continue
        if not _can_run(outcome):
            notes[f"for {tuned.backend} {tuned.version} on {outcome.arch}"] = None
        elif reason := version_error(outcome):
            outdated[outcome.name] = reason
    current = [replace(o, kept=False) if o.name in outdated else o for o in outcomes]
    change = emitter.emit(current, into, options)
    skipped = [Skipped(name=name, reason=reason) for name, reason in outdated.items()]
    change = replace(change, skipped=(*skipped, *change.skipped), notes=(*change.notes, *notes))
    with staged(change, into) as copy:
        _check(emitter, change, copy)
    return change


def version_error(outcome: Outcome) -> str:
    """Return why a winner may select another kernel with the installed library, or ""."""
    tuned = outcome.tuned
    try:
        backend = backends.find(tuned.backend)
        here = "" if backend.available() is not None else backend.version()
    except KernelmarkError:
        return ""
    if here in ("", tuned.version):
        return ""
    return f"it was tuned with {tuned.backend} {tuned.version}, here is {here}: tune again"


def _can_run(outcome: Outcome) -> bool:
    """Return whether this machine has a device of a winner's architecture."""
    kind, _, _ = outcome.device.partition(":")
    infos = devices.registry.get(kind).infos() if kind in devices.registry else []
    return any(info.arch == outcome.arch for info in infos)


@contextlib.contextmanager
def staged(change: Change, into: Path) -> Iterator[Path]:
    """Yield a copy of the files that a check reads, with the change applied; `into` itself if
    nothing changes."""
    if not change.edits:
        yield into
        return
    with tempfile.TemporaryDirectory(prefix="kmark-") as temporary:
        copy = Path(temporary) / into.resolve().name  # resolved: `..` would be outside
        texts = {path: text_at(into / path) for path in change.also_read}
        texts |= {edit.path: edit.after for edit in change.edits}
        for path, text in texts.items():
            if text is not None:
                write_whole(copy / path, text)
        yield copy


def write(emitter: Emitter, change: Change, into: Path, *, backup: bool = True) -> Written:
    """Write the change, read it back and check it; undo it on any error."""
    for edit in change.edits:
        if text_at(into / edit.path) != edit.before:
            raise UsageError(
                f"{into / edit.path} has changed meanwhile", hint="run the command again"
            )
    backups = [
        _back_up(into / edit.path, edit.before)
        for edit in change.edits
        if backup and edit.before is not None
    ]
    done: dict[Path, str | None] = {}
    try:
        for edit in change.edits:
            write_whole(into / edit.path, edit.after)
            done[into / edit.path] = edit.before
        _check(emitter, change, into)
    except BaseException:
        for path, before in done.items():
            if before is None:
                path.unlink(missing_ok=True)
            else:
                write_whole(path, before)
        raise
    return Written(files=tuple(done), backups=tuple(backups))


def export(emitter: Emitter, change: Change, to: Path) -> tuple[Path, ...]:
    """Write only the changed files, to `to`, and compare them with what was checked. Raise
    UsageError if one of them exists there."""
    texts = {to / edit.path: edit.after for edit in change.edits}
    for path in texts:
        if path.exists():
            raise UsageError(
                f"{path} exists",
                hint=f"kmark tune apply … --as {emitter.name} --to PATH merges into what is there",
            )
    for path, text in texts.items():
        write_whole(path, text)
        if text_at(path) != text:
            raise KernelmarkError(f"{path} does not read back as it was written")
    return tuple(texts)


def _check(emitter: Emitter, change: Change, path: Path) -> None:
    errors = emitter.check(change, path)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise KernelmarkError(
            f"{emitter.name}: reading it back does not give what was tuned: {errors[0]}{more}",
            hint="nothing was changed; please report it",
        )


def _back_up(path: Path, text: str) -> Path:
    """Write a backup next to the file, with the date in its name, and return its path. Existing
    files are not overwritten."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    copy = path.with_name(f"{path.name}.{stamp}.bak")
    number = 2
    while copy.exists():
        copy = path.with_name(f"{path.name}.{stamp}-{number}.bak")
        number += 1
    write_whole(copy, text)
    return copy


# Comparing again


def recompare(
    outcomes: Sequence[Outcome],
    *,
    acceptance: Callable[[str], Acceptance] = lambda name: Acceptance(),
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Repeat the final of each outcome, on its device or another of its architecture. Raise
    UsageError before timing if one cannot run here. An outcome whose kernel has another name now is
    not kept."""
    runners = check_here(outcomes)
    decided = []
    for device, runner in runners.items():
        with runner.pool() as pool:
            for outcome in (tuned for tuned in outcomes if tuned.device == device):
                again = _repeat(outcome, pool, acceptance(outcome.name))
                on_outcome(again)
                decided.append(again)
    return decided


def check_here(outcomes: Sequence[Outcome]) -> dict[str, LocalRunner]:
    """Return a runner for each device of the outcomes; raise UsageError if an outcome cannot run
    on this machine."""
    runners = {o.device: LocalRunner([device_of(o)]) for o in outcomes}
    for outcome in outcomes:
        _check_runs(outcome, runners[outcome.device].infos[0])
    return runners


def device_of(outcome: Outcome) -> str:
    """Return the device of an outcome; if it is missing, one of the same architecture."""
    kind = devices.registry.get(outcome.device.partition(":")[0])
    infos = kind.infos() if kind.available() is None else []
    alike = [info.name for info in infos if info.arch == outcome.arch]
    if alike and outcome.device not in [info.name for info in infos]:
        return alike[0]
    return outcome.device


def _check_runs(outcome: Outcome, info: DeviceInfo) -> None:
    if info.arch != outcome.arch:
        raise UsageError(f"{info.name} is {info.arch}, but the kernel was tuned for {outcome.arch}")
    for choice in (outcome.tuned, outcome.reference):
        backend = backends.find(choice.backend)
        reason = backend.available() or backend.supports(outcome.problem, info)
        if reason is not None:
            raise UsageError(reason)


def _repeat(outcome: Outcome, pool: Pool, acceptance: Acceptance) -> Outcome:
    plan = TunePlan(
        name=outcome.name,
        problem=outcome.problem,
        backend=outcome.tuned.backend,
        reference_backend=outcome.reference.backend,
        reference_config=outcome.reference.config,
        acceptance=dataclasses.replace(acceptance, finalists=1),
        count=outcome.count,
        share=outcome.share,
        blas=outcome.blas,
    )
    finalist = Trial(
        config=outcome.tuned.config,
        step="full",
        status=Status.OK,
        seconds=math.inf,  # the earlier time must not count as a search time of this machine
    )
    with tempfile.TemporaryDirectory(prefix="kmark-") as temporary:
        journal = Journal(Path(temporary) / f"{outcome.name}.jsonl")
        try:
            work = finals(plan, pool.devices[0].info, journal, [finalist], outcome.evaluations)
            again = _measure(work, plan, pool, journal)
        finally:
            journal.close()
    if has_other_kernel(outcome, again):
        reason = Reason(
            f"another kernel runs now: {again.tuned.kernel.name}, not {outcome.tuned.kernel.name}"
        )
        return dataclasses.replace(again, kept=False, reason=reason)
    return again


def has_other_kernel(outcome: Outcome, again: Outcome) -> bool:
    """Return whether the kernel has another name now than when it was tuned."""
    before, now = outcome.tuned.kernel.name, again.tuned.kernel.name
    return bool(before and now and before != now)


def _measure(work: Work[Outcome], plan: TunePlan, pool: Pool, journal: Journal) -> Outcome:
    (device,) = pool.devices
    while True:
        try:
            measured = next(work)
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome
        for request in measured.requests:
            result = pool.call(MeasureCase(case=request.case, process=request.process))
            if device.lost:
                raise KernelmarkError(f"{device.info.name} cannot be used: {device.lost}")
            journal.record(trial_of(request, result, plan))
