"""docs/api.md: what `import kernelmark` offers, from signatures and docstrings."""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from types import ModuleType
from typing import Any

import kernelmark

HEAD = """\
# Python reference

<!-- Written by scripts/api_docs.py from signatures and docstrings. Do not edit. -->

Every public name of `import kernelmark as km`, with its signature; `help(km.run)` prints the same.
[Python and notebooks](python.md) is the introduction. Times are seconds, sizes bytes, clocks MHz.
"""
PARTS = {
    "Measure": ("run", "bench", "compare_kernels", "judge", "do_bench", "perf_report", "Timing"),
    "Results": ("Results", "Result", "Measurement", "Status", "Case", "Problem", "Run"),
    "Stored runs and figures": ("load", "open_store", "plot"),
    "Problems and suites": ("parse", "suite", "suites"),
    "Modules": ("tuning", "micro", "ops", "backends", "devices"),
    "Errors and version": ("KernelmarkError", "__version__"),
}
WIDTH = 76


def text() -> str:
    """The whole page."""
    listed = [name for names in PARTS.values() for name in names]
    if forgotten := {*kernelmark.__all__} ^ {*listed}:
        raise SystemExit(f"PARTS of scripts/api_docs.py and kernelmark.__all__ differ: {forgotten}")
    parts = [HEAD]
    for title, names in PARTS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name) for name in names]
    return "\n".join(parts)


def _entry(name: str) -> str:
    thing = getattr(kernelmark, name)
    if isinstance(thing, str):
        return f"### km.{name}\n\nThe version of kernelmark, a string.\n"
    if isinstance(thing, ModuleType):
        return _module(name, thing)
    lines = [f"### km.{name}\n"]
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        values = ", ".join(f"`{one.value}`" for one in thing)
        return "\n".join([*lines, _prose(thing), f"Values: {values}.\n"])
    lines += [_signature(f"km.{name}", thing), _prose(thing)]
    if inspect.isclass(thing):
        lines += _members(thing)
    return "\n".join(lines)


def _module(name: str, module: ModuleType) -> str:
    lines = [f"### km.{name}\n", _prose(module)]
    registry = getattr(module, "registry", None)
    if registry is not None and name != "micro":
        known = ", ".join(f"`{one}`" for one in registry.names() if one != "fake")
        lines.append(f"Names: {known}. `km.{name}.registry.get(name)` returns one.\n")
    elif registry is not None:
        known = ", ".join(f"`km.micro.{one.replace('-', '_')}`" for one in registry.names())
        lines.append(f"Functions: {known}. [Each explained](micro-benchmarks.md).\n")
    for word in getattr(module, "__all__", ()):
        thing = getattr(module, word)
        if inspect.isfunction(thing):
            lines += [f"#### km.{name}.{word}\n", _signature(f"km.{name}.{word}", thing)]
            lines.append(_prose(thing))
    return "\n".join(lines)


def _members(cls: type) -> list[str]:
    """The methods and properties that a class defines itself, as a table."""
    rows = []
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        function = getattr(function, "func", getattr(function, "_compute", function))
        about = inspect.getdoc(function) or inspect.getdoc(member)
        if name.startswith("_") or not (callable(function) or isinstance(member, property)):
            continue
        first = " ".join((about or "").split("\n\n")[0].split()).replace("|", "\\|")
        rows.append(f"| `.{name}{_arguments(function, member)}` | {first} |")
    return ["\n".join(["| | |", "| --- | --- |", *rows]) + "\n"] if rows else []


def _arguments(function: Any, member: Any) -> str:
    if not (inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))):
        return ""
    found = list(inspect.signature(function).parameters.values())
    if not isinstance(member, staticmethod):
        found = found[1:]
    return f"({', '.join(_parameter(one, types=False) for one in found)})"


def _signature(name: str, thing: Any) -> str:
    found = inspect.signature(thing)
    words, starred = [], False
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            words.append("*")
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        words.append(_parameter(one, types=True))
    back = found.return_annotation
    ends = "" if inspect.isclass(thing) or back is found.empty else f" -> {_type(back)}"
    line = f"{name}({', '.join(words)}){ends}"
    if len(line) > WIDTH:
        body = textwrap.fill(
            ", ".join(word.replace(" ", "\0") for word in words), WIDTH,
            initial_indent="    ", subsequent_indent="    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        line = f"{name}(\n{body.replace(chr(0), ' ')}\n){ends}"
    return f"```py\n{line}\n```\n"


def _parameter(one: inspect.Parameter, *, types: bool) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = f": {_type(one.annotation)}" if types and one.annotation is not one.empty else ""
    if one.default is one.empty:
        return f"{stars}{one.name}{kind}"
    default = one.default
    shown = f'"{default}"' if isinstance(default, str) else repr(default)
    shown = "…" if "<factory>" in shown else shown
    shown = f'"{default.value}"' if isinstance(default, enum.Enum) else shown
    return f"{one.name}{kind} = {shown}" if kind else f"{one.name}={shown}"


def _type(annotation: Any) -> str:
    return (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )


def _prose(thing: Any) -> str:
    """A docstring as Markdown: examples as code, `name: meaning` as a list."""
    lines, code = [], False
    for line in (inspect.getdoc(thing) or "").splitlines():
        argument = re.match(r"(\w+(?:, \w+)*): (.*)", line)
        in_list = bool(lines) and lines[-1].startswith(("- ", "  "))
        if line.startswith("    ") and not in_list and not code:
            lines.append("```py")
            code = True
        elif code and line.strip() and not line.startswith("    "):
            lines = [*lines[:-1], "```", ""] if not lines[-1] else [*lines, "```"]
            code = False
        if code:
            lines.append(line[4:])
        elif argument and (in_list or (bool(lines) and not lines[-1])):
            names = ", ".join(f"`{name}`" for name in argument[1].split(", "))
            lines.append(f"- {names}: {argument[2]}")
        elif line.startswith("    ") and in_list:
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    lines += ["```"] if code else []
    return "\n".join(lines).strip() + "\n"
