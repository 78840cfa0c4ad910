"""Decode rows into values, and query history."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, cast

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.engine import Connection

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import CodecError, StoreError
from kernelmark.core.problem import Problem, parse_key
from kernelmark.core.reason import read_reason
from kernelmark.core.result import Case, Config, Mode, Result, Run, Status, config_key
from kernelmark.core.timing import Timing
from kernelmark.stores.engine import cases, environments, problems, results, runs, timings
from kernelmark.stores.packing import unpack
from kernelmark.stores.values import Place, SeriesPoint

_REMEMBERED = 100_000
_MOST_RUNS = 2000  # kept in memory
T = TypeVar("T")


class CaseSelection(TypedDict, total=False):
    """Conditions on results; absent and None fields are ignored."""

    problem: Problem | str | None
    op: str | None
    backend: str | None
    config: Config | None
    timing: Timing | str | None
    case_id: str | None
    arch: str | None
    device: str | None
    status: Status | None


class Selection(CaseSelection, total=False):
    """Conditions on results and their runs. `since` is the earliest start of a run, in seconds
    since the epoch."""

    run_id: str | None
    label: str | None
    since: float | None


class Decoder:
    """A decoder of rows that caches the parts that many rows share."""

    def __init__(self) -> None:
        self._cases: dict[tuple[int, int], Case] = {}
        self._runs: dict[tuple[str, int], Run] = {}
        self._timings: dict[int, Timing] = {}
        self._environments: dict[int, Environment] = {}

    def runs(self, connection: Connection, query: Select[Any]) -> list[Run]:
        """Return the runs of a query made by `runs_query`."""
        return [self._run(*row) for row in connection.execute(query)]

    def places(self, connection: Connection) -> list[Place]:
        """Return every environment with the number of its runs, most recently used first."""
        newest = func.max(runs.c.started)
        query = (
            select(
                environments.c.no,
                environments.c.fingerprint,
                environments.c.document,
                func.count(),
                newest,
            )
            .join(runs, runs.c.environment_no == environments.c.no)
            .group_by(environments.c.no, environments.c.fingerprint, environments.c.document)
            .order_by(newest.desc())
        )
        return [
            Place(
                environment=self._environment(number, document),
                fingerprint=fingerprint,
                runs=count,
                newest=started,
            )
            for number, fingerprint, document, count, started in connection.execute(query)
        ]

    def results(self, connection: Connection, query: Select[Any]) -> Iterator[Result]:
        """Yield the results of a query made by `results_query`."""
        streaming = connection.execution_options(yield_per=500)
        for row in streaming.execute(query):
            try:
                yield self.decode(row)
            except (ValueError, TypeError, LookupError, struct.error, CodecError) as error:
                raise StoreError(
                    f"stored result {row.no} is damaged: {error}", hint="restore a copy"
                ) from None

    def roof_sources(
        self, connection: Connection, suites: Sequence[str], **selection: Unpack[CaseSelection]
    ) -> Iterator[tuple[Environment, Result]]:
        """Yield (environment, result) of every microbenchmark in runs of these suites."""
        conditions = _conditions({**selection, "status": Status.OK})
        environment = environments.c.document.label("environment")
        query = (
            _whole_results(environments.c.no.label("environment_no"), environment)
            .join(runs, runs.c.no == results.c.run_no)
            .join(environments, environments.c.no == runs.c.environment_no)
            # A subquery, as in `_joined`: a join alone would read every result of the store.
            .where(
                results.c.run_no.in_(select(runs.c.no).where(runs.c.suite.in_(suites))),
                *conditions["results"],
                *conditions["cases"],
            )
            .order_by(runs.c.started, results.c.no)
        )
        for row in connection.execute(query):
            yield self._environment(row.environment_no, row.environment), self.decode(row)

    def _run(self, document: str, environment_no: int, environment: str) -> Run:
        """Return the run of a row, cached by its document: pages list the same fifty runs
        repeatedly."""
        key = (document, environment_no)
        run = self._runs.get(key)
        if run is None:
            if len(self._runs) > _MOST_RUNS:
                self._runs.clear()
            where = self._environment(environment_no, environment)
            run = dataclasses.replace(codec.loads(document, Run), environment=where)
            self._runs[key] = run
        return run

    def _environment(self, number: int, document: str) -> Environment:
        if number not in self._environments:
            self._environments[number] = complete(document, Environment())
        return self._environments[number]

    def decode(self, row: Any) -> Result:
        """Return the result of a row."""
        # Unpacked in the order of `_whole_results`: access by name takes 20 % of reading a run.
        _, case_no, timing_no, device, arch, status, flops, size, error, detail, *_ = row
        case = self._cases.get((case_no, timing_no))
        if case is None:
            if len(self._cases) > _REMEMBERED:
                self._cases.clear()
            case = self._cases[case_no, timing_no] = Case(
                problem=parse_key(row.key),
                backend=row.backend,
                timing=self._timing(timing_no, row.document),
                config=json.loads(row.config),
            )
        return unpack(
            detail,
            case=case,
            device=device,
            arch=arch,
            status=status,
            flops=flops,
            bytes=size,
            error=error,
        )

    def _timing(self, number: int, document: str) -> Timing:
        if number not in self._timings:
            self._timings[number] = complete(document, Timing())
        return self._timings[number]


def complete(document: str, default: T) -> T:
    """Return the value that `writing.compact` wrote. Fields that were added since have their
    default, which describes the earlier behaviour."""
    fields = codec.plain(default) | json.loads(document)
    return cast(T, codec.read(fields, type(default), type(default).__name__.lower()))


def runs_query(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return the query for runs that meet the conditions, newest first."""
    return (
        select(runs.c.document, runs.c.environment_no, environments.c.document)
        .join(environments, environments.c.no == runs.c.environment_no)
        .where(*conditions)
        .order_by(runs.c.started.desc(), runs.c.no.desc())
    )


