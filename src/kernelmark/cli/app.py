"""The commands of `kmark` in workflow order, their parser, and what is printed for an error: one
sentence, a hint, and the exit code; usage errors of the parser are reworded.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kernelmark.cli.compare import ab, ci, commands, compare
from kernelmark.cli.hardware import doctor, fleet, micro
from kernelmark.cli.measure import iree, judge, run
from kernelmark.cli.options import expand_options
from kernelmark.cli.output import complain, say, silenced
from kernelmark.cli.share import mcp, report
from kernelmark.cli.store import listing, transfer, upkeep
from kernelmark.cli.tune import apply as tune_apply
from kernelmark.cli.tune import commands as tune
from kernelmark.cli.tune import tuner_audit
from kernelmark.core.errors import KernelmarkError, ProblemError, UsageError
from kernelmark.core.verdict import INTERRUPTED
from kernelmark.host.signals import stop_asked

_REPORT = "run the command again with --debug and report what it prints"
# Pydantic's error types of a wrong value, and our messages.
_WRONG = {
    "int_parsing": "{input!r} is not a whole number",
    "int_from_float": "{input!r} is not a whole number",
    "float_parsing": "{input!r} is not a number",
    "greater_than_equal": "{input} must be at least {ge}",
    "less_than_equal": "{input} must be at most {le}",
}
# Least similarity of a word to the choice that is suggested; difflib's 0.6 suggests logs for bogus.
_CLOSE = 0.7
# Arguments that a command does not take and that look like a dim or an option of a problem.
_AXIS_WORDS = re.compile(r"extra argument.*\b[a-z_]\w*=", re.DOTALL)


class Interrupted(Exception):
    """Ctrl-C in a command, with a sentence about what was kept."""


def report_error(error: BaseException, argv: Sequence[str] = (), *, debug: bool = False) -> int:
    """Print an error as a sentence and a hint; return its exit code."""
    if debug and not isinstance(error, SystemExit) and not _unread(error):
        say("".join(traceback.format_exception(error)).rstrip())
    if _unread(error):
        silenced(sys.stdout)
        return 0
    if isinstance(error, KernelmarkError):
        complain(error.message, error.hint or _general_hint(error, argv))
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    # The parser converts a KeyboardInterrupt during its clean-up to Abort.
    aborted = isinstance(error.__context__, KeyboardInterrupt) and isinstance(error, RuntimeError)
    if isinstance(error, KeyboardInterrupt | Interrupted) or aborted:
        complain(str(error) or "interrupted", None)
        return INTERRUPTED
    if hasattr(error, "format_message"):  # any usage error of the parser, regardless of its class
        return _report_misuse(error, argv)
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        complain(f"{file}{error.strerror or error}", "--debug shows where it happened")
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


def _report_misuse(error: Any, argv: Sequence[str]) -> int:
    """Print a usage error of the parser; return the exit code."""
    if (wrong := _wrong_value(error.__cause__)) is not None:
        error.message = wrong
    message = str(error.format_message()).strip()
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or command_path(argv)
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["misused"]
    # The parser ends its first line by "Choose from:" if choices follow.
    first = lines[0].removesuffix("Choose from:").rstrip(" .")
    choices = "choose from " if first != lines[0].rstrip(".") else ""
    sentence = first[:1].lower() + first[1:]
    rest = (
        f"{choices}{' '.join(lines[1:])}; "
        if lines[1:]
        else _close_match(error, argv) or _option_hint(argv)
    )
    if _AXIS_WORDS.search(message):
        rest = f"{rest}give dims and options by -a NAME=VALUE, dtypes by --dtype; "
    complain(sentence, f"{rest}see '{path} --help'")
    return 2


def _close_match(error: Any, argv: Sequence[str]) -> str:
    """Return `did you mean ops? ` for a word close to a valid choice, else ""."""
    choices = [str(choice) for choice in _choices(getattr(error, "param", None))]
    for argument in argv:
        value = argument.rpartition("=")[2]
        close = difflib.get_close_matches(value, choices, n=1, cutoff=_CLOSE)
        if value not in choices and close:
            return f"did you mean {close[0]}? "
    return ""


def _option_hint(argv: Sequence[str]) -> str:
    """Return `write: -o gemm; ` for a word of `kmark run` or `kmark ab` that needs an option, and
    the commands for excluding and deleting runs."""
    command, argument = next(iter(argv), ""), next(iter(argv[1:]), "")
    if command not in ("run", "ab") or not argument or argument.startswith("-"):
        return ""
    if argument in ("exclude", "delete"):
        return "'kmark history --exclude RUN' ignores a run, 'kmark delete RUN' removes it; "
    from kernelmark import backends, ops
    from kernelmark.workloads import suites

    for option, names in (("-o", ops.registry), ("-s", suites.names()), ("-b", backends.registry)):
        if argument in names:
            return f"write: {option} {argument}; "
    return f"write: -b {argument}; " if backends.is_file(argument) else ""


def _choices(parameter: Any) -> Sequence[Any]:
    kind = getattr(parameter, "type", None)
    if choices := getattr(kind, "choices", ()):
        return tuple(choices)
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _wrong_value(cause: BaseException | None) -> str | None:
    """Return what is wrong with a value; None if the parser's own message says it."""
    errors = getattr(cause, "errors", None)
    if errors is None:
        return None
    first = errors()[0]
    template, context = _WRONG.get(first["type"]), first.get("ctx", {})
    if template is not None:
        return template.format(input=first["input"], **context)
    return str(context.get("error", first["msg"]))  # the raised exception, if any


