"""`kmark history`: series over time, their steps, and alarms to confirm."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmark.cli import completing
from kernelmark.cli import options as o
from kernelmark.cli.followups import extended, kept_by, store_words
from kernelmark.cli.output import check_drawable, draw, put, put_tables, say
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.text import found_in
from kernelmark.core.verdict import REGRESSION

if TYPE_CHECKING:
    from kernelmark.compare.history import History, Story
    from kernelmark.report.tables import Table
    from kernelmark.stores.store import Store

LOOKING = "Looking back"
BASELINES = "Baselines"
# Maximum series shown without a selection.
_MOST = 50
# Options that apply to the history of a microbenchmark.
_WITH_MICRO = ("micro", "runs", "arch", "store", "json", "csv", "md", "figure", "quiet")
_MICRO_HINT = (
    "it takes --runs, --arch and where the output goes; 'kmark micro compare' tells better from "
    "worse"
)

Runs = Annotated[int, o.option("--runs N", LOOKING, help="Use the N newest runs.")]
RunLabel = Annotated[
    str | None, o.option("--label TEXT", LOOKING, help="Use only runs with this label.")
]
Arch = Annotated[
    str | None, o.option("--arch ARCH", LOOKING, help="Use only this architecture, such as sm_90.")
]
MinEffect = Annotated[
    float,
    o.option(
        "--min-effect FRACTION", LOOKING, help="Ignore steps below this fraction: 0.02 is 2 %."
    ),
]
Canaries = Annotated[
    str,
    o.option(
        "--canaries SUITE",
        LOOKING,
        help="Use this suite as canaries: problems that should never change; if they do, alarms "
        "are suppressed. '' uses none.",
    ),
]
Sentinels = Annotated[
    str | None,
    o.option("--sentinels SUITE", LOOKING, hidden=True, help="The old name of --canaries."),
]
Changed = Annotated[
    bool, o.option("--changed", o.OUTPUT, help="Show only series with a step or an alarm.")
]
All = Annotated[bool, o.option("--all", o.OUTPUT, help="Show every series, not only the first 50.")]
Check = Annotated[
    bool,
    o.option(
        "--check",
        o.OUTPUT,
        help="Exit with code 1 if the newest point of a series is slower or broken and no canary "
        "moved.",
    ),
]
Baseline = Annotated[
    str | None,
    o.option(
        "--baseline RUN",
        BASELINES,
        help="Add a column with the change against this run: a pinned name, id or label.",
    ),
]
Pin = Annotated[
    str | None,
    o.option(
        "--pin NAME[=RUN]", BASELINES, help="Pin NAME to this run (default: the newest), and exit."
    ),
]
Unpin = Annotated[
    str | None, o.option("--unpin NAME", BASELINES, help="Remove a pinned name, and exit.")
]
Exclude = Annotated[
    list[str] | None,
    o.option(
        "--exclude RUN",
        LOOKING,
        complete=completing.runs,
        help="Leave this run out of every history from now on, and exit. Repeatable.",
    ),
]
Include = Annotated[
    list[str] | None,
    o.option(
        "--include RUN",
        LOOKING,
        complete=completing.runs,
        help="Include an excluded run again, and exit. Repeatable.",
    ),
]
Pins = Annotated[bool, o.option("--pins", BASELINES, help="List pinned names, and exit.")]


Micro = Annotated[
    str | None,
    o.option(
        "--micro NAME",
        LOOKING,
        help="Show the headline metrics of a microbenchmark instead; combines only with --runs, "
        "--arch and output options.",
    ),
]


def history(
    *,
    context: typer.Context,
    ops: o.Ops = None,
    backends: o.KeptBackends = None,
    filter: o.Filter = None,
    runs: Runs = 60,
    label: RunLabel = None,
    arch: Arch = None,
    min_effect: MinEffect = 0.02,
    canaries: Canaries = "sentinels",
    sentinels: Sentinels = None,
    baseline: Baseline = None,
    pin: Pin = None,
    unpin: Unpin = None,
    pins: Pins = False,
    exclude: Exclude = None,
    include: Include = None,
    changed: Changed = False,
    every: All = False,
    check: Check = False,
    micro: Micro = None,
    store: o.StorePlace = None,
    outputs: o.Outputs,
    figure: o.Figure = None,
    quiet: o.Quiet = False,
) -> int:
    """Show each series over the newest runs, with its steps.

    A series is a case on one architecture. A step is a change point, listed with what
    changed in the environment. The newest point of each series is screened. An alarm
    is not yet a regression: confirm it with the 'kmark ab' command that is printed.
    """
    from kernelmark.api.compare import history as look_back
    from kernelmark.stores import open_store

    drawn = check_drawable(figure)
    if runs < 1:
        raise UsageError(f"--runs must be above 0, not {runs:g}")
    if not 0 < min_effect < 1:
        raise UsageError(f"--min-effect must be above 0 and below 1, not {min_effect:g}")
    suites = None
    canaries = canaries if sentinels is None else sentinels
    if micro is not None:
        from kernelmark.core.micro import MICRO, MICRO_SUITE, ROOFS_SUITE
        from kernelmark.micro.session import named, plain_name

        o.check_alone(context, _WITH_MICRO, "--micro", hint=_MICRO_HINT)
        named(micro)
        ops, backends = [plain_name(micro)], [MICRO]
        suites, canaries = (MICRO_SUITE, ROOFS_SUITE), ""
    if exclude or include:
        with open_store(store) as opened:
            return _excluded(opened, exclude or (), include or ())
    if pin is not None or unpin is not None or pins:
        with open_store(store) as opened:
            return _pinned(opened, pin, unpin)
    with _opened(store, micro) as opened:
        if micro is not None and not opened.runs(limit=1, suites=suites):
            raise _not_stored(micro)
        found = look_back(
            opened,
            runs=runs,
            label=label,
            arch=arch,
            min_effect=min_effect,
            baseline=baseline,
            canaries=canaries,
            suites=suites,
        )
    picked = chosen(found, o.comma_list(ops), o.comma_list(backends), filter)
    if not picked and micro is not None:
        raise _not_stored(micro)
    if not picked:
        whole_history = extended("kmark history", store_words(store))
        raise NothingToDo(
            "no series matches", hint=f"there are {len(found.stories)}: {whole_history}"
        )
    shown = [s for s in picked if s.steps or s.alarm or s.held] if changed else picked
    whole = every or changed or bool(ops or backends or filter)
    most = len(shown) if whole else _MOST
    kept = kept_by(("history", "--micro", micro or "", "--csv", "FILE"), store)
    with kept if micro is not None else contextlib.nullcontext():
        worse = _print_series(
            found, shown, outputs, most=most, more=store_words(store), quiet=quiet
        )
    if drawn is not None:
        from kernelmark.report import figures
        from kernelmark.report.history import by_worry

        draw(figures.history(by_worry(shown)), drawn, figures.TITLES["history"])
    return REGRESSION if check and worse else 0


def _not_stored(micro: str) -> NothingToDo:
    return NothingToDo(f"no {micro} is stored", hint=f"measure it: kmark micro {micro}")


def _opened(store: str | None, micro: str | None) -> Store:
    from kernelmark.cli.micro import opened_for_micro
    from kernelmark.stores import open_store

    return open_store(store, readonly=True) if micro is None else opened_for_micro(store)


def _print_series(
    found: History,
    shown: list[Story],
    outputs: o.Outputs,
    *,
    most: int,
    more: Sequence[str],
    quiet: bool,
) -> list[Story]:
    """Print the series with `more` arguments in commands; return alarms that are not speed-ups."""
    from kernelmark.core.verdict import VerdictStatus

    names = {story.series for story in found.alarms}
    alarms = [story for story in shown if story.series in names]
    _put(found, shown, alarms, outputs, most=most, more=more)
    _print_notes(found, shown, alarms, more=more, quiet=quiet)
    return [story for story in alarms if story.screen.status is not VerdictStatus.FASTER]


def _pinned(store: Store, pin: str | None, unpin: str | None) -> int:
    from kernelmark.api.load import check_name

    pins = store.pins()
    # Check both first, so that a refusal of one leaves the other undone.
    if unpin is not None and unpin not in pins:
        raise UsageError(f"unknown pin {unpin!r}", hint=f"pinned: {', '.join(pins) or 'nothing'}")
    if pin is not None:
        name, _, ref = pin.partition("=")
        check_name(name, "the name")
        run = store.run(ref or "latest")
        if name not in pins and (taken := _run_id_of(store, name)) not in (None, run.id):
            raise UsageError(
                f"{name!r} is already the name of run {taken}",
                hint="pin another name: --pin NAME=RUN",
            )
        store.pin(name, run.id)
        say(f"{name} is now run {run.id}")
    if unpin is not None:
        store.unpin(unpin)
        say(f"{unpin} is forgotten")
    if pin is None and unpin is None:
        for name, run_id in pins.items():
            put(f"{name}  {run_id}\n")
        if not pins:
            say("no run is pinned; to pin one: kmark history --pin NAME=RUN")
    return 0


def _excluded(store: Store, out: Sequence[str], back: Sequence[str]) -> int:
    # Resolve all before changing any.
    found = [(store.run(ref), ref in out) for ref in (*out, *back)]
    for run, excluded in found:
        store.update_run(dataclasses.replace(run, excluded=excluded))
        say(f"run {run.id} is {'left out of' if excluded else 'part of'} every history")
    return 0


def _run_id_of(store: Store, name: str) -> str | None:
    """Return the id of the run that `name` refers to, or None."""
    try:
        return store.run(name).id
    except KernelmarkError:
        return None


def chosen(
    found: History, ops: tuple[str, ...], backends: tuple[str, ...], regex: str | None
) -> list[Story]:
    """Return the selected series."""
    from kernelmark.backends import canonical, is_file, parse
    from kernelmark.backends._lineage import own_kernels

    keys = [story.problem for story in found.stories]
    wanted = found_in(regex or "", keys, hint="it is what --filter was given")
    # Stored names of kernel files may predate the canonical form.
    named = {canonical(name) for name in backends}
    here = [parse(name) for name in backends if is_file(name) and Path(name).is_file()]
    named |= {kernel.name for kernel in own_kernels(here).values()}
    shown = []
    for story, fits in zip(found.stories, wanted, strict=True):
        backend = story.series.split(" | ")[1]
        if (
            (not ops or story.problem.split()[0] in ops)
            and (not named or backend in named or canonical(backend) in named)
            and fits
        ):
            shown.append(story)
    return shown


def _put(
    found: History,
    shown: list[Story],
    alarms: list[Story],
    outputs: o.Outputs,
    *,
    most: int,
    more: Sequence[str],
) -> None:
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report import history as report
    from kernelmark.report.tables import csv_names

    worst_first = report.by_worry(shown)
    if not outputs.stdout_taken:
        put_tables(_tables(found, worst_first[:most]))
        if len(shown) > most:
            say(
                f"note: {len(shown) - most} more series: --all shows them; -o, -b and --filter "
                "choose some, --changed those with a step or an alarm"
            )
    outputs.put(
        json=lambda: json_text(report.document(found, shown)),
        csv=lambda: csv_text(report.records(shown), csv_names(report.COLUMNS)),
        md=lambda: report.markdown_page(
            found, worst_first, alarms, _tables(found, worst_first), more
        ),
    )


def _tables(found: History, shown: list[Story]) -> list[Table]:
    from kernelmark.report import history as report

    made = [report.table(found, shown)] if shown else []
    if any(story.steps for story in shown):
        made.append(report.steps(found, shown))
    return made


def _print_notes(
    found: History, shown: list[Story], alarms: list[Story], *, more: Sequence[str], quiet: bool
) -> None:
    from kernelmark.core.units import counted
    from kernelmark.report import history as report

    if not quiet:
        for text in report.notes(found, shown):
            say(f"note: {text}")
    for text in report.alarm_lines(found, alarms, shown):
        say(text)
    commands = report.confirmations(found, alarms, more)
    if commands:
        say("confirm by paired rounds of the two environments:")
        for command in commands:
            say(f"  {command}")
    if text := report.unconfirmed(alarms):
        say(text)
    steps = sum(len(story.steps) for story in shown)
    held = sum(bool(story.held) for story in shown)
    say(
        f"{len(shown)} series over {counted(len(found.runs), 'run')}: {counted(steps, 'step')}, "
        f"{counted(len(alarms), 'alarm')}{f', {held} suppressed' if held else ''}"
    )
