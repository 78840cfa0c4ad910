"""`kmark tune`: from a workload to faster kernels, in steps, in a tuning folder."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli import tune_apply, tune_run
from kernelmark.cli.output import check_drawable, draw, put_table, say
from kernelmark.core.errors import NothingToDo
from kernelmark.core.units import counted
from kernelmark.core.verdict import NOTHING, SOME_FAILED

if TYPE_CHECKING:
    from kernelmark.api.tuning import Planned
    from kernelmark.report.tables import Table
    from kernelmark.report.tuning import Records
    from kernelmark.tune.plans.summary import Cost, Summary
    from kernelmark.tune.records.status import PlanStatus

Every = Annotated[bool, o.option("--all", o.OUTPUT, help="Show every row.")]


SEARCH = "Search"
# Maximum rows shown of a long table.
_TOP = 20


Folder = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="A tuning folder, written by 'kmark import LOG --workload DIR'."
    ),
]
PlannedFolder = Annotated[str, typer.Argument(metavar="DIR", help="A tuning folder with plans.")]
NewFolder = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="A tuning folder; -s, -o and -p create it, or add problems to it."
    ),
]
Reference = Annotated[
    str | None,
    o.option(
        "-b --backend BACKEND",
        o.SELECTION,
        help="Time with this reference: what the program runs today. Default: the first available "
        "of torch, cublaslt and numpy.",
    ),
]
Tuned = Annotated[
    str, o.option("-b --backend BACKEND", o.SELECTION, help="Tune this backend, or a kernel file.")
]
ToBeat = Annotated[
    str | None,
    o.option(
        "--reference BACKEND",
        o.SELECTION,
        help="Set the reference that winners must beat. Default: that of the summary, else the "
        "tuned backend's default config.",
    ),
]
OneDevice = Annotated[
    str | None,
    o.option(
        "-d --device DEVICE",
        o.SELECTION,
        help="Tune on this device. Default: that of the summary, else cpu.",
    ),
]
Arch = Annotated[
    str | None,
    o.option(
        "--arch ARCH", o.SELECTION, help="Plan for an absent GPU instead of -d: gfx942, sm_90."
    ),
]
RetryFailed = Annotated[
    bool, o.option("--retry-failed", o.SELECTION, help="Measure failed problems again.")
]
_THR = "at least this percentage of the total time: 0.1 is 0.1 %."
Threshold = Annotated[
    float | None,
    o.option(
        "--thr PERCENT",
        o.SELECTION,
        help=f"Select problems with {_THR} Default: the selection in summary.csv, and all new "
        "problems.",
    ),
]
PlanThreshold = Annotated[
    float | None,
    o.option(
        "--thr PERCENT",
        o.SELECTION,
        help=f"Plan only problems with {_THR} Default: those selected in summary.csv.",
    ),
]
StrategyName = Annotated[
    str,
    o.option("--strategy NAME", SEARCH, help="Set the search strategy (kmark list strategies)."),
]
Evaluations = Annotated[
    int, o.option("--evaluations N", SEARCH, help="Limit the candidates per problem.")
]
Minutes = Annotated[
    float, o.option("--minutes M", SEARCH, help="Limit the minutes per problem; 0: no limit.")
]
Seed = Annotated[int, o.option("--seed N", SEARCH, help="Seed the search.")]
MinRatio = Annotated[
    float,
    o.option(
        "--min-ratio FACTOR",
        SEARCH,
        help="Keep a winner only if it is at least this many times as fast.",
    ),
]
MinGain = Annotated[
    float,
    o.option(
        "--min-gain-us US",
        SEARCH,
        help="Keep a winner only if it saves at least this many µs per call.",
    ),
]
Force = Annotated[bool, o.option("--force", o.RUNNING, help="Also overwrite edited plans.")]


def summarise(
    *,
    context: typer.Context,
    folder: Folder,
    backend: Reference = None,
    devices: o.Devices = None,
    timing: o.TimingName = "quick",
    thr: Threshold = None,
    retry_failed: RetryFailed = False,
    every: Every = False,
    store: o.StorePlace = None,
    no_store: o.NoStore = False,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Time each problem with the reference; select the costly ones.

    Writes DIR/summary.csv. Reuses stored times of the same backend, version, device and
    timing.
    """
    from kernelmark.api import tuning
    from kernelmark.cli.progress import reporter
    from kernelmark.stores import open_store

    with contextlib.ExitStack() as stack:
        opened = None if no_store else stack.enter_context(open_store(store))
        on_event = stack.enter_context(reporter(None, quiet=quiet))
        summary = tuning.summarise(
            folder,
            backend=backend,
            device=o.comma_list(devices) or ("cpu",),
            timing=timing,
            thr=thr,
            store=opened,
            retry_failed=retry_failed,
            argv=tuple(context.obj or ()),
            on_event=on_event,
        )
    _put_summary(summary, outputs, every=every)
    _print_summary(summary, folder, quiet=quiet)
    return SOME_FAILED if any(c.status and c.status.failed for c in summary.costs) else 0


