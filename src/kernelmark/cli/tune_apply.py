"""`kmark tune apply` and `kmark export --as`: write winners to the files of libraries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put, put_table, say
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.exit_codes import REGRESSION, SOME_FAILED
from kernelmark.core.reason import Reason
from kernelmark.core.units import counted

if TYPE_CHECKING:
    from kernelmark.tune.install.emitters.base import Change, Emitter, Fields
    from kernelmark.tune.records.outcome import Outcome

_MEND = "repair the file, or give another: winners are merged into it, so it has to be readable"

Folder = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="A tuning folder after 'kmark tune run'; for tensile also a folder "
        "of incremental logic.",
    ),
]
As = Annotated[
    str,
    o.option(
        "--as FORMAT",
        help="Write this format: cublaslt, iree-spec, python, sglang, sglang-moe, vllm, vllm-moe; "
        "not yet run on AMD hardware: aiter, hipblaslt, rocblas, tensile, tunableop.",
    ),
]
To = Annotated[
    str, o.option("--to PATH", help="Change this file, or for aiter and tensile this folder.")
]
DryRun = Annotated[
    bool,
    o.option("--dry-run", help="Write nothing: show the diff, verify it on a copy, and compare."),
]
# A separate option: docs/cli.md would list only the first of --dry-run/--write.
Write = Annotated[
    bool,
    o.option(
        "--write",
        help="Write the files of tensile, which is a dry run without it; other formats are written "
        "anyway.",
    ),
]
NoBackup = Annotated[bool, o.option("--no-backup", help="Do not copy the old files to .bak.")]
NoCompare = Annotated[
    bool, o.option("--no-compare", help="Do not measure reference and winner again.")
]
With = Annotated[
    list[str] | None,
    o.option("--with NAME=VALUE", help="Set an option of the format (kmark list emitters)."),
]


def apply(
    folder: Folder,
    form: As,
    to: To,
    dry_run: DryRun = False,
    write: Write = False,
    no_backup: NoBackup = False,
    no_compare: NoCompare = False,
    words: With = None,
    quiet: o.Quiet = False,
) -> int:
    """Write winners into a library's files, and check them.

    Shows the diff, copies the old files to .bak, and writes. Then looks up every winner
    as the library would, checks that every other lookup is unchanged, and measures
    reference and winner once more through kernelmark. If they cannot be measured here,
    the exit code is 3, or 0 for a dry run.

    For example: kmark tune apply DIR --as aiter --to configs --dry-run
    """
    from kernelmark.tune.folder import hinted
    from kernelmark.tune.install import apply as applying

    if dry_run and write:
        raise UsageError(
            Reason("options-exclusive", options=("--write",), other="--dry-run"),
            hint="leave one of them out",
        )
    into = Path(to).expanduser()
    emitter, outcomes, given, missing = load_winners(folder, form, words or ())
    with hinted(_MEND):
        change = applying.prepare(emitter, outcomes, into, given)
    put(change.diff(into))
    _print_notes(change, emitter, quiet=quiet)
    if not change.edits:
        return _nothing(change, into) or missing
    names = {wanted.name for wanted in change.wanted}
    kept = [outcome for outcome in outcomes if outcome.name in names and not no_compare]
    if dry_run or (emitter.careful and not write):
        more = "" if dry_run else "; --write writes it"
        say(f"dry run: {counted(len(change.edits), 'file')} would change{more}")
        return (_compared(kept, folder, dry=True, quiet=quiet) if kept else 0) or missing
    written = applying.write(emitter, change, into, backup=not no_backup)
    for file in written.files:
        say(f"written: {file}")
    for copy in written.backups:
        say(f"as it was: {copy}")
    say(f"read back: {_proof(change)}")
    return (_compared(kept, folder, dry=False, quiet=quiet) if kept else 0) or missing


def export_winners(
    folder: str, form: str, *, output: str | None, base: str | None, words: Sequence[str]
) -> int:
    """Write winners to new files; `-` is stdout, for formats with one file."""
    from kernelmark.tune.folder import hinted
    from kernelmark.tune.install import apply as applying

    if output is None:
        raise UsageError(
            Reason("option-needs", options=(f"--as {form}",), other="-o"), hint="add: -o PATH"
        )
    emitter, outcomes, given, missing = load_winners(folder, form, words)
    if emitter.needs_base and base is None:
        raise UsageError(
            Reason("option-needs", options=(f"--as {form}",), other="--base"),
            hint="add: --base PATH, the files that winners are merged into; 'kmark tune apply' "
            "changes them in place",
        )
    to = Path(output).expanduser()
    into = Path(base).expanduser() if base is not None else to
    if base is None and to.exists():
        raise UsageError(
            Reason("file-exists", file=output),
            hint=f"kmark tune apply {folder} --as {form} --to {output} merges",
        )
    with hinted(_MEND):
        change = applying.prepare(emitter, outcomes, into, given)
    if not change.edits:
        _print_notes(change, emitter, quiet=False)
        return _nothing(change, into) or missing
    if output == "-":
        if len(change.edits) > 1 or change.edits[0].path != Path():
            raise UsageError(Reason("format-writes-folder", format=form), hint="give it: -o PATH")
        put(change.edits[0].after)
    else:
        for file in applying.export(emitter, change, to):
            say(f"written: {file}")
    _print_notes(change, emitter, quiet=False)
    say(f"read back: {_proof(change)}")
    return missing


def load_winners(
    folder: str, form: str, words: Sequence[str]
) -> tuple[Emitter, Sequence[Outcome], Fields, int]:
    """Return the emitter, the outcomes, its options, and the exit code so far: SOME_FAILED if
    outcome files are unreadable."""
    from kernelmark.tune.folder import TuningFolder
    from kernelmark.tune.install.emitters import registry
    from kernelmark.tune.install.emitters.base import checked_options
    from kernelmark.tune.records import ownership, results

    emitter = registry.get(form)
    options = checked_options(emitter, words)
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise UsageError(Reason("not-a-folder", path=folder), hint="name a tuning folder")
    tuning = TuningFolder(place)
    tuned = tuning.names() or results.outcomes_file(tuning).exists()
    if "logic" in emitter.options and not tuned:
        return emitter, (), {"logic": str(place), **options}, 0
    current = ownership.current(tuning)
    for name, reason in current.stale.items():
        say(f"{name} is not written: {reason}")
    outcomes = tuple(current.outcomes.values())
    if not any(outcome.kept for outcome in outcomes):
        raise NothingToDo(
            Reason("none-kept", folder=folder, outcomes=len(outcomes)),
            hint=f"kmark tune show {folder} says why",
        )
    return emitter, outcomes, options, SOME_FAILED if current.unreadable else 0


def _print_notes(change: Change, emitter: Emitter, *, quiet: bool) -> None:
    for held in change.held:
        say(f"{held.name} is not written: {held.reason}")
    if quiet:
        return
    for note in change.notes:
        say(f"note: {note}")
    if emitter.caution:
        say(f"note: {emitter.caution}")


def _nothing(change: Change, into: Path) -> int:
    if change.written:
        say(f"{into} has {_winners(change)} already: nothing to change")
        return 0
    raise NothingToDo(Reason("no-winner-fits"), hint="the reasons are above")


def _winners(change: Change) -> str:
    return counted(change.written, "winner")


def _proof(change: Change) -> str:
    same = sum(not wanted.name for wanted in change.wanted)
    return f"{_winners(change)} found, {counted(same, 'other lookup')} unchanged"


def _compared(kept: Sequence[Outcome], folder: str, *, dry: bool, quiet: bool) -> int:
    """Measure reference and winners alternately, as in the final re-measurement. A dry run may lack
    the device; a real change that cannot be measured returns SOME_FAILED."""
    from kernelmark.tune.install import recompare as comparing

    state = "nothing is written" if dry else "the files are changed"
    try:
        comparing.check_here(kept)
    except KernelmarkError as error:
        say(f"reference and tuned were not compared again: {error.message}; {state}")
        return 0 if dry else SOME_FAILED
    winners = counted(len(kept), "winner")
    say(f"comparing {winners} with the reference again, as kernelmark runs them")
    try:
        outcomes = comparing.recompare(
            kept,
            acceptance=_acceptances(folder),
            on_outcome=lambda one: None if quiet else say(f"{one.name}: {one.reason}"),
        )
    except KernelmarkError as error:
        say(f"reference and tuned were not compared to the end: {error.message}; {state}")
        return SOME_FAILED
    return _judged(outcomes, {outcome.name: outcome for outcome in kept}, quiet=quiet)


def _judged(outcomes: Sequence[Outcome], before: Mapping[str, Outcome], *, quiet: bool) -> int:
    from kernelmark.report.tables import Column, Table
    from kernelmark.tune.install.recompare import replaced

    columns = tuple(
        Column(name=name, align="right" if name != "name" else "left")
        for name in ("name", "tuned", "reference", "ratio", "before")
    )
    rows = tuple(_row(outcome, before[outcome.name].ratio) for outcome in outcomes)
    put_table(Table(columns=columns, rows=rows))
    failed = [outcome for outcome in outcomes if not outcome.tuned.verified]
    others = [outcome for outcome in outcomes if replaced(before[outcome.name], outcome)]
    # Reasons were printed during measurement; with quiet, print only those of failures.
    for outcome in outcomes if quiet else ():
        if outcome in failed or outcome in others:
            say(f"{outcome.name}: {outcome.reason}")
    if failed:
        return SOME_FAILED
    return REGRESSION if others or any(outcome.high < 1.0 for outcome in outcomes) else 0


def _row(outcome: Outcome, before: float) -> tuple[str, ...]:
    from kernelmark.core.units import time_text
    from kernelmark.report.tables import NONE

    def cell(seconds: float) -> str:
        return NONE if math.isnan(seconds) else time_text(seconds)

    ratio = f"{outcome.ratio:.3f} × ({outcome.low:.3f} to {outcome.high:.3f})"
    return (
        outcome.name,
        cell(outcome.tuned.median_s),
        cell(outcome.reference.median_s),
        NONE if math.isnan(outcome.ratio) else ratio,
        f"{before:.3f} ×",
    )


def _acceptances(folder: str) -> Any:
    """Return a function from a plan's name to its acceptance; the default if the plan is gone."""
    from kernelmark.tune.folder import TuningFolder
    from kernelmark.tune.plans import planfile
    from kernelmark.tune.plans.plan import Acceptance

    tuning = TuningFolder(Path(folder).expanduser())

    def acceptance(name: str) -> Acceptance:
        path = tuning.plan(name)
        return planfile.read(path).acceptance if path.is_file() else Acceptance()

    return acceptance
