"""`kmark nightly`: measure, judge and report every night, configured by a TOML file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import check_writable, put, say, write

File = Annotated[
    str, typer.Argument(metavar="FILE", help="The configuration, such as nightly.toml.")
]
DryRun = Annotated[bool, o.option("--dry-run", o.RUNNING, help="List the steps; run nothing.")]
Fresh = Annotated[
    bool, o.option("--fresh", o.RUNNING, help="Start over, even if the last night is unfinished.")
]


def nightly(
    file: File,
    fresh: Fresh = False,
    md: o.Md = None,
    quiet: o.Quiet = False,
    dry_run: DryRun = False,
) -> int:
    """Run the suites of a config; confirm and report regressions.

    The exit code is 1 on a confirmed regression. Repeat the command after a reboot or
    Ctrl-C to continue: finished steps are skipped. If the same file is already running,
    the exit code is 4. An example: examples/nightly/nightly.toml
    """
    from kernelmark.api.nightly import Tools, run_night, steps_of
    from kernelmark.api.nightly_file import load
    from kernelmark.cli.progress import reporter
    from kernelmark.host.signals import caught_stops
    from kernelmark.stores import open_store

    if md is not None:
        check_writable(md)
    config = load(file)
    if dry_run:
        for step in steps_of(config):
            put(f"{step}\n")
        return 0
    tell: Callable[[str], None] = (lambda text: None) if quiet else say
    tools = Tools(tell=tell, reporter=lambda plan: reporter(plan, quiet=quiet), fresh=fresh)
    try:
        # Mark the command as started: a signal during an import is then deferred, instead of ending
        # the process at once.
        with (
            caught_stops(),
            contextlib.chdir(config.folder),
            open_store(config.store or None) as store,
        ):
            ended = run_night(config, store, tools)
    except KeyboardInterrupt:
        # Replaces the message of the interrupted step: the night can be continued.
        raise KeyboardInterrupt("interrupted; the same command goes on with this night") from None
    if md is not None:
        write(md, ended.summary)
    say(ended.answer)
    return ended.code
