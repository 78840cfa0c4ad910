"""`kmark compare BASE HEAD`: which rows changed between two runs, and why."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.followups import extended, store_words
from kernelmark.cli.output import check_drawable, draw, put_table, put_tables, say
from kernelmark.core.errors import UsageError
from kernelmark.core.units import join_or
from kernelmark.core.verdict import VerdictStatus

if TYPE_CHECKING:
    from kernelmark.compare.verdicts import ComparedRow, Comparison

REGRESSION = 1
JUDGING = "Judging"
# Maximum rows for which all are shown; beyond it only changed rows.
_FEW = 20
# Minimum letters of a case id; shorter words are row numbers.
_LEAST_OF_ID = 4

_RUN_HELP = (
    "A run: its id or a prefix of it, a label, a pinned name, latest, latest~1; or a file: "
    "exported JSON, or results of another tool (kmark import --help)."
)
Base = Annotated[
    str, typer.Argument(metavar="BASE", autocompletion=completing.runs, help=_RUN_HELP)
]
Head = Annotated[
    str,
    typer.Argument(
        metavar="HEAD", autocompletion=completing.runs, help="The run to judge, named like BASE."
    ),
]
RuleName = Annotated[
    str,
    o.option(
        "--rule NAME|FILE",
        JUDGING,
        help="Judge by this rule: robust, golden-tot, ratio, or a TOML file.",
    ),
]
FailOnWords = Annotated[
    list[str] | None,
    o.option(
        "--fail-on VERDICT[:SIZE]",
        JUDGING,
        help="Exit with code 1 on these verdicts, such as slower:3%,broken; none: never. held adds "
        "rows that are suppressed because a canary moved. Default: slower,broken.",
    ),
]
Match = Annotated[
    Literal["case", "problem"],
    o.option(
        "--match case|problem",
        JUDGING,
        help="Match rows by case (problem, backend, config and timing), or by problem: the fastest "
        "row of each side.",
    ),
]
Explain = Annotated[
    str | None,
    o.option(
        "--explain ROW",
        o.OUTPUT,
        help="Explain the verdict of one row, by its number or a prefix of its case id. The exit "
        "code is then 0.",
    ),
]
All = Annotated[
    bool, o.option("--all", o.OUTPUT, help="Show every row, not only those that changed.")
]


def compare(
    *,
    base: Base,
    head: Head,
    rule: RuleName = "robust",
    fail_on: FailOnWords = None,
    match: Match = "case",
    explain: Explain = None,
    every: All = False,
    store: o.StorePlace = None,
    outputs: o.Outputs,
    figure: o.Figure = None,
    quiet: o.Quiet = False,
) -> int:
    """Compare two runs row by row; exit 1 on a regression.

    A regression is a row that is significantly slower, or fails only in HEAD.

    Rules: robust (interval over blocks, false discovery rate of 1 %), golden-tot
    (slower if tot > 1.005 × golden + 0.5 µs; ignores golden times under 4 µs),
    ratio (warn above 1.10, fail above 1.15), or a TOML file.

    For example: kmark compare latest~1 latest
    """
    from kernelmark.api.compare import compare as compare_runs
    from kernelmark.api.load import is_file
    from kernelmark.compare import alarms as failing
    from kernelmark.core.units import counted
    from kernelmark.stores import open_store

    drawn = check_drawable(figure)
    if explain is not None and outputs.any:
        raise UsageError(
            f"{join_or(outputs.given)} cannot be combined with --explain",
            hint="--explain shows one row in words; files have all rows",
        )
    words = o.comma_list(fail_on)
    limits = failing.parse(words) if words else failing.FailOn()
    with contextlib.ExitStack() as stack:
        needed = not (is_file(base) and is_file(head))
        opened = stack.enter_context(open_store(store, readonly=True)) if needed else None
        found = compare_runs(base, head, rule=rule, match=match, store=opened)
    place = store_words(store) if needed else ()
    if explain is not None:
        from kernelmark.report import compare as report

        put_tables(report.explain(_row(found, explain), place))
        return 0
    meant = [row for row in found.rows if row.verdict in limits]
    bad = [row for row in meant if limits.held or not row.held]
    # Use run ids: a label may refer to another run by the time the comment is read.
    pairs = zip((base, head), found.runs, strict=True)
    refs = [ref if is_file(ref) else run.id for ref, run in pairs]
    command = _command(refs, rule=rule, match=match, fail_on=words)
    gone_fails = VerdictStatus.GONE in dict(limits.sizes)
    _put(found, outputs, command, place, failed=bool(bad), gone_fails=gone_fails, every=every)
    if drawn is not None:
        from kernelmark.report import figures
        from kernelmark.report.changes import of_comparison

        names = [run.label or run.id for run in found.runs]
        title = figures.TITLES["changes"]
        draw(figures.changes(of_comparison(found, place)), drawn, title, " → ".join(names))
    spared = len(meant) - len(bad)
    _print_notes(found, bad, spared=spared, gone_fails=gone_fails, every=every, quiet=quiet)
    broken = [row for row in found.rows if row.status is VerdictStatus.BROKEN]
    if broken and not quiet and not any(row.verdict in limits for row in broken):
        say(f"note: {counted(len(broken), 'broken row')} did not fail: --fail-on leaves it out")
    return REGRESSION if bad else 0


def _command(refs: Sequence[str], *, rule: str, match: str, fail_on: Sequence[str]) -> str:
    words = ["kmark", "compare", *refs, "--rule", rule]
    words += [] if match == "case" else ["--match", match]
    words += ["--fail-on", ",".join(fail_on)] if fail_on else []
    return shlex.join(words)


def _put(
    comparison: Comparison,
    outputs: o.Outputs,
    command: str,
    place: Sequence[str],
    *,
    failed: bool,
    gone_fails: bool,
    every: bool,
) -> None:
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report import compare as report

    shown = list(comparison.rows) if every or len(comparison.rows) <= _FEW else comparison.changed
    if shown and not outputs.stdout_taken:
        put_table(report.table(shown), styles=[_style(row) for row in shown])
    outputs.put(
        json=lambda: json_text(report.document(comparison, place)),
        csv=lambda: csv_text(report.records(comparison)),
        md=lambda: report.comment(
            comparison,
            command=extended(command, place),
            failed=failed,
            gone_fails=gone_fails,
            more=place,
        ),
    )


def _print_notes(
    comparison: Comparison,
    bad: list[ComparedRow],
    *,
    spared: int,
    gone_fails: bool,
    every: bool,
    quiet: bool,
) -> None:
    from kernelmark.report import compare as report

    if not quiet:
        for what, base, head in comparison.environment:
            say(f"environment: {what}: {base or '–'} → {head or '–'}")
        if missing := report.unrecorded(comparison):
            say(f"environment: {missing}")
        for text in report.notes(comparison, gone_fails=gone_fails):
            say(f"note: {text}")
        hidden = len(comparison.rows) - len(comparison.changed)
        if hidden and len(comparison.rows) > _FEW and not every:
            rows = "1 row is" if hidden == 1 else f"{hidden} rows are"
            say(f"note: {rows} left out, as no change was found: --all shows them")
    say(report.summary(comparison))
    if spared:
        say(
            f"{spared} of them would fail but {'is' if spared == 1 else 'are'} suppressed, since a "
            "canary moved: the machine changed between the runs; kmark ab measures both alongside "
            "each other, --fail-on held counts suppressed rows too"
        )
    if bad:
        say(f"{len(bad)} of them fail; why, for one: kmark compare … --explain {bad[0].number}")


def _row(comparison: Comparison, asked: str) -> ComparedRow:
    rows = [
        row
        for row in comparison.rows
        if str(row.number) == asked
        or (len(asked) >= _LEAST_OF_ID and row.pair.shown.case.id.startswith(asked))
    ]
    exact = [row for row in rows if str(row.number) == asked] or rows
    if len(exact) == 1:
        return exact[0]
    if not exact:
        raise UsageError(
            f"unknown row {asked!r}",
            hint=f"rows are numbered from 1 to {len(comparison.rows)}: --all shows them",
        )
    numbers = tuple(row.number for row in exact)
    raise UsageError(
        f"{len(numbers)} rows have a case that begins with {asked!r}",
        hint=f"numbers: {', '.join(map(str, numbers[:10]))}",
    )


def _style(row: ComparedRow) -> str:
    if row.held:
        return "yellow"
    if row.status in (VerdictStatus.SLOWER, VerdictStatus.BROKEN):
        return "red"
    if row.status in (VerdictStatus.FASTER, VerdictStatus.FIXED):
        return "green"
    return "dim" if row.status in (VerdictStatus.IGNORED, VerdictStatus.UNSURE) else ""
