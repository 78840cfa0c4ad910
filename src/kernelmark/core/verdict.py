"""Verdict: the outcome of a comparison for one row; exit codes of `kmark`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kernelmark.core.reason import Reason


class VerdictStatus(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNSURE = "unsure"
    NEW = "new"  # only head has it
    GONE = "gone"  # only base has it
    BROKEN = "broken"  # base ok, head failed
    FIXED = "fixed"  # base failed, head ok
    IGNORED = "ignored"  # the rule does not judge this row, for the given reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one row. `ratio` is head time / base time: above 1 is slower. `low` and `high`
    are its confidence interval."""

    series: str
    base: str
    head: str
    status: VerdictStatus
    reason: Reason
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", Reason.of(self.reason))


REGRESSION = 1
SOME_FAILED = 3
NOTHING = 4
INTERRUPTED = 130
