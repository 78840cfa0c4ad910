"""`kmark list`: available ops, backends, devices, suites, runs and more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import check_writable, put_table, put_tables, say, write
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason

if TYPE_CHECKING:
    from kernelmark.backends.base import Backend
    from kernelmark.core.result import Run
    from kernelmark.report.tables import Table
    from kernelmark.stores.store import Store

What = Annotated[
    Literal[
        "ops",
        "backends",
        "devices",
        "suites",
        "runs",
        "micro",
        "dtypes",
        "logs",
        "strategies",
        "emitters",
    ],
    typer.Argument(
        metavar="WHAT",
        help="ops, backends, devices, suites, runs, micro (runs of microbenchmarks), dtypes, logs "
        "(formats of call logs), strategies (of tune) or emitters (formats of tuned configs).",
    ),
]
OneOp = Annotated[
    str | None, o.option("-o --op OP", help="With ops, list this op's parameters and tensors.")
]
_MODEL = "model, or why it is not there"
_WHY = "why it exists"
_WRITES = "what it writes"
# Columns of sentences that need no label if a narrow terminal moves them below their rows.
_SENTENCES = (_MODEL, _WHY, _WRITES)
RunLimit = Annotated[int, o.option("--limit N", min=0, help="List the N newest runs; 0: all.")]


def list_things(
    what: What,
    op: OneOp = None,
    limit: RunLimit = 20,
    store: o.StorePlace = None,
    json: o.Json = None,
) -> int:
    """List ops, backends, devices, suites, runs and more.

    For example: kmark list suites

    The parameters and tensors of one op: kmark list ops -o gemm
    """
    if json is not None:
        check_writable(json)
    if op is not None and what != "ops":
        raise UsageError(
            Reason("options-exclusive", options=("-o",), other=f"'list {what}'"),
            hint="use: kmark list ops -o OP",
        )
    if json is not None:
        from kernelmark.core.files import json_text

        write(json, json_text(_document(what, op, limit, store)))
    elif what == "runs":
        put_table(runs(store, limit))
    elif what == "micro":
        put_table(micro_runs(store, limit))
    elif op is not None:
        _put_op(op)
    else:
        table = {
            "ops": ops,
            "backends": backends,
            "devices": devices,
            "suites": suites,
            "dtypes": dtypes,
            "logs": logs,
            "strategies": strategies,
            "emitters": emitters,
        }[what]()
        put_table(table)
    if what in ("runs", "micro") and limit:
        _say_hidden(what, limit, store)
    return 0


def _say_hidden(what: str, limit: int, place: str | None) -> None:
    """Print how many runs there are, if more than `limit`."""
    from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
    from kernelmark.stores import open_store

    with open_store(place, readonly=True) as store:
        total = store.count_runs(None if what == "runs" else (MICRO_SUITE, ROOFS_SUITE))
    if limit < total:
        say(f"the newest {limit} of {total} runs; all: --limit 0")


def _document(what: str, op: str | None, limit: int, store: str | None) -> object:
    """Return the JSON values of `kmark list`."""
    from kernelmark.cli import listing_json as made

    if what == "runs":
        return made.runs(store, limit)
    if what == "micro":
        return made.micro_runs(store, limit)
    return getattr(made, what)() if op is None else made.op(op)


def _put_op(name: str) -> None:
    """Print the parameters of an op and the tensors derived from them."""
    from kernelmark.ops import registry

    op = registry.get(name)
    tables = [_table(("parameter", "meaning"), list(op.parameters.items()), title="parameters")]
    if op.tensor_help:
        names = ("tensor", "role", "shape", "dtype", "when")
        rows = [(t.name, t.role, t.shape, t.dtype, t.when) for t in op.tensor_help]
        tables.append(_table(names, rows, title="tensors"))
    put_tables(tables)


def ops() -> Table:
    from kernelmark.ops import registry

    rows = []
    for name in registry.names():
        op = registry.get(name)
        rows.append((name, op.summary, ", ".join(op.parameters)))
    return _table(("op", "what it computes", "parameters"), rows)


def backends() -> Table:
    from kernelmark.backends import registry
    from kernelmark.core.errors import KernelmarkError
    from kernelmark.devices import registry as kinds

    here = {name for name in kinds.names() if kinds.get(name).available() is None}
    rows: list[tuple[str, ...]] = []
    for name in registry.names():
        try:
            backend = registry.get(name)
        except KernelmarkError as error:
            rows.append((name, "no", "", error.message))
            continue
        reason = backend.available()
        runs_on = backend.device_kinds
        if reason is None:
            runs_on, lacking = split_kinds(backend)
            reason = None if runs_on else next(iter(lacking.values()))
        usable = "yes" if here & set(runs_on) else "no device"
        rows.append(
            (name, "no" if reason else usable, ", ".join(runs_on), reason or backend.summary)
        )
    return _table(("backend", "available", "devices", "what it is, or why it is not there"), rows)


def _without_vendor(reason: Reason) -> Reason:
    """Return the reason without the name of the vendor, which the row has already."""
    cause = reason.fields.get("cause")
    if isinstance(cause, Reason) and "vendor" in cause.fields:
        return reason.having(cause=cause.having(vendor=""))
    return reason


def split_kinds(backend: Backend) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the device kinds that a backend runs on, and for each other kind the reason."""
    lacking = {kind: backend.missing_on(kind) for kind in backend.device_kinds}
    runs_on = tuple(kind for kind, reason in lacking.items() if not reason)
    return runs_on, {kind: reason for kind, reason in lacking.items() if reason}


