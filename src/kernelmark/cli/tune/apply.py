"""`kmark tune apply`, `kmark tune confirm` and `kmark export --as`: winners in libraries' files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put, put_table, say
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import user_path
from kernelmark.core.units import counted
from kernelmark.core.verdict import REGRESSION, SOME_FAILED

if TYPE_CHECKING:
    from kernelmark.tune.install.emitters.base import Change, Emitter, Options
    from kernelmark.tune.plans import Acceptance
    from kernelmark.tune.results import Outcome

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
        "not yet run on AMD hardware: aiter, aiter-tables, hipblaslt, rocblas, tensile, tunableop.",
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


CheckedAs = Annotated[
    str,
    o.option(
        "--as FORMAT",
        help="Check this format: hipblaslt, rocblas, tensile, tunableop; not yet run on AMD "
        "hardware.",
    ),
]
Installed = Annotated[
    str,
    o.option(
        "--to PATH",
        help="Use this file, which 'kmark tune apply' wrote; for tensile the folder of the library "
        "built from it.",
    ),
]
Timeout = Annotated[
    float, o.option("--timeout S", o.RUNNING, help="Limit the seconds of each run.")
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
        raise UsageError("--write cannot be given with --dry-run", hint="leave one of them out")
    into = user_path(to)
    emitter, outcomes, options, missing = load_winners(folder, form, words or ())
    with hinted(_MEND):
        change = applying.prepare(emitter, outcomes, into, options)
    put(change.diff(into))
    _print_notes(change, emitter, quiet=quiet)
    if not change.edits:
        return _nothing(change, into) or missing
    kept = [o for o in outcomes if o.name in change.winners and not no_compare]
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
    from kernelmark.tune.install.emitters.base import is_yes

    if output is None:
        raise UsageError(f"--as {form} needs -o", hint="add: -o PATH")
    emitter, outcomes, options, missing = load_winners(folder, form, words)
    if emitter.needs_base and base is None:
        raise UsageError(
            f"--as {form} needs --base",
            hint="add: --base PATH, the files that winners are merged into; 'kmark tune apply' "
            "changes them in place",
        )
    to = user_path(output)
    into = user_path(base) if base is not None else to
    if base is None and to.exists():
        raise UsageError(
            f"{output} exists", hint=f"kmark tune apply {folder} --as {form} --to {output} merges"
        )
    with hinted(_MEND):
        change = applying.prepare(emitter, outcomes, into, options)
    if not change.edits:
        _print_notes(change, emitter, quiet=False)
        return _nothing(change, into) or missing
    if output == "-":
        if len(change.edits) > 1 or change.edits[0].path != Path():
            raise UsageError(f"{form} writes to a folder", hint="give it: -o PATH")
        put(change.edits[0].after)
    else:
        for file in applying.export(emitter, change, to):
            say(f"written: {file}")
    _print_notes(change, emitter, quiet=False)
    say(f"read back: {_proof(change)}")
    if emitter.name == "iree_spec" and is_yes(options, "gain", default=True):
        _print_gain([o for o in outcomes if o.name in change.winners], change.edits[0].after)
    return missing


def _print_gain(winners: Sequence[Outcome], spec: str) -> None:
    """Measure and print what a tuning spec for IREE gains, and what its flags gain alone: they hold
    for a whole model, also where no winner matches."""
    from kernelmark.backends.iree.spec import parse_spec
    from kernelmark.iree.gain import measure_gain
    from kernelmark.tune.install import apply as applying
    from kernelmark.tune.install.emitters.iree_spec import file_flags, gain_modules

    flags = file_flags(parse_spec(spec))
    try:
        applying.check_here(winners)
        modules, target = gain_modules(winners)
        say(f"measuring {counted(len(modules), 'winner')} without flags, with them, with the spec")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "spec.mlir")
            path.write_text(spec, encoding="utf-8")
            gain = measure_gain(modules, path, flags, target)
    except KernelmarkError as error:
        say(f"note: the gain of the flags alone was not measured: {error.message}")
        return
    say(
        f"note: over iree-compile without flags, as a geometric mean: {gain.flags:.2f} × with the "
        f"flags alone, {gain.spec:.2f} × with flags and spec"
    )


def load_winners(
    folder: str, form: str, arguments: Sequence[str]
) -> tuple[Emitter, Sequence[Outcome], Options, int]:
    """Return the emitter, the outcomes, its options, and the exit code so far: SOME_FAILED if
    outcome files are unreadable."""
    from kernelmark.tune import journal, results
    from kernelmark.tune.folder import TuningFolder
    from kernelmark.tune.install.emitters import registry
    from kernelmark.tune.install.emitters.base import parse_options

    emitter = registry.get(form)
    options = parse_options(emitter.name, emitter.options, arguments)
    path = user_path(folder)
    if not path.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="name a tuning folder")
    tuning = TuningFolder(path)
    tuned = tuning.names() or results.outcomes_file(tuning).exists()
    if "logic" in emitter.options and not tuned:
        return emitter, (), {"logic": str(path), **options}, 0
    current = journal.current_outcomes(tuning)
    for name, reason in current.stale.items():
        say(f"{name} is not written: {reason}")
    outcomes = tuple(current.outcomes.values())
    if not any(outcome.kept for outcome in outcomes):
        raise NothingToDo(
            f"{folder}: none of {counted(len(outcomes), 'outcome')} is kept",
            hint=f"kmark tune show {folder} says why",
        )
    return emitter, outcomes, options, SOME_FAILED if current.unreadable else 0


def _print_notes(change: Change, emitter: Emitter, *, quiet: bool) -> None:
    for skipped in change.skipped:
        say(f"{skipped.name} is not written: {skipped.reason}")
    if not quiet:
        for note in (*change.notes, *([emitter.caution] if emitter.caution else [])):
            say(f"note: {note}")


def _nothing(change: Change, into: Path) -> int:
    if change.winners:
        say(f"{into} has {_winners(change)} already: nothing to change")
        return 0
    raise NothingToDo("no winner can be written", hint="the reasons are above")


def _winners(change: Change) -> str:
    return counted(len(change.winners), "winner")


def _proof(change: Change) -> str:
    same = sum(not lookup.winner for lookup in change.lookups)
    return f"{_winners(change)} found, {counted(same, 'other lookup')} unchanged"


def _compared(kept: Sequence[Outcome], folder: str, *, dry: bool, quiet: bool) -> int:
    """Measure reference and winners alternately, as in the final re-measurement. A dry run may lack
    the device; a real change that cannot be measured returns SOME_FAILED."""
    from kernelmark.tune.install import apply as applying

    state = "nothing is written" if dry else "the files are changed"
    try:
        applying.check_here(kept)
    except KernelmarkError as error:
        say(f"reference and tuned were not compared again: {error.message}; {state}")
        return 0 if dry else SOME_FAILED
    winners = counted(len(kept), "winner")
    say(f"comparing {winners} with the reference again, as kernelmark runs them")
    try:
        outcomes = applying.recompare(
            kept,
            acceptance=_acceptances(folder),
            on_outcome=lambda again: None if quiet else say(f"{again.name}: {again.reason}"),
        )
    except KernelmarkError as error:
        say(f"reference and tuned were not compared to the end: {error.message}; {state}")
        return SOME_FAILED
    return _judged(outcomes, {outcome.name: outcome for outcome in kept}, quiet=quiet)


def _judged(outcomes: Sequence[Outcome], before: Mapping[str, Outcome], *, quiet: bool) -> int:
    from kernelmark.report.tuning import comparison_table
    from kernelmark.tune.install.apply import has_other_kernel

    put_table(comparison_table((before[outcome.name], outcome) for outcome in outcomes))
    failed = [outcome for outcome in outcomes if not outcome.tuned.verified]
    changed = [outcome for outcome in outcomes if has_other_kernel(before[outcome.name], outcome)]
    # Reasons were printed during measurement; with quiet, print only those of failures.
    for outcome in outcomes if quiet else ():
        if outcome in failed or outcome in changed:
            say(f"{outcome.name}: {outcome.reason}")
    if failed:
        return SOME_FAILED
    return REGRESSION if changed or any(outcome.high < 1.0 for outcome in outcomes) else 0


def _acceptances(folder: str) -> Callable[[str], Acceptance]:
    """Return a function from a plan's name to its acceptance; the default if the plan is gone."""
    from kernelmark.tune import plans
    from kernelmark.tune.folder import TuningFolder
    from kernelmark.tune.plans import Acceptance

    tuning = TuningFolder(user_path(folder))

    def acceptance(name: str) -> Acceptance:
        path = tuning.plan(name)
        return plans.read_plan(path).acceptance if path.is_file() else Acceptance()

    return acceptance


