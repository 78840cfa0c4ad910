"""TunePlan: how one problem is tuned. A file of it is written by `kmark tune plan`, read by
`kmark tune run`, and edited by hand in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelmark.core import codec
from kernelmark.core.diskcache import digest
from kernelmark.core.errors import UsageError
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.result import Config, ConfigValue

ALPHA = 0.05  # of the interval of the ratio in the final
# Fields that decide neither which candidates there are nor who wins.
_DESCRIPTIVE = ("count", "share", "reference_s", "blas", "arch")
_DECIDING = ("acceptance", "reference_backend", "reference_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a search ends: after so many evaluated candidates, or minutes, whatever comes first;
    0 minutes are no limit."""

    evaluations: int = 100
    minutes: float = 0.0

    def __post_init__(self) -> None:
        if self.evaluations < 1 or self.minutes < 0:
            raise UsageError(
                "a budget is at least 1 evaluation and no negative time",
                hint="--evaluations 100; --minutes 0 is no limit",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What a winner must show. `finalists` are screened in two rounds; the best has `rounds` rounds
    against the reference alone: faster by `min_ratio` and by `min_gain_us`, and right on fresh
    inputs (`seeds`) and on `neighbours` sizes next to the problem's."""

    finalists: int = 3
    rounds: int = 6
    min_ratio: float = 1.03
    min_gain_us: float = 0.5
    seeds: int = 2
    neighbours: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePlan:
    """`space` narrows the backend's own space: name → the values that may be tried, empty for all.

    `arch` is the architecture that the space was listed for, "" if that is not known. `reference`
    is what a winner has to beat; its backend may be another one."""

    name: str  # BBS_TN_0
    problem: Problem
    backend: str
    reference_backend: str
    arch: str = ""
    reference_config: Config = field(default_factory=FrozenDict)
    strategy: str = "kmark"
    seed: int = 1
    budget: Budget = field(default_factory=Budget)
    acceptance: Acceptance = field(default_factory=Acceptance)
    space: Mapping[str, tuple[ConfigValue, ...]] = field(default_factory=FrozenDict)
    count: int = 1
    share: float = 0.0
    reference_s: float = 0.0  # from the summary; 0 when it was not timed
    blas: Mapping[str, str] = field(default_factory=FrozenDict)


def search_digest(plan: TunePlan) -> str:
    """Return the digest of what decides which candidates there are, and their order."""
    return _digest(plan, (*_DESCRIPTIVE, *_DECIDING, "budget"))


def decision_digest(plan: TunePlan) -> str:
    """Return the digest of everything that an outcome holds for, whatever its budget was."""
    return _digest(plan, (*_DESCRIPTIVE, "budget"))


def plan_digest(plan: TunePlan) -> str:
    """Return the digest of everything that the work on a plan depends on."""
    return _digest(plan, _DESCRIPTIVE)


def _digest(plan: TunePlan, without: tuple[str, ...]) -> str:
    names = [field.name for field in dataclasses.fields(plan) if field.name not in without]
    return digest(*(f"{name}={codec.plain(getattr(plan, name))}" for name in names))[:16]