def devices() -> Table:
    from kernelmark.core.units import bytes_text
    from kernelmark.devices import registry

    rows = []
    for name in registry.names():
        kind = registry.get(name)
        reason = kind.available()
        if reason is not None:
            rows.append((name, "no", "", "", "", "", str(_without_vendor(Reason.of(reason)))))
            continue
        for info in kind.infos():
            rows.append(
                (
                    info.name,
                    "no" if info.unusable else "yes",
                    info.arch,
                    str(info.units),
                    bytes_text(info.memory_bytes),
                    bytes_text(info.cache_bytes),
                    info.model,
                )
            )
    columns = ("device", "available", "arch", "cores/SMs/CUs", "memory", "cache")
    return _table((*columns, _MODEL), rows)


def suites() -> Table:
    from kernelmark.workloads.suites import describe

    rows = [
        (
            info.name,
            str(info.count),
            ", ".join(f"{count} {op}" for op, count in info.ops.items()),
            info.why,
        )
        for info in describe()
    ]
    return _table(("suite", "problems", "ops", _WHY), rows, right=("problems",))


def runs(place: str | None, limit: int) -> Table:
    """Return a table of the newest runs."""
    from kernelmark.core.result import RunState
    from kernelmark.core.units import duration_text
    from kernelmark.runners import locks
    from kernelmark.stores import open_store

    rows: list[tuple[str, ...]] = []
    with open_store(place, readonly=True) as store:
        for run in store.runs(limit=limit or None):
            state = locks.current_state(run)
            counts = result_counts(store, run)
            rows.append(
                (
                    run.id,
                    run.label,
                    run.suite,
                    _when(run.started),
                    "" if run.took_s is None else duration_text(run.took_s),
                    state.value + (", excluded" if run.excluded else ""),
                    _results_text(counts, run.cases, running=state is RunState.RUNNING),
                )
            )
    columns: tuple[str, ...]
    columns = ("run", "label", "suite", "started", "took", "state", "results")
    if not any(row[1] for row in rows):
        columns, rows = _without_second(columns, rows)
    return _keeping(
        _table(columns, rows, right=("took",)),
        ("run", "started", "results"),
        usual={"state": RunState.DONE.value},
    )


def result_counts(store: Store, run: Run) -> dict[str, int]:
    """Return the number of results of a run by status; `disturbed` microbenchmarks are not ok."""
    from kernelmark.core.micro import MICRO_SUITE
    from kernelmark.report.tables import status_counts

    if run.suite == MICRO_SUITE:
        return status_counts(store.results(run.id))
    return {status.value: count for status, count in store.counts(run.id).items()}


