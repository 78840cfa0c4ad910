"""`kmark list` and `kmark show`: what there is, and what is stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import (
    check_writable,
    extended,
    put,
    put_table,
    put_tables,
    rerun_words,
    say,
    store_words,
    write,
)
from kernelmark.core.errors import KernelmarkError, NothingToDo, UsageError
from kernelmark.report.tables import NONE, Column, Table, file_column, record, tabulate

if TYPE_CHECKING:
    from kernelmark.api.results import Results
    from kernelmark.backends.base import Backend
    from kernelmark.core.dtype import DType
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.result import ResultSet, Run, RunState
    from kernelmark.ops.base import Op, TensorHelp

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
        "formats",
    ],
    typer.Argument(
        metavar="WHAT",
        help="ops, backends, devices, suites, runs, micro (runs of microbenchmarks), dtypes, logs "
        "(formats of call logs), strategies (of tune), emitters (formats of tuned configs) or "
        "formats (every file of other tools: read or written, and by which command).",
    ),
]
OneOp = Annotated[
    str | None,
    o.option(
        "-o --op OP|FILE", help="With ops, list the parameters of this op or kernel file's op."
    ),
]
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
            f"-o cannot be combined with 'list {what}'", hint="use: kmark list ops -o OP"
        )
    if json is not None:
        from kernelmark.core.files import json_text

        write(json, json_text(_op_document(op) if op else document(what, store, limit)))
    elif op is not None:
        parameters, tensors = _op_rows(op)
        put_table(tabulate(PARAMETERS, parameters, title="parameters"))
        if tensors:
            put("\n")
            put_table(tabulate(TENSORS, tensors, title="tensors"))
    else:
        put_table(table(what, store, limit))
    if what in ("runs", "micro") and limit:
        _say_hidden(what, limit, store)
    return 0


def table(what: str, store: str | None = None, limit: int = 0) -> Table:
    """Return what people read: one row per thing."""
    return tabulate(_COLUMNS[what], _rows(what, store, limit))


def document(what: str, store: str | None = None, limit: int = 0) -> list[dict[str, Any]]:
    """Return the JSON values: stable keys, base units, null for unknown. docs/fields.md lists
    them."""
    rows = _rows(what, store, limit)
    if what == "devices":  # a kind of device that is missing has no more than its reason
        return [record(DEVICES if row.info else DEVICES[:3], row) for row in rows]
    return [record(_COLUMNS[what], row) for row in rows]


def _rows(what: str, store: str | None, limit: int) -> Sequence[Any]:
    if what == "runs":
        return runs(store, limit)
    if what == "micro":
        return micro_runs(store, limit)
    functions: Mapping[str, Callable[[], Sequence[Any]]] = {
        "ops": ops,
        "backends": backends,
        "devices": devices,
        "suites": suites,
        "dtypes": dtypes,
        "logs": logs,
        "strategies": strategies,
        "emitters": emitters,
        "formats": formats,
    }
    return functions[what]()


def _say_hidden(what: str, limit: int, store_url: str | None) -> None:
    """Print how many runs there are, if more than `limit`."""
    from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
    from kernelmark.stores import open_store

    with open_store(store_url, readonly=True) as store:
        total = store.count_runs(None if what == "runs" else (MICRO_SUITE, ROOFS_SUITE))
    if limit < total:
        say(f"the newest {limit} of {total} runs; all: --limit 0")


def _op_document(name: str) -> dict[str, Any]:
    parameters, tensors = _op_rows(name)
    return {
        "parameters": [record(PARAMETERS, row) for row in parameters],
        "tensors": [record(TENSORS, row) for row in tensors],
    }


def _op_rows(name: str) -> tuple[list[tuple[str, str]], Sequence[TensorHelp]]:
    """Return the parameters of an op and the tensors derived from them."""
    from kernelmark.backends import is_file
    from kernelmark.ops import registry

    op = registry.get(_op_of_file(name) if is_file(name) else name)
    return list(op.parameters.items()), op.tensor_help


def _op_of_file(name: str) -> str:
    """Return the op of a kernel file."""
    from kernelmark.runners import kernel_files

    with kernel_files.loaded_in():
        file = kernel_files.find(name)
    op_names = file.ops if isinstance(file, kernel_files.RemoteFile) else ()
    if len(op_names) != 1:
        raise UsageError(
            f"{name} computes {len(op_names)} ops", hint=f"list one: {', '.join(op_names)}"
        )
    return str(op_names[0])


PARAMETERS = (
    Column("parameter", lambda row: row[0], "name"),
    Column("meaning", lambda row: row[1], "meaning"),
)
TENSORS = (
    Column("tensor", "name", "name"),
    Column("role", "role", "input or output"),
    Column("shape", "shape", "shape, in terms of the parameters"),
    Column("dtype", "dtype", "dtype, or the parameter that has it"),
    Column("when", "when", "condition for which the tensor exists; empty: always"),
)
OPS = (
    Column("op", "name", "op"),
    Column("summary", "summary", "what it computes", title="what it computes"),
    Column("parameters", lambda op: list(op.parameters), "names of its parameters", "list of text"),
)


def ops() -> list[Op]:
    from kernelmark.ops import registry

    return [registry.get(name) for name in registry.names()]


class BackendRow(NamedTuple):
    """A backend with its state, as in `kmark doctor`."""

    name: str
    state: str = "broken"
    devices: tuple[str, ...] = ()
    summary: str | None = None
    reason: str | None = None


_AVAILABLE = {"ready": "yes", "no device": "no device"}
BACKENDS = (
    Column("backend", "name", "backend"),
    Column(
        "state",
        "state",
        "`ready`, `missing` (not installed), `no device` or `broken`",
        title="available",
        text=lambda row: _AVAILABLE.get(row.state, "no"),
    ),
    Column(
        "devices", lambda row: list(row.devices), "kinds of devices that it runs on", "list of text"
    ),
    Column(
        "summary",
        "summary",
        "what it is",
        "text?",
        title="what it is, or why it is not there",
        text=lambda row: str(row.reason or row.summary),
    ),
    file_column("reason", "reason", "why it is missing or broken", "text?"),
)


def backends() -> list[BackendRow]:
    from kernelmark.backends import registry
    from kernelmark.devices import registry as kinds

    here = {name for name in kinds.names() if kinds.get(name).available() is None}
    rows = []
    for name in registry.names():
        try:
            backend = registry.get(name)
        except KernelmarkError as error:
            rows.append(BackendRow(name, reason=error.message))
            continue
        reason, runs_on = backend.available(), backend.device_kinds
        if reason is None:
            runs_on, lacking = split_kinds(backend)
            reason = None if runs_on else next(iter(lacking.values()))
        usable = "ready" if here & set(runs_on) else "no device"
        state = "missing" if reason else usable
        rows.append(BackendRow(name, state, tuple(runs_on), backend.summary, reason))
    return rows


def split_kinds(backend: Backend) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the device kinds that a backend runs on, and for each other kind the reason."""
    lacking = {kind: backend.missing_on(kind) for kind in backend.device_kinds}
    runs_on = tuple(kind for kind, reason in lacking.items() if not reason)
    return runs_on, {kind: reason for kind, reason in lacking.items() if reason}


