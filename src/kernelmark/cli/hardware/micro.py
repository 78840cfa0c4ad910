"""`kmark micro` and `kmark roofs`: microbenchmarks of the hardware, its measured peaks, and
precompiled bundles of their kernels.

`kmark micro --precompile gfx942,sm_90 -o DIR` writes a bundle; KERNELMARK_PACK=DIR uses it.
"""

from __future__ import annotations

import contextlib
import itertools
import platform
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmark.cli import options as o
from kernelmark.cli.options import complete_devices
from kernelmark.cli.output import (
    check_drawable,
    check_writable,
    draw,
    extended,
    flush,
    kept_by,
    put,
    put_table,
    redacted,
    say,
    store_words,
    write,
)
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.files import file_unwritable
from kernelmark.core.units import counted, join_commas, join_or
from kernelmark.core.verdict import REGRESSION, SOME_FAILED

if TYPE_CHECKING:
    from kernelmark.api.results import Results
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.metric import Roof
    from kernelmark.core.result import Result
    from kernelmark.micro.base import Mode
    from kernelmark.report.tables import Table
    from kernelmark.stores.store import Store

# Options that apply to a bundle; `words` has a separate check.
_WITH_PACK = ("precompile", "output", "quiet", "words")


def make_pack(
    context: typer.Context,
    names: Sequence[str],
    precompile: list[str] | None,
    output: str | None,
    *,
    quiet: bool,
) -> int:
    """Compile the requested bundle; return the exit code."""
    archs = list(o.comma_list(precompile))
    if not precompile:
        raise UsageError(
            "-o needs --precompile", hint="results go where --json, --csv, --md and -f say"
        )
    if names:
        raise UsageError(
            f"--precompile takes 0 benchmarks, not {len(names)}", hint="it compiles all kernels"
        )
    o.check_alone(
        context,
        _WITH_PACK,
        "--precompile",
        hint="it takes architectures and -o DIR; nothing is measured",
    )
    if output is None:
        raise UsageError("--precompile needs -o", hint="add: -o DIR")
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{output} is not a folder", hint="choose another folder: -o DIR")
    try:
        return _compile_into(folder, archs, quiet=quiet)
    except OSError as error:
        raise UsageError(
            file_unwritable(output, error), hint="choose another folder: -o DIR"
        ) from None


