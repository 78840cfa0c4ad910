"""`kmark micro`: microbenchmarks of the hardware, and precompiled bundles of their kernels.

`kmark micro --precompile gfx942,sm_90 -o DIR` writes a bundle; KERNELMARK_PACK=DIR uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.followups import kept_by, redacted
from kernelmark.cli.micro_pack import make_pack
from kernelmark.cli.output import check_drawable, check_writable, flush, put_table, say
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.units import counted, join_or

if TYPE_CHECKING:
    from kernelmark.api.results import Results
    from kernelmark.core.result import Result
    from kernelmark.micro.base import Mode
    from kernelmark.report.tables import Table
    from kernelmark.stores.store import Store

SOME_FAILED = 3
# Subcommands in place of a benchmark, and the options that apply to each.
VERBS = {
    "list": ("quiet",),
    "show": ("points", "figure", "store", "json", "csv", "md", "quiet"),
    "compare": ("figure", "store", "json", "csv", "md", "quiet"),
    "import": ("store", "quiet"),
}
HOW = "How much"
PACKS = "Precompiled bundles"
_EXAMPLE = "for example: kmark micro cache latency, kmark micro --quick (all), kmark micro list"


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME…]",
        help="Names of microbenchmarks; or list, show [RUN], compare A B, import FILE…, where "
        "RUN, A and B are ids from 'kmark list micro', latest, latest~1, or JSON files.",
    ),
]
All = Annotated[
    bool,
    o.option(
        "--all",
        o.SELECTION,
        help="Run all that support the device; so do --quick, --full and --brief without a name.",
    ),
]
Device = Annotated[
    str,
    o.option("-d --device DEVICE", o.SELECTION, help="Measure this device: cpu, cuda:0, hip:1."),
]
Threads = Annotated[int, o.option("--threads N", HOW, min=0, help="Use N CPU cores; 0 is all.")]
Quick = Annotated[
    bool, o.option("--quick", HOW, help="Take about a minute for all of them (the default).")
]
Full = Annotated[bool, o.option("--full", HOW, help="Sweep finer and take more samples: minutes.")]
Brief = Annotated[
    bool, o.option("--brief", HOW, help="Measure only what the headline metrics need.")
]
Chosen = Annotated[
    list[str] | None,
    o.option(
        "-p --parameter NAME=VALUE",
        HOW,
        help="Set a parameter of the benchmark ('kmark micro list NAME' lists them).",
    ),
]
Points = Annotated[
    bool, o.option("--points", o.OUTPUT, help="Show every point, not only the headline metrics.")
]
FigureFile = Annotated[
    str | None,
    o.option(
        "-f --figure FILE",
        o.OUTPUT,
        help="Draw a figure into FILE.png, .svg, .html (offline) or .json (Vega-Lite); with "
        "several benchmarks, FILE-NAME.png and so on.",
    ),
]
Archs = Annotated[
    list[str] | None,
    o.option(
        "--precompile ARCH",
        PACKS,
        help="Compile kernelmark's own kernels for these architectures: sm_90, gfx942. Repeatable. "
        "Needs no GPU.",
    ),
]
Folder = Annotated[
    str | None,
    o.option(
        "-o --output DIR",
        PACKS,
        help="Write the precompiled bundle to DIR. KERNELMARK_PACK=DIR lets every command use it.",
    ),
]


def micro(
    *,
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
    outputs: o.Outputs,
    quiet: o.Quiet = False,
    precompile: Archs = None,
    output: Folder = None,
) -> int:
    """Run microbenchmarks: caches, memory, instructions, launches.

    All of them, in about a minute: kmark micro --quick -d cuda:0

    Two of them: kmark micro cache latency

    Two stored runs: kmark micro compare latest~1 latest
    """
    names = o.comma_list(words)
    if precompile or output is not None:
        return make_pack(context, names, precompile, output, quiet=quiet)
    verb = names[0] if names and names[0] in VERBS else ""
    if verb:
        takes = ", ".join(f"--{name}" for name in VERBS[verb])
        o.check_alone(context, ("words", *VERBS[verb]), f"'micro {verb}'", hint=f"it takes {takes}")
    drawn = check_drawable(figure)
    refs = names[1:]
    if verb == "list":
        put_table(_listing(refs))
    elif verb == "import":
        _import(refs, store, quiet=quiet)
    elif verb == "compare":
        _compare(refs, store, outputs, drawn, quiet=quiet)
    elif verb:
        _check_count(refs, 1, "show", "run", hint="kmark micro show latest")
        results = _loaded(refs[0] if refs else "latest", store)
        _show(results, outputs, kept_by(_again(*names), store), points=points, figure=drawn)
    if verb:
        return 0
    if not (names or every or quick or full or brief):
        raise UsageError("nothing was asked for", hint=_EXAMPLE)
    mode = _mode(quick=quick, full=full, brief=brief)
    if drawn is not None:
        check_writable(str(drawn))
    from kernelmark.api.micro import is_run

    results, where = _measure(
        names,
        None if no_store else store or "",
        quiet=quiet,
        device=device,
        threads=threads,
        mode=mode,
        parameters=_parameters(parameter),
        argv=redacted(tuple(context.obj or ())),
        on_interrupt=lambda so_far: _show(
            so_far, outputs, contextlib.nullcontext(), points=points, figure=None
        ),
    )
    stored = not no_store and is_run(results.micro)
    kept = kept_by(_again("show", results.run.id) if stored else (), store)
    try:
        _show(results, outputs, kept, points=points, figure=drawn)
    finally:  # the run is stored even if a file cannot be written
        if not quiet:
            flush()  # both streams may be one pipe: the line comes after the table
            say(f"run {results.run.id}: {where}")
    return SOME_FAILED if results.failed else 0


def _compare(
    refs: Sequence[str], store: str | None, outputs: o.Outputs, figure: Path | None, *, quiet: bool
) -> None:
    """Run `kmark compare` on two runs of microbenchmarks; a regression does not fail it."""
    from kernelmark.api.load import is_file
    from kernelmark.api.micro import find_run
    from kernelmark.cli.compare import compare

    hint = "kmark micro compare A B, two different runs or files"
    _check_count(refs, 2, "compare", "run", hint=hint, least=2)
    runs = list(refs)
    if not all(map(is_file, refs)):
        with opened_for_micro(store) as opened:
            runs = [ref if is_file(ref) else find_run(ref, opened) for ref in refs]
    base, head = runs
    with kept_by(_again("compare", *refs), store):
        compare(
            base=base,
            head=head,
            fail_on=["none"],
            every=True,
            store=store,
            outputs=outputs,
            quiet=quiet,
        )
    if figure is not None:
        _draw([_loaded(ref, store) for ref in runs], figure)


def _check_count(
    words: Sequence[str], most: int, verb: str, what: str, *, hint: str, least: int = 0
) -> None:
    if not least <= len(words) <= most:
        raise UsageError(f"micro {verb} takes {counted(most, what)}, not {len(words)}", hint=hint)


def _loaded(ref: str, store: str | None) -> Results:
    """Return a run of microbenchmarks from the store or from a file."""
    from kernelmark.api.load import is_file, read_file
    from kernelmark.api.micro import find_run
    from kernelmark.api.results import Results

    if is_file(ref):
        return Results(read_file(ref))
    with opened_for_micro(store) as opened:
        return Results(opened.result_set(find_run(ref, opened)))


def opened_for_micro(place: str | None) -> Store:
    """Return the store, read-only; the hint for a missing one suggests `kmark micro`."""
    from kernelmark.stores import open_store

    try:
        return open_store(place, readonly=True)
    except KernelmarkError as error:
        if error.message.code in ("store-missing", "store-empty"):
            error.hint = "`kmark micro NAME` adds results"
        raise


def _import(files: Sequence[str], store_url: str | None, *, quiet: bool) -> None:
    from kernelmark.api.load import read_file
    from kernelmark.stores import open_store

    if not files:
        raise UsageError("nothing was asked for", hint="kmark micro import FILE.json")
    result_sets = [read_file(file) for file in files]  # all of them before any is stored
    with open_store(store_url) as store:
        for file, result_set in zip(files, result_sets, strict=True):
            added = store.add_result_set(result_set)
            if not quiet:
                say(f"{file}: {added}")


def _listing(names: Sequence[str]) -> Table:
    """Return a table of the benchmarks, or of the parameters of one."""
    from kernelmark.micro import registry
    from kernelmark.micro.session import named
    from kernelmark.report.tables import Column, Table

    _check_count(names, 1, "list", "benchmark", hint="kmark micro list cache")
    rows: list[tuple[str, ...]]
    titles: tuple[str, ...]
    if names:
        titles = ("parameter", "meaning", "brief", "quick", "full")
        rows = [
            (name, p.help, _shown(p.value("brief")), _shown(p.quick), _shown(p.value("full")))
            for name, p in named(names[0]).parameters.items()
        ]
    else:
        titles = ("benchmark", "what it measures", "devices")
        every = map(registry.get, registry.names())
        rows = [(b.name, b.summary, ", ".join(b.kinds)) for b in every]
    return Table(columns=tuple(Column(name=t) for t in titles), rows=tuple(rows))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        text = ", ".join(map(str, value))
        return text if len(text) < 40 else f"{value[0]}, … {value[-1]} ({len(value)})"
    return str(value)


def _measure(
    names: Sequence[str], store_url: str | None, *, quiet: bool, **how: Any
) -> tuple[Results, str]:
    """Measure as `how` asks `api.measure`, printing results as they arrive. Return the run and
    where it is stored; `store_url` None stores nothing."""
    from kernelmark.api import micro as api
    from kernelmark.core.micro import benchmark_name
    from kernelmark.core.units import counted, duration_text
    from kernelmark.report.results import status_text
    from kernelmark.stores import open_store

    chosen = list(names) or api.names_for(how["device"])
    pace = api.Pace(chosen, "{device}/{threads}/{mode}".format_map(how))
    noted: set[str] = set()

    def left() -> str:
        return "" if pace.left_s is None else f"about {duration_text(pace.left_s)}"

    def on_result(result: Result) -> None:
        name = benchmark_name(result.case.problem)
        pace.take(name)
        took = duration_text(result.cost.get("total", 0.0))
        reason = f": {result.error.splitlines()[0]}" if result.error else ""
        more = f" ({left()} left)" if pace.open and left() else ""
        if not quiet or result.status.failed:
            say(f"{name:<16} {status_text(result, result.headlines)}, {took}{reason}{more}")
        for note in result.notes:
            if note not in noted:  # once if several results have it
                tell(f"{name}: {note}")
        noted.update(result.notes)

    def tell(text: str) -> None:
        if not quiet:
            say(f"note: {text}")

    if not quiet and left():
        say(f"{counted(len(chosen), 'microbenchmark')} on {how['device']}, {left()}")
    with contextlib.ExitStack() as stack:
        stack.callback(pace.save)
        store = None
        if store_url is not None:
            store = stack.enter_context(open_store(store_url or None))
        results = api.measure(chosen, store=store, tell=tell, on_result=on_result, **how)
        stored = store is not None and api.is_run(results.micro)
        return results, f"stored in {store.where}" if store and stored else "not stored"


def _again(*words: str) -> tuple[str, ...]:
    """Return the command that writes the output of `kmark micro` with these words to a file."""
    return "micro", *words, "--csv", "FILE"


def _show(
    results: Results,
    outputs: o.Outputs,
    kept: AbstractContextManager[None],
    *,
    points: bool,
    figure: Path | None,
) -> None:
    from kernelmark.core.files import csv_text
    from kernelmark.report import micro as report
    from kernelmark.report.tables import markdown

    models = _models(results)
    tables = [report.points_table(r, models[r.device]) for r in results.micro if points and r.rows]
    tables.append(report.metrics_table(results.micro, every=points))
    if not outputs.stdout_taken:
        for table in tables:
            put_table(table)
    with kept:
        outputs.put(
            json=results.to_json,
            csv=lambda: csv_text(
                report.point_records(results.result_set), report.point_columns(results.result_set)
            ),
            md=lambda: "\n".join(map(markdown, tables)),
        )
    if figure is not None:
        _draw([results], figure)


def _models(results: Results) -> dict[str, str]:
    known = {info.name: info.model for info in results.run.environment.devices}
    return {result.device: known.get(result.device, "") for result in results.micro}


def _draw(runs: Sequence[Results], figure: Path) -> None:
    from kernelmark.core.micro import benchmark_name
    from kernelmark.report.micro_figure import figure as design
    from kernelmark.report.vega import save

    every = [(result, _models(run)[result.device]) for run in runs for result in run.micro]
    groups: dict[str, list[tuple[Result, str]]] = {}
    for result, model in every:
        if result.rows:
            groups.setdefault(benchmark_name(result.case.problem), []).append((result, model))
    if not groups and any(result.status.failed for result, _ in every):
        say("nothing is drawn: what failed has no points")
    elif not groups:
        raise NothingToDo(f"{figure.name} has no points to draw")
    # Count results without points too: whether one fails must not change the file names.
    alone = len({result.case.problem.op for result, _ in every}) == 1
    for name, group in groups.items():
        path = figure if alone else figure.with_name(f"{figure.stem}-{name}{figure.suffix}")
        results, models = zip(*group, strict=True)
        say(f"drawn: {save(design(results, models), path)}")


def _mode(**modes: bool) -> Mode:
    chosen = [name for name, on in modes.items() if on] or ["quick"]
    if len(chosen) > 1:
        options = tuple(f"--{name}" for name in chosen[1:])
        raise UsageError(f"{join_or(options)} cannot be combined with --{chosen[0]}")
    return chosen[0]  # type: ignore[return-value]


def _parameters(texts: Sequence[str] | None) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name or not value:
            hint = "-p sizes=4096,8192"
            raise UsageError(f"{text!r} is not NAME=VALUE", hint=hint)
        parameters[name] = value
    return parameters
