"""Verdict: the outcome of a comparison for one row; Mark: a stored decision about a series; exit
codes of `kmark`.
"""

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


class MarkKind(StrEnum):
    REGRESSED = "regressed"  # measured again and confirmed: open until measured good again
    REFUTED = "refuted"  # measured again and not confirmed: no alarm for that run alone
    ACCEPTED = "accepted"  # by a person: no alarm until it changes again


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A decision about the state that a series has since run `run_id`, which began at `started`.

    `state` is slower, or the status of the failed results. `before_id` is the last good run,
    `level` the value until then. A series has at most one mark of each kind.
    """

    series: str
    kind: MarkKind
    state: str
    run_id: str
    started: float
    before_id: str = ""
    level: float | None = None
    reason: str = ""
    author: str = ""
    created: float = 0.0