def _results_text(counts: Mapping[str, int], cases: int, *, running: bool) -> str:
    """Return `all 8 ok`, or `1 ok, 7 missing` with the number of cases without a result."""
    if cases > 1 and counts == {"ok": cases}:
        return f"all {cases} ok"
    words = [f"{count} {word}" for word, count in counts.items()]
    if cases > sum(counts.values()):
        words.append(f"{cases - sum(counts.values())} {'left' if running else 'missing'}")
    return ", ".join(words)


def micro_runs(place: str | None, limit: int) -> Table:
    from kernelmark.cli.micro import opened_for_micro
    from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE, benchmark_name
    from kernelmark.report.tables import status_counts

    rows: list[tuple[str, ...]] = []
    with opened_for_micro(place) as store:
        for run in store.runs(limit=limit or None, suites=(MICRO_SUITE, ROOFS_SUITE)):
            found = list(store.results(run.id))
            counts = status_counts(found)
            rows.append(
                (
                    run.id,
                    run.suite,
                    _each(result.device for result in found),
                    _each(result.arch for result in found),
                    run.environment.host,
                    _when(run.started),
                    _each(benchmark_name(result.case.problem) for result in found),
                    ", ".join(f"{count} {status}" for status, count in counts.items()),
                )
            )
    columns: tuple[str, ...]
    columns = ("run", "suite", "device", "arch", "host", "started", "benchmarks", "results")
    if all(row[1] == MICRO_SUITE for row in rows):  # `latest` does not count runs of roofs
        columns, rows = _without_second(columns, rows)
    kept = ("run", "started", "results")
    return _keeping(_table(columns, rows), kept, usual={"suite": MICRO_SUITE})


def _without_second(
    columns: tuple[str, ...], rows: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return (columns[0], *columns[2:]), [(row[0], *row[2:]) for row in rows]


def _keeping(table: Table, kept: tuple[str, ...], *, usual: Mapping[str, str]) -> Table:
    """Return the table with the columns that a narrow terminal keeps, and the values that it leaves
    out below a row."""
    columns = tuple(
        replace(one, usual=usual.get(one.name, ""), keep=one.name in kept) for one in table.columns
    )
    return replace(table, columns=columns)


def _each(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _when(started: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(started))


def dtypes() -> Table:
    from kernelmark.core.dtype import DTYPES

    rows = [
        (
            kind.name,
            str(kind.bits),
            kind.kind,
            f"{kind.max_value:g}",
            f"{kind.unit_roundoff:.2g}" if kind.kind == "float" else "exact",
        )
        for kind in DTYPES.values()
    ]
    columns = ("dtype", "bits", "kind", "largest", "rounding error")
    return _table(columns, rows, right=("bits", "largest", "rounding error"))


def logs() -> Table:
    """Return a table of the log formats of `import --workload`."""
    from kernelmark.workloads.logs import reading

    rows = [(name, reading.named(name).summary) for name in reading.names()]
    return _table(("log", "what is read"), rows)


def strategies() -> Table:
    from kernelmark.tune.strategies import registry

    rows = [(name, registry.get(name).summary) for name in registry.names()]
    return _table(("strategy", "how it searches"), rows)


def emitters() -> Table:
    """Return a table of the formats of `export --as`, with their --with options."""
    from kernelmark.tune.install.emitters import registry

    rows = []
    for name in registry.names():
        one = registry.get(name)
        summary = f"{one.summary}. {one.caution}" if one.caution else one.summary
        rows.append((name, summary, " ".join(one.options) or "–"))
    return _table(("emitter", _WRITES, "--with"), rows)


def _table(
    names: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    right: tuple[str, ...] = (),
    title: str = "",
) -> Table:
    from kernelmark.report.tables import Column, Table

    columns = tuple(
        Column(
            name=n,
            align="right" if n in right else "left",
            label="" if n in _SENTENCES else None,
        )
        for n in names
    )
    return Table(title=title, columns=columns, rows=tuple(rows))
