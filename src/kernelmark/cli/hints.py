"""What to do next, for a refusal that does not say it itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kernelmark.cli.places import extended, store_words
from kernelmark.core.errors import KernelmarkError, ProblemError, UsageError

# Commands in hints that read or fill a store.
_OF_STORE = re.compile(r"kmark list runs|kmark micro [\w-]+( [\w-]+)*$")
_SUITE = (
    "a suite file is TOML text with [[problems]] groups; 'kmark list suites' lists the suites that "
    "need no file"
)
_RESULTS = (
    "'kmark run --json FILE' and 'kmark export --json FILE' write such files; 'kmark list runs' "
    "lists what is stored"
)
_FILES = {
    "run": _SUITE,
    "ab": _SUITE,
    "import": "name the tool it is of by --as; 'kmark import --help' says which files can be read",
    "show": _RESULTS,
    "export": _RESULTS,
    "compare": _RESULTS,
}


def general_hint(error: KernelmarkError, words: Sequence[str]) -> str | None:
    """The hint for an error of the command that `words` are."""
    if isinstance(error, ProblemError):
        return "'kmark list ops -o OP' explains the parameters of an op"
    if not isinstance(error, UsageError):
        return None
    command = command_of(words)
    place, colon, _ = error.message.partition(": ")
    if command == "compare" and place.endswith(".toml"):
        return 'for example: rule = "ratio", then warn = 1.05 and fail = 1.10 on lines of their own'
    if colon and _is_device(place):
        return "'kmark doctor' says what is missing, 'kmark list devices' which devices there are"
    if colon and place in _places(words):
        return _FILES.get(command, f"see '{command_path(words)} --help'")
    return f"see '{command_path(words)} --help'"


def in_store(hint: str | None, words: Sequence[str]) -> str | None:
    """A hint to list or to fill what is stored, for the store that the command was given: whoever
    wrote the hint knows the store, but not what the reader has to type for it."""
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--store"), None)
    if hint is None or at is None:
        return hint
    _, equals, value = words[at].partition("=")
    place = value if equals else next(iter(words[at + 1 :]), "")
    return _OF_STORE.sub(lambda found: extended(found[0], store_words(place)), hint)


def command_path(words: Sequence[str]) -> str:
    """`kmark run`, as far as `words` name a command."""
    return f"kmark {command_of(words)}".strip()


def command_of(words: Sequence[str]) -> str:
    """The command that `words` call; empty for none that there is."""
    from kernelmark.cli.app import COMMANDS

    word = next((word for word in words if not word.startswith("-")), "")
    return word if word in COMMANDS else ""


def _places(words: Sequence[str]) -> set[str]:
    """Every word that may name a file, as errors write it."""
    every = {part for word in words for part in (word, *word.split(","), word.partition("=")[2])}
    return every | {str(Path(part).expanduser()) for part in every if part}


def _is_device(word: str) -> bool:
    from kernelmark import devices

    return word in devices.registry
