"""`kmark lint-configs`: what is dead, illegal or invisible in a folder of aiter-style configs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import Outputs, put_table, say
from kernelmark.core.units import counted

SOME_FOUND = 1


def lint_configs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that holds gemm/ or gfx…/ folders.")
    ],
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> int:
    """Find unreachable buckets and invalid values in a folder of aiter-style JSON configs.

    For example: kmark lint-configs aiter/ops/triton/configs
    """
    from kernelmark.core.files import json_text
    from kernelmark.tune.aiter_config import lint

    outputs = Outputs(json=json)
    found = lint(folder)
    rows = [{"file": f.file, "place": f.place, "text": f.text} for f in found.findings]
    outputs.put(json=lambda: json_text({"files": found.files, "findings": rows}))
    if not outputs.stdout_taken and found.findings:
        from kernelmark.report.tables import Column, Table

        columns = tuple(Column(name=name) for name in ("file", "bucket", "what is wrong"))
        rows_ = tuple((f.file, f.place or "–", f.text) for f in found.findings)
        put_table(Table(columns=columns, rows=rows_))
    if not quiet:
        say(f"{counted(found.files, 'file')}, {counted(len(found.findings), 'finding')}")
    return SOME_FOUND if found.findings else 0
