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


def without_password(place: str) -> str:
    """Return a store's URL without its password, for printing."""
    if "://" not in place:
        return place
    whole, _, query = _PASSWORD.sub(r"\1@", place).partition("?")
    kept = [word for word in query.split("&") if "password" not in word.partition("=")[0].lower()]
    return "?".join(filter(None, (whole, "&".join(kept))))


def store_words(place: str | None) -> tuple[str, ...]:
    """Return `--store PLACE` if the option was given; KERNELMARK_STORE needs no option."""
    return () if place is None else ("--store", without_password(place))


def redacted(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without passwords, for storing and printing."""
    made = []
    for before, word in zip(("", *words), words, strict=False):
        name, equals, place = word.partition("=")
        if before == "--store":
            made.append(without_password(word))
        else:
            made.append(
                f"--store={without_password(place)}" if equals and name == "--store" else word
            )
    return tuple(made)


def rerun_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the options that a rerun of this `kmark run`'s cases needs besides the case."""
    if tuple(argv[:1]) != ("run",):
        return ()
    given: dict[str, str] = {}
    for word, after in zip(argv, (*argv[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if name in _CONDUCT:
            given[name] = value if equals else after
    found = [word for name in _CONDUCT if name in given for word in (name, given[name])]
    return (*found, *(["--no-store"] if "--no-store" in argv else []))


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


def extended(command: str, words: Sequence[str]) -> str:
    """Return a command with `words` appended."""
    return f"{command} {shlex.join(words)}" if words else command


@contextlib.contextmanager
def kept_by(words: Sequence[str], store: str | None = None) -> Iterator[None]:
    """Suggest the command `words` to regenerate a file that cannot be written; () if not stored."""
    try:
        yield
    except UsageError as error:
        command = shlex.join(["kmark", *words, *store_words(store)])
        again = f"to write it again: {command}" if words else "nothing is stored: measure again"
        raise UsageError(error.message, hint=f"make room or name another file; {again}") from None
