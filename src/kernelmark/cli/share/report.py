"""`kmark report`, `plot`, `serve`, `push`, `site` and `token`: results to share."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.options import complete_runs
from kernelmark.cli.output import check_drawable, put, put_table, say, write
from kernelmark.core.errors import UsageError
from kernelmark.core.files import file_unreadable, file_unwritable
from kernelmark.core.units import counted, join_commas

if TYPE_CHECKING:
    from kernelmark.api.plot import Figure
    from kernelmark.report.changes import Change
    from kernelmark.report.page import Part

_NEEDED = ("fastapi", "uvicorn", "jinja2")
Host = Annotated[
    str,
    o.option(
        "--host ADDRESS",
        help="Bind to this address. If other hosts can reach it, readers need a token, unless "
        "--public is set.",
    ),
]
Port = Annotated[
    int, o.option("--port N", min=0, max=65535, help="Listen on this port; 0 is any free one.")
]
Public = Annotated[
    bool, o.option("--public", help="Let everybody read without a token; reject every push.")
]
TuningFolders = Annotated[
    list[str] | None, o.option("--tuning DIR", help="Also show this tuning folder. Repeatable.")
]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8765,
    public: Public = False,
    tuning: TuningFolders = None,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Serve the dashboard of a store over HTTP.

    It shows what changed, runs, series, results and rooflines. Pages update while a
    run is in progress; ?format=json returns a page as JSON. Other hosts send their
    runs with 'kmark push'.

    For example: kmark serve --port 8080
    """
    _require(*_NEEDED)
    from kernelmark.web import app

    folders = [_folder(name) for name in tuning or ()]
    with app.open_served(store, public=public) as opened:
        notes = []
        if opened.readonly and not public:
            notes.append(f"note: {opened.where} is read-only here: every push is rejected")
        if not opened.runs(limit=1):
            notes.append(f"note: {opened.where} has no runs yet: kmark run or kmark push adds them")

        def on_message(text: str) -> None:
            # The URL comes first: scripts read it.
            for line in (text, *notes):
                say(line)
            notes.clear()

        return app.serve(
            opened,
            host=host,
            port=port,
            public=public,
            tuning=folders,
            on_message=(lambda text: None) if quiet else on_message,
        )


Url = Annotated[
    str, typer.Argument(metavar="URL", help="The URL of the dashboard: https://host:8765.")
]
PushedRefs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN…", help="Runs by id, label or latest~1 (default: latest)."),
]
TokenFile = Annotated[
    Path | None,
    o.option("--token-file FILE", help="Read the token from FILE. Default: $KERNELMARK_TOKEN."),
]
Patience = Annotated[
    float,
    o.option(
        "--patience SECONDS", min=0, help="Retry for this long if the server does not answer."
    ),
]


