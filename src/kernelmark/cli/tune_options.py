"""What the options of the tuning commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kernelmark.cli import options as o


def option(*names: str, help: str, metavar: str | None = None, panel: str = o.SELECTION) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel)


Only = Annotated[
    list[str] | None, option("--only", metavar="NAME,…", help="Only these plans. Repeatable.")
]
Jobs = Annotated[
    int | None,
    option(
        "--jobs",
        metavar="N",
        help="Compile ahead on N host cores; 0: in the device's own process. Default: all.",
        panel=o.RUNNING,
    ),
]
Every = Annotated[bool, option("--all", help="Show every row.", panel=o.OUTPUT)]