_SUITE = (
    "a suite file is TOML text with [[problems]] groups; 'kmark list suites' lists the suites that "
    "need no file"
)
_ABOUT = {
    "suite-file": _SUITE,
    "import-file": (
        "name the tool it is of by --as; 'kmark import --help' says which files can be read"
    ),
    "results-file": (
        "'kmark run --json FILE' and 'kmark export --json FILE' write such files; 'kmark list runs'"
        " lists what is stored"
    ),
    "rule-file": (
        'for example: rule = "ratio", then warn = 1.05 and fail = 1.10 on lines of their own'
    ),
    "device": "'kmark doctor' says what is missing, 'kmark list devices' which devices there are",
}


def _general_hint(error: KernelmarkError, argv: Sequence[str]) -> str | None:
    """Return the hint for an error of the command line `argv`."""
    if isinstance(error, ProblemError):
        return "'kmark list ops -o OP' explains the parameters of an op"
    if not isinstance(error, UsageError):
        return None
    return _ABOUT.get(error.about, f"see '{command_path(argv)} --help'")


def command_path(argv: Sequence[str]) -> str:
    """Return `kmark run` or `kmark tune plan`: the part of `argv` that names a command."""

    path, group = ["kmark"], command()
    for argument in argv:
        if argument.startswith("-"):
            continue
        group = getattr(group, "commands", {}).get(argument)
        if group is None:
            break
        path.append(argument)
    return " ".join(path)


