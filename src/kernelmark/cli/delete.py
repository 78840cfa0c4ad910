"""`kmark delete`: remove runs from a store."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.output import say, stderr_text
from kernelmark.core.errors import UsageError
from kernelmark.core.units import counted

Refs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN…",
        autocompletion=completing.runs,
        help="Runs by id or a prefix of it, label, pinned name or latest.",
    ),
]
Yes = Annotated[bool, o.option("-y --yes", help="Delete without asking.")]


def delete(refs: Refs, yes: Yes = False, store: o.StorePlace = None, quiet: o.Quiet = False) -> int:
    """Delete runs with all their results.

    For example: kmark delete 20261117-031840

    To only hide a run from history: kmark history --exclude RUN
    """
    from kernelmark.core.result import RunState
    from kernelmark.runners import locks
    from kernelmark.stores import open_store

    with open_store(store) as opened:
        # Resolve all before deleting any: after the first deletion, `latest` is another run.
        runs = {run.id: run for run in map(opened.run, refs)}
        for run in runs.values():
            if locks.current_state(run) is RunState.RUNNING:
                raise UsageError(f"run {run.id} is still running", hint="interrupt it first")
        if not yes and not _is_confirmed([f"{r.id} {r.label}".strip() for r in runs.values()]):
            say("nothing was deleted")
            return 0
        for run_id in runs:
            count = opened.delete_run(run_id)
            if not quiet:
                say(f"deleted run {run_id} with {counted(count, 'result')}")
    return 0


def _is_confirmed(names: list[str]) -> bool:
    """Ask on the terminal; the end of input (Ctrl-D) means no."""
    if not sys.stdin.isatty():
        raise UsageError("deleting cannot be undone: nothing was deleted", hint="confirm by --yes")
    try:
        question = stderr_text(f"delete {', '.join(names)}? [y/N]:", spare=2)  # for " y"
        return typer.confirm(question, show_default=False, prompt_suffix=" ", err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, EOFError):
            return False
        raise
