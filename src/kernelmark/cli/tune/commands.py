"""`kmark tune`: from a workload to faster kernels, in steps, in a tuning folder."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import check_drawable, draw, put_table, say
from kernelmark.cli.tune import apply as tune_apply
from kernelmark.core.errors import NothingToDo, StoreError
from kernelmark.core.files import user_path
from kernelmark.core.immutable import not_negative
from kernelmark.core.units import counted
from kernelmark.core.verdict import INTERRUPTED, NOTHING, SOME_FAILED

if TYPE_CHECKING:
    from kernelmark.api.tuning import Planned, Tuned
    from kernelmark.report.tables import Table
    from kernelmark.report.tuning import Records
    from kernelmark.stores.store import Store
    from kernelmark.tune.evaluate import PlanCheck
    from kernelmark.tune.journal import PlanStatus
    from kernelmark.tune.summary import Cost, Summary

# Maximum plans named in a sentence.
_NAMED = 3

PlannedFolder = Annotated[str, typer.Argument(metavar="DIR", help="A tuning folder with plans.")]
GpuFolder = Annotated[
    str, typer.Argument(metavar="DIR", help="A tuning folder with plans for a GPU.")
]
Only = Annotated[
    list[str] | None,
    o.option("--only NAME,…", o.SELECTION, help="Use only these plans. Repeatable."),
]
Candidates = Annotated[
    int,
    o.option(
        "--candidates N",
        o.SELECTION,
        help="Compile N candidates per plan: the default config and a random sample (by the plan's "
        "seed).",
    ),
]
Cores = Annotated[
    int | None, o.option("--jobs N", o.RUNNING, help="Compile on N cores. Default: all.")
]
CompileTimeout = Annotated[
    float, o.option("--timeout S", o.RUNNING, help="Limit the seconds of a compilation.")
]
Jobs = Annotated[
    int | None,
    o.option(
        "--jobs N",
        o.RUNNING,
        help="Compile ahead on N host cores; 0: compile when the device needs it. Default: all.",
    ),
]
Devices = Annotated[
    list[str] | None,
    o.option(
        "-d --devices DEVICE,…",
        o.SELECTION,
        help="Spread the plans over these devices: cuda:0-3, or 0,1 (of the plans' kind). Default: "
        "that of the summary.",
    ),
]
MinutesInAll = Annotated[
    float,
    o.option(
        "--minutes M",
        o.RUNNING,
        help="End after M minutes: stop searching in time to compare what was found; 0: no limit. "
        "Repeat the command to continue.",
    ),
]
RetryCandidates = Annotated[
    bool,
    o.option(
        "--retry-failed",
        o.RUNNING,
        help="Retry candidates that crashed, ran out of time or memory, or were 'impossible' "
        "(faster than the roofs allow).",
    ),
]
NoPrior = Annotated[
    bool,
    o.option(
        "--no-prior",
        o.RUNNING,
        help="Ignore the times of searches on other problems and GPUs (kmark tune memory).",
    ),
]
Timeout = Annotated[
    float, o.option("--timeout S", o.RUNNING, help="Limit the seconds per candidate.")
]
TensileLite = Annotated[
    str | None,
    o.option(
        "--tensilelite DIR",
        o.RUNNING,
        help="Generate kernels with this checkout of hipBLASLt or rocm-libraries. Default: "
        "$KERNELMARK_TENSILELITE.",
    ),
]


def use_tensilelite(folder: str | None) -> None:
    """Pass a checkout on to the backend and to its workers."""
    if folder is not None:
        from kernelmark.backends.tensilelite import checkout

        os.environ[checkout.VARIABLE] = str(user_path(folder).absolute())
        checkout.the_checkout()


def check(
    *,
    folder: GpuFolder,
    only: Only = None,
    candidates: Candidates = 16,
    jobs: Cores = None,
    timeout: CompileTimeout = 180.0,
    tensilelite: TensileLite = None,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Compile candidates without a GPU; report spills and limits.

    Counts the candidates that 'kmark tune run' would time, and those it would reject
    because they spill or exceed shared memory. Times nothing, and does not change DIR.
    CSV and JSON have a row per candidate, with its registers and spills.
    """
    from kernelmark.api import tuning
    from kernelmark.tune.evaluate import CheckVerdict

    use_tensilelite(tensilelite)

    checks = []
    for plan_check in tuning.check(
        folder, only=o.comma_list(only), candidates=candidates, jobs=jobs, compile_timeout_s=timeout
    ):
        checks.append(plan_check)
        if not quiet:
            good, total = plan_check.count(CheckVerdict.ACCEPTED), len(plan_check.candidates)
            say(f"{plan_check.plan.name}: {good} of {total} candidates accepted")
    _put_checks(checks, outputs)
    return (
        0 if all(plan_check.count(CheckVerdict.ACCEPTED) for plan_check in checks) else SOME_FAILED
    )


