"""`kmark tune show`: progress of the plans of a tuning folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli import tune_options as t
from kernelmark.cli.output import check_drawable, draw, put_table, say
from kernelmark.core.errors import NothingToDo
from kernelmark.core.reason import Reason
from kernelmark.core.units import counted

if TYPE_CHECKING:
    from kernelmark.tune.records.standing import Standing

# Maximum rows shown of a long table.
_TOP = 20

Folder = Annotated[str, typer.Argument(metavar="DIR", help="A tuning folder with plans.")]


def show(
    *,
    folder: Folder,
    every: t.Every = False,
    outputs: o.Outputs,
    figure: o.Figure = None,
    quiet: o.Quiet = False,
) -> int:
    """Show the progress, best time and ratio of each plan.

    Works while 'kmark tune run' is running. States: not started, running, stopped,
    edited (the plan changed after the search), done, failed, time was up (the
    plan's minutes ended the search).
    """
    from kernelmark.tune.folder import TuningFolder
    from kernelmark.tune.records.standing import standings

    drawn = check_drawable(figure)
    opened = TuningFolder.open(folder)
    plan_states = standings(opened)
    if not plan_states:
        raise NothingToDo(
            Reason("folder-without", folder=folder, what="plans"),
            hint=f"kmark tune plan {folder} -b BACKEND",
        )
    _put_standings(plan_states, outputs, every=every)
    _print_standings(plan_states, quiet=quiet)
    if drawn is not None:
        from kernelmark.report.figures import TITLES
        from kernelmark.report.tuning_figure import of_folder

        draw(of_folder(opened), drawn, TITLES["tuning"], str(opened.path))
    return 0


def _put_standings(standings: Sequence[Standing], outputs: o.Outputs, *, every: bool) -> None:
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report import tuning as report
    from kernelmark.report.tables import markdown

    records = report.standing_records(standings)
    shown = standings if every else standings[:_TOP]
    table = report.standing_table(shown)
    if not outputs.stdout_taken:
        put_table(table, styles=[""] * len(shown))
        if len(shown) < len(standings):
            say(f"and {counted(len(standings) - len(shown), 'more plan')}: --all shows them")
    outputs.put(
        json=lambda: json_text(records),
        csv=lambda: csv_text(records),
        md=lambda: markdown(table),
    )


def _print_standings(standings: Sequence[Standing], *, quiet: bool) -> None:
    from kernelmark.report import tuning as report
    from kernelmark.tune.records.outcome import Metrics

    states = Counter(standing.state for standing in standings)
    say(", ".join(f"{count} {state.value}" for state, count in sorted(states.items())))
    outcomes = [standing.outcome for standing in standings if standing.outcome is not None]
    if outcomes and not quiet:
        say(report.metrics_line(Metrics.of(outcomes)))
