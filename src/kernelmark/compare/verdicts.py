"""Comparison: every row of two runs with its verdict, and what the whole says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.compare.match import By, Pair, pairs
from kernelmark.compare.rules.base import Judgement, Rule
from kernelmark.core.environment import difference
from kernelmark.core.errors import NothingToDo
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.result import Result, ResultSet, Run
from kernelmark.core.verdict import Verdict, VerdictStatus

# Why an alarm is held.
HELD = Reason("canary-moved")
ALARMS = (VerdictStatus.SLOWER, VerdictStatus.FASTER)
# What a reader of changes wants to see, in the order to be worried.
CHANGES = (
    VerdictStatus.BROKEN,
    VerdictStatus.SLOWER,
    VerdictStatus.GONE,
    VerdictStatus.FASTER,
    VerdictStatus.FIXED,
    VerdictStatus.NEW,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A pair, what the rule said of it, and its place in the comparison, from 1. `runs` are the
    ids of base and head; `held` says why its change fails nothing."""

    number: int
    pair: Pair
    judgement: Judgement
    runs: tuple[str, str]
    held: Reason = NO_REASON

    @property
    def status(self) -> VerdictStatus:
        return self.judgement.status

    @property
    def verdict(self) -> Verdict:
        judged = self.judgement
        return Verdict(
            series=self.pair.shown.series,
            base=self.runs[0],
            head=self.runs[1],
            status=judged.status,
            reason=judged.reason,
            ratio=judged.judged or judged.ratio,
            low=judged.low,
            high=judged.high,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Rows whose two sides ran the same binary, and how many of them the rule still alarmed on:
    each is a false alarm, or the machine that changed."""

    compared: int
    alarms: int

    @property
    def rate(self) -> float | None:
        return self.alarms / self.compared if self.compared else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs compared by one rule; `notes` is what the rule says of the rows as a whole."""

    base: Run
    head: Run
    rule: str
    settings: Mapping[str, Any]
    rows: tuple[Row, ...]
    moved: tuple[Reason, ...] = ()  # sentinels that moved
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.base, self.head

    @property
    def counts(self) -> dict[VerdictStatus, int]:
        """How many rows have each verdict; only those that occur."""
        found = [row.status for row in self.rows]
        return {status: found.count(status) for status in VerdictStatus if status in found}

    @property
    def changed(self) -> list[Row]:
        """Rows that are neither same, unsure nor ignored, the worst first."""
        found = [row for row in self.rows if row.status in CHANGES]
        return sorted(found, key=lambda row: (CHANGES.index(row.status), -_size(row)))

    @property
    def environment(self) -> list[tuple[str, str, str]]:
        """(what, in base, in head) for everything that differs."""
        return difference(self.base.environment, self.head.environment)

    @property
    def audit(self) -> Audit:
        same = [row for row in self.rows if row.pair.same_binary]
        return Audit(compared=len(same), alarms=sum(row.status in ALARMS for row in same))


def compare(
    base: ResultSet,
    head: ResultSet,
    *,
    rule: Rule,
    by: By = "case",
    sentinels: Sequence[str] = (),
) -> Comparison:
    """Join two runs and judge every row. `sentinels` are keys of problems that should not move.

    Where a sentinel moved, changes of times are held, as history holds its alarms, unless the
    rule says otherwise. Two runs that have no case in common cannot be compared.
    """
    found = pairs(base.results, head.results, by=by)
    if not any(pair.base and pair.head for pair in found):
        raise NothingToDo(
            f"runs {base.run.id} and {head.run.id} have nothing in common", hint=_why(base, head)
        )
    judged = rule.judge(found)
    ids = base.run.id, head.run.id
    rows = tuple(
        Row(number=number, pair=pair, judgement=judgement, runs=ids)
        for number, (pair, judgement) in enumerate(zip(found, judged, strict=True), 1)
    )
    seen = moved(rows, sentinels)
    return Comparison(
        base=base.run,
        head=head.run,
        rule=rule.name,
        settings=rule.settings,
        rows=tuple(_held(row, rule) for row in rows) if seen else rows,
        moved=tuple(seen),
        notes=tuple(rule.notes(found)),
    )


def _held(row: Row, rule: Rule) -> Row:
    if row.status not in ALARMS or not rule.holds(row.pair):
        return row
    return dataclasses.replace(row, held=HELD)


def moved(rows: Sequence[Row], sentinels: Sequence[str]) -> list[Reason]:
    """Sentinel problems that moved, with how.

    What backends have in common is the machine: a sentinel moved where every backend that ran it
    changed in the same direction. One backend alone may have changed itself.
    """
    wanted = set(sentinels)
    directions: dict[str, list[VerdictStatus]] = {}
    for row in rows:
        key = row.pair.shown.case.problem.key
        if key in wanted and row.pair.base is not None and row.pair.head is not None:
            directions.setdefault(key, []).append(row.status)
    return [
        Reason("canary-change", problem=key, verdict=found[0].value)
        for key, found in directions.items()
        if len(set(found)) == 1 and found[0] in ALARMS
    ]


def _size(row: Row) -> float:
    """Return how large a change is, whatever its direction."""
    ratio = row.judgement.judged or row.judgement.ratio
    return 0.0 if not ratio else max(ratio, 1 / ratio)


def _why(base: ResultSet, head: ResultSet) -> str:
    """Return the first part of their cases in which two runs differ altogether."""
    for side in (base, head):
        if not side.results:
            return f"run {side.run.id} has no results"

    def apart(*parts: str) -> bool:
        def seen(results: Sequence[Result]) -> set[tuple[object, ...]]:
            return {
                tuple(
                    {
                        "problem": r.case.problem.key,
                        "backend": r.case.backend,
                        "timing": r.case.timing.identity,
                    }[part]
                    for part in parts
                )
                for r in results
            }

        return not seen(base.results) & seen(head.results)

    if apart("problem"):
        return "their problems differ"
    for part in ("backend", "timing"):
        if apart("problem", part):
            return f"same problems, but another {part}: --match problem compares the best of each"
    return "same problems, but other configs: --match problem compares the best of each"