class DeviceRow(NamedTuple):
    """A device, or a kind of device that is missing."""

    device: str
    available: bool
    reason: str | None
    info: DeviceInfo | None = None


def _model_or_reason(row: DeviceRow) -> str:
    """Return the model, or the reason that there is none."""
    if row.info is not None:
        return row.info.model
    return row.reason or ""


DEVICES = (
    Column("device", "device", "device, or kind of device that is missing"),
    Column("available", "available", "whether it can be used", "true or false"),
    file_column("reason", "reason", "why not", "text?"),
    Column("arch", "info.arch", "architecture"),
    Column(
        "model",
        "info.model",
        "model",
        title="model, or why it is not there",
        text=_model_or_reason,
        last=True,
        label="",
    ),
    Column("units", "info.units", "cores, SMs or CUs", "integer", title="cores/SMs/CUs"),
    Column(
        "memory_bytes", "info.memory_bytes", "size of the memory", "integer", "B", title="memory"
    ),
    Column(
        "cache_bytes",
        "info.cache_bytes",
        "size of the last-level cache",
        "integer",
        "B",
        title="cache",
    ),
    file_column("driver", "info.driver", "version of the driver"),
)


def devices() -> list[DeviceRow]:
    from kernelmark.devices import registry

    rows = []
    for name in registry.names():
        kind = registry.get(name)
        reason = kind.available()
        if reason is not None:
            rows.append(DeviceRow(name, False, reason))
            continue
        rows += [
            DeviceRow(info.name, not info.unusable, info.unusable or None, info)
            for info in kind.infos()
        ]
    return rows


