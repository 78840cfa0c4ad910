"""`kmark micro`: what the hardware can do, by microbenchmarks; and packs of compiled kernels.

`kmark micro --precompile gfx942,sm_90 -o DIR` makes a pack; KERNELMARK_PACK=DIR uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.micro_pack import make_pack
from kernelmark.cli.micro_stored import VERBS, check_options, compared, obey
from kernelmark.cli.output import Outputs, check_writable, put_table, say
from kernelmark.cli.places import kept_by
from kernelmark.core.errors import NothingToDo, UsageError

if TYPE_CHECKING:
    from kernelmark.core.micro import MicroResult
    from kernelmark.micro.base import Mode

SOME_FAILED = 3
HOW = "How much"
PACKS = "Precompiled bundles"
_EXAMPLE = "for example: kmark micro cache latency, kmark micro --quick (all), kmark micro list"


def _flag(panel: str, name: str, help: str) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME…]",
        help="Microbenchmarks; or: list, show [RUN], compare A B, import FILE…. RUN, A and B "
        "are runs "
        "of microbenchmarks (an id of 'kmark list micro', latest, latest~1) or JSON files of them.",
    ),
]
All = Annotated[
    bool,
    _flag(
        o.SELECTION,
        "--all",
        "All that run on the device; --quick, --full or --brief without a name mean it too.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        *("-d", "--device"),
        metavar="DEVICE",
        help="The device: cpu, cuda:0, hip:1.",
        rich_help_panel=o.SELECTION,
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads", metavar="N", min=0, help="Cores of a CPU; 0 is all.", rich_help_panel=HOW
    ),
]
Quick = Annotated[bool, _flag(HOW, "--quick", "About a minute for all of them; the default.")]
Full = Annotated[bool, _flag(HOW, "--full", "Finer sweeps and more samples: minutes.")]
Brief = Annotated[bool, _flag(HOW, "--brief", "Only what the headline metrics need.")]
Chosen = Annotated[
    list[str] | None,
    typer.Option(
        *("-p", "--parameter"),
        metavar="NAME=VALUE",
        help="Set a parameter of the benchmark ('kmark micro list NAME' lists them).",
        rich_help_panel=HOW,
    ),
]
Points = Annotated[bool, _flag(o.OUTPUT, "--points", "Every point, not the headlines alone.")]
FigureFile = Annotated[
    str | None,
    typer.Option(
        *("-f", "--figure"),
        metavar="FILE",
        help="Draw a figure into FILE.png, .svg, .html (offline) or .json (Vega-Lite); with "
        "several "
        "benchmarks, FILE-NAME.png and so on.",
        rich_help_panel=o.OUTPUT,
    ),
]
Archs = Annotated[
    list[str] | None,
    typer.Option(
        "--precompile",
        metavar="ARCH",
        help="Compile the devices' own kernels for these architectures. Repeatable: "
        "sm_90, gfx942. No GPU is needed.",
        rich_help_panel=PACKS,
    ),
]
Folder = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        help="Write the precompiled bundle to DIR. KERNELMARK_PACK=DIR lets every command use it.",
        rich_help_panel=PACKS,
    ),
]


def micro(
    context: typer.Context,
    words: Words = None,
    every: All = False,
    device: Device = "cpu",
    quick: Quick = False,
    full: Full = False,
    brief: Brief = False,
    threads: Threads = 0,
    parameter: Chosen = None,
    points: Points = False,
    figure: FigureFile = None,
    store: o.StorePlace = None,
    no_store: o.NoStore = False,
    json: o.Json = None,
    csv: o.Csv = None,
    md: o.Md = None,
    quiet: o.Quiet = False,
    precompile: Archs = None,
    output: Folder = None,
) -> int:
    """Run microbenchmarks of a device: caches, memory, instructions, matrix units, launches.

    Examples: kmark micro --quick · kmark micro cache latency · kmark micro --full -d cuda:0 ·
    kmark micro compare latest~1 latest
    """
    names = o.comma_list(words)
    if precompile or output is not None:
        return make_pack(context, names, precompile, output, quiet=quiet)
    if names and names[0] in VERBS:
        check_options(context, names[0])
    outputs = Outputs(json=json, csv=csv, md=md)
    drawn = _checked(figure)
    if names and names[0] in VERBS:
        _stored(names, store, outputs, points=points, figure=drawn, quiet=quiet)
        return 0
    if not (names or every or quick or full or brief):
        raise UsageError("no benchmark is named", hint=_EXAMPLE)
    mode = _mode(quick=quick, full=full, brief=brief)
    if drawn is not None:
        check_writable(str(drawn))
    ended: list[MicroResult] = []
    try:
        run_id = _measure(
            names,
            ended,
            device=device,
            threads=threads,
            mode=mode,
            parameters=_parameters(parameter),
            place=None if no_store else store or "",
            quiet=quiet,
        )
    except KeyboardInterrupt:
        if ended:
            _show(ended, outputs, contextlib.nullcontext(), points=points, figure=None)
        raise
    kept = kept_by(() if no_store else _again("show", run_id), store)
    _show(ended, outputs, kept, points=points, figure=drawn)
    return SOME_FAILED if any(result.status.failed for result in ended) else 0


def _stored(
    words: Sequence[str],
    store: str | None,
    outputs: Outputs,
    *,
    points: bool,
    figure: Path | None,
    quiet: bool,
) -> None:
    """What is asked of results that are there already."""
    verb, *rest = words
    if verb == "compare":
        sides = compared(rest, store, outputs, quiet=quiet)
        if figure is not None:
            _draw([*sides[0], *sides[1]], figure)
        return
    found = obey(verb, rest, store, quiet=quiet)
    if found is not None:
        _show(found, outputs, kept_by(_again(*words), store), points=points, figure=figure)


def _measure(
    names: Sequence[str],
    ended: list[MicroResult],
    *,
    device: str,
    threads: int,
    mode: Mode,
    parameters: dict[str, str],
    place: str | None,
    quiet: bool,
) -> str:
    """The run's id. Results are told line by line as they come and are then in `ended`, also when
    the run is interrupted; `place` is None where nothing is to be stored."""
    from kernelmark.api import micro as api
    from kernelmark.core.units import duration_text
    from kernelmark.stores import open_store

    chosen = list(names) or api.names_for(device)

    told: set[str] = set()

    def on_result(result: MicroResult) -> None:
        ended.append(result)
        took = duration_text(result.cost.get("total", 0.0))
        reason = f": {result.error.splitlines()[0]}" if result.error else ""
        if not quiet or result.status.failed:
            say(f"{result.benchmark:<16} {result.status.value}, {took}{reason}")
        for note in result.notes:
            if note not in told:  # what all of them have is said once
                tell(f"{result.benchmark}: {note}")
        told.update(result.notes)

    def tell(text: str) -> None:
        if not quiet:
            say(f"note: {text}")

    def measure(store: Any) -> str:
        run_id, _ = api.measure(
            chosen,
            device=device,
            threads=threads,
            mode=mode,
            parameters=parameters,
            store=store,
            tell=tell,
            on_result=on_result,
        )
        if not quiet:
            where = f"stored in {store.where}" if store is not None else "not stored"
            say(f"microbenchmarks {run_id}: {where}")
        return run_id

    if place is None:
        return measure(None)
    with open_store(place or None) as opened:
        return measure(opened)


def _again(*words: str) -> tuple[str, ...]:
    """The command that writes what these words show into a file."""
    return "micro", *words, "--csv", "FILE"


def _show(
    results: Sequence[MicroResult],
    outputs: Outputs,
    kept: AbstractContextManager[None],
    *,
    points: bool,
    figure: Path | None,
) -> None:
    from kernelmark.api.micro import to_json
    from kernelmark.core.files import csv_text
    from kernelmark.report import micro as report
    from kernelmark.report.render import markdown

    tables = [report.points_table(r) for r in results if r.rows] if points else []
    tables.append(report.headline_table(results, every=points))
    if not outputs.stdout_taken:
        for table in tables:
            put_table(table)
    with kept:
        outputs.put(
            json=lambda: to_json(results),
            csv=lambda: csv_text(report.records(results)),
            md=lambda: "\n".join(map(markdown, tables)),
        )
    if figure is not None:
        _draw(results, figure)


def _draw(results: Sequence[MicroResult], figure: Path) -> None:
    from kernelmark.report.micro_figure import figure as design
    from kernelmark.report.vega import save

    groups: dict[str, list[MicroResult]] = {}
    for result in results:
        if result.rows:
            groups.setdefault(result.benchmark, []).append(result)
    if not groups and any(result.status.failed for result in results):
        say("nothing is drawn: what failed has no points")
    elif not groups:
        raise NothingToDo("there are no points to draw")
    # One that has no points was asked for as well: what came of it must not change a name.
    alone = len({result.benchmark for result in results}) == 1
    for name, group in groups.items():
        path = figure if alone else figure.with_name(f"{figure.stem}-{name}{figure.suffix}")
        say(f"drawn: {save(design(group), path)}")


def _checked(figure: str | None) -> Path | None:
    """Refuse a figure that cannot be drawn before anything is measured."""
    if figure is None:
        return None
    from kernelmark.report.vega import check_ready

    return check_ready(figure)


def _mode(*, quick: bool, full: bool, brief: bool) -> Mode:
    asked = [name for name, on in (("quick", quick), ("full", full), ("brief", brief)) if on]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} does not go with --{asked[1]}")
    return asked[0] if asked else "quick"  # type: ignore[return-value]


def _parameters(words: Sequence[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"parameter {word!r} is not NAME=VALUE", hint="-p sizes=4096,8192")
        found[name] = value
    return found
