"""Formats of other tools: a module for each tool, with `readers` of calls and `importers` of times.

Names are written with dashes (aiter-csv) and accepted in several spellings, or as a prefix.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from kernelmark.core.errors import UsageError

if TYPE_CHECKING:
    from kernelmark.workloads.calls import LogReader
    from kernelmark.workloads.importers import Importer


class _Named(Protocol):
    name: str


F = TypeVar("F", bound=_Named)


class Formats(Generic[F]):
    """The formats in an attribute of the modules here, and those of other distributions: the entry
    points in the group `kernelmark.workloads.{attribute}`."""

    def __init__(self, attribute: str, kind: str, hint: str) -> None:
        self._attribute = attribute
        self._kind = kind  # what is read, in errors
        self._hint = hint  # for the name of a format of the other kind

    @cached_property
    def _known(self) -> dict[str, F]:
        from importlib.metadata import entry_points

        modules = [module.name for module in pkgutil.iter_modules(__path__)]
        formats: list[F] = [
            entry.load() for entry in entry_points(group=f"kernelmark.workloads.{self._attribute}")
        ]
        for name in modules:
            module = importlib.import_module(f"{__name__}.{name}")
            formats += getattr(module, self._attribute, ())
        return {item.name: item for item in sorted(formats, key=lambda item: item.name)}

    def names(self) -> list[str]:
        """Return the names of all formats, sorted."""
        return list(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def get(self, name: str) -> F:
        """Return the format of this name, in any spelling; raise UsageError if there is none."""
        word = name.strip().lower().replace("_", "-")
        if word in self._known:
            return self._known[word]
        close = difflib.get_close_matches(word, self._known, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"there is no format {name!r} of {self._kind}",
            hint=f"{meant}known: {', '.join(self._known)}",
        )

    def find(self, name: str) -> F:
        """Return the format with this name, or whose name begins with it or ends with its words.

        The full name of a format of the other kind is refused, not taken for a prefix.
        """
        word = name.strip().lower().replace("_", "-")
        other = importers if self._attribute == "readers" else logs
        if word not in self._known and word in other.names():
            error = f"{word} is a format of {other._kind}, not of {self._kind}"
            raise UsageError(error, hint=self._hint)
        begun = [
            full_name for full_name in self._known if word.strip("-") and full_name.startswith(word)
        ] or [full_name for full_name in self._known if full_name.endswith(f"-{word}")]
        if word in self._known or len(begun) != 1:
            if word not in self._known and begun:
                raise UsageError(
                    f"the format {name!r} may be {' or '.join(begun)}", hint="write one of them out"
                )
            return self.get(name)
        return self._known[begun[0]]


logs: Formats[LogReader] = Formats(
    "readers", "logs of calls", "leave --workload out, or leave --as out"
)
importers: Formats[Importer] = Formats("importers", "results", "add: --workload DIR")