SUITES = (
    Column("suite", "name", "suite"),
    Column("problems", "count", "number of problems", "integer"),
    Column(
        "ops",
        lambda suite: dict(suite.ops),
        "number of problems by op",
        "object of integer",
        text=lambda suite: ", ".join(f"{count} {op}" for op, count in suite.ops.items()),
    ),
    Column("why", "why", "why it exists", title="why it exists", label=""),
)


def suites() -> Sequence[Any]:
    from kernelmark.workloads.suites import describe

    return list(describe())


class RunRow(NamedTuple):
    """A run with the number of its results by status; `devices` and the like are those of a run of
    microbenchmarks."""

    run: Run
    state: RunState
    counts: dict[str, int]
    devices: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()


def _when(row: RunRow) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(row.run.started))


def _took(row: RunRow) -> str:
    from kernelmark.core.units import duration_text

    return "" if row.run.took_s is None else duration_text(row.run.took_s)


def _results(row: RunRow) -> str:
    """Return `all 8 ok`, or `1 ok, 7 missing` with the number of cases without a result."""
    cases, counts = row.run.cases, row.counts
    if cases > 1 and counts == {"ok": cases}:
        return f"all {cases} ok"
    counted_statuses = [f"{count} {word}" for word, count in counts.items()]
    if cases > sum(counts.values()):
        rest = "left" if row.state.value == "running" else "missing"
        counted_statuses.append(f"{cases - sum(counts.values())} {rest}")
    return ", ".join(counted_statuses)


_RUN = Column("run", "run.id", "id", keep=True)
_STARTED = Column(
    "started", "run.started", "when it began", "number", "date", text=_when, keep=True, align="left"
)
_COUNTS = (
    "number of results by status, or `disturbed` for microbenchmarks whose repetitions disagree"
)
RUNS = (
    _RUN,
    Column("label", "run.label", "label", show="any"),
    Column("suite", "run.suite", "names of its suites, separated by commas"),
    _STARTED,
    Column(
        "took_s",
        "run.took_s",
        "duration without pauses; null while it runs",
        "number?",
        "s",
        title="took",
        text=_took,
    ),
    Column(
        "state",
        "state.value",
        "`running`, `done` or `interrupted`",
        text=lambda row: row.state.value + (", excluded" if row.run.excluded else ""),
        usual="done",
    ),
    file_column("excluded", "run.excluded", "left out of history", "true or false"),
    file_column("cases", "run.cases", "number of planned cases", "integer"),
    Column("results", "counts", _COUNTS, "object of integer", text=_results, keep=True),
)


