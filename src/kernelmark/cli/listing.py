"""`kmark list`: available ops, backends, devices, suites, runs and more."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from kernelmark.cli import options as o
from kernelmark.cli.output import check_writable, put, put_table, say, write
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.report.tables import NONE, Column, Table, file_column, record, tabulate

if TYPE_CHECKING:
    from kernelmark.backends.base import Backend
    from kernelmark.core.dtype import DType
    from kernelmark.core.environment import DeviceInfo
    from kernelmark.core.result import Run, RunState
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
    functions = {
        "ops": ops,
        "backends": backends,
        "devices": devices,
        "suites": suites,
        "dtypes": dtypes,
        "logs": logs,
        "strategies": strategies,
        "emitters": emitters,
    }
    return functions[what]()


def _say_hidden(what: str, limit: int, place: str | None) -> None:
    """Print how many runs there are, if more than `limit`."""
    from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
    from kernelmark.stores import open_store

    with open_store(place, readonly=True) as store:
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
    from kernelmark.ops import registry

    op = registry.get(name)
    return list(op.parameters.items()), op.tensor_help


PARAMETERS = (
    Column(name="parameter", value=lambda row: row[0], meaning="name"),
    Column(name="meaning", value=lambda row: row[1], meaning="meaning"),
)
TENSORS = (
    Column(name="tensor", value="name", meaning="name"),
    Column(name="role", value="role", meaning="input or output"),
    Column(name="shape", value="shape", meaning="shape, in terms of the parameters"),
    Column(name="dtype", value="dtype", meaning="dtype, or the parameter that has it"),
    Column(
        name="when",
        value="when",
        meaning="condition for which the tensor exists; empty: always",
    ),
)
OPS = (
    Column(name="op", value="name", meaning="op"),
    Column(name="summary", title="what it computes", value="summary", meaning="what it computes"),
    Column(
        name="parameters",
        value=lambda op: list(op.parameters),
        type="list of text",
        meaning="names of its parameters",
    ),
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
    Column(name="backend", value="name", meaning="backend"),
    Column(
        name="state",
        title="available",
        value="state",
        text=lambda row: _AVAILABLE.get(row.state, "no"),
        meaning="`ready`, `missing` (not installed), `no device` or `broken`",
    ),
    Column(
        name="devices",
        value=lambda row: list(row.devices),
        type="list of text",
        meaning="kinds of devices that it runs on",
    ),
    Column(
        name="summary",
        title="what it is, or why it is not there",
        value="summary",
        text=lambda row: str(row.reason or row.summary),
        type="text?",
        meaning="what it is",
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
    """Return the model, or the reason without the name of the vendor, which the row has already."""
    if row.info is not None:
        return row.info.model
    reason = Reason.of(row.reason or "")
    cause = reason.fields.get("cause")
    if isinstance(cause, Reason) and "vendor" in cause.fields:
        return str(reason.having(cause=cause.having(vendor="")))
    return str(reason)


DEVICES = (
    Column(name="device", value="device", meaning="device, or kind of device that is missing"),
    Column(
        name="available",
        value="available",
        type="true or false",
        meaning="whether it can be used",
    ),
    file_column("reason", "reason", "why not", "text?"),
    Column(name="arch", value="info.arch", meaning="architecture"),
    Column(
        name="model",
        title="model, or why it is not there",
        value="info.model",
        text=_model_or_reason,
        last=True,
        label="",
        meaning="model",
    ),
    Column(
        name="units",
        title="cores/SMs/CUs",
        value="info.units",
        type="integer",
        meaning="cores, SMs or CUs",
    ),
    Column(
        name="memory_bytes",
        title="memory",
        value="info.memory_bytes",
        type="integer",
        unit="B",
        meaning="size of the memory",
    ),
    Column(
        name="cache_bytes",
        title="cache",
        value="info.cache_bytes",
        type="integer",
        unit="B",
        meaning="size of the last-level cache",
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
    Column(name="suite", value="name", meaning="suite"),
    Column(name="problems", value="count", type="integer", meaning="number of problems"),
    Column(
        name="ops",
        value=lambda suite: dict(suite.ops),
        text=lambda suite: ", ".join(f"{count} {op}" for op, count in suite.ops.items()),
        type="object of integer",
        meaning="number of problems by op",
    ),
    Column(name="why", title="why it exists", value="why", label="", meaning="why it exists"),
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
    words = [f"{count} {word}" for word, count in counts.items()]
    if cases > sum(counts.values()):
        rest = "left" if row.state.value == "running" else "missing"
        words.append(f"{cases - sum(counts.values())} {rest}")
    return ", ".join(words)


_RUN = Column(name="run", value="run.id", keep=True, meaning="id")
_STARTED = Column(
    name="started",
    value="run.started",
    text=_when,
    keep=True,
    type="number",
    unit="date",
    meaning="when it began",
    align="left",
)
_COUNTS = (
    "number of results by status, or `disturbed` for microbenchmarks whose repetitions disagree"
)
RUNS = (
    _RUN,
    Column(name="label", value="run.label", show="any", meaning="label"),
    Column(name="suite", value="run.suite", meaning="names of its suites, separated by commas"),
    _STARTED,
    Column(
        name="took_s",
        title="took",
        value="run.took_s",
        text=_took,
        type="number?",
        unit="s",
        meaning="duration without pauses; null while it runs",
    ),
    Column(
        name="state",
        value="state.value",
        text=lambda row: row.state.value + (", excluded" if row.run.excluded else ""),
        usual="done",
        meaning="`running`, `done` or `interrupted`",
    ),
    file_column("excluded", "run.excluded", "left out of history", "true or false"),
    file_column("cases", "run.cases", "number of planned cases", "integer"),
    Column(
        name="results",
        value="counts",
        text=_results,
        keep=True,
        type="object of integer",
        meaning=_COUNTS,
    ),
)


def runs(place: str | None, limit: int) -> list[RunRow]:
    """Return the newest runs; `disturbed` microbenchmarks are not ok."""
    from kernelmark.core.micro import MICRO_SUITE
    from kernelmark.report.results import status_counts
    from kernelmark.runners import alive
    from kernelmark.stores import open_store

    rows = []
    with open_store(place, readonly=True) as store:
        for run in store.runs(limit=limit or None):
            if run.suite == MICRO_SUITE:
                counts = status_counts(store.results(run.id))
            else:
                counts = {status.value: count for status, count in store.counts(run.id).items()}
            rows.append(RunRow(run, alive.current_state(run), counts))
    return rows


# `latest` does not count runs of roofs, so they are marked by their suite if there are any.
MICRO_RUNS = (
    _RUN,
    Column(
        name="suite",
        value="run.suite",
        text=lambda row: "" if row.run.suite == "kmark micro" else row.run.suite,
        show="any",
        meaning="`kmark micro`, or `kmark roofs` for a run that `latest` does not count",
    ),
    Column(
        name="devices",
        title="device",
        value=lambda row: list(row.devices),
        type="list of text",
        meaning="devices",
    ),
    Column(
        name="archs",
        title="arch",
        value=lambda row: list(row.archs),
        type="list of text",
        meaning="their architectures",
    ),
    Column(name="host", value="run.environment.host", meaning="host name"),
    _STARTED,
    Column(
        name="benchmarks",
        value=lambda row: list(row.benchmarks),
        type="list of text",
        meaning="microbenchmarks",
    ),
    Column(
        name="results",
        value="counts",
        text=lambda row: ", ".join(f"{count} {status}" for status, count in row.counts.items()),
        keep=True,
        type="object of integer",
        meaning=_COUNTS,
    ),
)


def micro_runs(place: str | None, limit: int) -> list[RunRow]:
    from kernelmark.cli.micro import opened_for_micro
    from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE, benchmark_name
    from kernelmark.report.results import status_counts

    rows = []
    with opened_for_micro(place) as store:
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
    Column(name="dtype", value="name", meaning="dtype"),
    Column(name="bits", value="bits", type="integer", unit="bit", meaning="size"),
    Column(name="kind", value="kind", meaning="`float` or `int`"),
    Column(
        name="max_value",
        title="largest",
        value="max_value",
        text=lambda kind: f"{kind.max_value:g}",
        type="number",
        meaning="largest finite value",
    ),
    Column(
        name="unit_roundoff",
        title="rounding error",
        value="unit_roundoff",
        text=lambda kind: f"{kind.unit_roundoff:.2g}" if kind.kind == "float" else "exact",
        type="number",
        meaning="largest relative error of a rounding; 0 for integers",
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
    Column(
        name="log",
        value="name",
        meaning="format of call logs, for `kmark import LOG --workload DIR`",
    ),
    Column(name="summary", title="what is read", value="summary", meaning="what is read"),
)


def logs() -> list[Summarised]:
    """Return the log formats of `import --workload`."""
    from kernelmark.workloads.logs import reading

    return [Summarised(name, reading.named(name).summary) for name in reading.names()]


STRATEGIES = (
    Column(name="strategy", value="name", meaning="strategy of `kmark tune`"),
    Column(name="summary", title="how it searches", value="summary", meaning="how it searches"),
)


def strategies() -> list[Summarised]:
    from kernelmark.tune.strategies import registry

    return [Summarised(name, registry.get(name).summary) for name in registry.names()]


EMITTERS = (
    Column(
        name="emitter",
        value="name",
        meaning="format of tuned configs, for `kmark export DIR --as FORMAT`",
    ),
    Column(
        name="summary",
        title="what it writes",
        value="summary",
        text=lambda row: f"{row.summary}. {row.caution}" if row.caution else row.summary,
        label="",
        meaning="what it writes",
    ),
    file_column("caution", "caution", "what was not tried yet", "text?"),
    Column(
        name="options",
        title="--with",
        value=lambda row: dict(row.options),
        text=lambda row: " ".join(row.options) or NONE,
        type="object of text",
        meaning="meaning of each `--with` option",
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
}
