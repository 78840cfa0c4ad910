"""Checks of a user's kernel file when it is loaded, so that a mistake is reported with the name in
the file and not as a later failure of kernelmark."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kernelmark import devices, ops
from kernelmark.core.errors import CaseError, UsageError
from kernelmark.core.reason import Reason, prefixed
from kernelmark.core.space import Space
from kernelmark.core.units import join_commas

PREPARE = ("problem", "config", "sets")


def known_ops(path: str, value: Any) -> tuple[str, ...]:
    """Return the ops that a file computes. Refuse an unknown op: every problem would be
    `unsupported`."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: op={value!r} is not a valid name", hint='write: op = "gemm"')
    for name in names:
        try:
            ops.registry.get(name)
        except UsageError as error:
            reason = prefixed(error.message, f"{path}: ")
            raise UsageError(reason, hint=error.hint) from None
    return tuple(names)


def known_kinds(path: str, value: Any) -> tuple[str, ...]:
    """Return the device kinds that a file runs on; all if it declares none."""
    kinds = devices.registry.names()
    if value is None:
        return tuple(kinds)
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Collection) or not names:
        raise UsageError(f"{path}: devices={value!r} is unknown", hint='write: devices = ("cpu",)')
    for name in names:
        if name not in kinds:
            raise UsageError(
                f"{path}: devices={name!r} is unknown", hint=f"known: {', '.join(kinds)}"
            )
    return tuple(names)


def known_space(path: str, values: Any) -> Space:
    """Return the space that a file's table declares."""
    if not isinstance(values, Mapping) or not all(
        isinstance(choices, Collection) and not isinstance(choices, str)
        for choices in values.values()
    ):
        raise UsageError(
            f"{path}: space is not a table of names and their values",
            hint='for example: space = {"rows": [64, 128, 256]}',
        )
    return Space(parameters={name: tuple(choices) for name, choices in values.items()})


def check_function(path: str, name: str, function: Any, parameters: tuple[str, ...]) -> None:
    """Raise an error if a function cannot be called with these parameters."""
    wrong = misfit(path, name, function, parameters)
    if wrong is not None:
        raise UsageError(wrong, hint=f"write: def {name}({', '.join(parameters)})")


def check_launch(file: str, launch: Any) -> None:
    """Raise an error if the result of `prepare` is not a function of an argument set's index."""
    if not callable(launch):
        raise CaseError(
            returned(file, "prepare", launch, "a function"),
            hint="return launch, a function of the set's index",
        )
    wrong = misfit(file, "launch", launch, ("index",))
    if wrong is not None:
        raise CaseError(wrong, hint="prepare has to return: def launch(index)")


def returned(file: str, name: str, value: Any, wanted: str) -> Reason:
    """Return the reason for refusing a value that a file's function returned."""
    return Reason(f"{file}: {name} returned {type(value).__name__}, not {wanted}")


def not_function(file: str, name: str, value: Any) -> Reason:
    """Return the reason for refusing a name that is not a function."""
    return Reason(f"{file}: {name} is {type(value).__name__}, not a function")


def misfit(file: str, name: str, function: Any, parameters: tuple[str, ...]) -> Reason | None:
    """Return why `function` cannot be called with these parameters, or None."""
    if not callable(function):
        return not_function(file, name, function)
    form = _signature(function)
    if form is None:
        return None
    more = dict.fromkeys(handles(function)) if name == "prepare" else {}
    try:
        form.bind(*parameters, **more)
    except TypeError:
        return Reason(
            f"{file}: {name}({join_commas(form.parameters)}) cannot be called with"
            f" {join_commas(parameters)}"
        )
    return None


def handles(prepare: Callable[..., Any]) -> list[str]:
    """Return which optional parameters a `prepare` has: `stream`, the handle of the timed stream,
    and `device`."""
    form = _signature(prepare)
    return [name for name in ("stream", "device") if form is not None and name in form.parameters]


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # compiled code may have no signature
        return None
