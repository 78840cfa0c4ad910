"""What `kmark` prints for an error: one sentence, a hint, and the exit code; usage errors of the
parser are reworded."""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from kernelmark.cli.output import complain, say, silenced
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


class Interrupted(Exception):
    """Ctrl-C in a command, with a sentence about what was kept."""


def report(error: BaseException, argv: Sequence[str] = (), *, debug: bool = False) -> int:
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
    from kernelmark.cli.app import command

    path, group = ["kmark"], command()
    for argument in argv:
        if argument.startswith("-"):
            continue
        group = getattr(group, "commands", {}).get(argument)
        if group is None:
            break
        path.append(argument)
    return " ".join(path)
