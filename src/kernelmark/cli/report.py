"""`kmark report`: write one self-contained file about one or more runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.output import put, say
from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unwritable
from kernelmark.core.units import join_commas

if TYPE_CHECKING:
    from kernelmark.report.changes import Change
    from kernelmark.report.page import Part

_SUFFIXES = (".html", ".md")
Refs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN…",
        autocompletion=completing.runs,
        help="Runs by id, label or JSON file (default: latest).",
    ),
]
Out = Annotated[
    str,
    o.option("-o -f --file FILE", o.OUTPUT, help="Write FILE.html (one offline page) or FILE.md."),
]
Title = Annotated[str, o.option("--title TEXT", o.OUTPUT, help="Set the heading.")]
Svgs = Annotated[
    str | None,
    o.option("--figures DIR", o.OUTPUT, help="Also write the figures as SVG files into DIR."),
]


def report(
    refs: Refs = None,
    file: Out = "report.html",
    title: Title = "kernelmark report",
    svgs: Svgs = None,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Write an HTML or Markdown report of runs.

    It has a summary in words, tables, figures, failures, the environment and the
    commands that repeat it. With several runs it begins with what changed from the
    first to the last. Figures need: pip install "kernelmark[plots]"
    """
    from kernelmark.api.load import loaded
    from kernelmark.api.roofs import memory_roofs
    from kernelmark.report import page, vega

    path = Path(file)
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"{file}: the file name must end in one of {join_commas(_SUFFIXES)}")
    parts = []
    for ref in refs or ("latest",):
        with loaded(ref, store) as (results, opened):
            parts.append(
                page.Part(
                    results=results.result_set,
                    rows=results.rows,
                    roofs=results.roofs,
                    levels=memory_roofs(opened, results.result_set),
                    notes=results.notes,
                )
            )
    changes = _changes(parts)
    missing = vega.missing()
    if path.suffix == ".md":
        text = page.markdown_page(parts, title, changes)
    else:
        text = page.html_page(parts, title, drawn=missing is None, changes=changes)
        if missing is not None and not quiet:
            say(f"note: there are no figures: {missing}")
    try:
        path.write_text(text, encoding="utf-8")
        for number, part in enumerate(parts if svgs else (), 1):
            for kind, spec in page.figure_specs(part).items():
                folder = Path(svgs or "")
                folder.mkdir(parents=True, exist_ok=True)
                vega.save(spec, folder / f"{number}-{kind}.svg")
    except OSError as error:
        raise UsageError(
            file_unwritable(error.filename or path, error), hint="name another file"
        ) from None
    if not quiet:
        put(f"{path}\n")
    return 0


def _changes(parts: Sequence[Part]) -> list[Change]:
    """Return the changes from the first run to the last; [] if they share no case."""
    from kernelmark.api.compare import compare
    from kernelmark.core.errors import NothingToDo
    from kernelmark.report.changes import of_comparison

    if len(parts) < 2:
        return []
    try:
        return of_comparison(compare(parts[0].results, parts[-1].results))
    except NothingToDo:
        return []