def results_query(run_no: int, selection: CaseSelection) -> Select[Any]:
    """Return the query for results of a run, in the order they were added."""
    conditions = _conditions(selection)
    return (
        _whole_results()
        .where(results.c.run_no == run_no, *conditions["results"], *conditions["cases"])
        .order_by(results.c.no)
    )


def _whole_results(*more: Any) -> Select[Any]:
    """Return the query for all columns that a result is decoded from, and `more`."""
    shown = ("no", "case_no", "timing_no", "device", "arch", "status", "flops", "bytes", "error")
    return (
        select(
            *(results.c[name] for name in shown),
            results.c.detail,
            problems.c.key,
            cases.c.backend,
            cases.c.config,
            timings.c.document,
            *more,
        )
        .select_from(results)
        .join(cases, cases.c.no == results.c.case_no)
        .join(problems, problems.c.no == cases.c.problem_no)
        .join(timings, timings.c.no == results.c.timing_no)
    )


_POINT = (
    results.c.case_no,
    results.c.arch,
    runs.c.id.label("run_id"),
    runs.c.started,
    results.c.status,
    results.c.device,
    environments.c.fingerprint,
    results.c.median_s,
    results.c.low_s,
    results.c.high_s,
    results.c.flops,
    results.c.bytes,
    results.c.modes,
    results.c.metrics,
    results.c.doubt,
)


def history(connection: Connection, selection: Selection, limit: int | None) -> list[SeriesPoint]:
    """Return the points, oldest first; `limit` keeps the newest."""
    query = _joined(select(*_POINT), selection).order_by(runs.c.started.desc(), results.c.no.desc())
    rows = connection.execute(query.limit(limit)).all()
    return _points(connection, rows[::-1])


def latest(connection: Connection, selection: Selection) -> list[SeriesPoint]:
    """Return the newest point of each series."""
    newest = func.row_number().over(
        partition_by=(results.c.case_no, results.c.arch),
        order_by=(runs.c.started.desc(), results.c.no.desc()),
    )
    ranked = _joined(select(*_POINT, newest.label("age")), selection).subquery()
    query = (
        select(*(column for column in ranked.c if column.name != "age"))
        .where(ranked.c.age == 1)
        .order_by(ranked.c.case_no, ranked.c.arch)
    )
    return _points(connection, connection.execute(query).all())


