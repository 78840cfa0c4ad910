"""The commands of `kmark` in workflow order, and their parser."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kernelmark.cli import (
    ab,
    bisect,
    ci,
    compare,
    doctor,
    history,
    iree,
    listing,
    micro,
    plot,
    report,
    roofs,
    run,
    serve,
    show,
    transfer,
    tune,
    tune_apply,
)
from kernelmark.cli.errors import Interrupted
from kernelmark.cli.options import expand_options
from kernelmark.core.errors import UsageError

_IN_ORDER: dict[str, Callable[..., Any] | typer.Typer] = {
    "doctor": doctor.doctor,
    "list": listing.list_things,
    "run": run.run,
    "show": show.show,
    "plot": plot.plot,
    "report": report.report,
    "compare": compare.compare,
    "ab": ab.ab,
    "gate": ci.gate,
    "bisect": bisect.bisect,
    "history": history.history,
    "tune": tune.app,
    "iree": iree.app,
    "lint-configs": tune_apply.lint_configs,
    "export": transfer.export,
    "import": transfer.import_results,
    "delete": transfer.delete,
    "micro": micro.micro,
    "roofs": roofs.roofs,
    "serve": serve.serve,
    "push": serve.push,
    "token": serve.token,
    "site": serve.site,
    "nightly": ci.nightly,
}


@contextlib.contextmanager
def _interrupts_raised() -> Iterator[None]:
    """Convert Ctrl-C to an exception that the parser does not catch: it would exit silently."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(str(error) or "interrupted") from error


class PlainGroup(TyperGroup):
    """A command group with plain-text help, twice as fast as rich help; commands have rich help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rich_markup_mode = None
        if self.commands.keys() == _IN_ORDER.keys():
            # Typer lists subgroups after all commands; restore the workflow order.
            self.commands = {name: self.commands[name] for name in _IN_ORDER}

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _interrupts_raised():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _interrupts_raised():
            return super().invoke(ctx)


app = typer.Typer(
    name="kmark",
    cls=PlainGroup,
    help="Measure, explain, compare and tune GPU and CPU kernels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "First steps: 'kmark doctor', then 'kmark run -s demo --timing quick'.\n\n"
        "Exit codes: 0 success, 1 regression, 2 usage or configuration error, "
        "3 some cases wrong, impossible or failed, 4 nothing to run or show, "
        "130 interrupted (everything so far is stored)."
    ),
)
# Up to here integers are exact as floats; no option needs more.
_MOST = 2**53


def _bounded(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with a check that refuses absurd numbers, such as 1e999."""

    @functools.wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name, value in kwargs.items():
            if isinstance(value, int | float) and not -_MOST <= value <= _MOST:
                shown = f"{str(value)[:12]}…" if isinstance(value, int) else f"{value:g}"
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option}={shown} is not possible")
        return call(*args, **kwargs)

    return checked


def _help(call: Callable[..., Any]) -> str:
    """Return the docstring with one line per paragraph: the parser keeps line breaks, so wrapped
    lines would wrap again on a narrow terminal."""
    paragraphs = (inspect.getdoc(call) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for _name, _thing in _IN_ORDER.items():
    if isinstance(_thing, typer.Typer):
        for _info in _thing.registered_commands:
            if _info.callback is not None:
                _info.help = _help(_info.callback)
                _info.callback = _bounded(expand_options(_info.callback))
        app.add_typer(_thing, name=_name, cls=PlainGroup)
    else:
        app.command(_name, help=_help(_thing))(_bounded(expand_options(_thing)))


def _version(requested: bool) -> None:
    if requested:
        import kernelmark

        typer.echo(f"kernelmark {kernelmark.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Add the traceback to an error; valid anywhere on the line."),
    ] = False,
    wide: Annotated[
        bool, typer.Option("--wide", help="Do not fold wide tables; valid anywhere on the line.")
    ] = False,
) -> None:
    pass


@functools.cache
def command() -> Any:
    """Return the parser, built once."""
    return get_command(app)
