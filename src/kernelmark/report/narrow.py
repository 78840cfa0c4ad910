"""Tables for a terminal, where one over-long name would push everything else away."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from kernelmark.report.tables import Table

# No problem of our own suites but a few with a long scale is longer.
MOST = 100
_STEP = 20


def narrowed(table: Table) -> Table:
    """The table with over-long problems cut in the middle; those that differ still do."""
    place = next((i for i, column in enumerate(table.columns) if column.name == "problem"), None)
    if place is None:
        return table
    cuts = _cuts({row[place] for row in table.rows})
    rows = [(*row[:place], cuts[row[place]], *row[place + 1 :]) for row in table.rows]
    return dataclasses.replace(table, rows=tuple(rows))


def _cuts(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    left, room = list(names), MOST
    while left:
        made = {name: _cut(name, room) for name in left}
        counts = Counter(made.values())
        found |= {name: text for name, text in made.items() if counts[text] == 1}
        left = [name for name, text in made.items() if counts[text] > 1]
        room += _STEP
    return found


def _cut(name: str, room: int) -> str:
    if len(name) <= room:
        return name
    end = (room - 1) // 2
    return f"{name[: room - 1 - end]}…{name[-end:]}"
