"""Confirm: whether a library runs the tuned kernel when it is given the file.

A library silently ignores a file, entry or index that it rejects, and runs its default. So each
winner's problem is run once by the library, in a process that has the file installed. If the tuned
kernel ran, the problem is run again without the file, because the kernel may be the default too.
Kernel names are read from the library's log: hipBLASLt's extended profile, which it writes when the
process ends, else Tensile's line for each launch, on standard output. hipBLASLt prints such lines
too, but with names of kernels, while winners have names of solutions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kernelmark.core import codec
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.result import Case
from kernelmark.host.processes import last_line, run_child
from kernelmark.tune.install.emitters._blas import blas_call
from kernelmark.tune.install.emitters.base import Emitter, Override, Unfit
from kernelmark.tune.install.recompare import device_of
from kernelmark.tune.records.outcome import Outcome

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
            Reason("format-not-read", format=emitter.name),
            hint="kmark tune apply measures its winners through kernelmark",
        )
    built = emitter.override.built
    hint = f"kmark export or kmark tune apply with --as {emitter.name} writes it"
    if built:
        hint = f"build {emitter.override.backend} from {emitter.name} files, and name the folder"
        hint += " of the built library"
    if not path.exists():
        missing = Reason("file-missing", file=str(path))
        raise UsageError(Reason("no-folder", folder=str(path)) if built else missing, hint=hint)
    if built and not any(path.rglob(built)):
        raise UsageError(Reason("library-not-built", folder=str(path), pattern=built), hint=hint)
    return emitter.override


def _confirmed(
    emitter: Emitter, override: Override, outcome: Outcome, path: Path, timeout_s: float
) -> Confirmation:
    if emitter.has_winner(outcome, path) is False:
        return Confirmation(outcome=outcome, proof=Proof.ABSENT)
    try:
        call = blas_call(outcome)
    except Unfit as error:
        return Confirmation(outcome=outcome, proof=Proof.UNKNOWN, detail=error.reason)
    found = _run(override, outcome, call, path, timeout_s)
    if not found:
        found = "the library logged no kernel"
    if isinstance(found, str):
        return Confirmation(outcome=outcome, proof=Proof.UNKNOWN, detail=found)
    proof = Proof.IGNORED
    if found == [outcome.tuned.kernel.name]:
        # The library's default may be the same kernel. A default that is not logged (rocBLAS's
        # gemv) is another kernel, since the tuned one was logged.
        alone = _run(override, outcome, call, None, timeout_s)
        if isinstance(alone, str):
            detail = f"without the file: {alone}"
            return Confirmation(outcome=outcome, proof=Proof.UNKNOWN, detail=detail)
        proof = Proof.UNPROVEN if alone == found else Proof.CONFIRMED
    return Confirmation(outcome=outcome, proof=proof, ran=", ".join(found))


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
        command = [sys.executable, "-m", "kernelmark.runners.profiled", "--device", device]
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
