"""Formats by name: one spelling in what is said (aiter-csv), several in what is taken."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, TypeVar

from kernelmark.core.errors import UsageError
from kernelmark.core.registry import Registry

T = TypeVar("T")
RESULTS = "results"
LOGS = "logs of calls"


def names(registry: Registry[Any]) -> list[str]:
    """Every format as a user types it."""
    return sorted(_spelled(name) for name in registry.names())


def find(registry: Registry[T], name: str, *, kind: str, others: Sequence[str]) -> T:
    """The format that `name` or the beginning of it stands for, of this `kind`.

    `others` are the formats of the other kind: the whole name of one of those is not taken for the
    beginning of one of these.
    """
    known = {_spelled(one): one for one in registry.names()}
    word = _spelled(name)
    if word not in known and word in others:
        other = LOGS if kind == RESULTS else RESULTS
        raise UsageError(f"{word} is a format of {other}, not of {kind}", hint=_instead(kind))
    begun = [one for one in sorted(known) if word.strip("-") and one.startswith(word)]
    found = [word] if word in known else begun
    if len(found) == 1:
        return registry.get(known[found[0]])
    if found:
        *most, last = found
        raise UsageError(
            f"format {name!r} may be {', '.join(most)} or {last}", hint="write one of them out"
        )
    close = difflib.get_close_matches(word, known, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UsageError(
        f"unknown format {name!r} of {kind}", hint=f"{meant}known: {', '.join(sorted(known))}"
    )


def _instead(kind: str) -> str:
    return "add: --workload DIR" if kind == RESULTS else "leave --workload out, or leave --as out"


def _spelled(name: str) -> str:
    return name.strip().lower().replace("_", "-")