def _joined(query: Select[Any], selection: Selection) -> Select[Any]:
    """Return `query` with joins and conditions. Subqueries select runs and cases first, so that
    results are looked up in the index of (run, case). With a plain join and no statistics, SQLite
    would read every result instead."""
    conditions = _conditions(selection)
    of_runs = select(runs.c.no).where(*conditions["runs"])
    query = (
        query.select_from(results)
        .join(runs, runs.c.no == results.c.run_no)
        .join(environments, environments.c.no == runs.c.environment_no)
        .where(results.c.run_no.in_(of_runs), *conditions["results"])
    )
    if conditions["cases"]:
        query = query.where(results.c.case_no.in_(_cases_query(conditions["cases"])))
    return query


def _cases_query(conditions: list[ColumnElement[bool]]) -> Select[Any]:
    joined = select(cases.c.no).join(problems, problems.c.no == cases.c.problem_no)
    return joined.where(*conditions)


_COLUMNS: dict[str, tuple[str, Any]] = {
    "problem": ("cases", problems.c.key),
    "op": ("cases", problems.c.op),
    "backend": ("cases", cases.c.backend),
    "config": ("cases", cases.c.config),
    "timing": ("cases", cases.c.timing),
    "case_id": ("cases", cases.c.id),
    "arch": ("results", results.c.arch),
    "device": ("results", results.c.device),
    "status": ("results", results.c.status),
    "run_id": ("runs", runs.c.id),
    "label": ("runs", runs.c.label),
}


def _conditions(selection: CaseSelection | Selection) -> dict[str, list[ColumnElement[bool]]]:
    """Return the conditions on the tables cases, results and runs."""
    conditions: dict[str, list[ColumnElement[bool]]] = {"cases": [], "results": [], "runs": []}
    for name, value in selection.items():
        if isinstance(value, int | float):  # `since` is the only number
            conditions["runs"].append(runs.c.started >= value)
        elif value is not None:
            table, column = _COLUMNS[name]
            conditions[table].append(column == _condition_value(value))
    return conditions


def _condition_value(value: object) -> str:
    if isinstance(value, Problem):
        return value.key
    if isinstance(value, Timing):
        return value.identity
    if isinstance(value, Status):
        return value.value
    if isinstance(value, Mapping):
        return config_key(value)
    return str(value)


def _points(connection: Connection, rows: Sequence[Any]) -> list[SeriesPoint]:
    texts = _case_texts(connection, sorted({row.case_no for row in rows}))
    statuses = {status.value: status for status in Status}
    # A failed result has no metrics: it is a failed point of every metric that its case has.
    known: dict[tuple[int, str], dict[str, tuple[Any, ...]]] = {}
    for row in rows:
        if row.metrics:
            named = {name: (name, None, *rest) for name, _, *rest in json.loads(row.metrics)}
            known.setdefault((row.case_no, row.arch), {}).update(named)
    points = []
    for row in rows:
        # Unpacked in the order of `_POINT`: access by name takes longer than the query.
        case_no, arch, run_id, started, status, device, fingerprint, *rest = row
        median_s, low_s, high_s, flops, size, modes, headlines, doubt = rest
        series = f"{texts[case_no]} | {arch}"
        point = SeriesPoint(
            series=series,
            run_id=run_id,
            started=started,
            status=statuses[status],
            device=device,
            fingerprint=fingerprint,
            median_s=median_s,
            low_s=low_s,
            high_s=high_s,
            flops=flops,
            bytes=size,
            modes=_modes(modes) if modes else (),
            doubt=read_reason(json.loads(doubt)) if doubt else None,
        )
        metrics = json.loads(headlines) if headlines else known.get((case_no, arch), {}).values()
        points += [
            dataclasses.replace(
                point,
                series=f"{series} | {name}",
                metric=name,
                value=value,
                unit=unit,
                better=better,
            )
            for name, value, unit, better in metrics
        ] or [point]
    return points


def _modes(text: str) -> tuple[Mode, ...]:
    return tuple(Mode(value_s=time_s, share=share) for time_s, share in json.loads(text))


def _case_texts(connection: Connection, numbers: Sequence[int]) -> dict[int, str]:
    """Return the series text of each case, without the architecture."""
    texts: dict[int, str] = {}
    for start in range(0, len(numbers), 400):
        query = (
            select(cases.c.no, problems.c.key, cases.c.backend, cases.c.config, cases.c.timing)
            .join(problems, problems.c.no == cases.c.problem_no)
            .where(cases.c.no.in_(numbers[start : start + 400]))
        )
        texts.update((row[0], " | ".join(row[1:])) for row in connection.execute(query))
    return texts