def _put_summary(summary: Summary, outputs: o.Outputs, *, every: bool) -> None:
    from kernelmark.core.files import json_text
    from kernelmark.report import tuning as report
    from kernelmark.tune.plans.summary import records

    shown = summary.costs if every else summary.costs[:_TOP]
    rows = records(summary)
    _put(
        outputs,
        report.summary_table(shown),
        _left_out(shown, summary.costs, "problem"),
        rows,
        styles=[_style(cost) for cost in shown],
        json=lambda: json_text({"total_us": summary.total_s * 1e6, "problems": rows}),
    )


def _put(
    outputs: o.Outputs,
    table: Table,
    rows: str,
    records: Records,
    *,
    styles: Sequence[str] = (),
    json: Callable[[], str] | None = None,
) -> None:
    """Print a table, with `rows` for what it leaves out, and write all records to files."""
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report.tables import markdown

    if table.rows and not outputs.stdout_taken:
        put_table(table, styles=styles or [""] * len(table.rows))
        if rows:
            say(f"and {rows}: --all shows them")
    outputs.put(
        json=json or (lambda: json_text(records)),
        csv=lambda: csv_text(records),
        md=lambda: markdown(table),
    )


def _left_out(shown: Sequence[object], every: Sequence[object], noun: str) -> str:
    count = len(every) - len(shown)
    return counted(count, f"more {noun}") if count else ""


def _print_summary(summary: Summary, folder: str, *, quiet: bool) -> None:
    from kernelmark.report import tuning as report

    if summary.failed:
        calls = sum(cost.count for cost in summary.failed)
        say(
            f"{counted(len(summary.failed), 'problem')} ({counted(calls, 'call')}) could not be "
            f"timed and {'has' if len(summary.failed) == 1 else 'have'} no share: see status"
        )
    for text in report.doubts(summary):
        say(f"warning: {text}")
    # Calls without a time are not part of the sum.
    say(report.summary_line(summary.timed if summary.total_s else summary))
    if not quiet:
        say(f"next: kmark tune plan {shlex.quote(folder)} -b BACKEND")


def _style(cost: Cost) -> str:
    if cost.status is not None and cost.status.failed:
        return "red"
    return "" if cost.selected and cost.total_s else "dim"


# --limit keeps the most expensive problems of a log.
_LIMIT = "Keep the N most expensive problems; with -s, -o or -p, a stratified sample of N."
PlanProblems = Annotated[o.Selection, o.selection_options(limit=_LIMIT)]


