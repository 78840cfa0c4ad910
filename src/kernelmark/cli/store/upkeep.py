"""`kmark store`: check, copy and prune a store."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import complain, fancy, progress_bar, say, write
from kernelmark.cli.store.transfer import Yes, is_confirmed
from kernelmark.core.errors import StoreError, UsageError
from kernelmark.core.units import counted
from kernelmark.core.verdict import SOME_FAILED

app = typer.Typer(no_args_is_help=True, help="Check, copy and prune a store.")


@app.callback()
def group() -> None:
    """Check, copy and prune a store."""


@app.command("check")
def check(store: o.StorePlace = None, json: o.Json = None, quiet: o.Quiet = False) -> int:
    """Check a store: the database, its references, and the checksum of every result.

    Exit code 3 if anything is damaged. Every command checks what it reads; this one
    reads everything.

    For example: kmark store check --store results.sqlite
    """
    from kernelmark.core.files import json_text
    from kernelmark.stores import open_store

    with open_store(store, readonly=True, check=False) as opened:
        report = opened.damage()
    if json is not None:
        write(json, json_text(dataclasses.asdict(report)))
    for problem in report.problems:
        say(problem)
    if not quiet:
        older = f", {report.unchecked} of an older version without a checksum"
        say(
            f"{opened.where}: {counted(report.runs, 'run')} and"
            f" {counted(report.results, 'result')} read"
            f"{older if report.unchecked else ''}; "
            + (counted(len(report.problems), "problem") if report.problems else "no damage")
        )
    return SOME_FAILED if report.problems else 0


Source = Annotated[
    str,
    typer.Argument(metavar="FROM", help="The store to read: a path or URL.", show_default=False),
]
Target = Annotated[
    str, typer.Argument(metavar="TO", help="The store to add to; created if there is none.")
]


@app.command("migrate")
def migrate(source: Source, target: Target, json: o.Json = None, quiet: o.Quiet = False) -> int:
    """Copy a store to another path or database, and verify every result.

    Between SQLite and PostgreSQL, in either direction, or as a backup. What TO has
    already stays: repeat the command to add what is new, or to merge several stores into
    one. A damaged run is reported and left out, with exit code 3.

    For example: kmark store migrate results.sqlite postgresql://kmark@db.example/kmark
    """
    from kernelmark.core.files import json_text
    from kernelmark.stores import open_store
    from kernelmark.stores.engine import locate

    if locate(source) == locate(target):
        raise UsageError(f"{source} cannot be copied to itself", hint="name another store as TO")
    copied = added = known = 0
    problems: list[str] = []
    hints: list[str | None] = []
    with open_store(source, readonly=True) as old, open_store(target) as new:
        every, _ = old.find_runs(limit=2**31)
        with _counting("copying", len(every), quiet=quiet) as count:
            for run in reversed(every):
                try:
                    outcome = new.copy_run(old, run)
                except StoreError as error:
                    if error.message.code not in ("text", "run-differs"):
                        raise
                    problems.append(f"run {run.id}: {error.message}")
                    hints.append(error.hint)
                else:
                    copied += outcome.changed
                    added, known = added + outcome.added, known + outcome.known
                count()
        new.copy_names(old)
    if json is not None:
        report = {"runs": copied, "added": added, "known": known, "problems": problems}
        write(json, json_text(report))
    for problem, hint in zip(problems, hints, strict=True):
        complain(problem, hint)
    if not quiet:
        there = f"; {counted(known, 'result')} already there" if known else ""
        say(
            f"{counted(copied, 'run')} with {counted(added, 'result')} copied to {new.where} and"
            f" verified{there}"
        )
    return SOME_FAILED if problems else 0


@contextlib.contextmanager
def _counting(doing: str, total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """Yield a function that advances a progress bar, on a terminal."""
    if quiet or not fancy(sys.stderr):
        yield lambda: None
        return
    with progress_bar() as bar:
        task = bar.add_task(doing, total=total, left="")
        yield lambda: bar.advance(task)


RunDays = Annotated[
    float,
    o.option("--runs DAYS", help="Delete runs that are older; one a week stays. 0: keep all."),
]
SampleDays = Annotated[
    float,
    o.option(
        "--samples DAYS",
        help="Of older runs, keep one time per block: medians, intervals and verdicts stay the "
        "same. 0: keep all.",
    ),
]
Labels = Annotated[
    list[str] | None, o.option("--label TEXT", help="Only prune runs with this label. Repeatable.")
]

NoDeletion = Annotated[
    bool, o.option("--dry-run", help="List what would be deleted; delete nothing.")
]


@app.command("prune")
def prune(
    runs: RunDays = 0.0,
    samples: SampleDays = 0.0,
    label: Labels = None,
    dry_run: NoDeletion = False,
    yes: Yes = False,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Delete old runs and old samples.

    Of each label, suite and device the first run of a week stays, so that history keeps
    its levels. So do pinned runs, runs of roofs, and those that a confirmed or accepted
    regression refers to.

    For example: kmark store prune --runs 365 --samples 90 --dry-run
    """
    from kernelmark.api import retention
    from kernelmark.stores import open_store

    if not (runs > 0 or samples > 0):
        raise UsageError("nothing to prune", hint="give an age: --runs 365, --samples 90")
    with open_store(store, readonly=dry_run) as opened:
        now = time.time()

        def pruned(*, dry: bool) -> retention.Pruned:
            return retention.prune(
                opened, now=now, runs_days=runs, samples_days=samples, labels=label, dry_run=dry
            )

        done = pruned(dry=True)
        what = (
            f"{counted(len(done.removed), 'run')}, samples of {counted(len(done.thinned), 'run')}"
        )
        if dry_run:
            for run_id in done.removed:
                say(f"would delete run {run_id}")
        elif done.removed or done.thinned:
            if not yes and not is_confirmed([what]):
                say("nothing was deleted")
                return 0
            done = pruned(dry=False)
    if not quiet:
        would = "would be " if dry_run else ""
        say(
            f"{counted(len(done.removed), 'run')} {would}deleted, samples of"
            f" {counted(len(done.thinned), 'run')} {would}thinned"
        )
    return 0
