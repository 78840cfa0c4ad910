"""`--figure FILE`: checked before anything is measured, rendered at the end."""

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
    """Return the path if a figure can be rendered to it; None without a figure."""
    if figure is None:
        return None
    from kernelmark.report.vega import check_ready

    return check_ready(figure)


def draw(spec: Spec, path: Path, title: str, subtitle: str = "", *, dark: bool = False) -> None:
    """Render a figure with its title to a file."""
    from kernelmark.report import figures, vega

    vega.save(figures.themed(spec, title=title, subtitle=subtitle, dark=dark), path)
