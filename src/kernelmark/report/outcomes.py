"""Tables of tuning outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kernelmark.report.tables import NONE, Column, Table
from kernelmark.report.tuning import percent, seconds_text, titled, tuned_text
from kernelmark.tune.records.results import Outcome


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a table with one row per outcome, in the given order."""
    names = ("plan", "share", "reference", "tuned", "ratio", "tried", "config", "outcome")
    right = ("share", "reference", "tuned", "ratio", "tried")
    columns = tuple(Column(name=n, align="right" if n in right else "left") for n in names)
    return Table(columns=columns, rows=tuple(map(_row, outcomes)))


def by_worth(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return kept outcomes first, ordered by the workload time they save."""
    return sorted(outcomes, key=_worth)


def _worth(outcome: Outcome) -> tuple[bool, float]:
    saved = outcome.saved_s if math.isfinite(outcome.saved_s) else -math.inf
    return not outcome.kept, -saved


def _row(outcome: Outcome) -> tuple[str, ...]:
    return (
        titled(outcome),
        percent(outcome.share) if outcome.share else NONE,
        seconds_text(outcome.reference.median_s),
        seconds_text(outcome.tuned.median_s),
        NONE if math.isnan(outcome.ratio) else f"{outcome.ratio:.3f} ×",
        str(outcome.evaluations),
        tuned_text(outcome),
        f"{'kept' if outcome.kept else 'not kept'}, {outcome.reason}",
    )


def outcome_line(outcome: Outcome) -> str:
    """Return a one-line summary of an outcome."""
    return f"{outcome.name}: {'kept' if outcome.kept else 'not kept'}, {outcome.reason}"
