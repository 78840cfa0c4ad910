"""TunePlan: how one problem is tuned. `kmark tune plan` writes its file, `kmark tune run` reads
it, and users may edit it in between."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelmark import backends
from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason, suffixed
from kernelmark.core.result import Config, ConfigValue
from kernelmark.core.space import Space
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
                "a budget is at least 1 evaluation and no negative time, not "
                f"{self.evaluations} and {self.minutes:g} minutes",
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


def value_text(value: ConfigValue) -> str:
    """Return a value as TOML that parses back to the same value and type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON does not escape DEL; TOML requires it.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


_SHOWN = 12  # values of a parameter that a hint lists


def space_of(plan: TunePlan, info: DeviceInfo, file: str = "") -> Space:
    """Return the space of `plan` on a device; error messages name `file`."""
    file = file or plan.name
    backend = backends.find(plan.backend)
    whole = backend.space(plan.problem, info)
    if whole is None:
        reason = Reason(
            f"{file}: {plan.backend} has nothing to tune for this problem on {info.name}"
        )
        cause = backend.untunable(plan.problem, info)
        raise UsageError(
            suffixed(reason, f": {cause}" if cause else ""),
            hint="kmark list backends says what there is",
        )
    if plan.reference_config:
        _check_reference(plan, info, file)
    return narrowed(whole, plan.space, file)


def _check_reference(plan: TunePlan, info: DeviceInfo, file: str) -> None:
    """Raise UsageError before the search if the reference config cannot be run.

    Its values need not be in the space that is searched, but must be of the same types."""
    try:
        whole = backends.find(plan.reference_backend).space(plan.problem, info)
    except Unsupported:  # a library that is not installed cannot list its space
        return
    if whole is None:
        return
    for name, value in plan.reference_config.items():
        known = whole.parameters.get(name)
        if known is None:
            raise UsageError(
                f"{file}: reference.config.{name} is no parameter of "
                f"{plan.reference_backend} for this problem",
                hint=f"it has: {', '.join(whole.parameters)}",
            )
        if not any(_kind(value) is _kind(other) for other in known):
            shown = ", ".join(value_text(other) for other in known[:_SHOWN])
            raise UsageError(
                f"{file}: reference.config.{name} cannot be {value_text(value)}",
                hint=f"for example: {shown}",
            )


def _kind(value: ConfigValue) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def narrowed(
    space: Space, allowed: Mapping[str, tuple[ConfigValue, ...]], file: str = "plan"
) -> Space:
    """Return `space` with the `allowed` values only; parameters not in `allowed` keep all values.

    Raise UsageError for a value that is not in the space. The default config stays, even if its
    values are not allowed."""
    parameters = dict(space.parameters)
    for name, values in allowed.items():
        if name not in parameters:
            raise UsageError(
                f"{file}: space.{name} is no parameter of this space",
                hint=f"it has: {', '.join(parameters)}",
            )
        wanted = [_own(value, parameters[name], file, f"space.{name}") for value in values]
        parameters[name] = tuple(dict.fromkeys(wanted))
    narrow = dataclasses.replace(space, parameters=FrozenDict(parameters))
    if next(iter(narrow), None) is None:
        raise UsageError(
            f"{file}: space: every combination of these values is forbidden",
            hint="allow more values of a parameter",
        )
    return narrow


def _own(value: ConfigValue, known: tuple[ConfigValue, ...], file: str, key: str) -> ConfigValue:
    """Return the value of the space that equals `value`: 10 equals 10.0, but 1 does not equal
    true."""
    for candidate in known:
        if candidate == value and isinstance(candidate, bool) == isinstance(value, bool):
            return candidate
    shown = ", ".join(value_text(candidate) for candidate in known[:_SHOWN])
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    raise UsageError(
        f"{file}: {key}: {value_text(value)} is not in the space", hint=f"it has: {shown}{more}"
    )
