"""Outcome: the result of tuning one problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import OPTIONAL, Config, KernelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend's config for a problem, as timed in the final. `worst` is the largest error of all
    checks in units of its tolerance; above 1 it is wrong."""

    backend: str
    config: Config = field(default_factory=FrozenDict)
    median_s: float = math.nan
    kernel: KernelInfo = field(default_factory=KernelInfo)
    worst: float = math.nan
    version: str = ""  # of the library underneath

    @property
    def verified(self) -> bool:
        return self.worst <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of tuning one problem. `ratio` is reference time / tuned time over interleaved
    rounds, with its interval.

    `share` is the problem's fraction of the workload's time with the reference, 0 to 1. `blas` has
    the fields of the logged call (transA, lda, a_type, …), for emitters. `disturbed`: other work
    disturbed the final, which has to be repeated."""

    name: str  # BBS_TN_0
    problem: Problem
    device: str
    arch: str
    reference: Choice
    tuned: Choice
    ratio: float
    low: float
    high: float
    kept: bool
    reason: Reason  # why it is kept or not
    count: int = 1
    share: float = 0.0
    evaluations: int = 0
    blas: Mapping[str, str] = field(default_factory=FrozenDict)
    disturbed: bool = field(default=False, metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", Reason.of(self.reason))

    @property
    def saved_s(self) -> float:
        """Seconds saved over all calls of the workload."""
        return (self.reference.median_s - self.tuned.median_s) * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Totals of a tuning run. Uplifts are factors over the kept outcomes; `weighted_saving` and
    `coverage` are fractions of the workload's time with the reference."""

    problems: int
    kept: int
    average_uplift: float
    geomean_uplift: float
    weighted_saving: float
    coverage: float

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Metrics:
        every = list(outcomes)
        kept = [outcome for outcome in every if outcome.kept]
        ratios = [outcome.ratio for outcome in kept]
        return cls(
            problems=len(every),
            kept=len(kept),
            average_uplift=sum(ratios) / len(ratios) if ratios else 1.0,
            geomean_uplift=math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0,
            weighted_saving=sum(o.share * (1 - 1 / o.ratio) for o in kept),
            coverage=sum(outcome.share for outcome in kept),
        )
