"""`kmark`: the commands in order of work, and one way of ending for every error.

Exit codes: 0 done · 1 regression · 2 usage, configuration or store · 3 some cases wrong or failed
· 4 nothing to run, show or compare · 130 interrupted (everything so far is stored).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kernelmark.cli import (
    ab,
    compare,
    doctor,
    history,
    lint_configs,
    listing,
    measuring,
    micro,
    showing,
    transfer,
)
from kernelmark.cli.output import complain, say
from kernelmark.core.errors import KernelmarkError, ProblemError, UsageError

INTERRUPTED = 130
_REPORT = "run the command again with --debug and report what it prints"


class PlainGroup(TyperGroup):
    """Its own help is plain text, at half the time of a drawn one; the commands' help is drawn."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.rich_markup_mode = None


app = typer.Typer(
    name="kmark",
    cls=PlainGroup,
    help="Measure, explain, compare and tune GPU and CPU kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 done, 1 regression, 2 usage or configuration, 3 some cases wrong or failed, "
        "4 nothing to run or show, 130 interrupted (everything so far is stored)."
    ),
)
app.command("doctor")(doctor.doctor)
app.command("list")(listing.list_things)
app.command("run")(measuring.run)
app.command("show")(showing.show)
app.command("compare")(compare.compare)
app.command("ab")(ab.ab)
app.command("history")(history.history)
app.command("lint-configs")(lint_configs.lint_configs)
app.command("export")(transfer.export)
app.command("import")(transfer.import_results)
app.command("micro")(micro.micro)


def _version(asked: bool) -> None:
    if asked:
        import kernelmark

        typer.echo(f"kernelmark {kernelmark.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback with an error; works anywhere.")
    ] = False,
) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point: exits with the code that tells how it went."""
    words, debug = prepared(sys.argv[1:] if argv is None else argv)
    try:
        code = command()(words, prog_name="kmark", standalone_mode=False, obj=tuple(words))
        sys.stdout.flush()
    except BaseException as error:
        if debug and not isinstance(error, SystemExit | BrokenPipeError):
            raise
        code = ended_by(error)
    sys.exit(code if isinstance(code, int) else 0)


@functools.cache
def command() -> Any:
    """The parser, made once."""
    return get_command(app)


def prepared(argv: Sequence[str]) -> tuple[list[str], bool]:
    """The words for the parser, and whether `--debug` was among them.

    A bare `--resume` is given its value here, since an option's value is not optional to the
    parser."""
    words: list[str] = []
    debug = False
    for i, word in enumerate(argv):
        if word == "--debug":
            debug = True
        elif word == "--resume" and (i + 1 == len(argv) or argv[i + 1].startswith("-")):
            words.append("--resume=latest")
        else:
            words.append(word)
    return words, debug


def ended_by(error: BaseException) -> int:
    """Tell an error in one sentence and a hint; the exit code it means."""
    if isinstance(error, KernelmarkError):
        complain(error.message, error.hint or _general_hint(error))
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        say("kmark: interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has gone; nothing may be flushed to them at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if hasattr(error, "format_message"):  # every usage error of the parser, whatever its class
        return _misused(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        complain(f"{place}{error.strerror or error}", "--debug shows where it happened")
        return 2
    if isinstance(error, MemoryError):
        complain("this process has run out of memory", "close other programs, or ask for less")
        return 2
    first_line = (str(error).splitlines() or [""])[0]
    complain(f"unexpected {type(error).__name__}: {first_line}", _REPORT)
    return 2


def _general_hint(error: KernelmarkError) -> str | None:
    """Where to read on, for a refusal that does not say it itself."""
    if isinstance(error, ProblemError):
        return "'kmark list ops -o OP' explains the parameters of an op"
    return "see 'kmark --help'" if isinstance(error, UsageError) else None


def _misused(error: BaseException) -> int:
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or "kmark"
    if not message:  # `kmark` alone: its help was already shown
        return 2
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    sentence = lines[0][:1].lower() + lines[0][1:].rstrip(".")
    rest = f"{' '.join(lines[1:])}; " if lines[1:] else ""
    complain(sentence, f"{rest}see '{path} --help'")
    return 2
