"""Apply: write winners to the files of their library, checked on a copy first, with backups."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelmark import backends, devices
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.tune.folder import write_whole
from kernelmark.tune.install.emitters.base import Change, Emitter, Fields, Held, text_at
from kernelmark.tune.records.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The written files, and the backups of their previous content."""

    files: tuple[Path, ...]
    backups: tuple[Path, ...]


def prepare(
    emitter: Emitter, outcomes: Sequence[Outcome], into: Path, given: Fields | None = None
) -> Change:
    """Return the change that would be written to `into`, without writing it. It is checked on a
    copy: all winners are found, and all other lookups are unchanged."""
    held, notes = _outdated_winners(outcomes)
    stale = {holding.name for holding in held}
    current = [replace(o, kept=False) if o.name in stale else o for o in outcomes]
    change = emitter.emit(current, into, given or FrozenDict())
    change = replace(change, held=(*held, *change.held), notes=(*change.notes, *notes))
    with staged(change, into) as copy:
        _check(emitter, change, copy)
    return change


def _outdated_winners(outcomes: Sequence[Outcome]) -> tuple[list[Held], list[str]]:
    """Return the winners whose library has another version on this machine than they were tuned
    with, and notes with the versions of winners that cannot run on this machine."""
    held, notes = [], []
    for outcome in outcomes:
        tuned = outcome.tuned
        if not outcome.kept or not tuned.version:
            continue
        if not _can_run(outcome):
            notes.append(f"for {tuned.backend} {tuned.version} on {outcome.arch}")
        elif reason := outdated(outcome):
            held.append(Held(name=outcome.name, reason=reason))
    return held, list(dict.fromkeys(notes))


def outdated(outcome: Outcome) -> Reason | None:
    """Return why a winner may select another kernel with the installed library, or None."""
    tuned = outcome.tuned
    if not outcome.kept or not tuned.version:
        return None
    try:
        backend = backends.find(tuned.backend)
        here = "" if backend.available() is not None else backend.version()
    except KernelmarkError:
        return None
    if here and here != tuned.version:
        return Reason(
            "tuned-with-another-version", backend=tuned.backend, tuned=tuned.version, here=here
        )
    return None


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
                Reason("file-changed-meanwhile", file=str(into / edit.path)),
                hint="run the command again",
            )
    backups = [
        _backup(into / edit.path, edit.before)
        for edit in change.edits
        if backup and edit.before is not None
    ]
    done: list[Path] = []
    try:
        for edit in change.edits:
            write_whole(into / edit.path, edit.after)
            done.append(into / edit.path)
        _check(emitter, change, into)
    except BaseException:
        for edit in change.edits:
            if into / edit.path in done:
                _undo(into / edit.path, edit.before)
        raise
    return Written(files=tuple(done), backups=tuple(backups))


def export(emitter: Emitter, change: Change, to: Path) -> tuple[Path, ...]:
    """Write only the changed files, to `to`, and compare them with what was checked. Raise
    UsageError if one of them exists there."""
    for edit in change.edits:
        if (to / edit.path).exists():
            raise UsageError(
                Reason("file-exists", file=str(to / edit.path)),
                hint=f"kmark tune apply … --as {emitter.name} --to PATH merges into what is there",
            )
    files = []
    for edit in change.edits:
        write_whole(to / edit.path, edit.after)
        files.append(to / edit.path)
        if text_at(to / edit.path) != edit.after:
            raise KernelmarkError(Reason("file-not-read-back", file=str(to / edit.path)))
    return tuple(files)


def _check(emitter: Emitter, change: Change, path: Path) -> None:
    faults = emitter.check(change, path)
    if faults:
        raise KernelmarkError(
            Reason("proof-failed", format=emitter.name, cause=faults[0], more=len(faults) - 1),
            hint="nothing was changed; please report it",
        )


def _backup(path: Path, text: str) -> Path:
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


def _undo(path: Path, before: str | None) -> None:
    if before is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, before)
