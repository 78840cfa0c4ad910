"""Comparison of two runs: every row with its verdict, and a summary."""

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

# Why an alarm is suppressed.
HELD = Reason("a canary moved: the machine has changed", "canary-moved")
ALARMS = (VerdictStatus.SLOWER, VerdictStatus.FASTER)
# Verdicts that are changes, the most serious first.
CHANGES = (
    VerdictStatus.BROKEN,
    VerdictStatus.SLOWER,
    VerdictStatus.GONE,
    VerdictStatus.FASTER,
    VerdictStatus.FIXED,
    VerdictStatus.NEW,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A pair with its judgement, numbered from 1. `runs` are the ids of base and head; `held` is
    why its alarm is suppressed."""

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
    """The number of rows whose two sides ran the same binary, and of alarms among them. Each such
    alarm is false, or the machine changed."""

    compared: int
    alarms: int

    @property
    def rate(self) -> float | None:
        return self.alarms / self.compared if self.compared else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs compared by one rule; `notes` are the rule's remarks on all rows."""

    base: Run
    head: Run
    rule: str
    settings: Mapping[str, Any]
    rows: tuple[ComparedRow, ...]
    moved: tuple[Reason, ...] = ()  # canaries that moved
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.base, self.head

    @property
    def counts(self) -> dict[VerdictStatus, int]:
        """The number of rows per verdict, without verdicts that do not occur."""
        statuses = [row.status for row in self.rows]
        return {status: statuses.count(status) for status in VerdictStatus if status in statuses}

    @property
    def changed(self) -> list[ComparedRow]:
        """Rows that are neither same, unsure nor ignored, the worst first."""
        changed_rows = [row for row in self.rows if row.status in CHANGES]
        return sorted(changed_rows, key=lambda row: (CHANGES.index(row.status), -_size(row)))

    @property
    def environment(self) -> list[tuple[str, str, str]]:
        """(name, value in base, value in head) for every difference of the environments."""
        return difference(self.base.environment, self.head.environment)

    @property
    def audit(self) -> Audit:
        same = [row for row in self.rows if row.pair.same_binary]
        return Audit(compared=len(same), alarms=sum(row.status in ALARMS for row in same))


def compare(
    base: ResultSet, head: ResultSet, *, rule: Rule, by: By = "case", sentinels: Sequence[str] = ()
) -> Comparison:
    """Match the results of two runs and judge every row. `sentinels` are the problem keys of
    canaries.

    Where a canary moved, alarms about times are suppressed, as in history, unless the rule opts
    out. Raise NothingToDo if the runs have no case in common.
    """
    matched_pairs = pairs(base.results, head.results, by=by)
    if not any(pair.base and pair.head for pair in matched_pairs):
        raise NothingToDo(
            f"runs {base.run.id} and {head.run.id} have nothing in common",
            hint=_explain_mismatch(base, head),
        )
    judged = rule.judge(matched_pairs)
    ids = base.run.id, head.run.id
    rows = tuple(
        ComparedRow(number=number, pair=pair, judgement=judgement, runs=ids)
        for number, (pair, judgement) in enumerate(zip(matched_pairs, judged, strict=True), 1)
    )
    seen = moved(rows, sentinels)
    return Comparison(
        base=base.run,
        head=head.run,
        rule=rule.name,
        settings=rule.settings,
        rows=tuple(_suppress(row, rule) for row in rows) if seen else rows,
        moved=tuple(seen),
        notes=tuple(rule.notes(matched_pairs)),
    )


def _suppress(row: ComparedRow, rule: Rule) -> ComparedRow:
    if row.status not in ALARMS or not rule.holds(row.pair):
        return row
    return dataclasses.replace(row, held=HELD)


def moved(rows: Sequence[ComparedRow], sentinels: Sequence[str]) -> list[Reason]:
    """Return the canaries that moved, with the direction.

    A canary moved if every backend that ran it changed in the same direction: then the machine is
    the common cause. With one backend alone, that backend may have changed.
    """
    sentinel_keys = set(sentinels)
    directions: dict[str, list[VerdictStatus]] = {}
    for row in rows:
        key = row.pair.shown.case.problem.key
        if key in sentinel_keys and row.pair.base is not None and row.pair.head is not None:
            directions.setdefault(key, []).append(row.status)
    return [
        Reason(
            f"{key}: {moved_rows[0].value}",
            "canary-change",
            problem=key,
            verdict=moved_rows[0].value,
        )
        for key, moved_rows in directions.items()
        if len(set(moved_rows)) == 1 and moved_rows[0] in ALARMS
    ]


def _size(row: ComparedRow) -> float:
    """Return the size of a change as a factor of at least 1, in either direction."""
    ratio = row.judgement.judged or row.judgement.ratio
    return 0.0 if not ratio else max(ratio, 1 / ratio)


def _explain_mismatch(base: ResultSet, head: ResultSet) -> str:
    """Return which part of their cases makes two runs disjoint."""
    for side in (base, head):
        if not side.results:
            return f"run {side.run.id} has no results"

    def disjoint(*parts: str) -> bool:
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

    if disjoint("problem"):
        return "their problems differ"
    for part in ("backend", "timing"):
        if disjoint("problem", part):
            return f"same problems, but another {part}: --match problem compares the best of each"
    return "same problems, but other configs: --match problem compares the best of each"
