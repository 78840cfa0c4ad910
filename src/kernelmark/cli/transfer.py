"""`kmark export` and `kmark import`: runs between stores and files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import Outputs, say
from kernelmark.core.errors import UsageError

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE…",
        help="Files that export or run --json wrote, - is stdin; or files of other tools: nvbench "
        "and Google Benchmark JSON, hipblaslt-bench output, tritonbench and reference CSVs, "
        "rocprofv3 traces.",
    ),
]
FOREIGN = "Files of other tools"


def _foreign(name: str, *, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, rich_help_panel=FOREIGN)


Form = Annotated[
    str | None,
    _foreign(
        "--as",
        metavar="FORMAT",
        help="The format: nvbench, googlebench, hipblaslt-bench, tritonbench, rocprof or "
        "reference-csv. Default: found out.",
    ),
]
Label = Annotated[str, _foreign("--label", metavar="TEXT", help="A name for the run.")]
Backend = Annotated[str, _foreign("--backend", metavar="NAME", help="What computed the results.")]
Device = Annotated[str, _foreign("--device", metavar="DEVICE", help="Where, as hip:0.")]
Arch = Annotated[
    str, _foreign("--arch", metavar="ARCH", help="The device's architecture, as gfx942.")
]
Started = Annotated[
    str | None,
    _foreign(
        "--started",
        metavar="DATE",
        help="When, as 2024-10-01. Default: what the file says, else its date.",
    ),
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


def import_results(
    files: Files,
    form: Form = None,
    label: Label = "",
    backend: Backend = "",
    device: Device = "",
    arch: Arch = "",
    started: Started = None,
    store: o.StorePlace = None,
) -> int:
    """Bring exported runs, or results of other tools, into the store. What is there stays as it is.

    A mean without dispersion enters history and threshold rules only.
    """
    from kernelmark.api.reading import read_file
    from kernelmark.stores import open_store
    from kernelmark.workloads.importers.base import Given, iso_time

    when = None if started is None else iso_time(started)
    if started is not None and when is None:
        raise UsageError(f"--started {started!r} is not a date", hint="write: 2024-10-01")
    given = Given(label=label, backend=backend, device=device, arch=arch, started=when)
    # Every file is read before any is stored: a bad one leaves the store as it was.
    found = [read_file(file, given, form) for file in files]
    with open_store(store) as opened:
        for result_set in found:
            say(str(opened.add_result_set(result_set)))
    return 0
