"""The space that a plan lets a search go over: the backend's own, narrowed by the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kernelmark import backends
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import ConfigValue
from kernelmark.core.space import Space
from kernelmark.tune.plans.plan import TunePlan
from kernelmark.tune.plans.planfile import value_text

_SHOWN = 12  # values of a parameter that a hint lists


def space_of(plan: TunePlan, info: DeviceInfo, place: str = "") -> Space:
    """Return what may be tried for `plan` on a device; `place` is the plan's file, for errors."""
    place = place or plan.name
    backend = backends.find(plan.backend)
    whole = backend.space(plan.problem, info)
    if whole is None:
        reason = Reason("plan-nothing-to-tune", place=place, backend=plan.backend, device=info.name)
        cause = backend.untunable(plan.problem, info)
        raise UsageError(
            reason.having(cause=cause) if cause else reason,
            hint="kmark list backends says what there is",
        )
    if plan.reference_config:
        _check_reference(plan, info, place)
    return narrowed(whole, plan.space, place)


def _check_reference(plan: TunePlan, info: DeviceInfo, place: str) -> None:
    """Refuse a reference that cannot be run, before a search that would end without it.

    Its values need not be among those that are searched, but are of their kind."""
    try:
        whole = backends.find(plan.reference_backend).space(plan.problem, info)
    except Unsupported:  # a library that is not here lists nothing
        return
    if whole is None:
        return
    for name, value in plan.reference_config.items():
        known = whole.parameters.get(name)
        if known is None:
            raise UsageError(
                Reason(
                    "not-a-parameter",
                    file=place,
                    key=f"reference.config.{name}",
                    backend=plan.reference_backend,
                ),
                hint=f"it has: {', '.join(whole.parameters)}",
            )
        if not any(_kind(value) is _kind(other) for other in known):
            shown = ", ".join(value_text(other) for other in known[:_SHOWN])
            raise UsageError(
                Reason(
                    "value-of-another-type",
                    file=place,
                    key=f"reference.config.{name}",
                    given=value_text(value),
                ),
                hint=f"for example: {shown}",
            )


def _kind(value: ConfigValue) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def narrowed(
    space: Space, allowed: Mapping[str, tuple[ConfigValue, ...]], place: str = "plan"
) -> Space:
    """`space` with only the `allowed` values of the parameters that are named there.

    A value that the space does not have is refused: it would be another kernel than the rest of
    the file speaks of. The default stays, also outside of the narrowed values."""
    parameters = dict(space.parameters)
    for name, values in allowed.items():
        if name not in parameters:
            raise UsageError(
                Reason("not-in-space", file=place, key=f"space.{name}"),
                hint=f"it has: {', '.join(parameters)}",
            )
        wanted = [_own(value, parameters[name], place, f"space.{name}") for value in values]
        parameters[name] = tuple(dict.fromkeys(wanted))
    narrow = dataclasses.replace(space, parameters=FrozenDict(parameters))
    if next(iter(narrow), None) is None:
        raise UsageError(
            Reason("space-empty", file=place),
            hint="allow more values of a parameter",
        )
    return narrow


def _own(value: ConfigValue, known: tuple[ConfigValue, ...], place: str, key: str) -> ConfigValue:
    """Return the space's own value that `value` means: 10 is also 10.0, but 1 is not true."""
    for candidate in known:
        if candidate == value and isinstance(candidate, bool) == isinstance(value, bool):
            return candidate
    shown = ", ".join(value_text(candidate) for candidate in known[:_SHOWN])
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    raise UsageError(
        Reason("value-not-in-space", file=place, key=key, given=value_text(value)),
        hint=f"it has: {shown}{more}",
    )
