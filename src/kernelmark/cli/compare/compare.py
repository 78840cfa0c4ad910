"""`kmark compare` and `kmark history`: what changed between two runs, and over many."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kernelmark.cli import options
from kernelmark.cli import options as o
from kernelmark.cli.options import complete_runs
from kernelmark.cli.output import (
    check_drawable,
    draw,
    extended,
    kept_by,
    put,
    put_table,
    put_tables,
    say,
    store_words,
)
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.text import found_in
from kernelmark.core.units import join_or
from kernelmark.core.verdict import REGRESSION, VerdictStatus

if TYPE_CHECKING:
    from kernelmark.compare.alarms import FailOn
    from kernelmark.compare.history import History, Story
    from kernelmark.compare.verdicts import ComparedRow, Comparison
    from kernelmark.report.tables import Table
    from kernelmark.stores.store import Store

JUDGING = "Judging"
# Maximum rows for which all are shown; beyond it only changed rows.
_FEW = 20
# Minimum letters of a case id; shorter words are row numbers.
_LEAST_OF_ID = 4

_RUN_HELP = (
    "A run: its id or a prefix of it, a label, a pinned name, latest, latest~1; or a file: "
    "exported JSON, or results of another tool (kmark import --help)."
)
Base = Annotated[str, typer.Argument(metavar="BASE", autocompletion=complete_runs, help=_RUN_HELP)]
Head = Annotated[
    str,
    typer.Argument(
        metavar="HEAD", autocompletion=complete_runs, help="The run to judge, named like BASE."
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
        help="Exit with code 1 on these verdicts, such as slower:3%,broken; none: never. undecided "
        "adds unsure rows, held those that are suppressed because a canary moved. Default: "
        "slower,broken.",
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


@dataclass(frozen=True, kw_only=True)
class CompareOptions(o.Options):
    """The options of `kmark compare`."""

    rule: RuleName = "robust"
    fail_on: FailOnWords = None
    match: Match = "case"
    explain: Explain = None
    every: All = False
    store: o.StorePlace = None
    outputs: o.Outputs
    figure: o.Figure = None
    quiet: o.Quiet = False


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """A comparison and the verdicts that fail it."""

    comparison: Comparison
    limits: FailOn

    @property
    def counting(self) -> list[ComparedRow]:
        """The rows that fail, or would if no canary had moved."""
        return [row for row in self.comparison.rows if row.verdict in self.limits]

    @property
    def failing(self) -> list[ComparedRow]:
        return [row for row in self.counting if self.limits.held or not row.held]

    @property
    def gone_fails(self) -> bool:
        return VerdictStatus.GONE in dict(self.limits.sizes)


def compare(*, base: Base, head: Head, options: CompareOptions) -> int:
    """Compare two runs row by row; exit 1 on a regression.

    A regression is a row that is significantly slower, or fails only in HEAD.

    Rules: robust (interval over blocks, false discovery rate of 1 %), golden-tot
    (slower if tot > 1.005 × golden + 0.5 µs; ignores golden times under 4 µs),
    ratio (warn above 1.10, fail above 1.15), or a TOML file.

    For example: kmark compare latest~1 latest
    """
    from kernelmark.api.compare import compare as compare_runs
    from kernelmark.api.results import is_file
    from kernelmark.compare import alarms
    from kernelmark.stores import open_store

    drawn = check_drawable(options.figure)
    if options.explain is not None and options.outputs.any:
        raise UsageError(
            f"{join_or(options.outputs.file_options)} cannot be combined with --explain",
            hint="--explain shows one row in words; files have all rows",
        )
    fail_on = o.comma_list(options.fail_on)
    limits = alarms.parse(fail_on) if fail_on else alarms.FailOn()
    with contextlib.ExitStack() as stack:
        needed = not (is_file(base) and is_file(head))
        opened = stack.enter_context(open_store(options.store, readonly=True)) if needed else None
        comparison = compare_runs(base, head, rule=options.rule, match=options.match, store=opened)
    store_options = store_words(options.store) if needed else ()
    if options.explain is not None:
        from kernelmark.report import compare as report

        put_tables(report.explain(_row(comparison, options.explain), store_options))
        return 0
    # Use run ids: a label may refer to another run by the time the comment is read.
    pairs = zip((base, head), comparison.runs, strict=True)
    refs = [ref if is_file(ref) else run.id for ref, run in pairs]
    judged = _Judged(comparison=comparison, limits=limits)
    _put(judged, options, _command(refs, options, fail_on=fail_on), store_options)
    if drawn is not None:
        from kernelmark.report import figures
        from kernelmark.report.changes import of_comparison

        names = [run.label or run.id for run in comparison.runs]
        title = figures.TITLES["changes"]
        draw(
            figures.changes(of_comparison(comparison, store_options)),
            drawn,
            title,
            " → ".join(names),
        )
    _print_notes(judged, options)
    return REGRESSION if judged.failing else 0


def _command(refs: Sequence[str], options: CompareOptions, *, fail_on: Sequence[str]) -> str:
    arguments = ["kmark", "compare", *refs, "--rule", options.rule]
    arguments += [] if options.match == "case" else ["--match", options.match]
    arguments += ["--fail-on", ",".join(fail_on)] if fail_on else []
    return shlex.join(arguments)


def _put(
    judged: _Judged, options: CompareOptions, command: str, store_options: Sequence[str]
) -> None:
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report import compare as report

    comparison = judged.comparison
    few = len(comparison.rows) <= _FEW
    shown = list(comparison.rows) if options.every or few else comparison.changed
    if shown and not options.outputs.stdout_taken:
        put_table(report.table(shown), styles=[_style(row) for row in shown])
    options.outputs.put(
        json=lambda: json_text(report.document(comparison, store_options)),
        csv=lambda: csv_text(report.records(comparison)),
        md=lambda: report.comment(
            comparison,
            command=extended(command, store_options),
            failed=bool(judged.failing),
            gone_fails=judged.gone_fails,
            more=store_options,
        ),
    )


def _print_notes(judged: _Judged, options: CompareOptions) -> None:
    from kernelmark.core.units import counted
    from kernelmark.report import compare as report

    comparison, failing = judged.comparison, judged.failing
    if not options.quiet:
        for what, base, head in comparison.environment:
            say(f"environment: {what}: {base or '–'} → {head or '–'}")
        if missing := report.unrecorded(comparison):
            say(f"environment: {missing}")
        for text in report.notes(comparison, gone_fails=judged.gone_fails):
            say(f"note: {text}")
        hidden = len(comparison.rows) - len(comparison.changed)
        if hidden and len(comparison.rows) > _FEW and not options.every:
            rows = "1 row is" if hidden == 1 else f"{hidden} rows are"
            say(f"note: {rows} left out, as no change was found: --all shows them")
    say(report.summary(comparison))
    if spared := len(judged.counting) - len(failing):
        say(
            f"{spared} of them would fail but {'is' if spared == 1 else 'are'} suppressed, since a "
            "canary moved: the machine changed between the runs; kmark ab measures both alongside "
            "each other, --fail-on held counts suppressed rows too"
        )
    if failing:
        number = failing[0].number
        say(f"{len(failing)} of them fail; why, for one: kmark compare … --explain {number}")
    broken = [row for row in comparison.rows if row.status is VerdictStatus.BROKEN]
    if broken and not options.quiet and not any(row.verdict in judged.limits for row in broken):
        say(f"note: {counted(len(broken), 'broken row')} did not fail: --fail-on leaves it out")


def _row(comparison: Comparison, row_number: str) -> ComparedRow:
    rows = [
        row
        for row in comparison.rows
        if str(row.number) == row_number
        or (len(row_number) >= _LEAST_OF_ID and row.pair.shown.case.id.startswith(row_number))
    ]
    exact = [row for row in rows if str(row.number) == row_number] or rows
    if len(exact) == 1:
        return exact[0]
    if not exact:
        raise UsageError(
            f"unknown row {row_number!r}",
            hint=f"rows are numbered from 1 to {len(comparison.rows)}: --all shows them",
        )
    numbers = tuple(row.number for row in exact)
    raise UsageError(
        f"{len(numbers)} rows have a case that begins with {row_number!r}",
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


LOOKING = "Looking back"
BASELINES = "Baselines"
ALARMS = "Alarms"
# Maximum series shown without a selection.
_MOST = 50
_MOST_COMMANDS = 5  # that accept an alarm
# Options that apply to the history of a microbenchmark.
_WITH_MICRO = ("micro", "runs", "arch", "store", "json", "csv", "md", "figure", "quiet")
_MICRO_HINT = (
    "it takes --runs, --arch and where the output goes; 'kmark micro compare' tells better from "
    "worse"
)

Runs = Annotated[int, o.option("--runs N", LOOKING, help="Use the N newest runs.", common=True)]
RunLabel = Annotated[
    str | None,
    o.option("--label TEXT", LOOKING, help="Use only runs with this label.", common=True),
]
Arch = Annotated[
    str | None, o.option("--arch ARCH", LOOKING, help="Use only this architecture, such as sm_90.")
]
MinEffect = Annotated[
    float,
    o.option(
        "--min-effect FRACTION", LOOKING, help="Ignore steps below this fraction: 0.02 is 2 %."
    ),
]
Canaries = Annotated[
    str,
    o.option(
        "--canaries SUITE",
        LOOKING,
        help="Use this suite as canaries: problems that should never change; if they do, alarms "
        "are suppressed. '' uses none.",
    ),
]
Sentinels = Annotated[
    str | None,
    o.option("--sentinels SUITE", LOOKING, hidden=True, help="The old name of --canaries."),
]
Changed = Annotated[
    bool,
    o.option("--changed", o.OUTPUT, help="Show only series with a step or an alarm.", common=True),
]
AllSeries = Annotated[
    bool, o.option("--all", o.OUTPUT, help="Show every series, not only the first 50.", common=True)
]
Check = Annotated[
    bool,
    o.option(
        "--check",
        o.OUTPUT,
        help="Exit with code 1 while a series is slower or broken: until it is measured good "
        "again or accepted, if no canary moved with it.",
        common=True,
    ),
]
Accept = Annotated[
    list[str] | None,
    o.option(
        "--accept SERIES",
        ALARMS,
        help="Accept what a series became, and exit: a slowdown is the good level from now on, a "
        "failure is silent until it changes. SERIES is its id, words of it, or 'all' alarms that "
        "-o, -b and --filter leave. Repeatable; needs --reason.",
        common=True,
    ),
]
AcceptReason = Annotated[
    str | None, o.option("--reason TEXT", ALARMS, help="Say why --accept does so.", common=True)
]
Unaccept = Annotated[
    list[str] | None,
    o.option("--unaccept SERIES", ALARMS, help="Undo --accept, and exit. Repeatable."),
]
Baseline = Annotated[
    str | None,
    o.option(
        "--baseline RUN",
        BASELINES,
        help="Add a column with the change against this run: a pinned name, id or label.",
    ),
]
Pin = Annotated[
    str | None,
    o.option(
        "--pin NAME[=RUN]", BASELINES, help="Pin NAME to this run (default: the newest), and exit."
    ),
]
Unpin = Annotated[
    str | None, o.option("--unpin NAME", BASELINES, help="Remove a pinned name, and exit.")
]
Exclude = Annotated[
    list[str] | None,
    o.option(
        "--exclude RUN",
        LOOKING,
        complete=options.complete_runs,
        help="Leave this run out of every history from now on, and exit. Repeatable.",
    ),
]
Include = Annotated[
    list[str] | None,
    o.option(
        "--include RUN",
        LOOKING,
        complete=options.complete_runs,
        help="Include an excluded run again, and exit. Repeatable.",
    ),
]
Pins = Annotated[bool, o.option("--pins", BASELINES, help="List pinned names, and exit.")]


Micro = Annotated[
    str | None,
    o.option(
        "--micro NAME",
        LOOKING,
        help="Show the headline metrics of a microbenchmark instead; combines only with --runs, "
        "--arch and output options.",
    ),
]


def history(
    *,
    context: typer.Context,
    ops: o.Ops = None,
    backends: o.KeptBackends = None,
    filter: o.Filter = None,
    runs: Runs = 60,
    label: RunLabel = None,
    arch: Arch = None,
    min_effect: MinEffect = 0.02,
    canaries: Canaries = "sentinels",
    sentinels: Sentinels = None,
    baseline: Baseline = None,
    pin: Pin = None,
    unpin: Unpin = None,
    pins: Pins = False,
    exclude: Exclude = None,
    include: Include = None,
    changed: Changed = False,
    every: AllSeries = False,
    check: Check = False,
    accept: Accept = None,
    reason: AcceptReason = None,
    unaccept: Unaccept = None,
    micro: Micro = None,
    store: o.StorePlace = None,
    outputs: o.Outputs,
    figure: o.Figure = None,
    quiet: o.Quiet = False,
) -> int:
    """Show each series over the newest runs, with its steps.

    A series is a case on one architecture. A step is a change point, listed with what
    changed in the environment. The newest point of each series is compared with its
    last good level; slower and broken are alarms until the series is measured good
    again or accepted. Confirm a new one with the 'kmark ab' command that is printed.
    """
    from kernelmark.api.compare import history as look_back
    from kernelmark.stores import open_store

    drawn = check_drawable(figure)
    if runs < 1:
        raise UsageError(f"--runs must be above 0, not {runs:g}")
    if not 0 < min_effect < 1:
        raise UsageError(f"--min-effect must be above 0 and below 1, not {min_effect:g}")
    suites = None
    canaries = canaries if sentinels is None else sentinels
    if micro is not None:
        from kernelmark.core.micro import MICRO, MICRO_SUITE, ROOFS_SUITE
        from kernelmark.micro.session import named, plain_name

        o.check_alone(context, _WITH_MICRO, "--micro", hint=_MICRO_HINT)
        named(micro)
        ops, backends = [plain_name(micro)], [MICRO]
        suites, canaries = (MICRO_SUITE, ROOFS_SUITE), ""
    if exclude or include:
        with open_store(store) as opened:
            return _excluded(opened, exclude or (), include or ())
    if (reason is None) != (not accept):
        missing = "--reason TEXT" if accept else "--accept SERIES"
        raise UsageError(
            f"{missing} is missing", hint='kmark history --accept SERIES --reason "why it may stay"'
        )
    if pin is not None or unpin is not None or pins:
        with open_store(store) as opened:
            return _pinned(opened, pin, unpin)
    decides = bool(accept or unaccept)
    with open_store(store) if decides else _opened(store, micro) as opened:
        if micro is not None and not opened.runs(limit=1, suites=suites):
            raise _not_stored(micro)
        record = look_back(
            opened,
            runs=runs,
            label=label,
            arch=arch,
            min_effect=min_effect,
            baseline=baseline,
            canaries=canaries,
            suites=suites,
        )
        picked = chosen(record, o.comma_list(ops), o.comma_list(backends), filter)
        if decides:
            return _decide(opened, picked, accept or (), unaccept or (), reason or "")
    if not picked and micro is not None:
        raise _not_stored(micro)
    if not picked:
        whole_history = extended("kmark history", store_words(store))
        raise NothingToDo(
            "no series matches", hint=f"there are {len(record.stories)}: {whole_history}"
        )
    marked = (s for s in picked if s.steps or s.alarm or s.held or s.accepted)
    shown = list(marked) if changed else picked
    whole = every or changed or bool(ops or backends or filter)
    most = len(shown) if whole else _MOST
    kept = kept_by(("history", "--micro", micro or "", "--csv", "FILE"), store)
    with kept if micro is not None else contextlib.nullcontext():
        worse = _print_series(
            record, shown, outputs, most=most, more=store_words(store), quiet=quiet
        )
    if drawn is not None:
        from kernelmark.report import figures
        from kernelmark.report.history import by_worry

        environments = [run.environment for run in record.runs]
        draw(figures.history(by_worry(shown), environments), drawn, figures.TITLES["history"])
    return REGRESSION if check and worse else 0


def _not_stored(micro: str) -> NothingToDo:
    return NothingToDo(f"no {micro} is stored", hint=f"measure it: kmark micro {micro}")


def _opened(store: str | None, micro: str | None) -> Store:
    from kernelmark.cli.hardware.micro import opened_for_micro
    from kernelmark.stores import open_store

    return open_store(store, readonly=True) if micro is None else opened_for_micro(store)


def _print_series(
    record: History,
    shown: list[Story],
    outputs: o.Outputs,
    *,
    most: int,
    more: Sequence[str],
    quiet: bool,
) -> list[Story]:
    """Print the series with `more` arguments in commands; return alarms that are not speed-ups."""
    from kernelmark.core.verdict import VerdictStatus

    names = {story.series for story in record.alarms}
    alarms = [story for story in shown if story.series in names]
    _put_history(record, shown, alarms, outputs, most=most, more=more)
    _print_history_notes(record, shown, alarms, more=more, quiet=quiet)
    return [story for story in alarms if story.screen.status is not VerdictStatus.FASTER]


def _pinned(store: Store, pin: str | None, unpin: str | None) -> int:
    from kernelmark.api.results import check_name

    pins = store.pins()
    # Check both first, so that a refusal of one leaves the other undone.
    if unpin is not None and unpin not in pins:
        raise UsageError(f"unknown pin {unpin!r}", hint=f"pinned: {', '.join(pins) or 'nothing'}")
    if pin is not None:
        name, _, ref = pin.partition("=")
        check_name(name, "the name")
        run = store.run(ref or "latest")
        if name not in pins and (taken := _run_id_of(store, name)) not in (None, run.id):
            raise UsageError(
                f"{name!r} is already the name of run {taken}",
                hint="pin another name: --pin NAME=RUN",
            )
        store.pin(name, run.id)
        say(f"{name} is now run {run.id}")
    if unpin is not None:
        store.unpin(unpin)
        say(f"{unpin} is forgotten")
    if pin is None and unpin is None:
        for name, run_id in pins.items():
            put(f"{name}  {run_id}\n")
        if not pins:
            say("no run is pinned; to pin one: kmark history --pin NAME=RUN")
    return 0


def _excluded(store: Store, out: Sequence[str], back: Sequence[str]) -> int:
    # Resolve all before changing any.
    marked_runs = [(store.run(ref), ref in out) for ref in (*out, *back)]
    for run, excluded in marked_runs:
        store.update_run(dataclasses.replace(run, excluded=excluded))
        say(f"run {run.id} is {'left out of' if excluded else 'part of'} every history")
    return 0


def _decide(
    store: Store,
    picked: Sequence[Story],
    accept: Sequence[str],
    unaccept: Sequence[str],
    reason: str,
) -> int:
    """Accept regressions of these series, and undo acceptances."""
    import getpass

    from kernelmark.api import compare as api
    from kernelmark.report.history import parts, series_id

    alarms = [story for story in picked if story.is_regression]
    if "all" in accept:
        if not alarms:
            raise NothingToDo("no regression is open", hint="'kmark history' shows the states")
        accepted = alarms
    else:
        # Words name an alarm first: other series of the same kernel need no decision.
        accepted = [_named(text, alarms, picked, "series with a regression") for text in accept]
    decided = [story for story in picked if story.accepted]
    undone = [_named(text, decided, picked, "series that was accepted") for text in unaccept]
    if accepted:
        api.accept(store, accepted, reason, getpass.getuser())
    for story in undone:
        api.unaccept(store, story)
    for story, word in [*((s, "accepted") for s in accepted), *((s, "open") for s in undone)]:
        series_parts = parts(story)
        undo = f"; undo: kmark history --unaccept {series_id(story)}" if word == "accepted" else ""
        say(f"{word}: {series_parts['problem']} by {series_parts['backend']}{undo}")
    return 0


def _named(text: str, preferred: Sequence[Story], every: Sequence[Story], what: str) -> Story:
    """Return the series with this id or key, or the only one that has all these words."""
    from kernelmark.report.history import parts, series_id

    for story in every:
        if text in (story.series, series_id(story)):
            return story
    names = text.split()
    fits = [s for s in preferred if names and all(word in s.series.split() for word in names)]
    if len(fits) == 1:
        return fits[0]
    candidates = fits or preferred
    shown = ", ".join(f"{series_id(s)} ({parts(s)['problem']})" for s in candidates[:5])
    raise UsageError(
        f"{text!r} names {len(fits) or 'no'} {what}",
        hint=f"give an id: {shown}" if shown else "'kmark history' shows the series and alarms",
    )


def _run_id_of(store: Store, name: str) -> str | None:
    """Return the id of the run that `name` refers to, or None."""
    try:
        return store.run(name).id
    except KernelmarkError:
        return None


def chosen(
    record: History, ops: tuple[str, ...], backends: tuple[str, ...], regex: str | None
) -> list[Story]:
    """Return the selected series."""
    from kernelmark.backends import canonical, is_file, parse
    from kernelmark.backends._lineage import former_name, own_kernels

    keys = [story.problem for story in record.stories]
    matches = found_in(regex or "", keys, hint="it is what --filter was given")
    # Stored names of kernel files may predate the canonical form.
    named = {canonical(name) for name in backends}
    here = [parse(name) for name in backends if is_file(name) and Path(name).is_file()]
    named |= {kernel.name for kernel in own_kernels(here).values()}
    former = {former_name(ref.file) for ref in here if ref.file is not None}
    shown = []
    for story, fits in zip(record.stories, matches, strict=True):
        backend = story.series.split(" | ")[1]
        if (
            (not ops or story.problem.split()[0] in ops)
            and (
                not named
                or not named.isdisjoint((backend, canonical(backend)))
                or backend.partition("@")[0] in former
            )
            and fits
        ):
            shown.append(story)
    return shown


def _put_history(
    record: History,
    shown: list[Story],
    alarms: list[Story],
    outputs: o.Outputs,
    *,
    most: int,
    more: Sequence[str],
) -> None:
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report import history as report
    from kernelmark.report.tables import csv_names

    worst_first = report.by_worry(shown)
    if not outputs.stdout_taken:
        put_tables(_tables(record, worst_first[:most]))
        if len(shown) > most:
            say(
                f"note: {len(shown) - most} more series: --all shows them; -o, -b and --filter "
                "choose some, --changed those with a step or an alarm"
            )
    outputs.put(
        json=lambda: json_text(report.document(record, shown)),
        csv=lambda: csv_text(report.records(shown), csv_names(report.COLUMNS)),
        md=lambda: report.markdown_page(
            record, worst_first, alarms, _tables(record, worst_first), more
        ),
    )


def _tables(record: History, shown: list[Story]) -> list[Table]:
    from kernelmark.report import history as report

    tables = [report.table(record, shown)] if shown else []
    if any(story.steps for story in shown):
        tables.append(report.steps(record, shown))
    return tables


def _print_history_notes(
    record: History, shown: list[Story], alarms: list[Story], *, more: Sequence[str], quiet: bool
) -> None:
    from kernelmark.core.units import counted
    from kernelmark.report import history as report

    if not quiet:
        for text in report.notes(record, shown):
            say(f"note: {text}")
    for text in report.alarm_lines(record, alarms, shown):
        say(text)
    commands = report.confirmations(record, alarms, more)
    if commands:
        say("confirm by paired rounds of the two environments:")
        for command in commands:
            say(f"  {command}")
    if text := report.unconfirmed(alarms):
        say(text)
    if accepting := report.acceptances(alarms, more):
        say("a regression stays an alarm until it is measured good again, or accepted:")
        for command in accepting[:_MOST_COMMANDS]:
            say(f"  {command}")
        if len(accepting) > _MOST_COMMANDS:
            say(f"  and {len(accepting) - _MOST_COMMANDS} more (all: --accept all)")
    steps = sum(len(story.steps) for story in shown)
    suppressed = sum(bool(story.held) for story in shown)
    say(
        f"{len(shown)} series over {counted(len(record.runs), 'run')}: {counted(steps, 'step')}, "
        f"{counted(len(alarms), 'alarm')}{f', {suppressed} suppressed' if suppressed else ''}"
    )
