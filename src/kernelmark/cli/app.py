"""The commands of `kmark` in order of work, and its parser."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
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
    roofs,
    showing,
    transfer,
    tune,
)
from kernelmark.cli.ending import Interrupted

_IN_ORDER: dict[str, Callable[..., Any] | typer.Typer] = {
    "doctor": doctor.doctor,
    "list": listing.list_things,
    "run": measuring.run,
    "show": showing.show,
    "compare": compare.compare,
    "ab": ab.ab,
    "history": history.history,
    "tune": tune.app,
    "lint-configs": lint_configs.lint_configs,
    "export": transfer.export,
    "import": transfer.import_results,
    "micro": micro.micro,
    "roofs": roofs.roofs,
}

COMMANDS = tuple(_IN_ORDER)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Ctrl-C, or SIGTERM, as an error that the parser lets through: it would end without a word."""
    try:
        with _terminable():
            yield
    except KeyboardInterrupt as error:
        raise Interrupted(str(error) or "interrupted") from error


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as Ctrl-C, unless somebody decided about it already."""
    main = threading.current_thread() is threading.main_thread()  # only it may set handlers
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class PlainGroup(TyperGroup):
    """Its own help is plain text, at half the time of a drawn one; the commands' help is drawn."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.rich_markup_mode = None
        if self.commands.keys() == _IN_ORDER.keys():
            # The parser puts groups of commands last, whatever their place in the order of work.
            self.commands = {name: self.commands[name] for name in _IN_ORDER}

    def make_context(self, *given: Any, **named: Any) -> Any:
        with _told():
            return super().make_context(*given, **named)

    def invoke(self, ctx: Any) -> Any:
        with _told():
            return super().invoke(ctx)


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
for _name, _thing in _IN_ORDER.items():
    if isinstance(_thing, typer.Typer):
        app.add_typer(_thing, name=_name, cls=PlainGroup)
    else:
        app.command(_name)(_thing)


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


@functools.cache
def command() -> Any:
    """The parser, made once."""
    return get_command(app)
