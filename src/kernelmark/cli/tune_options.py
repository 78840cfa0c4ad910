"""Options shared by the tuning commands."""

from __future__ import annotations

from typing import Annotated

from kernelmark.cli import options as o

Only = Annotated[
    list[str] | None,
    o.option("--only NAME,…", o.SELECTION, help="Use only these plans. Repeatable."),
]
Jobs = Annotated[
    int | None,
    o.option(
        "--jobs N",
        o.RUNNING,
        help="Compile ahead on N host cores; 0: compile when the device needs it. Default: all.",
    ),
]
Every = Annotated[bool, o.option("--all", o.OUTPUT, help="Show every row.")]