def _compile_into(folder: Path, archs: list[str], *, quiet: bool) -> int:
    """Compile every kernel file for every architecture, one line each; return the exit code."""
    from kernelmark.core.units import bytes_text
    from kernelmark.gpu.architectures import check, precompile
    from kernelmark.kernels import rtc

    for arch in archs:
        check(arch)
    compiled = failed = 0
    sources = {name: rtc.source(name) for name in rtc.names()}
    special = [(n, t) for a in archs for n in sources if (t := rtc.target(n, a)) not in archs]
    jobs = itertools.chain(
        precompile(sources, archs, folder),
        *(precompile({name: sources[name]}, [target], folder) for name, target in special),
    )
    for job in jobs:
        if job.path is None:
            failed += 1
            hint = f"; {job.hint}" if job.hint else ""
            put(f"{job.arch}  {job.name}  failed  {job.reason.splitlines()[0]}{hint}\n")
        else:
            compiled += 1
            put(f"{job.arch}  {job.name}  ok  {bytes_text(job.nbytes)}  {job.path}\n")
    where = shlex.quote(str(folder.resolve()))
    use = f"use them with KERNELMARK_PACK={where}" if compiled else "each line above says why"
    if failed or not quiet:
        say(f"{compiled} compiled, {failed} failed; {use}")
    return SOME_FAILED if failed else 0


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
        common=True,
    ),
]
Device = Annotated[
    str,
    o.option(
        "-d --device DEVICE",
        o.SELECTION,
        help="Measure this device: cpu, cuda:0, hip:1.",
        common=True,
    ),
]
Threads = Annotated[int, o.option("--threads N", HOW, min=0, help="Use N CPU cores; 0 is all.")]
Fleet = Annotated[
    bool,
    o.option(
        "--fleet",
        o.SELECTION,
        help="Measure all devices that -d names (cuda:0-7, all; with --runner a kind or model) at "
        "the same time, and exit 1 if some are slower than others of their model.",
    ),
]
Quick = Annotated[
    bool,
    o.option(
        "--quick", HOW, help="Take about a minute for all of them (the default).", common=True
    ),
]
Full = Annotated[
    bool, o.option("--full", HOW, help="Sweep finer and take more samples: minutes.", common=True)
]
Brief = Annotated[
    bool, o.option("--brief", HOW, help="Measure only what the headline metrics need.")
]
Chosen = Annotated[
    list[str] | None,
    o.option(
        "-p --parameter NAME=VALUE",
        HOW,
        help="Set a parameter of the benchmark ('kmark micro list NAME' lists them).",
        common=True,
    ),
]
Points = Annotated[
    bool,
    o.option(
        "--points", o.OUTPUT, help="Show every point, not only the headline metrics.", common=True
    ),
]
FigureFile = Annotated[
    str | None,
    o.option(
        "-f --figure FILE",
        o.OUTPUT,
        help="Draw a figure into FILE.png, .svg, .html (offline) or .json (Vega-Lite); with "
        "several benchmarks, FILE-NAME.png and so on.",
        common=True,
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
    fleet: Fleet = False,
    runner: o.Runner = "local",
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

    The slow GPU of a cluster: kmark micro --fleet --quick --runner HOST:PORT -d H200
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
        _check_count(refs, "show", "run", hint="kmark micro show latest")
        results = _loaded(refs[0] if refs else "latest", store)
        _show(results, outputs, kept_by(_again(*names), store), points=points, figure=drawn)
    if verb:
        return 0
    if not (names or every or quick or full or brief):
        raise UsageError("nothing was asked for", hint=_EXAMPLE)
    if fleet and threads:
        raise UsageError("--threads cannot be combined with --fleet")
    mode = _mode(quick=quick, full=full, brief=brief)
    if drawn is not None:
        check_writable(str(drawn))
    from kernelmark.api.micro import is_run

    with o.placed(runner, quiet=quiet):
        results, where = _measure(
            names,
            None if no_store else store or "",
            quiet=quiet,
            device=device,
            fleet=o.comma_list([device]) if fleet else (),
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
    is_slow = fleet and _put_fleet(results, is_shown=not outputs.stdout_taken)
    return REGRESSION if is_slow else SOME_FAILED if results.failed else 0


def _put_fleet(results: Results, *, is_shown: bool) -> bool:
    """Print the fleet's range of each metric; return whether a device is slow."""
    from kernelmark.report.fleet import fleet_metrics, fleet_table

    metrics = fleet_metrics(results.micro, results.run.environment.devices)
    if is_shown and metrics:
        put("\n")
        put_table(fleet_table(metrics))
        flush()
    return any(metric.slow for metric in metrics)


def _compare(
    refs: Sequence[str], store: str | None, outputs: o.Outputs, figure: Path | None, *, quiet: bool
) -> None:
    """Run `kmark compare` on two runs of microbenchmarks; a regression does not fail it."""
    from kernelmark.api.micro import find_run
    from kernelmark.api.results import is_file
    from kernelmark.cli.compare.compare import CompareOptions, compare

    hint = "kmark micro compare A B, two different runs or files"
    _check_count(refs, "compare", "run", counts=(2,), hint=hint)
    runs = list(refs)
    if not all(map(is_file, refs)):
        with opened_for_micro(store) as opened:
            runs = [ref if is_file(ref) else find_run(ref, opened) for ref in refs]
    base, head = runs
    with kept_by(_again("compare", *refs), store):
        options = CompareOptions(
            fail_on=["none"], every=True, store=store, outputs=outputs, quiet=quiet
        )
        compare(base=base, head=head, options=options)
    if figure is not None:
        _draw([_loaded(ref, store) for ref in runs], figure)


def _check_count(
    names: Sequence[str], verb: str, noun: str, *, counts: Sequence[int] = (0, 1), hint: str
) -> None:
    if len(names) not in counts:
        most = counted(max(counts), noun)
        raise UsageError(f"micro {verb} takes {most}, not {len(names)}", hint=hint)


def _loaded(ref: str, store: str | None) -> Results:
    """Return a run of microbenchmarks from the store or from a file."""
    from kernelmark.api.micro import find_run
    from kernelmark.api.results import Results, is_file, read_file

    if is_file(ref):
        return Results(read_file(ref))
    with opened_for_micro(store) as opened:
        return Results(opened.result_set(find_run(ref, opened)))


def opened_for_micro(url: str | None) -> Store:
    """Return the store, read-only; the hint for a missing one suggests `kmark micro`."""
    from kernelmark.stores import open_store

    try:
        return open_store(url, readonly=True)
    except KernelmarkError as error:
        if error.message.code in ("store-missing", "store-empty"):
            error.hint = "`kmark micro NAME` adds results"
        raise


def _import(files: Sequence[str], store_url: str | None, *, quiet: bool) -> None:
    from kernelmark.api.results import read_file
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

    _check_count(names, "list", "benchmark", hint="kmark micro list cache")
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

    fleet = how["fleet"]
    chosen = list(names) or (api.names_for_fleet(fleet) if fleet else api.names_for(how["device"]))
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
            shown = f"{name} {result.device}" if fleet else name
            say(f"{shown:<16} {status_text(result, result.headlines)}, {took}{reason}{more}")
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


def _again(*arguments: str) -> tuple[str, ...]:
    """Return the command that writes the output of `kmark micro` with these words to a file."""
    return "micro", *arguments, "--csv", "FILE"


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
    models = {info.name: info.model for info in results.run.environment.devices}
    return {result.device: models.get(result.device, "") for result in results.micro}


def _draw(runs: Sequence[Results], figure: Path) -> None:
    from kernelmark.core.micro import benchmark_name
    from kernelmark.report.micro import micro_figure as design
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


# Newest runs that are searched for a description of a device.
_RECENT = 50
DeviceCeilings = tuple["DeviceInfo | None", "tuple[Roof, ...]"]
Stored = Annotated[
    bool, o.option("--stored", o.OUTPUT, help="Show the newest stored roofs; measure nothing.")
]
MeasuredDevices = Annotated[
    o.Words,
    o.option(
        "-d --device DEVICE",
        o.SELECTION,
        complete=complete_devices,
        help="Measure these devices: cpu, cuda:0, cuda:0-7, all. Default: cpu.",
    ),
]
RoofThreads = Annotated[
    int, o.option("--threads N", o.MEASUREMENT, min=0, help="Use N CPU cores; 0 is all.")
]


def roofs(
    devices: MeasuredDevices = None,
    threads: RoofThreads = 0,
    stored: Stored = False,
    store: o.StorePlace = None,
    no_store: o.NoStore = False,
    json: o.Json = None,
    figure: o.Figure = None,
    quiet: o.Quiet = False,
) -> int:
    """Measure a device's peaks: FLOP/s, bytes/s, launch cost.

    The column 'of roof' of a run is relative to the roofs that were the newest when
    the run began. The column share compares a roof with the vendor's data sheet, if
    that is known; it is only shown here. A CPU has roofs of its vector units and of
    main memory only.
    """
    from kernelmark.runners import targets
    from kernelmark.stores import open_store

    if json is not None:
        check_writable(json)
    drawn = check_drawable(figure)
    if stored and no_store:
        raise UsageError("--no-store cannot be combined with --stored")
    names = o.comma_list(devices) or ("cpu",)
    absent = stored and all(map(_is_absent_gpu, names))
    infos = [] if absent else targets.parse_devices(names)
    for info in infos:
        targets.check_threads(info, threads)
    results: list[DeviceCeilings]
    if no_store:
        results = [(info, _measured(info, threads, None, quiet=quiet)) for info in infos]
    else:
        with open_store(store, readonly=stored) as opened:
            if absent:
                results = [_stored_absent(name, opened, store) for name in names]
            elif stored:
                results = [(info, _stored(info, threads, opened, store)) for info in infos]
            else:
                results = [(info, _measured(info, threads, opened, quiet=quiet)) for info in infos]
    again = () if no_store else ("roofs", "--stored", "--json", "FILE")
    with kept_by(again, store):
        _put(results, json)
        if drawn is not None:
            _draw_roofs(results, drawn)
    return 0


def _draw_roofs(results: Sequence[DeviceCeilings], path: Path) -> None:
    """Render one figure per device, to FILE-DEVICE.png and so on if there are several."""
    from kernelmark.report import figures

    for info, ceilings in results:
        device, model = ceilings[0].device, info.model if info else ceilings[0].model
        own = path.with_name(f"{path.stem}-{device.replace(':', '')}{path.suffix}")
        target = own if len(results) > 1 else path
        draw(
            figures.ceilings(ceilings), target, figures.TITLES["roofs"], f"{device} {model}".strip()
        )


def _measured(
    info: DeviceInfo, threads: int, store: Store | None, *, quiet: bool
) -> tuple[Roof, ...]:
    from kernelmark.api.roofs import DeviceRoofs, measure_roofs

    def tell(text: str) -> None:
        if not quiet:
            say(f"note: {text}")

    measured = measure_roofs(DeviceRoofs(info=info, threads=threads), store, tell)
    if not measured:
        raise NothingToDo(
            f"no roof of {info.name} could be measured", hint="kmark micro says what went wrong"
        )
    return measured


def _stored(info: DeviceInfo, threads: int, store: Store, url: str | None) -> tuple[Roof, ...]:
    host = platform.node()
    ceilings = store.roofs(host=host, device=info.name, arch=info.arch, threads=threads or None)
    if not ceilings:
        options = (*(("--threads", str(threads)) if threads else ()), *store_words(url))
        devices = dict.fromkeys(roof.device for roof in store.roofs(host=host))
        other_devices = tuple(device for device in devices if device != info.name)
        raise NothingToDo(
            f"no roofs of {info.name}"
            + (f" with {counted(threads, 'thread')}" if threads else "")
            + " are stored for this host"
            + (f"; there are some of {join_commas(other_devices)} (-d)" if other_devices else ""),
            hint=f"measure them: {extended(f'kmark roofs -d {info.name}', options)}",
        )
    return ceilings


def _is_absent_gpu(name: str) -> bool:
    """Return whether `name` is a GPU that is not available here; stored roofs do not need it."""
    from kernelmark.devices import registry
    from kernelmark.runners import targets

    kind, _, index = name.partition(":")
    if kind in ("cpu", "fake") or kind not in registry or not (index or "0").isdigit():
        return False
    try:
        targets.find(name)
    except UsageError:
        return True
    return False


def _stored_absent(name: str, store: Store, url: str | None) -> DeviceCeilings:
    """Return the stored roofs of an unavailable device, and its description from a stored run."""
    host = platform.node()
    device = name if ":" in name else f"{name}:0"
    ceilings = store.roofs(host=host, device=device)
    if not ceilings:
        raise NothingToDo(
            f"no roofs of {device} are stored for this host",
            hint="measure them where it is: "
            f"{extended(f'kmark roofs -d {device}', store_words(url))}",
        )
    infos = (info for run in store.runs(_RECENT) for info in run.environment.devices)
    seen = (info for info in infos if (info.name, info.arch) == (device, ceilings[0].arch))
    return next(seen, None), ceilings


def _put(results: Sequence[DeviceCeilings], json: str | None) -> None:
    from kernelmark.core import codec
    from kernelmark.core.files import json_text
    from kernelmark.report.micro import roofs_table

    if json is not None:
        documents: list[Any] = [
            codec.to_document(roof) for _, ceilings in results for roof in ceilings
        ]
        write(json, json_text(documents))
    if json != "-":
        for info, ceilings in results:
            put_table(roofs_table(ceilings, info))