def plan(
    *,
    folder: NewFolder,
    backend: Tuned,
    reference: ToBeat = None,
    device: OneDevice = None,
    arch: Arch = None,
    selection: PlanProblems,
    thr: PlanThreshold = None,
    strategy: StrategyName = "kmark",
    evaluations: Evaluations = 100,
    minutes: Minutes = 0.0,
    seed: Seed = 1,
    min_ratio: MinRatio = 1.03,
    min_gain_us: MinGain = 0.5,
    force: Force = False,
    every: Every = False,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Write an editable plan per problem: space, budget, seed.

    Writes DIR/plans. An edited plan is overwritten only with --force. Names do not
    change when problems are added.

    Without a log: kmark tune plan DIR -b iree -o gemm -a m=[256,512] -a n=512
    -a k=512 --dtype f32
    """
    from kernelmark.api import tuning
    from kernelmark.report import tuning as report
    from kernelmark.tune.plans.plan import Acceptance, Budget

    done = tuning.plan(
        folder,
        backend=backend,
        reference=reference,
        device=device,
        arch=arch,
        thr=thr,
        selection=selection,
        strategy=strategy,
        seed=seed,
        budget=Budget(evaluations=evaluations, minutes=minutes),
        acceptance=Acceptance(min_ratio=min_ratio, min_gain_us=min_gain_us),
        force=force,
    )
    shown = done.drafts if every else done.drafts[:_TOP]
    _put(
        outputs,
        report.plan_table(shown, done.fates),
        _left_out(shown, done.drafts, "plan"),
        report.plan_records(done.drafts, done.fates, done.refused),
    )
    return _print_plans(done, folder, arch=arch, quiet=quiet)


def _print_plans(done: Planned, folder: str, *, arch: str | None, quiet: bool) -> int:
    from kernelmark.report import tuning as report

    for line in report.reasons(done.refused):
        say(line)
    if not quiet:
        for note in done.notes:
            say(f"note: {note}")
    say(", ".join([_planned(done), *_not_timed(done)]))
    if done.hint:
        say(f"hint: {done.hint}")
    if not quiet and done.drafts:
        first = done.drafts[0].plan
        say(_next(folder, first.backend, first.arch if arch else None))
    return 0 if done.drafts else NOTHING


def _next(folder: str, backend: str, arch: str | None) -> str:
    """Return the next step for plans; without their GPU, only compiling backends can be checked."""
    from kernelmark import backends
    from kernelmark.runners.jobs import compiles

    where = shlex.quote(folder)
    run = f"kmark tune run {where}"
    if arch is None:
        return f"next: {run}"
    there = f"where there is a {arch}: {run}"
    if compiles(backend) and backends.find(backend).available() is None:
        return f"next: kmark tune check {where}, and {there}"
    return f"next, {there}"


def _planned(done: Planned) -> str:
    from kernelmark.report import tuning as report

    below = [cost for cost in done.left_out if cost.total_s]
    return report.plans_line(done.drafts, done.fates, done.refused, below)


def _not_timed(done: Planned) -> list[str]:
    """Return the counts of problems without a plan because they have no time."""
    failed = sum(cost.no_time for cost in done.left_out)
    later = sum(cost.status is None for cost in done.left_out)
    counts = ((failed, "that could not be timed"), (later, "not timed yet"))
    return [f"{count} {words}" for count, words in counts if count]


def show(
    *,
    folder: PlannedFolder,
    every: Every = False,
    outputs: o.Outputs,
    figure: o.Figure = None,
    quiet: o.Quiet = False,
) -> int:
    """Show the progress, best time and ratio of each plan.

    Works while 'kmark tune run' is running. States: not started, running, stopped,
    edited (the plan changed after the search), done, failed, time was up (the
    plan's minutes ended the search).
    """
    from kernelmark.report import tuning as report
    from kernelmark.tune.folder import TuningFolder
    from kernelmark.tune.records.status import plan_statuses

    drawn = check_drawable(figure)
    opened = TuningFolder.open(folder)
    statuses = plan_statuses(opened)
    if not statuses:
        raise NothingToDo(f"{folder} has no plans", hint=f"kmark tune plan {folder} -b BACKEND")
    shown = statuses if every else statuses[:_TOP]
    _put(
        outputs,
        report.status_table(shown),
        _left_out(shown, statuses, "plan"),
        report.status_records(statuses),
    )
    _print_statuses(statuses, quiet=quiet)
    if drawn is not None:
        from kernelmark.report.figures import TITLES
        from kernelmark.report.tuning_figure import of_folder

        draw(of_folder(opened), drawn, TITLES["tuning"], str(opened.path))
    return 0


def _print_statuses(statuses: Sequence[PlanStatus], *, quiet: bool) -> None:
    from kernelmark.report import tuning as report
    from kernelmark.tune.records.results import Metrics

    states = Counter(status.state for status in statuses)
    say(", ".join(f"{count} {state.value}" for state, count in sorted(states.items())))
    outcomes = [status.outcome for status in statuses if status.outcome is not None]
    if outcomes and not quiet:
        say(report.metrics_line(Metrics.of(outcomes)))


app = typer.Typer(
    name="tune", help="Find faster configs for the problems of a workload.", no_args_is_help=True
)
app.command("summarise")(summarise)
app.command("summarize", hidden=True)(summarise)
app.command("plan")(plan)
app.command("check")(tune_run.check)
app.command("run")(tune_run.run)
app.command("show")(show)
app.command("apply")(tune_apply.apply)
app.command("confirm")(tune_apply.confirm)