def _put_checks(checks: Sequence[PlanCheck], outputs: o.Outputs) -> None:
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report import tuning as report
    from kernelmark.report.tables import markdown

    records, table = report.check_records(checks), report.check_table(checks)
    if not outputs.stdout_taken:
        put_table(table, styles=[""] * len(checks))
    outputs.put(
        json=lambda: json_text(records), csv=lambda: csv_text(records), md=lambda: markdown(table)
    )
    say(report.check_line(checks))


def run(
    *,
    folder: PlannedFolder,
    devices: Devices = None,
    only: Only = None,
    jobs: Jobs = None,
    minutes: MinutesInAll = 0.0,
    timeout: Timeout = 30.0,
    retry_failed: RetryCandidates = False,
    no_prior: NoPrior = False,
    tensilelite: TensileLite = None,
    store: o.StorePlace = None,
    runner: o.Runner = "local",
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Search each plan's space; keep configs that are faster.

    The best candidates are measured again, alternately with the reference. Each trial is
    written to DIR/trials at once: repeat the command to continue after Ctrl-C or a crash.
    Results are in DIR/results.
    """
    from kernelmark.api import tuning
    from kernelmark.cli.tune.tune_progress import reporter

    use_tensilelite(tensilelite)
    place = o.placed(runner, quiet=quiet)
    with place, _for_roofs(store) as opened, reporter(quiet=quiet) as on_event:
        done = tuning.run(
            folder,
            devices=o.comma_list(devices),
            only=o.comma_list(only),
            jobs=jobs,
            minutes=minutes,
            timeout_s=timeout,
            retry_failed=retry_failed,
            prior=not no_prior,
            on_event=on_event,
            store=opened,
        )
    _put_outcomes(done, outputs)
    _print_notes(done, folder, quiet=quiet)
    if done.interrupted:
        return INTERRUPTED
    return SOME_FAILED if done.failed else 0


@contextlib.contextmanager
def _for_roofs(url: str | None) -> Iterator[Store | None]:
    """Yield the store to read roofs from; None if the default store does not exist."""
    from kernelmark.stores import open_store

    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(open_store(url, readonly=True))
        except (NothingToDo, StoreError):
            if url is not None:
                raise
            opened = None
        yield opened


def _put_outcomes(done: Tuned, outputs: o.Outputs) -> None:
    from kernelmark.report.tables import markdown
    from kernelmark.report.tuning import by_worth, outcome_table
    from kernelmark.tune import results

    shown = by_worth(done.outcomes)
    table = outcome_table(shown)
    if not outputs.stdout_taken and done.outcomes:
        put_table(table, styles=["" if outcome.kept else "dim" for outcome in shown])
    rows = [results.row(outcome) for outcome in done.outcomes]
    names = list(dict.fromkeys(name for row in rows for name in row))
    outputs.put(
        json=lambda: results.dumps(done.outcomes),
        csv=lambda: results.csv_text(rows, names),
        md=lambda: markdown(table),
    )


def _print_notes(done: Tuned, folder: str, *, quiet: bool) -> None:
    from kernelmark.report.tuning import metrics_line

    again = f"kmark tune run {shlex.quote(folder)}"
    if done.outcomes:
        say(metrics_line(done.metrics))
    if done.retired:
        say(f"{counted(len(done.retired), 'plan')} could not be tuned: {', '.join(done.retired)}")
    for name, reason in done.unreadable.items():
        say(f"warning: {name} is not in the results: {reason}")
    if done.interrupted:
        say(f"interrupted; everything so far is in {folder}: {again} goes on")
    elif done.unreached or done.cut:
        say(f"time was up: {_unfinished_text(done)}; {again} goes on")
    if done.spent:
        say(f"time was up: the minutes of {_spent(done)}; raise them there, and {again} goes on")
    if busy := [outcome.name for outcome in done.outcomes if outcome.disturbed]:
        them = "it" if len(busy) == 1 else "them"
        say(
            f"the machine was busy during the final of {counted(len(busy), 'plan')} "
            f"({_some(busy)}): when it is quiet, {again} compares {them} again"
        )
    if not quiet and done.metrics.kept and not done.interrupted:
        kept = {outcome.tuned.backend for outcome in done.outcomes if outcome.kept}
        say(f"results: {done.folder.results}; next: {export_command(folder, kept)}")


def export_command(folder: str, tuned_backends: Collection[str]) -> str:
    """Return the command that writes the winners; those of a kernel file, or of several backends,
    fit a single format."""
    from kernelmark import backends

    mixed = len(tuned_backends) > 1 or any(map(backends.is_file, tuned_backends))
    options = "--as python -o tuned.py" if mixed else "--as FORMAT -o PATH"
    return f"kmark export {shlex.quote(folder)} {options}"


def _spent(done: Tuned) -> str:
    """Return the plans whose time limit ended the search, with their progress."""
    evaluations = {outcome.name: outcome.evaluations for outcome in done.outcomes}
    each = [f"{name} {evaluations[name]} of {requested}" for name, requested in done.spent.items()]
    return f"{counted(len(each), 'plan')} are spent ({_some(each, ' candidates')})"


def _some(each: Sequence[str], of: str = "") -> str:
    more = f" and {len(each) - _NAMED} more" if len(each) > _NAMED else ""
    return f"{', '.join(each[:_NAMED])}{of}{more}"


def _unfinished_text(done: Tuned) -> str:
    """Return what the time limit left undone."""
    parts = []
    if done.cut:
        searches = "search" if len(done.cut) == 1 else "searches"
        were = "was" if len(done.cut) == 1 else "were"
        parts.append(f"the {searches} of {counted(len(done.cut), 'plan')} {were} cut short")
    if done.unreached:
        parts.append(f"{counted(len(done.unreached), 'plan')} not reached")
    return ", ".join(parts)


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
        common=True,
    ),
]
TunedBackend = Annotated[
    str,
    o.option(
        "-b --backend BACKEND",
        o.SELECTION,
        help="Tune this backend, or a kernel file; of several, cublaslt,triton, a problem gets the "
        "best config of all.",
        common=True,
    ),
]
ToBeat = Annotated[
    str | None,
    o.option(
        "--reference BACKEND",
        o.SELECTION,
        help="Set the reference that winners must beat. Default: that of the summary, else the "
        "default config of the (first) tuned backend.",
        common=True,
    ),
]
OneDevice = Annotated[
    str | None,
    o.option(
        "-d --device DEVICE",
        o.SELECTION,
        help="Tune on this device. Default: that of the summary, else cpu.",
        common=True,
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
    o.option(
        "--strategy NAME",
        SEARCH,
        help="Set the search strategy (kmark list strategies).",
        common=True,
    ),
]
Evaluations = Annotated[
    int, o.option("--evaluations N", SEARCH, help="Limit the candidates per problem.", common=True)
]
Minutes = Annotated[
    float,
    o.option(
        "--minutes M", SEARCH, help="Limit the minutes per problem; 0: no limit.", common=True
    ),
]
Family = Annotated[
    int,
    o.option(
        "--family N",
        SEARCH,
        help="Search one of several problems of similar sizes in full, and evaluate only N "
        "candidates for the others, the best on the problems next to them; 0: search all.",
        common=True,
    ),
]
Seed = Annotated[int, o.option("--seed N", SEARCH, help="Seed the search.")]
CpuThreads = Annotated[
    int,
    o.option(
        "--threads N",
        SEARCH,
        help="Tune for N threads of the CPU; 0: every core. A single thread is timed by CPU time, "
        "which other programs hardly disturb.",
        check=not_negative,
    ),
]
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
    from kernelmark.tune.summary import records

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
    backend: TunedBackend,
    reference: ToBeat = None,
    device: OneDevice = None,
    arch: Arch = None,
    selection: PlanProblems,
    thr: PlanThreshold = None,
    strategy: StrategyName = "kmark",
    evaluations: Evaluations = 100,
    minutes: Minutes = 0.0,
    family: Family = 0,
    threads: CpuThreads = 0,
    seed: Seed = 1,
    min_ratio: MinRatio = 1.03,
    min_gain_us: MinGain = 0.5,
    force: Force = False,
    tensilelite: TensileLite = None,
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
    from kernelmark.tune.plans import Acceptance, Budget

    use_tensilelite(tensilelite)
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
        family=family,
        threads=threads,
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
    from kernelmark.runners import kernel_files
    from kernelmark.runners.jobs import compiles

    where = shlex.quote(folder)
    run = f"kmark tune run {where}"
    if arch is None:
        return f"next: {run}"
    there = f"where there is a {arch}: {run}"
    if compiles(backend) and kernel_files.find(backend).available() is None:
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
    return [f"{count} {description}" for count, description in counts if count]


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
    from kernelmark.tune.journal import plan_statuses

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
        from kernelmark.report.tuning import folder_figure

        draw(folder_figure(opened), drawn, TITLES["tuning"], str(opened.path))
    return 0


def _print_statuses(statuses: Sequence[PlanStatus], *, quiet: bool) -> None:
    from kernelmark.report import tuning as report
    from kernelmark.tune.results import Metrics

    states = Counter(status.state for status in statuses)
    say(", ".join(f"{count} {state.value}" for state, count in sorted(states.items())))
    outcomes = [status.outcome for status in statuses if status.outcome is not None]
    if outcomes and not quiet:
        say(report.metrics_line(Metrics.of(outcomes)))


Memories = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Files of memory, or tuning folders, to add."),
]
MemoryFile = Annotated[
    str | None, o.option("-o --output FILE", o.OUTPUT, help="Write all times to FILE (.json.gz).")
]


def memory(
    *, paths: Memories = None, output: MemoryFile = None, outputs: o.Outputs, quiet: o.Quiet = False
) -> int:
    """Show, add or export the times that searches start from.

    'kmark tune run' adds its searches. Later ones, on other problems and GPUs, start
    from what these times predict, unless it is given --no-prior.
    """
    from kernelmark.api import tuning
    from kernelmark.report import tuning as report

    known = tuning.memory([s for path in paths or () for s in tuning.read_memory(path)])
    if output is not None:
        tuning.write_memory(user_path(output), known)
    _put(outputs, report.memory_table(known), "", report.memory_records(known))
    if not quiet:
        place = tuning.memory_path() or "no file ($KERNELMARK_MEMORY is empty)"
        say(f"{counted(len(known), 'problem')} in {place}")
    return 0


app = typer.Typer(
    name="tune", help="Find faster configs for the problems of a workload.", no_args_is_help=True
)
app.command("summarise")(summarise)
app.command("summarize", hidden=True)(summarise)
app.command("plan")(plan)
app.command("check")(check)
app.command("run")(run)
app.command("show")(show)
app.command("memory")(memory)
app.command("apply")(tune_apply.apply)
app.command("confirm")(tune_apply.confirm)
