"""TunePlan: how one problem is tuned. `kmark tune plan` writes its file, `kmark tune run` reads
it, and users may edit it in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelmark.core import codec
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue
from kernelmark.host.cache import digest

ALPHA = 0.05  # significance level of the ratio in the final
# Fields that affect neither the candidates nor the decision.
_DESCRIPTIVE = ("count", "share", "reference_s", "blas", "arch")
_DECIDING = ("acceptance", "reference_backend", "reference_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a search, which ends at the first one reached; 0 minutes means no time limit."""

    evaluations: int = 100
    minutes: float = 0.0

    def __post_init__(self) -> None:
        if self.evaluations < 1 or self.minutes < 0:
            raise UsageError(
                Reason("budget-too-small", evaluations=self.evaluations, minutes=self.minutes),
                hint="--evaluations 100; --minutes 0 is no limit",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The conditions for keeping a winner. `finalists` candidates are screened in two rounds; the
    best is then measured against the reference in `rounds` rounds. It must be faster by `min_ratio`
    and `min_gain_us`, and correct on new inputs (`seeds`) and on `neighbours` similar sizes."""

    finalists: int = 3
    rounds: int = 6
    min_ratio: float = 1.03
    min_gain_us: float = 0.5
    seeds: int = 2
    neighbours: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePlan:
    """How one problem is tuned.

    `space` narrows the backend's space: name → allowed values; empty allows all. `arch` is the
    architecture that the space was listed for, "" if unknown. A winner has to beat the reference,
    whose backend may differ."""

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
    reference_s: float = 0.0  # from the summary; 0 if not timed
    blas: Mapping[str, str] = field(default_factory=FrozenDict)


def search_digest(plan: TunePlan) -> str:
    """Return the digest of the fields that determine the candidates and their order."""
    return _digest(plan, (*_DESCRIPTIVE, *_DECIDING, "budget"))


def decision_digest(plan: TunePlan) -> str:
    """Return the digest of the fields that determine an outcome, except for the budget."""
    return _digest(plan, (*_DESCRIPTIVE, "budget"))


def plan_digest(plan: TunePlan) -> str:
    """Return the digest of all fields that affect the search or its outcome."""
    return _digest(plan, _DESCRIPTIVE)


def _digest(plan: TunePlan, without: tuple[str, ...]) -> str:
    names = [field.name for field in dataclasses.fields(plan) if field.name not in without]
    return digest(*(f"{name}={codec.plain(getattr(plan, name))}" for name in names))[:16]
