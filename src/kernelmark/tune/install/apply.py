"""Apply: write winners to the files of their library, checked on a copy first, with backups;
compare reference and winner again; and confirm that the library runs the winner.

The comparison repeats the final re-measurement; the search is not repeated.

A library silently ignores a file, entry or index that it rejects, and runs its default. So each
winner's problem is run once by the library, in a process that has the file installed. If the tuned
kernel ran, the problem is run again without the file, because the kernel may be the default too.
Kernel names are read from the library's log: hipBLASLt's extended profile, which it writes when the
process ends, else Tensile's line for each launch, on standard output. hipBLASLt prints such lines
too, but with names of kernels, while winners have names of solutions."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from kernelmark import devices
from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case, Status
from kernelmark.host.processes import last_line, own_command, run_child
from kernelmark.runners import kernel_files
from kernelmark.runners.jobs import MeasureCase
from kernelmark.runners.local import LocalRunner
from kernelmark.runners.pool import Pool
from kernelmark.tune.evaluate import Work, trial_of
from kernelmark.tune.finals import finals
from kernelmark.tune.folder import write_whole
from kernelmark.tune.install.emitters.base import (
    NO_OPTIONS,
    CannotWrite,
    Change,
    Emitter,
    Options,
    Override,
    Skipped,
    text_at,
)
from kernelmark.tune.install.emitters.blas import blas_call
from kernelmark.tune.journal import Journal, Trial
from kernelmark.tune.plans import Acceptance, TunePlan
from kernelmark.tune.results import Outcome


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
        backend = kernel_files.find(tuned.backend)
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
        backend = kernel_files.find(choice.backend)
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


TIMEOUT_S = 300.0
_LOG = "hipblaslt.log"
# Bit 128 of hipBLASLt's mask logs names; HIPBLASLT_LOG_LEVEL, if set, would replace the mask.
_LOGGING = {"HIPBLASLT_LOG_MASK": "128", "TENSILE_DB": "0x8000"}
_UNWANTED = ("HIPBLASLT_LOG_LEVEL", "HIPBLASLT_TUNING_FILE", "HIPBLASLT_TUNING_MODE")
_RUNNING = re.compile(r"^Running kernel: (\S+)$", re.MULTILINE)
_FIELD = re.compile(r"(\w+): ([^,}]+?)\s*[,}]")
_SHAPE = {"M": "m", "N": "n", "K": "k"} | {
    name: name for name in ("transA", "transB", "batch_count")
}


class Proof(StrEnum):
    """The result of running one winner by the library."""

    CONFIRMED = "confirmed"  # the tuned kernel ran, and another one without the file
    UNPROVEN = "runs without the file, too"  # the file may have been read or not
    IGNORED = "ignored"  # another kernel ran
    ABSENT = "not in the file"  # the file has no entry for the winner
    UNKNOWN = "unknown"  # nothing ran, or the kernel's name is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The kernel that ran for a winner; `detail` is the reason if it is unknown."""

    outcome: Outcome
    proof: Proof
    ran: str = ""
    detail: str = ""


def confirm(
    emitter: Emitter, outcomes: Sequence[Outcome], path: Path, *, timeout_s: float = TIMEOUT_S
) -> Iterator[Confirmation]:
    """Run each winner's problem by the library with `path` installed, in one process per winner.
    A winner without an entry in the file is not run."""
    override = check_file(emitter, path)
    return (
        _confirmed(emitter, override, outcome, path.resolve(), timeout_s) for outcome in outcomes
    )


def check_file(emitter: Emitter, path: Path) -> Override:
    """Return the override that makes a library read `path`; raise UsageError if no library does, or
    if `path` is missing."""
    if emitter.override is None:
        raise UsageError(
            f"no library reads {emitter.name} files by itself",
            hint="kmark tune apply measures its winners through kernelmark",
        )
    built = emitter.override.built
    hint = f"kmark export or kmark tune apply with --as {emitter.name} writes it"
    if built:
        hint = f"build {emitter.override.backend} from {emitter.name} files, and name the folder"
        hint += " of the built library"
    if not path.exists():
        raise UsageError(f"there is no {'folder' if built else 'file'} {path}", hint=hint)
    if built and not any(path.rglob(built)):
        raise UsageError(f"{path} has no built library ({built})", hint=hint)
    return emitter.override


def _confirmed(
    emitter: Emitter, override: Override, outcome: Outcome, path: Path, timeout_s: float
) -> Confirmation:
    if emitter.has_winner(outcome, path) is False:
        return Confirmation(outcome=outcome, proof=Proof.ABSENT)
    try:
        call = blas_call(outcome)
    except CannotWrite as error:
        return Confirmation(outcome=outcome, proof=Proof.UNKNOWN, detail=error.reason)
    ran = _run(override, outcome, call, path, timeout_s) or "the library logged no kernel"
    if isinstance(ran, str):
        return Confirmation(outcome=outcome, proof=Proof.UNKNOWN, detail=ran)
    proof = Proof.IGNORED
    if ran == [outcome.tuned.kernel.name]:
        # The library's default may be the same kernel. A default that is not logged (rocBLAS's
        # gemv) is another kernel, since the tuned one was logged.
        alone = _run(override, outcome, call, None, timeout_s)
        if isinstance(alone, str):
            detail = f"without the file: {alone}"
            return Confirmation(outcome=outcome, proof=Proof.UNKNOWN, detail=detail)
        proof = Proof.UNPROVEN if alone == ran else Proof.CONFIRMED
    return Confirmation(outcome=outcome, proof=proof, ran=", ".join(ran))


def _run(
    override: Override,
    outcome: Outcome,
    call: Mapping[str, str],
    path: Path | None,
    timeout_s: float,
) -> list[str] | str:
    """Return the kernels that the library runs for a winner's problem, with `path` installed if
    given, or the error. Only kernels from Tensile are logged."""
    device = device_of(outcome)
    with tempfile.TemporaryDirectory(prefix="kmark-") as temporary:
        folder = Path(temporary)
        case = Case(problem=outcome.problem, backend=override.backend)
        (folder / "case.jsonl").write_text(codec.dumps(case), encoding="utf-8")
        command = own_command("kernelmark.runners.profiled", "--device", device)
        command += ["--launches", "1", str(folder / "case.jsonl")]
        index = device.partition(":")[2] or "0"
        try:
            done = run_child(
                command, timeout_s=timeout_s, env=_variables(override, path, folder, index)
            )
        except subprocess.TimeoutExpired:
            return f"the run took over {timeout_s:g} s"
        log = folder / _LOG
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if done.returncode:
        return last_line(done.stderr)
    out = done.stdout.decode(errors="replace")
    return list(dict.fromkeys(logged_names(text, call) or _RUNNING.findall(out)))


def _variables(override: Override, path: Path | None, folder: Path, index: str) -> dict[str, str]:
    unwanted = {*_UNWANTED, *override.variables}
    kept = {name: text for name, text in os.environ.items() if name not in unwanted}
    own = {}
    if path is not None:
        if override.copy:
            shutil.copy(path, folder / override.copy.replace("%d", index))
            path = folder / override.copy
        own = {name: text.format(path=path) for name, text in override.variables.items()}
    return {**kept, **_LOGGING, "HIPBLASLT_LOG_FILE": str(folder / _LOG), **own}


def logged_names(text: str, call: Mapping[str, str]) -> list[str]:
    """Return the names of the solutions in hipBLASLt's extended profile for a call."""
    names = []
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "solution_Name" in fields and all(
            fields.get(theirs) == call[ours] for theirs, ours in _SHAPE.items()
        ):
            names.append(fields["solution_Name"])
    return names