def push(
    url: Url,
    refs: PushedRefs = None,
    token_file: TokenFile = None,
    patience: Patience = 120.0,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Send stored runs to a dashboard on another host.

    The dashboard is a 'kmark serve'. Results that it has are not sent again: repeat
    the command after an interruption, or while a run is in progress.

    For example: kmark push https://dashboard:8765 latest
    """
    from kernelmark.api import push as pushes
    from kernelmark.stores import open_store

    token = _token(token_file)
    with open_store(store, readonly=True) as opened:
        done = pushes.push(
            opened,
            refs or ["latest"],
            url,
            token,
            patience_s=patience,
            tell=(lambda text: None) if quiet else say,
        )
    for item in done if not quiet else ():
        say(
            f"run {item.run_id}: {counted(item.added, 'result')} pushed, {item.known} already there"
        )
    return 0


def _token(file: Path | None) -> str:
    try:
        token = os.environ.get("KERNELMARK_TOKEN", "") if file is None else file.read_text()
    except OSError as error:
        raise UsageError(file_unreadable(file, error)) from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{file}: is not UTF-8 text", hint="it holds the token and nothing else"
        ) from None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError(
            "there is no token to push with",
            hint="set KERNELMARK_TOKEN or give --token-file; where the dashboard runs, "
            "'kmark token create NAME --scope write' makes one",
        )
    return token


token = typer.Typer(
    no_args_is_help=True, help="Create, list and revoke access tokens of a dashboard."
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The user or host of the token, such as gpu-host-3.")
]
ScopeName = Annotated[
    str, o.option("--scope SCOPE", help="Allow to read, or with write also to push.")
]


@token.command("create")
def create_token(name: Name, scope: ScopeName = "read", store: o.StorePlace = None) -> int:
    """Create a token and print it once; only its digest is stored."""
    from kernelmark.stores import open_store
    from kernelmark.stores.store import Scope

    if scope not in tuple(Scope):
        raise UsageError(f"unknown scope {scope!r}", hint=f"scopes: {', '.join(Scope)}")
    with open_store(store) as opened:
        put(opened.create_token(name, Scope(scope)) + "\n")
    return 0


@token.command("list")
def list_tokens(store: o.StorePlace = None, json: o.Json = None) -> int:
    """List the names and scopes of tokens."""
    from kernelmark.core.files import json_text
    from kernelmark.report.tables import Column, date_text, record, tabulate
    from kernelmark.stores import open_store

    columns = (
        Column("name", "name"),
        Column("scope", "scope.value"),
        Column("created", "created", text=lambda item: f"{date_text(item.created)} UTC"),
    )
    with open_store(store, readonly=True) as opened:
        tokens = opened.tokens()
    if json is not None:
        write(json, json_text([record(columns, entry) for entry in tokens]))
    else:
        put_table(tabulate(columns, tokens))
    return 0


@token.command("revoke")
def revoke_token(name: Name, store: o.StorePlace = None) -> int:
    """Revoke a token: requests that use it are rejected."""
    from kernelmark.stores import open_store

    with open_store(store) as opened:
        opened.revoke_token(name)
    say(f"token {name} is revoked")
    return 0


SiteFolder = Annotated[Path, o.option("-o --output DIR", help="Write to this folder.")]
SiteRuns = Annotated[int, o.option("--runs N", min=1, help="Write pages of the N newest runs.")]
EveryResult = Annotated[
    bool,
    o.option(
        "--every-result",
        help="Write a page for each result and series, and whole pages of every run. By default,"
        " results have one that are not ok, unreliable, or of a changed series.",
    ),
]
Merged = Annotated[
    list[str] | None,
    o.option("--merge PATH|URL", help="Also show the runs of this store. Repeatable."),
]


def site(
    output: SiteFolder,
    runs: SiteRuns = 20,
    every_result: EveryResult = False,
    tuning: TuningFolders = None,
    merge: Merged = None,
    store: o.StorePlace = None,
    quiet: o.Quiet = False,
) -> int:
    """Write the dashboard as static files.

    For any web host, or as a CI artifact: links are relative. Each page of the newest
    runs and of their series is also written as JSON. Figures need:
    pip install "kernelmark\\[plots]"

    For example: kmark site -o public
    """
    _require("jinja2")
    from kernelmark.core.micro import ROOFS_SUITE
    from kernelmark.stores import open_store
    from kernelmark.web.site import write_site
    from kernelmark.web.source import RUNS, Source

    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(open_store(store, readonly=True))
        if merge:
            whole = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "merged.sqlite"
            others = [stack.enter_context(open_store(name, readonly=True)) for name in merge]
            merged = stack.enter_context(open_store(whole))
            for one in (opened, *others):
                newest, _ = one.find_runs(limit=max(runs, RUNS))
                for run in reversed(newest):
                    merged.copy_run(one, run)
                for run in one.runs(suites=(ROOFS_SUITE,)):
                    merged.copy_run(one, run)
                merged.mark(mark for of_series in one.marks().values() for mark in of_series)
            opened = merged
        source = Source(opened, [_folder(name) for name in tuning or ()])
        count, plain = write_site(source, output, runs=runs, every_result=every_result)
    if not quiet:
        put(f"{output / 'index.html'}\n")
        more = (
            f"; {counted(plain, 'result')} and series without one: --every-result" if plain else ""
        )
        say(f"{counted(count, 'page')} written{more}")
    return 0


def _require(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the dashboard needs {', '.join(missing)}, which is not installed",
            hint='pip install "kernelmark[web]"',
        )


def _folder(name: str) -> Path:
    from kernelmark.tune.folder import TuningFolder

    return TuningFolder.open(name).path.resolve()


_SUFFIXES = (".html", ".md")
Refs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN…",
        autocompletion=complete_runs,
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
    first to the last. Figures need: pip install "kernelmark\\[plots]"
    """
    from kernelmark.api.results import loaded
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
DrawnRefs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN…",
        autocompletion=complete_runs,
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
    refs: DrawnRefs = None,
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

    request = _FigureRequest(
        kind=kind,
        refs=tuple(refs or ()),
        store=store,
        picked={"ops": o.comma_list(ops), "backends": o.comma_list(backends), "regex": filter},
        options=check_options(kind.value, x=x, y=y, base=base, head=head),
        dark=dark,
    )
    path = check_drawable(figure)
    _FIGURES[kind](request).save(path)
    if not quiet:
        put(f"{path}\n")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _FigureRequest:
    """The request: runs or a folder, the selected results and the options of the kind."""

    kind: Kind
    refs: tuple[str, ...]
    store: str | None
    picked: dict[str, Any]
    options: dict[str, str]
    dark: bool


def _of_results(request: _FigureRequest) -> Figure:
    from kernelmark.api import plot
    from kernelmark.api.results import loaded
    from kernelmark.cli.store.listing import chosen

    result_sets = []
    for ref in request.refs or ("latest",):
        with loaded(ref, request.store) as (results, store):
            kept = chosen(results, statuses=(), case=None, store_options=(), **request.picked)
            result_sets.append((kept, plot.levels_of(request.kind.value, kept, store)))
    return plot.of_results(request.kind.value, result_sets, request.options, dark=request.dark)


def _of_history(request: _FigureRequest) -> Figure:
    from kernelmark.api import plot
    from kernelmark.api.compare import history
    from kernelmark.cli.compare.compare import chosen
    from kernelmark.report.history import by_worry
    from kernelmark.stores import open_store

    if request.refs:
        raise UsageError(
            f"plot history takes 0 runs, not {len(request.refs)}",
            hint="--filter, -o and -b choose series",
        )
    with open_store(request.store, readonly=True) as opened:
        record = history(opened)
    stories = by_worry(chosen(record, **request.picked))
    return plot.of_history(stories, record.runs, dark=request.dark)


def _of_tuning(request: _FigureRequest) -> Figure:
    from kernelmark.api import plot

    if len(request.refs) != 1:
        raise UsageError(
            f"plot tuning takes 1 folder, not {len(request.refs)}",
            hint="for example: kmark plot tuning DIR",
        )
    return plot.of_tuning(request.refs[0], dark=request.dark)


_FIGURES = {**dict.fromkeys(Kind, _of_results), Kind.HISTORY: _of_history, Kind.TUNING: _of_tuning}
