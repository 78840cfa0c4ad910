"""Arguments of the commands that are printed as next steps: stores, redaction, reruns."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelmark.core.errors import UsageError

_PASSWORD = re.compile(r"^([\w+]+://[^:/]*):[^@]*@")
# Options of a run that its results do not record, in printed order.
_CONDUCT = ("--timeout", "--roofs")


def without_password(url: str) -> str:
    """Return a store's URL without its password, for printing."""
    if "://" not in url:
        return url
    whole, _, query = _PASSWORD.sub(r"\1@", url).partition("?")
    kept = [pair for pair in query.split("&") if "password" not in pair.partition("=")[0].lower()]
    return "?".join(filter(None, (whole, "&".join(kept))))


def store_words(store: str | None) -> tuple[str, ...]:
    """Return `--store PLACE` if the option was given; KERNELMARK_STORE needs no option."""
    return () if store is None else ("--store", without_password(store))


def redacted(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without passwords, for storing and printing."""
    safe = []
    for before, argument in zip(("", *argv), argv, strict=False):
        name, equals, store = argument.partition("=")
        if before == "--store":
            safe.append(without_password(argument))
        else:
            safe.append(
                f"--store={without_password(store)}" if equals and name == "--store" else argument
            )
    return tuple(safe)


def rerun_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the options that a rerun of this `kmark run`'s cases needs besides the case."""
    if tuple(argv[:1]) != ("run",):
        return ()
    options: dict[str, str] = {}
    for argument, after in zip(argv, (*argv[1:], ""), strict=True):
        name, equals, value = argument.partition("=")
        if name in _CONDUCT:
            options[name] = value if equals else after
    kept = [argument for name in _CONDUCT if name in options for argument in (name, options[name])]
    return (*kept, *(["--no-store"] if "--no-store" in argv else []))


def started_as() -> str:
    """Return `kmark` if the shell finds it, else the words that started this process, such as
    `.venv/bin/kmark` of a virtual environment that is not active."""
    import shutil  # imported late: only needed for hints

    program = sys.argv[0]
    if shutil.which("kmark") is None:
        if Path(program).name == "kmark":
            return shlex.quote(program)
        if Path(program).name == "__main__.py":
            return shlex.join([sys.executable, "-m", "kernelmark"])
    return "kmark"


def extended(command: str, arguments: Sequence[str]) -> str:
    """Return a command with `arguments` appended."""
    return f"{command} {shlex.join(arguments)}" if arguments else command


@contextlib.contextmanager
def kept_by(arguments: Sequence[str], store: str | None = None) -> Iterator[None]:
    """Suggest the command to regenerate a file that cannot be written; () if not stored."""
    try:
        yield
    except UsageError as error:
        command = shlex.join(["kmark", *arguments, *store_words(store)])
        again = f"to write it again: {command}" if arguments else "nothing is stored: measure again"
        raise UsageError(error.message, hint=f"make room or name another file; {again}") from None
