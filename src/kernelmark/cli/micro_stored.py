"""What `kmark micro` does with results that are there already: list, show, compare, import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from kernelmark.cli.options import check_alone
from kernelmark.cli.output import Outputs, put_table, put_tables, say
from kernelmark.cli.places import kept_by
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.core.reason import Reason
from kernelmark.core.units import counted

if TYPE_CHECKING:
    from kernelmark.core.micro import MicroResult
    from kernelmark.report.tables import Table
    from kernelmark.stores.store import Store

# What means something for each of them.
VERBS = {
    "list": ("quiet",),
    "show": ("points", "figure", "store", "json", "csv", "md", "quiet"),
    "compare": ("figure", "store", "json", "csv", "md", "quiet"),
    "import": ("store", "quiet"),
}


def check_options(context: typer.Context, verb: str) -> None:
    """Refuse options that would be ignored."""
    kept = VERBS[verb]
    takes = ", ".join(f"--{name}" for name in kept)
    check_alone(context, ("words", *kept), f"'micro {verb}'", hint=f"it takes {takes}")


def obey(
    verb: str, rest: Sequence[str], place: str | None, *, quiet: bool
) -> list[MicroResult] | None:
    """What list, show or import gives to be shown; None where it has said everything itself."""
    if verb == "list":
        if len(rest) > 1:
            raise UsageError("list takes one benchmark", hint="kmark micro list cache")
        put_table(_listing(rest))
        return None
    from kernelmark.api import micro as api

    if verb == "import":
        _import(rest, place, quiet=quiet)
        return None
    if len(rest) > 1:
        raise UsageError("show takes one run", hint="kmark micro show latest")
    return api.results_of(rest[0] if rest else "latest", lambda: opened(place))


def compared(
    refs: Sequence[str], place: str | None, outputs: Outputs, *, quiet: bool
) -> tuple[list[MicroResult], list[MicroResult]]:
    """Two runs or files side by side, in a table or where `outputs` says; their results."""
    from kernelmark.api import micro as api
    from kernelmark.core.files import csv_text, json_text
    from kernelmark.report import micro_compare as report
    from kernelmark.report.render import markdown

    if len(refs) != 2:
        raise UsageError("two different runs or files are needed", hint="kmark micro compare A B")
    base, head = (api.results_of(ref, lambda: opened(place)) for ref in refs)
    table = report.table(base, head)
    if not table.rows:
        told = [", ".join(dict.fromkeys(r.benchmark for r in side)) for side in (base, head)]
        raise NothingToDo(
            "the two have no metric in common", hint=f"the first has {told[0]}, the other {told[1]}"
        )
    for note in () if quiet else report.notes(base, head):
        say(f"note: {note}")
    records = report.records(base, head)
    if not outputs.stdout_taken:
        put_table(table)
    with kept_by(("micro", "compare", *refs, "--csv", "FILE"), place):
        outputs.put(
            json=lambda: json_text(records),
            csv=lambda: csv_text(records),
            md=lambda: markdown(table),
        )
    return base, head


def opened(place: str | None) -> Store:
    """The store to read from; one that is missing is made by this command, not by `kmark run`."""
    from kernelmark.stores import open_store

    try:
        return open_store(place, readonly=True)
    except KernelmarkError as error:
        hint = Reason.of(error.hint or "")
        if hint.code == "fill-store":
            error.hint = hint.having(command="kmark micro NAME")
        raise


def _import(files: Sequence[str], place: str | None, *, quiet: bool) -> None:
    from kernelmark.api import micro as api
    from kernelmark.stores import new_run_id, open_store

    if not files:
        raise UsageError("import takes files", hint="kmark micro import FILE.json")
    found = [(file, api.read(file)) for file in files]
    with open_store(place) as store:
        known = {_mark(result) for _, result in store.micro()}
        for file, results in found:
            run_id = new_run_id()
            fresh = [result for result in results if _mark(result) not in known]
            known |= {_mark(result) for result in fresh}
            store.add_micro(run_id, fresh)
            done = "everything in it is in the store already; nothing was added"
            if fresh:
                done = f"{counted(len(fresh), 'result')} stored as {run_id}"
            if not quiet:
                say(f"{file}: {done}")


def _mark(result: MicroResult) -> tuple[object, ...]:
    """What tells one result from all others."""
    return result.host, result.device, result.benchmark, result.started


def history(name: str, place: str | None, outputs: Outputs, *, limit: int, arch: str | None) -> int:
    """`kmark history --micro NAME`: headline metrics of one benchmark, run by run, a table for
    each series of runs that can be compared."""
    from kernelmark.api.micro import to_json
    from kernelmark.core.files import csv_text
    from kernelmark.micro.session import named
    from kernelmark.report import micro_history as report
    from kernelmark.report.render import markdown

    benchmark = named(name).name
    with opened(place) as store:
        found = store.micro(benchmark=benchmark, arch=arch, limit=limit)
        every = found or store.micro(benchmark=benchmark)
    if not every:
        raise NothingToDo(
            f"no {benchmark} is stored", hint=Reason("measure-micro", names=benchmark)
        )
    if not found:
        archs = sorted({result.arch for _, result in every})
        raise NothingToDo(
            f"no {benchmark} is stored for {arch}", hint=f"stored is: {', '.join(archs)}"
        )
    tables = report.tables(found)
    if not outputs.stdout_taken:
        put_tables(tables)
    with kept_by(("history", "--micro", benchmark, "--csv", "FILE"), place):
        outputs.put(
            json=lambda: to_json(result for _, result in found),
            csv=lambda: csv_text(report.records(found)),
            md=lambda: "\n".join(map(markdown, tables)),
        )
    return 0


def _listing(names: Sequence[str]) -> Table:
    """The benchmarks, or the parameters of one."""
    from kernelmark.micro import registry
    from kernelmark.micro.session import named
    from kernelmark.report.tables import Column, Table

    rows: list[tuple[str, ...]]
    titles: tuple[str, ...]
    if names:
        given = named(names[0]).parameters
        titles = ("parameter", "meaning", "brief", "quick", "full")
        rows = [
            (name, p.help, _shown(p.value("brief")), _shown(p.quick), _shown(p.value("full")))
            for name, p in given.items()
        ]
    else:
        titles = ("benchmark", "what it measures", "devices")
        things = [registry.get(name) for name in registry.names()]
        rows = [(b.name, b.summary, ", ".join(b.kinds)) for b in things]
    return Table(columns=tuple(Column(name=t) for t in titles), rows=tuple(rows))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        text = ", ".join(map(str, value))
        return text if len(text) < 40 else f"{value[0]}, … {value[-1]} ({len(value)})"
    return str(value)
