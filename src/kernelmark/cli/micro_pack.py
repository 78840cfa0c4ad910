"""`kmark micro --precompile`: write precompiled bundles of kernels."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put, say
from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unwritable
from kernelmark.core.verdict import SOME_FAILED

# Options that apply to a bundle; `words` has a separate check.
_WITH_PACK = ("precompile", "output", "quiet", "words")


def make_pack(
    context: typer.Context,
    names: Sequence[str],
    precompile: list[str] | None,
    output: str | None,
    *,
    quiet: bool,
) -> int:
    """Compile the requested bundle; return the exit code."""
    archs = list(o.comma_list(precompile))
    if not precompile:
        raise UsageError(
            "-o needs --precompile", hint="results go where --json, --csv, --md and -f say"
        )
    if names:
        raise UsageError(
            f"--precompile takes 0 benchmarks, not {len(names)}", hint="it compiles all kernels"
        )
    o.check_alone(
        context,
        _WITH_PACK,
        "--precompile",
        hint="it takes architectures and -o DIR; nothing is measured",
    )
    if output is None:
        raise UsageError("--precompile needs -o", hint="add: -o DIR")
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{output} is not a folder", hint="choose another folder: -o DIR")
    try:
        return _compile_into(folder, archs, quiet=quiet)
    except OSError as error:
        raise UsageError(
            file_unwritable(output, error), hint="choose another folder: -o DIR"
        ) from None


def _compile_into(folder: Path, archs: list[str], *, quiet: bool) -> int:
    """Compile every kernel file for every architecture, one line each; return the exit code."""
    from kernelmark.core.units import bytes_text
    from kernelmark.gpu.architectures import check, precompile
    from kernelmark.kernels import rtc

    for arch in archs:
        check(arch)
    made = failed = 0
    sources = {name: rtc.source(name) for name in rtc.names()}
    special = [(n, t) for a in archs for n in sources if (t := rtc.target(n, a)) not in archs]
    jobs = itertools.chain(
        precompile(sources, archs, folder),
        *(precompile({name: sources[name]}, [target], folder) for name, target in special),
    )
    for job in jobs:
        if job.path is None:
            failed += 1
            hint = f"; {job.hint}" if job.hint else ""
            put(f"{job.arch}  {job.name}  failed  {job.reason.splitlines()[0]}{hint}\n")
        else:
            made += 1
            put(f"{job.arch}  {job.name}  ok  {bytes_text(job.nbytes)}  {job.path}\n")
    where = shlex.quote(str(folder.resolve()))
    use = f"use them with KERNELMARK_PACK={where}" if made else "each line above says why"
    if failed or not quiet:
        say(f"{made} compiled, {failed} failed; {use}")
    return SOME_FAILED if failed else 0
