"""Default hints for errors without a hint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelmark.cli.places import extended, store_words
from kernelmark.core.errors import KernelmarkError, ProblemError, UsageError
from kernelmark.core.reason import OPTIONS, Reason, Style

_SUITE = (
    "a suite file is TOML text with [[problems]] groups; 'kmark list suites' lists the suites that "
    "need no file"
)
_ABOUT = {
    "suite-file": _SUITE,
    "import-file": (
        "name the tool it is of by --as; 'kmark import --help' says which files can be read"
    ),
    "results-file": Reason("see-results"),
    "rule-file": (
        'for example: rule = "ratio", then warn = 1.05 and fail = 1.10 on lines of their own'
    ),
    "device": "'kmark doctor' says what is missing, 'kmark list devices' which devices there are",
}


def general_hint(error: KernelmarkError, words: Sequence[str]) -> str | None:
    """Return the hint for an error of the command line `words`."""
    if isinstance(error, ProblemError):
        return "'kmark list ops -o OP' explains the parameters of an op"
    if not isinstance(error, UsageError):
        return None
    return _ABOUT.get(error.about, f"see '{command_path(words)} --help'")


def style_of(words: Sequence[str]) -> Style:
    """Return the style of sentences for a command: with its options and its store."""
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--store"), None)
    if at is None:
        return OPTIONS
    _, equals, value = words[at].partition("=")
    place = value if equals else next(iter(words[at + 1 :]), "")
    return replace(OPTIONS, store=extended("", store_words(place)))


def command_path(words: Sequence[str]) -> str:
    """Return `kmark run` or `kmark tune plan`: the part of `words` that names a command."""
    from kernelmark.cli.app import command

    path, group = ["kmark"], command()
    for word in words:
        if word.startswith("-"):
            continue
        group = getattr(group, "commands", {}).get(word)
        if group is None:
            break
        path.append(word)
    return " ".join(path)