def confirm(
    folder: Folder, form: CheckedAs, to: Installed, timeout: Timeout = 300.0, quiet: o.Quiet = False
) -> int:
    """Check which kernels a library runs with the file installed.

    A library silently ignores an entry that does not fit. This runs each
    winner's problem through the library and reads the kernel's name from the library's
    own log. If the tuned kernel ran, it runs the problem again without the file, to see
    whether the library chooses that kernel anyway. The exit code is 1 if another kernel
    ran, and 3 if a name is unknown or a winner is not in the file.
    """
    from kernelmark.report.tables import NONE, Column, Table
    from kernelmark.tune.install import apply as confirming
    from kernelmark.tune.install.apply import Proof
    from kernelmark.tune.install.emitters import registry

    path = user_path(to)
    confirming.check_file(registry.get(form), path)
    emitter, outcomes, _, missing = load_winners(folder, form, ())
    kept = [outcome for outcome in outcomes if outcome.kept]
    results = []
    for result in confirming.confirm(emitter, kept, path, timeout_s=timeout):
        results.append(result)
        if not quiet:
            say(f"[{len(results)}/{len(kept)}] {result.outcome.name}: {result.proof.value}")
    columns = tuple(Column(name=name) for name in ("name", "proof", "tuned kernel", "what ran"))
    rows = tuple(
        (
            result.outcome.name,
            result.proof.value,
            result.outcome.tuned.kernel.name,
            result.ran or result.detail,
        )
        for result in results
    )
    put_table(Table(columns=columns, rows=tuple(tuple(x or NONE for x in row) for row in rows)))
    proofs = {result.proof for result in results}
    if Proof.ABSENT in proofs:
        say("a winner is not in the file: kmark tune apply writes it, or says why it cannot")
    if Proof.UNPROVEN in proofs:
        say("the library chooses a tuned kernel by itself: its entry changes nothing")
    if Proof.IGNORED in proofs:
        say("an entry is ignored: is the file of this build of the library, and its path right?")
        return REGRESSION
    return missing if proofs <= {Proof.CONFIRMED, Proof.UNPROVEN} else SOME_FAILED