def runs(store_url: str | None, limit: int) -> list[RunRow]:
    """Return the newest runs; `disturbed` microbenchmarks are not ok."""
    from kernelmark.core.micro import MICRO_SUITE
    from kernelmark.report.results import status_counts
    from kernelmark.runners import locks
    from kernelmark.stores import open_store

    rows = []
    with open_store(store_url, readonly=True) as store:
        for run in store.runs(limit=limit or None):
            if run.suite == MICRO_SUITE:
                counts = status_counts(store.results(run.id))
            else:
                counts = {status.value: count for status, count in store.counts(run.id).items()}
            rows.append(RunRow(run, locks.current_state(run), counts))
    return rows


# `latest` does not count runs of roofs, so they are marked by their suite if there are any.
MICRO_RUNS = (
    _RUN,
    Column(
        "suite",
        "run.suite",
        "`kmark micro`, or `kmark roofs` for a run that `latest` does not count",
        text=lambda row: "" if row.run.suite == "kmark micro" else row.run.suite,
        show="any",
    ),
    Column("devices", lambda row: list(row.devices), "devices", "list of text", title="device"),
    Column(
        "archs", lambda row: list(row.archs), "their architectures", "list of text", title="arch"
    ),
    Column("host", "run.environment.host", "host name"),
    _STARTED,
    Column("benchmarks", lambda row: list(row.benchmarks), "microbenchmarks", "list of text"),
    Column(
        "results",
        "counts",
        _COUNTS,
        "object of integer",
        text=lambda row: ", ".join(f"{count} {status}" for status, count in row.counts.items()),
        keep=True,
    ),
)


def micro_runs(store_url: str | None, limit: int) -> list[RunRow]:
    from kernelmark.cli.hardware.micro import opened_for_micro
    from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE, benchmark_name
    from kernelmark.report.results import status_counts

    rows = []
    with opened_for_micro(store_url) as store:
        for run in store.runs(limit=limit or None, suites=(MICRO_SUITE, ROOFS_SUITE)):
            results = list(store.results(run.id))
            row = RunRow(
                run,
                run.state,
                status_counts(results),
                devices=tuple(dict.fromkeys(result.device for result in results)),
                archs=tuple(dict.fromkeys(result.arch for result in results)),
                benchmarks=tuple(dict.fromkeys(benchmark_name(r.case.problem) for r in results)),
            )
            rows.append(row)
    return rows


DTYPES = (
    Column("dtype", "name", "dtype"),
    Column("bits", "bits", "size", "integer", "bit"),
    Column("kind", "kind", "`float` or `int`"),
    Column(
        "max_value",
        "max_value",
        "largest finite value",
        "number",
        title="largest",
        text=lambda kind: f"{kind.max_value:g}",
    ),
    Column(
        "unit_roundoff",
        "unit_roundoff",
        "largest relative error of a rounding; 0 for integers",
        "number",
        title="rounding error",
        text=lambda kind: f"{kind.unit_roundoff:.2g}" if kind.kind == "float" else "exact",
    ),
)


def dtypes() -> list[DType]:
    from kernelmark.core.dtype import DTYPES as KINDS

    return list(KINDS.values())


class Summarised(NamedTuple):
    """A name of a registry with its summary."""

    name: str
    summary: str
    caution: str | None = None
    options: Mapping[str, str] = {}


LOGS = (
    Column("log", "name", "format of call logs, for `kmark import LOG --workload DIR`"),
    Column("summary", "summary", "what is read", title="what is read"),
)


def logs() -> list[Summarised]:
    """Return the log formats of `import --workload`."""
    from kernelmark.workloads.logs import registry

    return [Summarised(name, registry.get(name).summary) for name in registry.names()]


class FileFormat(NamedTuple):
    """A format of another tool's files: what is done with it, and by which command."""

    name: str
    way: str
    command: str
    summary: str


FORMATS = (
    Column("format", "name", "format of another tool, for `--as FORMAT`"),
    Column("way", "way", "read or written, and what", title="read or written"),
    Column("command", "command", "the command that does so"),
    Column("summary", "summary", "which files", title="files"),
)


