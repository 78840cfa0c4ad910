"""`kmark plot`: a figure of stored runs, of history or of a tuning folder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.drawing import check_drawable, draw
from kernelmark.cli.output import put
from kernelmark.core.errors import UsageError

if TYPE_CHECKING:
    from kernelmark.report.vega import Spec


Drawn = tuple["Spec", str]  # a figure and its subtitle


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
    from kernelmark.report import figures

    given = {"x": x, "y": y, "base": base, "head": head}
    wrong = [name for name, value in given.items() if value and name not in _OPTIONS[kind]]
    if wrong:
        raise UsageError(f"{kind} has no --{wrong[0]}", hint=_options_hint(kind))
    path = check_drawable(figure)
    asked = _Asked(
        kind=kind,
        refs=tuple(refs or ()),
        store=store,
        picked={"ops": o.comma_list(ops), "backends": o.comma_list(backends), "regex": filter},
        given={name: value for name, value in given.items() if value},
    )
    spec, subtitle = _SPECS[kind](asked)
    draw(spec, path, figures.TITLES[kind], subtitle, dark=dark)
    if not quiet:
        put(f"{path}\n")
    return 0


_OPTIONS: dict[Kind, tuple[str, ...]] = {
    **dict.fromkeys(Kind, ()),
    Kind.ECDF: ("base",),
    Kind.SWEEP: ("x",),
    Kind.HEATMAP: ("x", "y", "base", "head"),
}


def _options_hint(kind: Kind) -> str:
    known = ", ".join(f"--{name}" for name in _OPTIONS[kind])
    return f"it has: {known}" if known else "it has no options of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What to draw: runs or a folder, which of their results, and the kind's own options."""

    kind: Kind
    refs: tuple[str, ...]
    store: str | None
    picked: dict[str, Any]
    given: dict[str, str]


def _of_results(asked: _Asked) -> Drawn:
    from kernelmark.api.roofs import memory_roofs
    from kernelmark.cli.loading import loaded
    from kernelmark.cli.showing import chosen
    from kernelmark.report import figures

    rows, roofs, names = [], [], []
    for ref in asked.refs or ("latest",):
        with loaded(ref, asked.store) as (results, store):
            found = chosen(results, statuses=(), case=None, place=(), **asked.picked)
            rows += found.timed
            roofs += list(found.roofs)
            if store is not None and asked.kind is Kind.ROOFLINE:
                roofs += memory_roofs(store, found.result_set)
            names.append(found.run.label or found.run.id)
    more: dict[str, Any] = {"roofs": roofs} if asked.kind is Kind.ROOFLINE else {}
    spec = figures.RESULT_KINDS[asked.kind](rows, **more, **asked.given)
    devices = ", ".join(dict.fromkeys(row.result.device for row in rows))
    return spec, f"{', '.join(names)}; {devices}"


def _of_history(asked: _Asked) -> Drawn:
    from kernelmark.api.comparing import history
    from kernelmark.cli.history import chosen
    from kernelmark.report import figures
    from kernelmark.report.history import by_worry
    from kernelmark.stores import open_store

    if asked.refs:
        raise UsageError("history takes no runs", hint="--filter, -o and -b choose series")
    with open_store(asked.store, readonly=True) as opened:
        found = history(opened)
    stories = by_worry(chosen(found, *asked.picked.values()))
    spec = figures.history(stories)
    return spec, f"{len(found.runs)} runs; the band is where the newest point was expected"


def _of_tuning(asked: _Asked) -> Drawn:
    from kernelmark.report import tuning_figure
    from kernelmark.tune.folder import TuningFolder

    if len(asked.refs) != 1:
        raise UsageError("tuning takes one folder", hint="for example: kmark plot tuning DIR")
    folder = TuningFolder.open(asked.refs[0])
    return tuning_figure.of_folder(folder), str(folder.path)


_SPECS = {
    **dict.fromkeys(Kind, _of_results),
    Kind.HISTORY: _of_history,
    Kind.TUNING: _of_tuning,
}
