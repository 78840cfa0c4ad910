"""The space that is searched for a plan: the backend's space, narrowed by the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kernelmark import backends
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import Unsupported, UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import ConfigValue
from kernelmark.core.space import Space
from kernelmark.tune.plans.plan import TunePlan
from kernelmark.tune.plans.planfile import value_text

_SHOWN = 12  # values of a parameter that a hint lists


def space_of(plan: TunePlan, info: DeviceInfo, file: str = "") -> Space:
    """Return the space of `plan` on a device; error messages name `file`."""
    file = file or plan.name
    backend = backends.find(plan.backend)
    whole = backend.space(plan.problem, info)
    if whole is None:
        reason = Reason("plan-nothing-to-tune", place=file, backend=plan.backend, device=info.name)
        cause = backend.untunable(plan.problem, info)
        raise UsageError(
            reason.having(cause=cause) if cause else reason,
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
                Reason(
                    "not-a-parameter",
                    file=file,
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
                    file=file,
                    key=f"reference.config.{name}",
                    given=value_text(value),
                ),
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
                Reason("not-in-space", file=file, key=f"space.{name}"),
                hint=f"it has: {', '.join(parameters)}",
            )
        wanted = [_own(value, parameters[name], file, f"space.{name}") for value in values]
        parameters[name] = tuple(dict.fromkeys(wanted))
    narrow = dataclasses.replace(space, parameters=FrozenDict(parameters))
    if next(iter(narrow), None) is None:
        raise UsageError(
            Reason("space-empty", file=file),
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
        Reason("value-not-in-space", file=file, key=key, given=value_text(value)),
        hint=f"it has: {shown}{more}",
    )
