"""Entry point of `kmark`, with uniform handling of errors.

Exit codes: 0 done · 1 regression · 2 usage, configuration or store · 3 some cases wrong, impossible
or failed · 4 nothing to run, show or compare · 130 interrupted (everything so far is stored).

This module imports almost nothing, so that Ctrl-C is handled by `main` from the start.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from kernelmark.cli.ending import INTERRUPTED, Interrupted, begin_clock
from kernelmark.host.signals import (
    begin_command,
    catch_stops,
    raise_ignored,
    restore_stops,
    stop_asked,
)

if TYPE_CHECKING:
    from kernelmark.cli.app import app

__all__ = ["app", "ended_by", "main", "prepared"]

_GROUPS = ("tune", "iree", "token")
_ANYWHERE = ("--debug", "--wide")
_REPORT = "run the command again with --debug and report what it prints"


def __getattr__(name: str) -> Any:
    if name == "app":
        from kernelmark.cli.app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run `kmark` and exit with its exit code."""
    begin_command()
    begin_clock(with_process=argv is None)
    before: dict[signal.Signals, Any] = {}
    try:
        before = catch_stops(importing=_end_importing if argv is None else None)
        if argv is None:
            raise_ignored()
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


def _run(words: list[str]) -> int:
    """Run a command line and return its exit code."""
    given: set[str] = set()
    try:
        words, given = prepared(words)
        _open_streams()
        from kernelmark.cli.app import command
        from kernelmark.cli.folders import notes
        from kernelmark.cli.output import flush, say, show_all_columns
        from kernelmark.cli.places import redacted

        _plain_help(words)
        show_all_columns("--wide" in given)
        for text in notes(words):
            say(f"note: {text}")
        code = command()(words, prog_name="kmark", standalone_mode=False, obj=redacted(words))
        flush()
        return code if isinstance(code, int) else 0
    except BaseException as error:
        if "--debug" in given and not isinstance(error, SystemExit) and not _unread(error):
            _print_trace(error)
        return ended_by(error, words)


def _end_importing(number: int, frame: FrameType | None) -> None:
    """Exit from a command that is still importing: there is nothing to clean up."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if sys.stderr is not None:
            sys.stderr.write("kmark: interrupted\n")
    _end_at_once(INTERRUPTED)


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


def _print_trace(error: BaseException) -> None:
    import traceback

    from kernelmark.cli.output import say

    say("".join(traceback.format_exception(error)).rstrip())


def _plain_help(words: Sequence[str]) -> None:
    """Simplify help: no `<bool>` after flags, which take no value, no types of arguments, which
    their help describes; with NO_COLOR no bold and no dim either."""
    if "--help" not in words and "-h" not in words:
        return
    from typer import rich_utils
    from typer.core import TyperArgument, TyperOption

    if os.environ.get("NO_COLOR"):
        rich_utils.COLOR_SYSTEM = None
    shown = TyperOption.display_type_rich
    if not hasattr(shown, "of_values"):

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
    words: list[str] = []
    given: set[str] = set()
    for i, word in enumerate(argv):
        if word in _ANYWHERE:
            given.add(word)
        elif word == "--resume" and (i + 1 == len(argv) or argv[i + 1].startswith("-")):
            words.append("--resume=latest")
        else:
            words.append(word)
    alone = not words or (len(words) == 1 and words[0] in _GROUPS)
    return [*words, "--help"] if alone else words, given


def ended_by(error: BaseException, words: Sequence[str] = ()) -> int:
    """Print an error as a sentence and a hint; return its exit code."""
    from kernelmark.cli.output import complain, silenced
    from kernelmark.core.errors import KernelmarkError
    from kernelmark.core.reason import format_reason

    if _unread(error):
        silenced(sys.stdout)
        return 0
    if isinstance(error, KernelmarkError):
        from kernelmark.cli.hints import general_hint, style_of

        style, hint = style_of(words), error.hint or general_hint(error, words)
        complain(format_reason(error.message, style), hint and format_reason(hint, style))
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    # The parser converts a KeyboardInterrupt during its clean-up to Abort.
    aborted = isinstance(error.__context__, KeyboardInterrupt) and isinstance(error, RuntimeError)
    if isinstance(error, KeyboardInterrupt | Interrupted) or aborted:
        complain(str(error) or "interrupted", None)
        return INTERRUPTED
    if hasattr(error, "format_message"):  # any usage error of the parser, regardless of its class
        from kernelmark.cli.misuse import misused

        return misused(error, words)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        complain(f"{place}{error.strerror or error}", "--debug shows where it happened")
        return 2
    if isinstance(error, MemoryError):
        complain("this process has run out of memory", "close other programs, or ask for less")
        return 2
    if stop_asked():  # an interrupted import may raise another error
        complain("interrupted", None)
        return INTERRUPTED
    first_line = (str(error).splitlines() or [""])[0]
    complain(f"unexpected {type(error).__name__}: {first_line}", _REPORT)
    return 2


def _unread(error: BaseException) -> bool:
    """Return whether the reader of stdout has gone. The parser converts that to exit code 1, which
    means a regression here."""
    return isinstance(error, BrokenPipeError) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
    )
