"""What a user's file may say, checked when it is loaded: a mistake in it is told by its own name,
not by a place in kernelmark where it would be noticed later."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kernelmark import devices, ops
from kernelmark.core.errors import CaseError, UsageError
from kernelmark.core.space import Space

PREPARE = ("problem", "config", "sets")
# What reads a function's variables by no name of theirs.
_REFLECTION = frozenset({"locals", "vars", "eval", "exec", "inspect", "sys"})


def known_ops(path: str, given: Any) -> tuple[str, ...]:
    """The ops that a file computes; one that there is not would only ever be `unsupported`."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: op={given!r} is no name", hint='write: op = "gemm"')
    for name in names:
        try:
            ops.registry.get(name)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", hint=error.hint) from None
    return tuple(names)


def known_kinds(path: str, given: Any) -> tuple[str, ...]:
    """The kinds of devices that a file runs on; all where it does not say."""
    known = devices.registry.names()
    if given is None:
        return tuple(known)
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Collection) or not names:
        raise UsageError(f"{path}: devices={given!r} names none", hint='write: devices = ("cpu",)')
    for name in names:
        if name not in known:
            shown = ", ".join(known)
            raise UsageError(f"{path}: devices={name!r} is unknown", hint=f"known: {shown}")
    return tuple(names)


def known_space(path: str, values: Any) -> Space:
    """What can be tuned, from a file's table."""
    if not isinstance(values, Mapping) or not all(
        isinstance(choices, Collection) and not isinstance(choices, str)
        for choices in values.values()
    ):
        raise UsageError(
            f"{path}: space is not a table of names and their values",
            hint='for example: space = {"rows": [64, 128, 256]}',
        )
    return Space(parameters={name: tuple(choices) for name, choices in values.items()})


def read_names(prepare: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names that `prepare` looks up in its config, by its source: `config["rows"]`,
    `config.get("rows")`, `"rows" in config`. None if it uses the config in any other way, or its
    source cannot be read."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(prepare))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    arguments = [*function.args.posonlyargs, *function.args.args]
    at = PREPARE.index("config")
    if len(arguments) <= at:
        return None
    config, uses, names = arguments[at].arg, 0, []
    for node in ast.walk(function):
        match node:
            case ast.Name(id=name):
                if name in _REFLECTION:
                    return None
                uses += name == config
            case (
                ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key)))
                | ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="get" | "pop"),
                    args=[ast.Constant(value=str(key)), *_],
                )
                | ast.Compare(
                    left=ast.Constant(value=str(key)),
                    ops=[ast.In() | ast.NotIn()],
                    comparators=[ast.Name(id=name)],
                )
            ) if name == config:
                names.append(key)
    return tuple(dict.fromkeys(names)) if uses == len(names) else None


def check_function(path: str, name: str, function: Any, words: tuple[str, ...]) -> None:
    """Refuse what cannot be called with `words`."""
    wrong = misfit(name, function, words)
    if wrong is not None:
        hint = f"write: def {name}({', '.join(words)})"
        raise UsageError(f"{path}: {wrong}", hint=hint)


def check_launch(file: str, launch: Any) -> None:
    """Refuse what `prepare` gave where it is no function of an argument set's index."""
    if not callable(launch):
        raise CaseError(
            f"{file}: prepare gave {type(launch).__name__}, not a function",
            hint="return launch, a function of the set's index",
        )
    wrong = misfit("launch", launch, ("index",))
    if wrong is not None:
        raise CaseError(f"{file}: {wrong}", hint="prepare has to return: def launch(index)")


def misfit(name: str, function: Any, words: tuple[str, ...]) -> str | None:
    """Why `function` cannot be called with `words`, or None."""
    if not callable(function):
        return f"{name} is {type(function).__name__}, not a function"
    form = _signature(function)
    if form is None:
        return None
    more = dict.fromkeys(handles(function)) if name == "prepare" else {}
    try:
        form.bind(*words, **more)
    except TypeError:
        shown = ", ".join(form.parameters)
        return f"{name}({shown}) cannot be called with {', '.join(words)}"
    return None


def handles(prepare: Callable[..., Any]) -> list[str]:
    """What a `prepare` asks for by name: the handle of the stream that is timed, the device."""
    form = _signature(prepare)
    return [name for name in ("stream", "device") if form is not None and name in form.parameters]


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # compiled code may not tell its parameters
        return None
