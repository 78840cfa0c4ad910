"""Rendering of Vega-Lite figures to PNG, SVG, or HTML that needs no network."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unwritable
from kernelmark.core.text import printable
from kernelmark.core.units import join_commas

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
# Background, text and grid colours.
LIGHT = ("#ffffff", "#222222", "#dddddd")
DARK = ("#16181d", "#e6e6e6", "#3a3f4a")
_BLUES = ("#0072B2", "#56B4E9")  # swapped on a dark background, where the dark blue is hard to see
_FOLLOW_SYSTEM = """:root {{ color-scheme: light dark; }}
@media (prefers-color-scheme: dark) {{ body {{ background: {}; }}{} }}""".format(
    DARK[0],
    "".join(
        f' svg [{part}="{light}"] {{ {part}: {dark}; }}'
        for light, dark in zip((*LIGHT, *_BLUES), (*DARK, *_BLUES[::-1]), strict=True)
        for part in ("fill", "stroke")
    ),
)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kernelmark</title>
<style>
body {{ margin: 8px; {style}
figure {{ margin: 0; overflow-x: auto; }}
figure svg {{ display: block; width: 100%; min-width: 600px; max-width: {most}px; height: auto; }}
figure svg > rect:first-child {{ fill: transparent; }}
#tip {{ position: absolute; max-width: 320px; padding: 4px 8px; border: 1px solid #888888;
  background: Canvas; color: CanvasText; font: 12px sans-serif; white-space: pre-line; }}
</style>
</head>
<body><figure>{figure}</figure><div id="tip" hidden></div><script>{script}</script></body>
</html>
"""
# The label that a mark has for screen readers is its tooltip. Lines, axes and legends have labels
# too, but show no single result.
_SCRIPT = """
const tip = document.getElementById("tip");
const marks = ["circle", "point", "bar", "rect mark", "symbol mark", "text mark"];
document.addEventListener("mousemove", (event) => {
  const mark = event.target.closest(marks.map((kind) => `[aria-roledescription="${kind}"]`));
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.getAttribute("aria-label").replaceAll("; ", "\\n");
  const page = document.documentElement;
  const left = Math.min(event.pageX + 12, page.scrollLeft + page.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${event.pageY + 14}px`;
});
"""
_LARGEST = 1.5  # scale of a figure on a wide screen
KINDS = (".png", ".svg", ".html", ".json")
_INSTALL = 'pip install "kernelmark[plots]"'


def check_name(path: str | Path) -> Path:
    """Return the path if its suffix is a known format and it is writable, else raise UsageError."""
    path_object = Path(path)
    if path_object.suffix.lower() not in KINDS:
        raise UsageError(f"{path}: the file name must end in one of {join_commas(KINDS)}")
    if path_object.is_dir():
        raise UsageError(f"{path} is a folder, not a file")
    if not path_object.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path_object.parent}")
    if not os.access(path_object if path_object.exists() else path_object.parent, os.W_OK):
        raise _unwritable(path_object, PermissionError("permission denied"))
    return path_object


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(file_unwritable(path, error), hint="name another file")


def check_ready(path: str | Path) -> Path:
    """Return the path if the figure can be rendered to it; call before anything is measured."""
    checked = check_name(path)
    if checked.suffix.lower() != ".json":
        _library("vl_convert")
    return checked


def save(spec: Spec, path: str | Path) -> Path:
    """Render `spec` to `path`, in the format of its suffix."""
    checked = check_name(path)
    drawn = _drawn(spec, checked.suffix.lower())
    try:
        checked.write_bytes(drawn)
    except OSError as error:
        raise _unwritable(checked, error) from None
    return checked


def _drawn(spec: Spec, kind: str) -> bytes:
    spec = _clean(spec)
    if kind == ".json":
        return f"{json.dumps(spec, indent=1)}\n".encode()
    converter = _library("vl_convert")
    if kind == ".png":
        return bytes(converter.vegalite_to_png(vl_spec=spec, scale=2.0))
    if kind == ".svg":
        return svg(spec).encode()
    # The figure is drawn here, not by scripts in the page: Vega's libraries have 0.9 MB, and
    # bundling them takes longer than drawing.
    paper = spec.get("background")
    style = f"background: {paper or LIGHT[0]}; }}"
    style += _FOLLOW_SYSTEM if paper == LIGHT[0] else ""  # other backgrounds are explicit themes
    figure = svg(spec)
    (width,) = re.findall(r'\A<svg[^>]* width="([\d.]+)"', figure)
    page = _PAGE.format(style=style, most=_LARGEST * float(width), figure=figure, script=_SCRIPT)
    return page.encode()


def svg(spec: Spec) -> str:
    """Return the figure as SVG text."""
    return str(_library("vl_convert").vegalite_to_svg(vl_spec=_labelled(_clean(spec))))


def _labelled(spec: Any) -> Any:
    """Return the spec with the tooltip of each mark as its label too, for screen readers and for
    the tooltips of pages, in which Vega itself does not run."""
    if isinstance(spec, list):
        return [_labelled(item) for item in spec]
    if not isinstance(spec, dict):
        return spec
    parts = {key: _labelled(spec[key]) for key in ("layer", "vconcat", "hconcat") if key in spec}
    tips = spec.get("encoding", {}).get("tooltip")
    if isinstance(tips, list) and "mark" in spec:
        mark = spec["mark"] if isinstance(spec["mark"], dict) else {"type": spec["mark"]}
        fields = [
            (json.dumps(f"{tip.get('title', tip['field'])}: "), json.dumps(tip["field"]))
            for tip in tips
        ]
        text = [
            f"{title} + (isNumber(datum[{name}]) ? format(datum[{name}], '.4~g') : datum[{name}])"
            for title, name in fields
        ]
        parts["mark"] = mark | {"description": {"expr": " + '; ' + ".join(text)}}
    return spec | parts


def _clean(value: Any) -> Any:
    """Return the spec without control characters: vl-convert aborts the process on those that XML
    forbids, and names come from files."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(member) for key, member in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def missing() -> str | None:
    """Return why figures cannot be rendered here, or None."""
    try:
        _library("vl_convert")
    except UsageError as error:
        return f"{error.message}; {error.hint}"
    return None


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(
            f"drawing figures needs {name.replace('_', '-')}, which is not installed", hint=_INSTALL
        ) from None
