"""Entry point of `kmark`, with uniform handling of errors.

Exit codes: 0 done · 1 regression · 2 usage, configuration or store · 3 some cases wrong, impossible
or failed · 4 nothing to run, show or compare · 130 interrupted (everything so far is stored).

This module imports almost nothing, so that Ctrl-C is handled by `main` from the start.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from kernelmark.core.verdict import INTERRUPTED
from kernelmark.host.signals import begin_command, catch_stops, raise_ignored, restore_stops

if TYPE_CHECKING:
    from kernelmark.cli.app import app

__all__ = ["app", "main", "prepared"]

_GROUPS = ("tune", "iree", "store", "token", "ray")
_ANYWHERE = ("--debug", "--wide")
# Results are hundreds of thousands of objects without cycles. With the default thresholds, the
# garbage collector traverses all of them again and again: half the time of reading a large run.
_GC_THRESHOLDS = (20_000, 20, 50)


def __getattr__(name: str) -> Any:
    if name == "app":
        from kernelmark.cli.app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run `kmark` and exit with its exit code."""
    begin_command(with_process=argv is None)
    before: dict[signal.Signals, Any] = {}
    try:
        before = catch_stops(importing=_end_importing if argv is None else None)
        if argv is None:
            raise_ignored()
            gc.set_threshold(*_GC_THRESHOLDS)
        code = _run([*(sys.argv[1:] if argv is None else argv)])
        # only the exit remains: a signal ends the process at once, with the same code
        if argv is None:
            catch_stops(lambda number, frame: os._exit(code))
    except KeyboardInterrupt:  # a second one, while the first was being reported
        code = INTERRUPTED
    if argv is not None:
        restore_stops(before)
    elif code == INTERRUPTED or not (sys.gettrace() or sys.getprofile()):
        _end_at_once(code)
    sys.exit(code)


def _run(argv: list[str]) -> int:
    """Run a command line and return its exit code."""
    flags: set[str] = set()
    try:
        argv, flags = prepared(argv)
        _open_streams()
        from kernelmark.cli.app import command
        from kernelmark.cli.hardware.doctor import notes
        from kernelmark.cli.output import flush, redacted, say, show_all_columns

        _plain_help(argv)
        show_all_columns("--wide" in flags)
        for text in notes(argv):
            say(f"note: {text}")
        code = command()(argv, prog_name="kmark", standalone_mode=False, obj=redacted(argv))
        flush()
        return code if isinstance(code, int) else 0
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and "kernelmark.cli.app" not in sys.modules:
            _write_interrupted()
            return INTERRUPTED
        from kernelmark.cli.app import report_error

        return report_error(error, argv, debug="--debug" in flags)


def _end_importing(number: int, frame: FrameType | None) -> None:
    """Exit from a command that is still importing: there is nothing to clean up."""
    _write_interrupted()
    _end_at_once(INTERRUPTED)


def _write_interrupted() -> None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if sys.stderr is not None:
            sys.stderr.write("kmark: interrupted\n")


def _end_at_once(code: int) -> None:
    """Exit with `code` immediately. Python would delete all loaded modules first, 0.2 s of a run's
    2 s; and if Ctrl-C arrived while a dataclass was being created, it would exit by the signal."""
    try:
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                stream.flush()
    finally:
        os._exit(code)


def _plain_help(argv: Sequence[str]) -> None:
    """Simplify help: no `<bool>` after flags, which take no value, no types of arguments, which
    their help describes; with NO_COLOR no bold and no dim either."""
    if not {"--help", "--help-all", "-h"} & {*argv}:
        return
    from typer import rich_utils
    from typer.core import TyperArgument, TyperOption

    if os.environ.get("NO_COLOR"):
        rich_utils.COLOR_SYSTEM = None
    # An older typer shows no types there.
    shown = getattr(TyperOption, "display_type_rich", None)
    if shown is not None and not hasattr(shown, "of_values"):

        def of_values(option: TyperOption, ctx: Any) -> str | None:
            return None if option.is_flag else shown(option, ctx)

        of_values.of_values = True  # type: ignore[attr-defined]
        TyperOption.display_type_rich = of_values  # type: ignore[method-assign, assignment]
        TyperArgument.display_type_rich = lambda *_, **__: None  # type: ignore[method-assign]


def _open_streams() -> None:
    """Open /dev/null for streams that were closed at the start (`2>&-`)."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, "r" if name == "stdin" else "w", encoding="utf-8"))


def prepared(argv: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the words for the parser, and which of the flags valid in any position were given.

    `kmark` or `kmark tune` alone gets `--help`. A bare `--resume` gets its value here, because the
    parser has no optional values.
    """
    kept: list[str] = []
    flags: set[str] = set()
    for i, argument in enumerate(argv):
        if argument in _ANYWHERE:
            flags.add(argument)
        elif argument == "--resume" and (i + 1 == len(argv) or argv[i + 1].startswith("-")):
            kept.append("--resume=latest")
        else:
            kept.append(argument)
    alone = not kept or (len(kept) == 1 and kept[0] in _GROUPS)
    return [*kept, "--help"] if alone else kept, flags
