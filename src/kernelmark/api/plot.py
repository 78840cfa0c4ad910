"""plot: draw a figure of runs, of the stored history, or of a tuning folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.api.results import Results
from kernelmark.core.errors import UsageError
from kernelmark.report import figures, vega
from kernelmark.report.results import ResultRow
from kernelmark.report.vega import Spec

if TYPE_CHECKING:
    from kernelmark.compare.history import Story
    from kernelmark.core.metric import Roof
    from kernelmark.core.result import Run
    from kernelmark.stores import StoreArgument
    from kernelmark.stores.store import Store

ROOFLINE, HISTORY, TUNING = "roofline", "history", "tuning"
KINDS = (*figures.RESULT_KINDS, HISTORY, TUNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure as a Vega-Lite spec; notebooks display it."""

    spec: Spec

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure to a .png, .svg, .html (offline, with tooltips) or .json file."""
        return vega.save(self.spec, os.fspath(path))

    def __repr__(self) -> str:
        return f"<Figure: {self.spec.get('title', {}).get('text', 'untitled')}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        """What notebooks show: a drawing, which needs no network; without the extra `plots` the
        Vega-Lite spec, which JupyterLab draws itself."""
        bundle: dict[str, object] = {"text/plain": repr(self)}
        if vega.missing() is None:
            return bundle | {"image/svg+xml": vega.svg(self.spec)}
        return bundle | {"application/vnd.vegalite.v6+json": self.spec}


def plot(
    kind: str,
    *what: Results | str | os.PathLike[str],
    store: StoreArgument = True,
    x: str = "",
    y: str = "",
    base: str = "",
    head: str = "",
    dark: bool = False,
) -> Figure:
    """Draw a figure: roofline, bars, ecdf, sweep, heatmap, samples, history or tuning.

        km.plot("roofline").save("roofline.html")
        km.plot("sweep", golden, "nightly", x="m")

    kind: the kind of figure.
    what: `Results`, or runs as `load` takes them (default: the latest run). `history` takes none
        and draws every series of the store; `tuning` takes one tuning folder.
    store: path or URL (default: the user's store).
    x, y: dims of sweep and heatmap.
    base, head: backends of ecdf and heatmap.
    dark: use the dark theme.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown figure {kind!r}", hint=f"kinds: {', '.join(KINDS)}")
    options = check_options(kind, x=x, y=y, base=base, head=head)
    if kind == HISTORY:
        if what:
            raise UsageError(f"{kind} takes no runs", hint="it draws every series of the store")
        return _stored_history(store, dark=dark)
    if kind == TUNING:
        if len(what) != 1 or isinstance(what[0], Results):
            raise UsageError(f"{kind} takes one folder")
        return of_tuning(what[0], dark=dark)
    runs = [_loaded(kind, source, store) for source in what or ("latest",)]
    return of_results(kind, runs, options, dark=dark)


def check_options(kind: str, **options: str) -> dict[str, str]:
    """Return the options that are not empty; raise UsageError for one that the kind lacks."""
    set_options = {name: value for name, value in options.items() if value}
    allowed = figures.OPTIONS.get(kind, ())
    for name in set_options:
        if name not in allowed:
            names = ", ".join(allowed)
            hint = f"it has: {names}" if names else "it has no options of its own"
            raise UsageError(f"unknown option {name!r} of {kind}", hint=hint)
    return set_options


def of_results(
    kind: str,
    runs: Sequence[tuple[Results, Sequence[Roof]]],
    options: Mapping[str, str],
    *,
    dark: bool = False,
) -> Figure:
    """Return the figure of runs, each given with additional roofs of memory levels."""
    names = _names([results for results, _ in runs])
    rows: list[ResultRow] = []
    roofs: list[Roof] = []
    for (results, levels), name in zip(runs, names, strict=True):
        own = results.timed
        if len(runs) > 1:  # compare the same backend between runs
            own = [dataclasses.replace(row, backend=f"{row.backend} ({name})") for row in own]
        rows += own
        roofs += [*results.roofs, *levels]
    more = {"roofs": roofs} if kind == ROOFLINE else {}
    spec = figures.RESULT_KINDS[kind](rows, **more, **options)
    devices = ", ".join(dict.fromkeys(row.result.device for row in rows))
    return _themed(kind, spec, f"{', '.join(names)}; {devices}", dark=dark)


def of_history(stories: Sequence[Story], runs: Sequence[Run], *, dark: bool = False) -> Figure:
    """Return the figure of series over these runs."""
    spec = figures.history(stories, [run.environment for run in runs])
    return _themed(HISTORY, spec, f"{len(runs)} runs", dark=dark)


def of_tuning(path: str | os.PathLike[str], *, dark: bool = False) -> Figure:
    """Return the figure of a tuning folder."""
    from kernelmark.report import tuning
    from kernelmark.tune.folder import TuningFolder

    folder = TuningFolder.open(os.fspath(path))
    return _themed(TUNING, tuning.folder_figure(folder), str(folder.path), dark=dark)


def _themed(kind: str, spec: Spec, subtitle: str, *, dark: bool) -> Figure:
    title = figures.TITLES[kind]
    return Figure(spec=figures.themed(spec, title=title, subtitle=subtitle, dark=dark))


def _names(runs: Sequence[Results]) -> list[str]:
    """Return the labels of the runs if they are unique, else the ids."""
    labels = [results.run.label for results in runs]
    if "" in labels or len(set(labels)) < len(labels):
        return [results.run.id for results in runs]
    return labels


def levels_of(kind: str, results: Results, store: Store | None) -> Sequence[Roof]:
    """Return the roofs of memory levels that a figure of this kind draws, as far as known."""
    if kind != ROOFLINE:
        return ()
    from kernelmark.api.roofs import memory_roofs

    return memory_roofs(store, results.result_set)


def _loaded(
    kind: str, source: Results | str | os.PathLike[str], store: StoreArgument
) -> tuple[Results, Sequence[Roof]]:
    if isinstance(source, Results):
        return source, ()
    from kernelmark.api.results import loaded

    with loaded(source, store) as (results, target):
        return results, levels_of(kind, results, target)


def _stored_history(store: StoreArgument, *, dark: bool) -> Figure:
    from kernelmark.api.compare import history
    from kernelmark.report.history import by_worry
    from kernelmark.stores import opened

    with opened(True if store is None else store, readonly=True) as target:
        if target is None:
            raise UsageError(f"{HISTORY} takes a store", hint="leave out store=False")
        past = history(target)
    return of_history(by_worry(past.stories), past.runs, dark=dark)
