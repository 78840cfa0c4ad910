"""Skips: the lines of logs that are not calls, with a few bytes for each."""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from kernelmark.workloads.workload import Skipped

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lines that were skipped for one reason: their number, and the first ones."""

    reason: str
    count: int
    first: tuple[Skipped, ...]


class Skips:
    """A compact list of skipped lines, possibly millions; iterates over `Skipped` in order."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, array[int]]] = {}

    def add(self, file: str, line: int, reason: str) -> None:
        """Add a line; the lines of a file must come in ascending order."""
        self._lines.setdefault(file, {}).setdefault(reason, array("Q")).append(line)

    def __len__(self) -> int:
        return sum(len(lines) for reasons in self._lines.values() for lines in reasons.values())

    def __iter__(self) -> Iterator[Skipped]:
        for file, reasons in self._lines.items():
            each = [zip(lines, itertools.repeat(why)) for why, lines in reasons.items()]
            for line, reason in heapq.merge(*each):
                yield Skipped(file=file, line=line, reason=reason)

    def groups(self) -> list[Group]:
        """Return the lines grouped by reason, the rarest first: a single broken line is more
        important than a million lines of noise."""
        counts: dict[str, int] = {}
        first: dict[str, list[Skipped]] = {}
        for file, reasons in self._lines.items():
            for why, lines in reasons.items():
                counts[why] = counts.get(why, 0) + len(lines)
                some = first.setdefault(why, [])
                some += [
                    Skipped(file=file, line=line, reason=why)
                    for line in lines[: _SHOWN - len(some)]
                ]
        found = [
            Group(reason=why, count=count, first=tuple(first[why])) for why, count in counts.items()
        ]
        return sorted(found, key=lambda group: (group.count, group.reason))
