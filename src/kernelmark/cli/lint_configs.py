"""`kmark lint-configs`: find unreachable and invalid entries in folders of Triton configs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import put_table, say
from kernelmark.core.errors import UsageError
from kernelmark.core.units import counted

SOME_FOUND = 1


def lint_configs(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A folder with aiter's gemm/ or gfx…/ folders, or with JSON files of vLLM or "
            "SGLang.",
        ),
    ],
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> int:
    """Check JSON configs of aiter, vLLM and SGLang for errors.

    Finds entries that no lookup reaches, and values that no kernel can be built with.

    For example: kmark lint-configs aiter/ops/triton/configs
    """
    from kernelmark.core.files import json_text
    from kernelmark.tune.install import aiter_config, nearest_config

    outputs = o.Outputs(json=json)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    lints = [lint(folder) for lint in (aiter_config.lint, nearest_config.lint)]
    files = sum(lint.files for lint in lints)
    findings = [finding for lint in lints for finding in lint.findings]
    if not files:
        raise UsageError(
            f"{folder} has no configs", hint="give the folder above gemm/ and gfx…/, or of JSONs"
        )
    unchecked = sum(1 for _ in folder.rglob("*.json")) - files
    rows = [{"file": f.file, "place": f.entry, "text": f.text} for f in findings]
    outputs.put(json=lambda: json_text({"files": files, "unchecked": unchecked, "findings": rows}))
    if not outputs.stdout_taken and findings:
        from kernelmark.report.tables import Column, Table

        columns = tuple(Column(name=name) for name in ("file", "entry", "what is wrong"))
        rows_ = tuple((f.file, f.entry or "–", f.text) for f in findings)
        put_table(Table(columns=columns, rows=rows_))
    if not quiet:
        say(f"{counted(files, 'file')}, {counted(len(findings), 'finding')}")
        if unchecked:
            say(f"not checked, because of another kind: {counted(unchecked, 'JSON file')}")
    return SOME_FOUND if findings else 0
