"""`kmark export` and `kmark import`: runs between stores and files."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import Outputs, say

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE…", help="Files that export or run --json wrote; - is stdin."),
]


def export(
    ref: o.RunRef = "latest",
    store: o.StorePlace = None,
    json: o.Json = None,
    csv: o.Csv = None,
    md: o.Md = None,
) -> int:
    """Write a run as JSON, CSV or Markdown.

    JSON is exact, for import; CSV is flat, in seconds and bytes. Without an option, JSON goes to
    stdout.
    """
    from kernelmark.cli.loading import loaded
    from kernelmark.cli.telling import put_results

    asked = Outputs(json=json, csv=csv, md=md)
    outputs = asked if asked.any else Outputs(json="-")
    with loaded(ref, store) as (results, _):
        put_results(results, outputs, table=False)
    return 0


def import_results(files: Files, store: o.StorePlace = None) -> int:
    """Bring exported runs into the store. What is there already stays as it is."""
    from kernelmark.cli.loading import read_results
    from kernelmark.stores import open_store

    # Every file is read before any is stored: a bad one leaves the store as it was.
    found = [read_results(file) for file in files]
    with open_store(store) as opened:
        for result_set in found:
            say(str(opened.add_result_set(result_set)))
    return 0
