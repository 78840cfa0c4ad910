"""Formats by name: written with dashes (aiter-csv), accepted in several spellings."""

from __future__ import annotations

import difflib
from typing import Any, TypeVar

from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.registry import Registry

T = TypeVar("T")
# Both registries are here, because each needs the names of the other, but not its readers.
results: Registry[Any] = Registry("kernelmark.workloads.importers", "importer")
logs: Registry[Any] = Registry("kernelmark.workloads.logs.formats", "reader")


def names(registry: Registry[Any]) -> list[str]:
    """Return the names of all formats, as in the CLI."""
    return sorted(_spelled(name) for name in registry.names())


def find(registry: Registry[T], name: str) -> T:
    """Return the format of results or logs with this name, or with this prefix of its name.

    The full name of a format of the other registry is refused, not taken for a prefix.
    """
    known = {_spelled(one): one for one in registry.names()}
    word = _spelled(name)
    if registry is results:
        asked, other, others = "results", "logs of calls", logs
        hint = "add: --workload DIR"
    else:
        asked, other, others = "logs of calls", "results", results
        hint = "leave --workload out, or leave --as out"
    if word not in known and word in names(others):
        raise UsageError(Reason("format-of-other", format=word, of=other, asked=asked), hint=hint)
    begun = [one for one in sorted(known) if word.strip("-") and one.startswith(word)]
    found = [word] if word in known else begun
    if len(found) == 1:
        return registry.get(known[found[0]])
    if found:
        raise UsageError(
            Reason("format-ambiguous", name=name, candidates=tuple(found)),
            hint="write one of them out",
        )
    close = difflib.get_close_matches(word, known, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UsageError(
        Reason("unknown-name", what="format", name=name, of=asked),
        hint=f"{meant}known: {', '.join(sorted(known))}",
    )


def _spelled(name: str) -> str:
    return name.strip().lower().replace("_", "-")
