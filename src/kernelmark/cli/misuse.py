"""Usage errors of the command-line parser, reworded."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from kernelmark.cli.hints import command_path
from kernelmark.cli.output import complain

# Pydantic's error types of a wrong value, and our messages.
_WRONG = {
    "int_parsing": "{input!r} is not a whole number",
    "int_from_float": "{input!r} is not a whole number",
    "float_parsing": "{input!r} is not a number",
    "greater_than_equal": "{input} must be at least {ge}",
    "less_than_equal": "{input} must be at most {le}",
}
# The unit of an option by its metavar.
_TIME_OPTIONS = {"S": "seconds", "SECONDS": "seconds", "M": "minutes"}
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(rf"(\d+\.?\d*|\.\d+) ?({'|'.join(_SECONDS)})")
# Least similarity of a word to the choice that is suggested; difflib's 0.6 suggests logs for bogus.
_CLOSE = 0.7


def misused(error: Any, words: Sequence[str]) -> int:
    """Print a usage error of the parser; return the exit code."""
    if (wrong := _wrong_value(error.__cause__)) is not None:
        error.message = wrong
    message = str(error.format_message()).strip()
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or command_path(words)
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["misused"]
    # The parser ends its first line by "Choose from:" if choices follow.
    first = lines[0].removesuffix("Choose from:").rstrip(" .")
    choices = "choose from " if first != lines[0].rstrip(".") else ""
    sentence = first[:1].lower() + first[1:]
    rest = (
        f"{choices}{' '.join(lines[1:])}; "
        if lines[1:]
        else _time_hint(error) or _close_match(error, words) or _option_hint(words)
    )
    complain(sentence, f"{rest}see '{path} --help'")
    return 2


def _time_hint(error: Any) -> str:
    """Return `give seconds: --budget 90; ` for a time with a unit, such as 1.5m, else ""."""
    parameter: Any = getattr(error, "param", None)
    unit = _TIME_OPTIONS.get(getattr(parameter, "metavar", None) or "")
    errors = getattr(error.__cause__, "errors", None)
    found = _TIME.fullmatch(str(errors()[0]["input"])) if unit and errors else None
    if unit is None or found is None:
        return ""
    value = float(found[1]) * _SECONDS[found[2]] / _SECONDS[unit[0]]
    return f"give {unit}: {parameter.opts[-1]} {value:g}; "


def _close_match(error: Any, words: Sequence[str]) -> str:
    """Return `did you mean ops? ` for a word close to a valid choice, else ""."""
    choices = [str(choice) for choice in _choices(getattr(error, "param", None))]
    for word in words:
        value = word.rpartition("=")[2]
        close = difflib.get_close_matches(value, choices, n=1, cutoff=_CLOSE)
        if value not in choices and close:
            return f"did you mean {close[0]}? "
    return ""


def _option_hint(words: Sequence[str]) -> str:
    """Return `write: -o gemm; ` for a word of `kmark run` or `kmark ab` that needs an option, and
    the commands for excluding and deleting runs."""
    command, word = next(iter(words), ""), next(iter(words[1:]), "")
    if command not in ("run", "ab") or not word or word.startswith("-"):
        return ""
    if word in ("exclude", "delete"):
        return "'kmark history --exclude RUN' ignores a run, 'kmark delete RUN' removes it; "
    from kernelmark import backends, ops
    from kernelmark.workloads import suites

    for option, known in (
        ("-o", ops.registry),
        ("-s", suites.names()),
        ("-b", backends.registry),
    ):
        if word in known:
            return f"write: {option} {word}; "
    return f"write: -b {word}; " if backends.is_file(word) else ""


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
    known, context = _WRONG.get(first["type"]), first.get("ctx", {})
    if known is not None:
        return known.format(input=first["input"], **context)
    return str(context.get("error", first["msg"]))  # the raised exception, if any