# The commands by job, in the order of --help and docs/cli.md.
_JOBS: dict[str, dict[str, Callable[..., Any] | typer.Typer]] = {
    "Start here": {
        "doctor": doctor.doctor,
        "run": run.run,
        "show": listing.show,
        "compare": compare.compare,
        "tune": tune.app,
    },
    "Measure": {
        "list": listing.list_things,
        "export": transfer.export,
        "import": transfer.import_results,
        "delete": transfer.delete,
        "store": upkeep.app,
    },
    "Compare": {
        "ab": ab.ab,
        "aa": commands.aa,
        "judge": judge.judge,
        "gate": ci.gate,
        "bisect": ci.bisect,
        "history": compare.history,
        "nightly": ci.nightly,
    },
    "Tune": {"audit": tuner_audit.audit, "iree": iree.app, "lint-configs": tune_apply.lint_configs},
    "Know the hardware": {
        "micro": micro.micro,
        "roofs": micro.roofs,
        "watch": doctor.watch,
        "lock": doctor.lock,
        "ray": fleet.app,
    },
    "Share": {
        "plot": report.plot,
        "report": report.report,
        "serve": report.serve,
        "site": report.site,
        "push": report.push,
        "token": report.token,
        "mcp": mcp.mcp,
    },
}
_IN_ORDER = {name: thing for job in _JOBS.values() for name, thing in job.items()}
_LONG = 14  # options; with more, --help has the common ones only


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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        jobs = _JOBS if self.commands.keys() == _IN_ORDER.keys() else {"Commands": self.commands}
        room = formatter.width - 6 - max(map(len, self.commands))
        for job, names in jobs.items():
            shown = [(name, self.commands[name]) for name in names]
            rows = [(name, c.get_short_help_str(room)) for name, c in shown if not c.hidden]
            with formatter.section(job):
                formatter.write_dl(rows)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _interrupts_raised():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _interrupts_raised():
            return super().invoke(ctx)


class ShortCommand(TyperCommand):
    """A command of which `--help` and completion show the common options if it has many.
    `--help-all`, and completion of more than `--`, show the `rest` too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        common: set[str] = getattr(self.callback, "common", set())
        options: list[Any] = [p for p in self.params if p.param_type_name == "option"]
        shown = [p for p in options if not p.hidden]
        self.rest = [p for p in shown if p.name not in common] if len(shown) > _LONG else []
        if not self.rest:
            self.params = [p for p in self.params if p.name != "help_all"]
        self._hide_rest(True)

    def _hide_rest(self, hidden: bool) -> None:
        for parameter in self.rest:
            parameter.hidden = hidden

    @contextlib.contextmanager
    def all_shown(self) -> Iterator[None]:
        self._hide_rest(False)
        try:
            yield
        finally:
            self._hide_rest(True)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        if incomplete in ("-", "--"):
            return super().shell_complete(ctx, incomplete)
        with self.all_shown():
            return super().shell_complete(ctx, incomplete)


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


def _show_all_help(context: typer.Context, requested: bool) -> None:
    if requested:
        with context.command.all_shown():  # type: ignore[attr-defined]
            typer.echo(context.get_help())
        raise typer.Exit


_HelpAll = Annotated[
    bool,
    typer.Option("--help-all", callback=_show_all_help, is_eager=True, help="Show all options."),
]


def _prepared(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with its groups of options expanded, with --help-all, and with a check
    that refuses absurd numbers, such as 1e999."""
    call = expand_options(call)

    @functools.wraps(call)
    def checked(*args: Any, help_all: bool, **kwargs: Any) -> Any:
        for name, value in kwargs.items():
            if isinstance(value, int | float) and not -_MOST <= value <= _MOST:
                shown = f"{str(value)[:12]}…" if isinstance(value, int) else f"{value:g}"
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option}={shown} is not possible")
        return call(*args, **kwargs)

    hints = get_type_hints(call, include_extras=True) | {"help_all": _HelpAll}
    own = inspect.signature(call).parameters.values()
    more = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False)
    checked.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=hints.get(p.name, p.annotation)) for p in (*own, more)]
    )
    checked.__annotations__ = hints
    checked.common = {  # type: ignore[attr-defined]
        name
        for name, hint in hints.items()
        if any(getattr(part, "common", False) for part in get_args(hint))
    } | {"help_all"}
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
                _info.help, _info.cls = _help(_info.callback), ShortCommand
                _info.callback = _prepared(_info.callback)
        app.add_typer(_thing, name=_name, cls=PlainGroup)
    else:
        app.command(_name, cls=ShortCommand, help=_help(_thing))(_prepared(_thing))


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
