"""Vega-Lite figures into files: PNG, SVG, or HTML that needs no network."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.core.printable import printable

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_LESS = "\ue000less\ue000"  # no text of ours or of the libraries
KINDS = (".png", ".svg", ".html", ".json")
_INSTALL = 'pip install "kernelmark[plots]"'


def check_name(path: str | Path) -> Path:
    """The path, if its ending says how to draw it and it can be written."""
    made = Path(path)
    if made.suffix.lower() not in KINDS:
        known = ", ".join(KINDS)
        raise UsageError(f"{path}: a figure's file name must end in one of {known}")
    if made.is_dir():
        raise UsageError(f"{path} is a folder, not a file")
    if not made.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {made.parent}")
    if not os.access(made if made.exists() else made.parent, os.W_OK):
        raise _unwritable(made, "permission denied")
    return made


def _unwritable(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path} cannot be written: {reason}", hint="name another file")


def check_ready(path: str | Path) -> Path:
    """The path, if it can be drawn into here; for refusing before anything is measured."""
    made = check_name(path)
    if made.suffix.lower() != ".json":
        _library("vl_convert")
    return made


def save(spec: Spec, path: str | Path) -> Path:
    """Draw `spec` into `path`, in the form that its ending asks for."""
    made = check_name(path)
    drawn = _drawn(spec, made.suffix.lower())
    try:
        made.write_bytes(drawn)
    except OSError as error:
        raise _unwritable(made, error.strerror or str(error)) from None
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
    # The library puts texts into a script element as they are: `</script>` in a name from a file
    # would end it. In JavaScript \\u003c is the same character.
    plain = json.loads(json.dumps(spec, ensure_ascii=False).replace("<", _LESS))
    # The libraries go into the page: it must open where there is no network.
    page = str(converter.vegalite_to_html(vl_spec=plain, bundle=True))
    return page.replace(_LESS, "\\u003c").encode()


def svg(spec: Spec) -> str:
    """The figure as an SVG element."""
    return str(_library("vl_convert").vegalite_to_svg(vl_spec=_clean(spec)))


def _clean(value: Any) -> Any:
    """A spec whose texts hold no control characters: vl-convert aborts the process for those that
    XML does not allow, and names come from files."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list) else value


def missing() -> str | None:
    """Why nothing can be drawn here, or None."""
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
            f"drawing figures needs {name.replace('_', '-')}, which is not installed",
            hint=_INSTALL,
        ) from None
