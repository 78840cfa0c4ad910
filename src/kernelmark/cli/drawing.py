"""`--figure FILE`: refused before anything is measured, drawn at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from kernelmark.report.vega import Spec


@overload
def check_drawable(figure: str) -> Path: ...
@overload
def check_drawable(figure: str | None) -> Path | None: ...
def check_drawable(figure: str | None) -> Path | None:
    """Return the path, if it can be drawn into; None where no figure is asked for."""
    if figure is None:
        return None
    from kernelmark.report.vega import check_ready

    return check_ready(figure)


def draw(spec: Spec, path: Path, title: str, subtitle: str = "", *, dark: bool = False) -> None:
    """Draw a figure with its title into a file."""
    from kernelmark.report import figures, vega

    vega.save(figures.themed(spec, title=title, subtitle=subtitle, dark=dark), path)
