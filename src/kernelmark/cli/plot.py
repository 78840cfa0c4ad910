"""`kmark plot`: draw a figure of stored runs, of their history or of a tuning folder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.output import check_drawable, put
from kernelmark.core.errors import UsageError

if TYPE_CHECKING:
    from kernelmark.api.plot import Figure


class Kind(StrEnum):
    ROOFLINE = "roofline"
    BARS = "bars"
    ECDF = "ecdf"
    SWEEP = "sweep"
    HEATMAP = "heatmap"
    SAMPLES = "samples"
    HISTORY = "history"
    TUNING = "tuning"


KindName = Annotated[
    Kind,
    typer.Argument(
        metavar="KIND",
        help="roofline, bars (time relative to the fastest), ecdf (speed-ups), sweep (rate over a "
        "dim), heatmap (ratio of two backends over two dims), samples, history or tuning.",
    ),
]
Refs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN…",
        autocompletion=completing.runs,
        help="Runs by id, label or JSON file (default: latest); a folder for tuning.",
    ),
]
File = Annotated[
    str,
    o.option(
        "-f --figure FILE",
        o.OUTPUT,
        help="Draw into FILE.png, .svg, .html (offline, with tooltips) or .json (Vega-Lite).",
    ),
]
X = Annotated[str, o.option("--x DIM", help="Put this dim on the x axis.")]
Y = Annotated[str, o.option("--y DIM", help="Put this dim on the y axis of a heatmap.")]
Base = Annotated[str, o.option("--base BACKEND", help="Compare others with this backend.")]
Head = Annotated[
    str, o.option("--head BACKEND", help="Compare this backend with --base in a heatmap.")
]
Dark = Annotated[bool, o.option("--dark", help="Draw on a dark background.")]


def plot(
    kind: KindName,
    refs: Refs = None,
    figure: File = "figure.html",
    x: X = "",
    y: Y = "",
    base: Base = "",
    head: Head = "",
    ops: o.Ops = None,
    backends: o.KeptBackends = None,
    filter: o.Filter = None,
    dark: Dark = False,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Draw a figure of runs, their history or a tuning folder.

    For example: kmark plot roofline -f roofline.png

    Or: kmark plot sweep golden nightly --x m -f sweep.html
    """
    from kernelmark.api.plot import check_options

    asked = _Asked(
        kind=kind,
        refs=tuple(refs or ()),
        store=store,
        picked={"ops": o.comma_list(ops), "backends": o.comma_list(backends), "regex": filter},
        options=check_options(kind.value, x=x, y=y, base=base, head=head),
        dark=dark,
    )
    path = check_drawable(figure)
    _FIGURES[kind](asked).save(path)
    if not quiet:
        put(f"{path}\n")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The request: runs or a folder, the selected results and the options of the kind."""

    kind: Kind
    refs: tuple[str, ...]
    store: str | None
    picked: dict[str, Any]
    options: dict[str, str]
    dark: bool


def _of_results(asked: _Asked) -> Figure:
    from kernelmark.api import plot
    from kernelmark.api.load import loaded
    from kernelmark.api.roofs import memory_roofs
    from kernelmark.cli.show import chosen

    found = []
    for ref in asked.refs or ("latest",):
        with loaded(ref, asked.store) as (results, store):
            kept = chosen(results, statuses=(), case=None, place=(), **asked.picked)
            found.append((kept, memory_roofs(store, kept.result_set)))
    return plot.of_results(asked.kind.value, found, asked.options, dark=asked.dark)


def _of_history(asked: _Asked) -> Figure:
    from kernelmark.api import plot
    from kernelmark.api.compare import history
    from kernelmark.cli.history import chosen
    from kernelmark.report.history import by_worry
    from kernelmark.stores import open_store

    if asked.refs:
        raise UsageError(
            f"plot history takes 0 runs, not {len(asked.refs)}",
            hint="--filter, -o and -b choose series",
        )
    with open_store(asked.store, readonly=True) as opened:
        found = history(opened)
    stories = by_worry(chosen(found, **asked.picked))
    return plot.of_history(stories, len(found.runs), dark=asked.dark)


def _of_tuning(asked: _Asked) -> Figure:
    from kernelmark.api import plot

    if len(asked.refs) != 1:
        raise UsageError(
            f"plot tuning takes 1 folder, not {len(asked.refs)}",
            hint="for example: kmark plot tuning DIR",
        )
    return plot.of_tuning(asked.refs[0], dark=asked.dark)


_FIGURES = {**dict.fromkeys(Kind, _of_results), Kind.HISTORY: _of_history, Kind.TUNING: _of_tuning}