def formats() -> list[FileFormat]:
    """Return every format of other tools, from the registries of readers and writers."""
    from kernelmark.report.dashboards import FORMATS as DASHBOARDS
    from kernelmark.tune.install.emitters import registry as emitters
    from kernelmark.tune.simulate import FACTS
    from kernelmark.workloads.formats import importers, logs

    rows = [
        FileFormat(name, f"read: {what}", command, registry.get(name).summary)
        for registry, what, command in (
            (logs, "calls", "kmark import FILE --workload DIR"),
            (importers, "times", "kmark import FILE"),
        )
        for name in registry.names()
    ]
    space = "every configuration of a measured search space"
    rows += [FileFormat(n, "read: a space", "km.tuning.read_space(FILE)", space) for n in FACTS]
    for name in emitters.names():
        kind, shown = emitters.get(name), name.replace("_", "-")
        rows.append(
            FileFormat(shown, "written: winners", f"kmark export DIR --as {shown}", kind.summary)
        )
    for name in DASHBOARDS:
        summary = "one time for each result, with its interval"
        rows.append(FileFormat(name, "written: a run", f"kmark export RUN --as {name}", summary))
    return sorted(rows)


STRATEGIES = (
    Column("strategy", "name", "strategy of `kmark tune`"),
    Column("summary", "summary", "how it searches", title="how it searches"),
)


def strategies() -> list[Summarised]:
    from kernelmark.tune.strategies import registry

    return [Summarised(name, registry.get(name).summary) for name in registry.names()]


EMITTERS = (
    Column("emitter", "name", "format of tuned configs, for `kmark export DIR --as FORMAT`"),
    Column(
        "summary",
        "summary",
        "what it writes",
        title="what it writes",
        text=lambda row: f"{row.summary}. {row.caution}" if row.caution else row.summary,
        label="",
    ),
    file_column("caution", "caution", "what was not tried yet", "text?"),
    Column(
        "options",
        lambda row: dict(row.options),
        "meaning of each `--with` option",
        "object of text",
        title="--with",
        text=lambda row: " ".join(row.options) or NONE,
    ),
)


def emitters() -> list[Summarised]:
    """Return the formats of `export --as`, with their --with options."""
    from kernelmark.tune.install.emitters import registry

    kinds = [(name, registry.get(name)) for name in registry.names()]
    return [
        Summarised(name, kind.summary, kind.caution or None, kind.options) for name, kind in kinds
    ]


_COLUMNS: Mapping[str, Sequence[Column]] = {
    "ops": OPS,
    "backends": BACKENDS,
    "devices": DEVICES,
    "suites": SUITES,
    "runs": RUNS,
    "micro": MICRO_RUNS,
    "dtypes": DTYPES,
    "logs": LOGS,
    "strategies": STRATEGIES,
    "emitters": EMITTERS,
    "formats": FORMATS,
}


CaseRef = Annotated[
    str | None,
    o.option(
        "--case ID",
        o.SELECTION,
        help="Show everything about one case, by its id or a prefix of it.",
    ),
]
Samples = Annotated[
    bool,
    o.option(
        "--samples",
        o.OUTPUT,
        help="Show everything about each result: blocks, samples, clocks, check, kernel, cost.",
    ),
]
ProblemLimit = Annotated[
    int,
    o.option(
        "--limit N",
        o.OUTPUT,
        min=0,
        help="Print the first N problems of a stored run, and every failure; 0: all. Data files and"
        " selections are whole.",
    ),
]


