"""`kmark tune check`: compile candidates without their GPU and report their resources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli import tune_options as t
from kernelmark.cli.ending import SOME_FAILED
from kernelmark.cli.output import put_table, say

if TYPE_CHECKING:
    from kernelmark.tune.search.check import Check


Folder = Annotated[str, typer.Argument(metavar="DIR", help="A tuning folder with plans for a GPU.")]
Candidates = Annotated[
    int,
    o.option(
        "--candidates N",
        o.SELECTION,
        help="Compile N candidates per plan: the default config and a random sample (by the plan's "
        "seed).",
    ),
]
Jobs = Annotated[
    int | None, o.option("--jobs N", o.RUNNING, help="Compile on N cores. Default: all.")
]
Timeout = Annotated[
    float, o.option("--timeout S", o.RUNNING, help="Limit the seconds of a compilation.")
]


def check(
    *,
    folder: Folder,
    only: t.Only = None,
    candidates: Candidates = 16,
    jobs: Jobs = None,
    timeout: Timeout = 180.0,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Compile candidates without a GPU; report spills and limits.

    Counts the candidates that 'kmark tune run' would time, and those it would reject
    because they spill or exceed shared memory. Times nothing, and does not change DIR.
    CSV and JSON have a row per candidate, with its registers and spills.
    """
    from kernelmark.api import tuning_check
    from kernelmark.tune.search.check import Verdict

    checks = []
    for plan_check in tuning_check.check(
        folder,
        only=o.comma_list(only),
        candidates=candidates,
        jobs=jobs,
        compile_timeout_s=timeout,
    ):
        checks.append(plan_check)
        if not quiet:
            good, asked = plan_check.count(Verdict.ACCEPTED), len(plan_check.candidates)
            say(f"{plan_check.plan.name}: {good} of {asked} candidates accepted")
    _put(checks, outputs)
    return 0 if all(plan_check.count(Verdict.ACCEPTED) for plan_check in checks) else SOME_FAILED


def _put(checks: Sequence[Check], outputs: o.Outputs) -> None:
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report import tuning_results as report
    from kernelmark.report.tables import markdown

    records, table = report.check_records(checks), report.check_table(checks)
    if not outputs.stdout_taken:
        put_table(table, styles=[""] * len(checks))
    outputs.put(
        json=lambda: json_text(records),
        csv=lambda: csv_text(records),
        md=lambda: markdown(table),
    )
    say(report.check_line(checks))
