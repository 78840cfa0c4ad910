"""`kmark tune check` and `kmark tune run`: compile or search the candidates of a tuning folder."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put_table, say
from kernelmark.core.errors import NothingToDo, StoreError
from kernelmark.core.units import counted
from kernelmark.core.verdict import INTERRUPTED, SOME_FAILED

if TYPE_CHECKING:
    from kernelmark.api.tuning import Tuned
    from kernelmark.stores.store import Store
    from kernelmark.tune.search.evaluate import Check

# Maximum plans named in a sentence.
_NAMED = 3

Folder = Annotated[str, typer.Argument(metavar="DIR", help="A tuning folder with plans.")]
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
Minutes = Annotated[
    float,
    o.option(
        "--minutes M",
        o.RUNNING,
        help="Stop searching after M minutes and compare what was found; 0: no limit. Repeat the "
        "command to continue.",
    ),
]
RetryFailed = Annotated[
    bool,
    o.option(
        "--retry-failed",
        o.RUNNING,
        help="Retry candidates that crashed, ran out of time or memory, or were 'impossible' "
        "(faster than the roofs allow).",
    ),
]
Timeout = Annotated[
    float, o.option("--timeout S", o.RUNNING, help="Limit the seconds per candidate.")
]


def check(
    *,
    folder: GpuFolder,
    only: Only = None,
    candidates: Candidates = 16,
    jobs: Cores = None,
    timeout: CompileTimeout = 180.0,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Compile candidates without a GPU; report spills and limits.

    Counts the candidates that 'kmark tune run' would time, and those it would reject
    because they spill or exceed shared memory. Times nothing, and does not change DIR.
    CSV and JSON have a row per candidate, with its registers and spills.
    """
    from kernelmark.api import tuning
    from kernelmark.tune.search.evaluate import Verdict

    checks = []
    for plan_check in tuning.check(
        folder, only=o.comma_list(only), candidates=candidates, jobs=jobs, compile_timeout_s=timeout
    ):
        checks.append(plan_check)
        if not quiet:
            good, asked = plan_check.count(Verdict.ACCEPTED), len(plan_check.candidates)
            say(f"{plan_check.plan.name}: {good} of {asked} candidates accepted")
    _put_checks(checks, outputs)
    return 0 if all(plan_check.count(Verdict.ACCEPTED) for plan_check in checks) else SOME_FAILED


def _put_checks(checks: Sequence[Check], outputs: o.Outputs) -> None:
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
    folder: Folder,
    devices: Devices = None,
    only: Only = None,
    jobs: Jobs = None,
    minutes: Minutes = 0.0,
    timeout: Timeout = 30.0,
    retry_failed: RetryFailed = False,
    store: o.StorePlace = None,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Search each plan's space; keep configs that are faster.

    The best candidates are measured again, alternately with the reference. Each trial is
    written to DIR/trials at once: repeat the command to continue after Ctrl-C or a crash.
    Results are in DIR/results.
    """
    from kernelmark.api import tuning
    from kernelmark.cli.tune_progress import reporter

    with _for_roofs(store) as opened, reporter(quiet=quiet) as on_event:
        done = tuning.run(
            folder,
            devices=o.comma_list(devices),
            only=o.comma_list(only),
            jobs=jobs,
            minutes=minutes,
            timeout_s=timeout,
            retry_failed=retry_failed,
            on_event=on_event,
            store=opened,
        )
    _put(done, outputs)
    _print_notes(done, folder, quiet=quiet)
    if done.interrupted:
        return INTERRUPTED
    return SOME_FAILED if done.failed else 0


@contextlib.contextmanager
def _for_roofs(place: str | None) -> Iterator[Store | None]:
    """Yield the store to read roofs from; None if the default store does not exist."""
    from kernelmark.stores import open_store

    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(open_store(place, readonly=True))
        except (NothingToDo, StoreError):
            if place is not None:
                raise
            opened = None
        yield opened


def _put(done: Tuned, outputs: o.Outputs) -> None:
    from kernelmark.report.tables import markdown
    from kernelmark.report.tuning import by_worth, outcome_table
    from kernelmark.tune.records import results

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
        backend = done.outcomes[0].tuned.backend  # a folder is for one backend
        say(f"results: {done.folder.results}; next: {export_command(folder, backend)}")


def export_command(folder: str, backend: str) -> str:
    """Return the command that writes the winners; configs of a kernel file fit a single format."""
    from kernelmark import backends

    words = "--as python -o tuned.py" if backends.is_file(backend) else "--as FORMAT -o PATH"
    return f"kmark export {shlex.quote(folder)} {words}"


def _spent(done: Tuned) -> str:
    """Return the plans whose time limit ended the search, with their progress."""
    tried = {outcome.name: outcome.evaluations for outcome in done.outcomes}
    each = [f"{name} {tried[name]} of {asked}" for name, asked in done.spent.items()]
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