def show(
    *,
    ref: o.RunRef = "latest",
    ops: o.Ops = None,
    backends: o.KeptBackends = None,
    filter: o.Filter = None,
    status: o.StatusWords = None,
    case: CaseRef = None,
    samples: Samples = False,
    limit: ProblemLimit = o.MOST_PROBLEMS,
    store: o.StorePlace = None,
    outputs: o.Outputs,
    quiet: o.Quiet = False,
) -> int:
    """Show a stored run, as 'kmark run' printed it."""
    from kernelmark.api.results import loaded
    from kernelmark.cli.measure.run import print_notes, put_results
    from kernelmark.report.detail import detail

    selects = any((ops, backends, filter, status, case)) or samples or outputs.any
    problems = None if selects or not limit else limit
    with loaded(ref, store, problems) as (results, opened):
        store_options = () if opened is None else store_words(store)
        rerun_options = rerun_words(results.run.argv)
        # A run measured with --no-store and imported here: its reruns are stored.
        more = (
            *(word for word in rerun_options if not (store_options and word == "--no-store")),
            *store_options,
        )
        chosen_results = chosen(
            results,
            ops=o.comma_list(ops),
            backends=o.comma_list(backends),
            regex=filter,
            statuses=o.comma_list(status),
            case=case,
            store_options=store_options,
        )
        if (samples or case is not None) and not outputs.any:
            for row in chosen_results.rows:
                put_tables(detail(row, samples=samples, more=more))
                put("\n")
            return 0
        put_results(chosen_results, outputs, quiet=quiet)
        unread = 0
        if opened is not None and problems is not None:
            unread = sum(opened.counts(results.run.id).values()) - len(results)
        warned = outputs.md == "-"
        print_notes(
            chosen_results,
            opened,
            quiet=quiet,
            warned=warned,
            store_options=store_options,
            more=more,
            unread=unread,
        )
    return 0


def chosen(
    results: Results,
    *,
    ops: tuple[str, ...],
    backends: tuple[str, ...],
    regex: str | None,
    statuses: tuple[str, ...],
    case: str | None,
    store_options: tuple[str, ...],
) -> Results:
    """Return the selected results; raise NothingToDo if there are none."""
    from kernelmark.api.results import Results
    from kernelmark.core.result import ResultSet, Status
    from kernelmark.ops import registry as known_ops
    from kernelmark.workloads.select import matching

    status_names = [status.value for status in Status]
    for word in statuses:
        if word not in status_names:
            raise UsageError(f"unknown status {word!r}", hint=f"known: {', '.join(status_names)}")
    every: ResultSet = results.result_set
    stored_ops = {result.case.problem.op for result in every.results}
    for word in ops:
        if word not in stored_ops and word not in known_ops:
            # Other commands have -o FILE for outputs.
            meant = "a figure's file is given by -f; " if "." in word else ""
            hint = f"{meant}the run has {', '.join(sorted(stored_ops))}"
            raise UsageError(f"unknown op {word!r}", hint=hint)
    keys = None
    if regex is not None:
        keys = {p.key for p in matching([r.case.problem for r in every.results], regex)}
    kept = tuple(
        result
        for result in every.results
        if (not ops or result.case.problem.op in ops)
        and (not backends or result.case.backend in backends)
        and (keys is None or result.case.problem.key in keys)
        and (not statuses or result.status.value in statuses)
        and (case is None or result.case.id.startswith(case))
    )
    if not every.results:
        raise NothingToDo(
            f"run {every.run.id} has no results", hint=_without_results(every, store_options)
        )
    if not kept:
        listing = extended(f"kmark show {every.run.id}", store_options)
        raise NothingToDo(
            f"no result matches in run {every.run.id}",
            hint=f"it has {len(every.results)}: {listing}",
        )
    return Results(ResultSet(run=every.run, results=kept), results.roofs, results.notes)


def _without_results(run_results: ResultSet, store_options: tuple[str, ...]) -> str:
    from kernelmark.core.result import RunState
    from kernelmark.runners import locks

    state = locks.current_state(run_results.run)
    if state is RunState.INTERRUPTED and run_results.run.argv[:1] == ("run",):
        again = extended(f"kmark run --resume {run_results.run.id}", store_options)
        return f"it was interrupted before its first case ended; resume it: {again}"
    if state is RunState.RUNNING:
        return "its first case is still being measured"
    return f"other runs: {extended('kmark list runs', store_options)}"
