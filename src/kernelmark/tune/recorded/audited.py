"""What `kmark audit` measures, and its verdict on each recorded choice."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from kernelmark.core.result import RunState
from kernelmark.core.timing import Timing
from kernelmark.core.verdict import INTERRUPTED, NOTHING, REGRESSION, SOME_FAILED
from kernelmark.runners.ab import ROUND, Row, Rule
from kernelmark.tune.recorded.base import Applied, AuditFacts, Contender, RecordedChoice


class RowVerdict(StrEnum):
    """The verdict on a recorded choice."""

    SLOWER = "slower than default"
    BEATEN = "beaten"  # an alternative is faster
    FAILED = "failed"  # the choice does not run or is wrong, and another contender is not
    TIED = "tied"  # no contender is faster, and at least one is as fast
    BEST = "best"  # faster than every contender
    UNSURE = "unsure"
    UNMEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """How much slower a choice is than the best contender: 0.1 is 10 %; 0 if none is faster."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRow:
    """The verdict on a row. `pairs` are its contenders, each against the choice; `stable` is the
    choice to write, and `flips` the share of processes in which another contender than the usual
    one was the fastest."""

    file: str
    row: RecordedChoice
    verdict: RowVerdict
    reason: str
    pairs: tuple[Row, ...] = ()
    default: Row | None = None
    regret: Regret | None = None
    ties: tuple[Contender, ...] = ()
    flips: float | None = None
    stable: Contender | None = None
    applied: Applied = Applied.UNKNOWN

    @property
    def is_changed(self) -> bool:
        return self.stable is not None and self.stable != self.row.choice


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """What to measure, and how. `processes` are the numbers of rounds, and so of fresh processes,
    after which a pair may be decided."""

    device: str = "cpu"
    facts: AuditFacts = dataclasses.field(default_factory=AuditFacts)
    format: str = ""
    alternatives: int = 4
    rule: Rule = dataclasses.field(default_factory=Rule)
    timing: Timing = ROUND
    timeout_s: float = 300.0
    jobs: int = 0
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The audited rows of all files, in their order."""

    plan: AuditPlan
    rows: tuple[AuditedRow, ...]
    state: RunState = RunState.DONE

    def count(self, verdict: RowVerdict) -> int:
        return sum(row.verdict is verdict for row in self.rows)

    @property
    def code(self) -> int:
        """The exit code: 1 if a choice is slower than its default or beaten, or fails."""
        if self.state is RunState.INTERRUPTED:
            return INTERRUPTED
        if self.count(RowVerdict.SLOWER) + self.count(RowVerdict.BEATEN):
            return REGRESSION
        if self.count(RowVerdict.FAILED):
            return SOME_FAILED
        return NOTHING if self.count(RowVerdict.UNMEASURED) == len(self.rows) else 0
