"""Output of a run: results, notes, failures and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelmark.cli.followups import extended, started_as
from kernelmark.cli.output import flush, put_table, say
from kernelmark.core.result import Status
from kernelmark.report.micro import metrics_table
from kernelmark.report.names import backend_text, short
from kernelmark.report.results import ResultRow, results_table, with_separator
from kernelmark.report.summary import (
    Failure,
    answer,
    collect_warnings,
    find_failures,
    mark_text,
    status_summary,
)
from kernelmark.report.tables import Column, Table

if TYPE_CHECKING:
    from kernelmark.api.results import Results
    from kernelmark.cli.options import Outputs
    from kernelmark.core.result import Case
    from kernelmark.stores.store import Store

# Commands to try after the demo, and why.
NEXT = {
    "kmark show {run} --samples": "every block, sample and check behind these numbers",
    "kmark run -o gemm -a 'm=[128:1024:*2]' -a n=512 -a k=512 --dtype f32": "your own sizes",
    "kmark micro --quick": "what this machine's caches, memory and instructions can do",
}
# Maximum commands per reason; `kmark show --status` lists the rest.
_COMMANDS = 3


def put_results(
    results: Results, outputs: Outputs, *, table: bool = True, quiet: bool = False
) -> None:
    """Print the answer and the table, unless stdout has data, and write the requested files."""
    try:
        if table and not outputs.stdout_taken and results.rows:
            for sentence in () if quiet else answer(results.timed):
                say(sentence)
            if results.timed:
                put_table(
                    results_table(results.timed),
                    styles=[_style(row) for row in with_separator(results.timed)],
                )
            if results.micro:
                put_table(metrics_table(results.micro))
            flush()
    finally:  # write the files even if the reader of stdout closed its pipe
        outputs.put(json=results.to_json, csv=results.to_csv, md=results.to_md)


def print_notes(
    results: Results,
    store: Store | None,
    *,
    quiet: bool,
    warned: bool = False,
    place: Sequence[str] = (),
    more: Sequence[str] = (),
) -> None:
    """Print failures with rerun commands, warnings, notes, and where results are stored. `warned`:
    stdout has the warnings. `place` is the `--store` option, `more` are arguments for reruns."""
    run_id = results.run.id if store is not None else None
    for failure in find_failures(results.rows):
        _print_failure(failure, run_id, place, more)
    mark = "" if warned else mark_text(results.rows)
    if quiet:
        if mark and run_id is not None:
            say(f"{mark}; details: {extended(f'kmark show {run_id}', place)}")
        return
    if mark:
        say(f"{mark}:")
    for warning in () if warned else collect_warnings(results.rows):
        say(f"warning: {warning}")
    for text in results.notes:
        say(f"note: {text}")
    where = f"stored in {store.where}" if store is not None else "not stored"
    name = f"{results.run.id} ({results.run.label})" if results.run.label else results.run.id
    say(f"run {name}: {status_summary(results.rows) or 'no results'}; {where}")


def print_demo_hints(results: Results, place: Sequence[str]) -> None:
    """Print commands to try after the demo."""
    say()
    say("try next:")
    program = started_as()
    for command, why in NEXT.items():
        words = command.format(run=results.run.id).removeprefix("kmark")
        say(f"  # {why}")
        say(f"  {extended(program + words, place)}")


def plan_table(cases: Sequence[Case]) -> Table:
    """Return a table of the cases that would run."""
    columns = tuple(Column(name=name) for name in ("problem", "backend", "case"))
    rows = tuple((short(case.problem), backend_text(case), case.id) for case in cases)
    return Table(columns=columns, rows=rows)


def _print_failure(
    failure: Failure, run_id: str | None, place: Sequence[str], more: Sequence[str]
) -> None:
    count = len(failure.rows)
    say(failure.sentence)
    if failure.cut and run_id is not None:
        case = f"kmark show {run_id} --case {failure.rows[0].result.case.id}"
        say(f"  details: {extended(case, place)}")
    if not failure.status.failed:
        return
    for command in failure.commands(more)[:_COMMANDS]:
        say(f"  again: {command}")
    if count > _COMMANDS and run_id is not None:
        rest = f"kmark show {run_id} --status {failure.status.value}"
        say(f"  and {count - _COMMANDS} more: {extended(rest, place)}")


def _style(row: ResultRow | None) -> str:
    if row is None:
        return "dim"
    if row.result.status.failed:
        return "red"
    if row.result.status is not Status.OK:
        return "dim"
    return "bold" if row.times_best == 1.0 else ""