SOME_FOUND = 1


def lint_configs(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A folder with aiter's gemm/ or gfx…/ folders, or with JSON files of vLLM or "
            "SGLang.",
        ),
    ],
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> int:
    """Check JSON configs of aiter, vLLM and SGLang for errors.

    Finds entries that no lookup reaches, and values that no kernel can be built with.

    For example: kmark lint-configs aiter/ops/triton/configs
    """
    from kernelmark.core.files import json_text
    from kernelmark.tune.install import aiter_config
    from kernelmark.tune.install.emitters import nearest

    outputs = o.Outputs(json=json)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    lints = [lint(folder) for lint in (aiter_config.lint, nearest.lint)]
    files = sum(lint.files for lint in lints)
    findings = [finding for lint in lints for finding in lint.findings]
    if not files:
        raise UsageError(
            f"{folder} has no configs", hint="give the folder above gemm/ and gfx…/, or of JSONs"
        )
    unchecked = sum(1 for _ in folder.rglob("*.json")) - files
    rows = [{"file": f.file, "place": f.entry, "text": f.text} for f in findings]
    outputs.put(json=lambda: json_text({"files": files, "unchecked": unchecked, "findings": rows}))
    if not outputs.stdout_taken and findings:
        from kernelmark.report.tables import Column, Table

        columns = tuple(Column(name=name) for name in ("file", "entry", "what is wrong"))
        rows_ = tuple((f.file, f.entry or "–", f.text) for f in findings)
        put_table(Table(columns=columns, rows=rows_))
    if not quiet:
        say(f"{counted(files, 'file')}, {counted(len(findings), 'finding')}")
        if unchecked:
            say(f"not checked, because of another kind: {counted(unchecked, 'JSON file')}")
    return SOME_FOUND if findings else 0
