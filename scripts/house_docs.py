"""The picture of the house in CONTRIBUTING.md: layers of the linter, and what each package is."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "kernelmark"
WIDTH = 96
NAME = 11


def picture() -> list[str]:
    """Return a text drawing, a box a layer, upper layers first: imports point downwards."""
    rule = "─" * WIDTH
    lines = ["```text", f"┌{rule}┐"]
    for index, layer in enumerate(layers()):
        if index:
            lines.append(f"├{rule}┤")
        for package in layer:
            summary = summary_of(package)
            wrapped = textwrap.wrap(summary, WIDTH - NAME - 3)
            for name, text in zip([package, *[""] * len(wrapped)], wrapped, strict=False):
                lines.append(f"│ {name:<{NAME}} {text:<{WIDTH - NAME - 3}} │")
    return [*lines, f"└{rule}┘", "```"]


def layers() -> list[list[str]]:
    """Return the packages of each layer, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    whole = next(each for each in contracts if each["type"] == "layers")
    rows = (layer.split(" | ") for layer in whole["layers"])
    return [[name.removeprefix("kernelmark.") for name in row] for row in rows]


def summary_of(package: str) -> str:
    """Return the first sentence of a package's docstring."""
    file = PACKAGE / package / "__init__.py"
    source = (file if file.exists() else PACKAGE / f"{package}.py").read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(source)) or ""
    first = " ".join(doc.split("\n\n")[0].split())
    return first.split(". ")[0].rstrip(".")
