"""`kmark micro`: kernels of the devices themselves, compiled ahead for machines without a compiler.

`kmark micro --precompile gfx942,sm_90 -o DIR` makes a pack; KERNELMARK_PACK=DIR uses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelmark.cli.output import put, say
from kernelmark.core.errors import NothingToDo, UsageError

SOME_FAILED = 3

Archs = Annotated[
    list[str] | None,
    typer.Option(
        "--precompile",
        metavar="ARCH",
        help="Compile the devices' own kernels for these architectures, a comma list or repeated: "
        "sm_90, gfx942. No GPU is needed.",
    ),
]
Folder = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        help="Where the pack goes. KERNELMARK_PACK=DIR lets every command use it.",
    ),
]


def micro(precompile: Archs = None, output: Folder = None) -> int:
    """Compile the kernels that devices need into a pack, for machines without a compiler.

    Exit codes: 0 all compiled, 3 some could not be, 4 none could be.
    """
    archs = list(dict.fromkeys(a for text in precompile or () for a in text.split(",") if a))
    if not archs:
        raise UsageError(
            "nothing is asked for", hint="kmark micro --precompile sm_90,gfx942 -o DIR"
        )
    if output is None:
        raise UsageError("--precompile needs a folder for the pack", hint="add: -o DIR")
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{output} is a file, not a folder")
    return compile_into(folder, archs)


def compile_into(folder: Path, archs: list[str]) -> int:
    """Every kernel file for every architecture, a line each; the exit code."""
    from kernelmark.core.units import bytes_text
    from kernelmark.gpu.ahead import precompile
    from kernelmark.kernels import rtc

    made = failed = 0
    sources = {name: rtc.source(name) for name in rtc.names()}
    for one in precompile(sources, archs, folder):
        if one.path is None:
            failed += 1
            put(f"{one.arch}  {one.name}  failed  {one.reason.splitlines()[0]}\n")
        else:
            made += 1
            put(f"{one.arch}  {one.name}  ok  {bytes_text(one.nbytes)}  {one.path}\n")
    if not made:
        raise NothingToDo("no kernel could be compiled", hint="each line above says why")
    say(f"{made} compiled, {failed} failed; use them with KERNELMARK_PACK={folder.resolve()}")
    return SOME_FAILED if failed else 0
