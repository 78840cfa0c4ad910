"""Rendering of Vega-Lite figures to PNG, SVG, or HTML that needs no network."""

from __future__ import annotations

import importlib
import json
import os
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
_PAGE = (
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kernelmark</title>
<style>
body { margin: 8px; }
#figure { display: block; overflow-x: auto; }
#figure svg { background: transparent !important; }
""",
    """
</style>
</head>
<body><div id="figure"></div><script type="application/json" id="spec">""",
    """</script><script type="module">""",
)
_END = "</script></body>\n</html>\n"
# On a phone, plots fill the screen's width next to the axis and legends move below. Figures whose
# width depends on the content, such as heat maps, scroll in their own box.
_SCRIPT = """
const room = document.documentElement.clientWidth - 16;
const narrow = (node) => {
  if (typeof node.width === "number") node.width = Math.min(node.width, room - 70);
  for (const part of ["layer", "vconcat", "hconcat"]) (node[part] || []).forEach(narrow);
};
const spec = JSON.parse(document.getElementById("spec").textContent);
if (room < 700) {
  spec.config ??= {};
  narrow(spec);
  const legend = { orient: "bottom", columns: 2, labelLimit: room / 2 };
  spec.config.legend = { ...spec.config.legend, ...legend };
  spec.config.title = { ...spec.config.title, limit: room };
}
vegaEmbed("#figure", spec, { renderer: "svg", actions: room >= 700 });
"""
KINDS = (".png", ".svg", ".html", ".json")
_INSTALL = 'pip install "kernelmark[plots]"'


def check_name(path: str | Path) -> Path:
    """Return the path if its suffix is a known format and it is writable, else raise UsageError."""
    made = Path(path)
    if made.suffix.lower() not in KINDS:
        raise UsageError(f"{path}: the file name must end in one of {join_commas(KINDS)}")
    if made.is_dir():
        raise UsageError(f"{path} is a folder, not a file")
    if not made.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {made.parent}")
    if not os.access(made if made.exists() else made.parent, os.W_OK):
        raise _unwritable(made, PermissionError("permission denied"))
    return made


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(file_unwritable(path, error), hint="name another file")


def check_ready(path: str | Path) -> Path:
    """Return the path if the figure can be rendered to it; call before anything is measured."""
    made = check_name(path)
    if made.suffix.lower() != ".json":
        _library("vl_convert")
    return made


def save(spec: Spec, path: str | Path) -> Path:
    """Render `spec` to `path`, in the format of its suffix."""
    made = check_name(path)
    drawn = _drawn(spec, made.suffix.lower())
    try:
        made.write_bytes(drawn)
    except OSError as error:
        raise _unwritable(made, error) from None
    return made


def _drawn(spec: Spec, kind: str) -> bytes:
    spec = _clean(spec)
    if kind == ".json":
        return f"{json.dumps(spec, indent=1)}\n".encode()
    converter = _library("vl_convert")
    if kind == ".png":
        return bytes(converter.vegalite_to_png(vl_spec=spec, scale=2.0))
    if kind == ".svg":
        return svg(spec).encode()
    # `</script>` in a name from a file would end the element. JSON's \\u003c is the same character;
    # the bundler would unescape it.
    data = json.dumps(spec).replace("<", "\\u003c")
    # Bundle the libraries, so that the page opens offline.
    bundle = str(converter.javascript_bundle(_SCRIPT))
    paper = spec.get("background")
    style = f"body {{ background: {paper or LIGHT[0]}; }}"
    style += _FOLLOW_SYSTEM if paper == LIGHT[0] else ""  # other backgrounds are explicit themes
    first, middle, last = _PAGE
    return "".join((first, style, middle, data, last, bundle, _END)).encode()


def svg(spec: Spec) -> str:
    """Return the figure as SVG text."""
    return str(_library("vl_convert").vegalite_to_svg(vl_spec=_clean(spec)))


def _clean(value: Any) -> Any:
    """Return the spec without control characters: vl-convert aborts the process on those that XML
    forbids, and names come from files."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(one) for key, one in value.items()}
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
