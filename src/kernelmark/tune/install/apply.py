"""Winners into the files of their library: decided, proved, then written, with a way back."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelmark import backends, devices
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.tune.folder import write_whole
from kernelmark.tune.install.emitters.base import Change, Emitter, Fields, Held, text_at
from kernelmark.tune.records.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files that were written and the copies of what they were."""

    files: tuple[Path, ...]
    backups: tuple[Path, ...]


def prepare(
    emitter: Emitter, outcomes: Sequence[Outcome], into: Path, given: Fields | None = None
) -> Change:
    """Return what would be written into `into`, proved on a copy of it: every winner is found
    there, and every other lookup is what it was. Nothing is written."""
    held, notes = _of_other_versions(outcomes)
    stale = {holding.name for holding in held}
    current = [replace(o, kept=False) if o.name in stale else o for o in outcomes]
    change = emitter.emit(current, into, given or FrozenDict())
    change = replace(change, held=(*held, *change.held), notes=(*change.notes, *notes))
    with staged(change, into) as copy:
        _prove(emitter, change, copy)
    return change


def _of_other_versions(outcomes: Sequence[Outcome]) -> tuple[list[Held], list[str]]:
    """Winners that this machine would run with another version of their library than they were
    tuned with, and notes of the versions of those that it cannot run at all."""
    held, notes = [], []
    for outcome in outcomes:
        tuned = outcome.tuned
        if not outcome.kept or not tuned.version:
            continue
        if not _is_here(outcome):
            notes.append(f"for {tuned.backend} {tuned.version} on {outcome.arch}")
        elif reason := outdated(outcome):
            held.append(Held(name=outcome.name, reason=f"it was {reason}: tune again"))
    return held, list(dict.fromkeys(notes))


def outdated(outcome: Outcome) -> str | None:
    """Why a winner may not mean the same kernel with the library that is here."""
    tuned = outcome.tuned
    if not outcome.kept or not tuned.version:
        return None
    try:
        backend = backends.find(tuned.backend)
        here = "" if backend.available() is not None else backend.version()
    except KernelmarkError:
        return None
    if here and here != tuned.version:
        return f"tuned with {tuned.backend} {tuned.version}, here is {here}"
    return None


def _is_here(outcome: Outcome) -> bool:
    """Return whether this machine has a device that a winner is for."""
    kind, _, _ = outcome.device.partition(":")
    infos = devices.registry.get(kind).infos() if kind in devices.registry else []
    return any(info.arch == outcome.arch for info in infos)


@contextlib.contextmanager
def staged(change: Change, into: Path) -> Iterator[Path]:
    """Yield a copy of what a check reads, with the change made in it; the target itself where
    nothing changes."""
    if not change.edits:
        yield into
        return
    with tempfile.TemporaryDirectory(prefix="kmark-") as place:
        copy = Path(place) / into.resolve().name  # that of `..` would be outside
        texts = {path: text_at(into / path) for path in change.beside}
        texts |= {edit.path: edit.after for edit in change.edits}
        for path, text in texts.items():
            if text is not None:
                write_whole(copy / path, text)
        yield copy


def write(emitter: Emitter, change: Change, into: Path, *, backup: bool = True) -> Written:
    """Write the change, read it back and check it; if anything is wrong, undo it."""
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
        _prove(emitter, change, into)
    except BaseException:
        for edit in change.edits:
            if into / edit.path in done:
                _undo(into / edit.path, edit.before)
        raise
    return Written(files=tuple(done), backups=tuple(backups))


def export(emitter: Emitter, change: Change, to: Path) -> tuple[Path, ...]:
    """Return the changed files alone, at `to`, where nothing may be in the way. They were proved in
    their place, and are read back to be what was proved."""
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


def _prove(emitter: Emitter, change: Change, path: Path) -> None:
    faults = emitter.check(change, path)
    if faults:
        raise KernelmarkError(
            Reason("proof-failed", format=emitter.name, cause=faults[0], more=len(faults) - 1),
            hint="nothing was changed; please report it",
        )


def _backup(path: Path, text: str) -> Path:
    """Return a copy beside the file, with the date in its name and never in the place of
    another."""
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
