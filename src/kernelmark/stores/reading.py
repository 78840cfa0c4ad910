"""Decode rows into values, and query history."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, TypeVar, Unpack, cast

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.engine import Connection

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import CodecError, StoreError
from kernelmark.core.problem import Problem, parse_key
from kernelmark.core.reason import read_reason
from kernelmark.core.result import Case, Config, Mode, Result, Run, Status, config_key
from kernelmark.core.timing import Timing
from kernelmark.stores import SeriesPoint, StoredEnvironment
from kernelmark.stores.engine import cases, environments, problems, results, runs, timings
from kernelmark.stores.packing import (
    binary_hash,
    checksum_result,
    checksum_texts,
    maker,
    unpack,
    unseal,
)

CHECK_HINT = "`kmark store check` lists all damage; restore a copy, or export what can be read"
_REMEMBERED = 100_000
_MOST_RUNS = 2000  # kept in memory
T = TypeVar("T")
_make_point = maker(SeriesPoint)  # a history of 60 runs has 60,000


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


@contextmanager
def whole(what: str) -> Iterator[None]:
    """Raise errors of decoding as a StoreError that `what` is damaged."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, struct.error, CodecError) as error:
        raise StoreError(f"{what} is damaged: {error}", hint=CHECK_HINT) from None


def checksum_run(columns: Mapping[str, Any], environment: str) -> int:
    """Return the checksum of a run's columns and the document of its environment."""
    numbers = [float(columns[name] or 0.0) + 0.0 for name in ("started", "finished", "cases")]
    texts = [columns[name] for name in ("id", "label", "suite", "state", "document")]
    return checksum_texts(*texts, repr(numbers), environment)


class Decoder:
    """A decoder of rows that caches the parts that many rows share."""

    def __init__(self) -> None:
        self._cases: dict[tuple[int, int], tuple[Case, str]] = {}
        self._runs: dict[tuple[int, str, str], Run] = {}
        self._timings: dict[int, Timing] = {}
        self._environments: dict[int, Environment] = {}

    def runs(self, connection: Connection, query: Select[Any]) -> list[Run]:
        """Return the runs of a query made by `runs_query`."""
        return [self._run(row) for row in connection.execute(query)]

    def environments(self, connection: Connection) -> list[StoredEnvironment]:
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
            StoredEnvironment(
                environment=self._environment(number, document),
                fingerprint=fingerprint,
                runs=count,
                newest=started,
            )
            for number, fingerprint, document, count, started in connection.execute(query)
        ]

    def results(
        self,
        connection: Connection,
        run_no: int,
        selection: CaseSelection,
        problems: int | None = None,
    ) -> Iterator[Result]:
        """Yield the results of a run, in the order they were added; see `results_query`."""
        is_whole = problems is None and all(value is None for value in selection.values())
        tally = connection.execute(select(runs.c.tally).where(runs.c.no == run_no)).scalar()
        if problems is not None and tally is not None:
            checksums = select(func.sum(results.c.checksum)).where(results.c.run_no == run_no)
            if tally != int(connection.execute(checksums).scalar() or 0):
                raise incomplete(run_no)
        streaming = connection.execution_options(yield_per=500)
        total = 0
        for row in streaming.execute(results_query(run_no, selection, problems)):
            with whole(f"stored result {row.no}"):
                result = self.decode(row)
            total += row.checksum or 0
            yield result
        if is_whole and tally is not None and tally != total:
            raise incomplete(run_no)

    def last_result(self, connection: Connection, run_no: int) -> Result | None:
        """Return the result of a run that was added last; None if it has none."""
        newest = select(func.max(results.c.no)).where(results.c.run_no == run_no)
        query = results_query(run_no, {}).where(results.c.no == newest.scalar_subquery())
        row = connection.execute(query).first()
        with whole("a stored result"):
            return None if row is None else self.decode(row)

    def binaries(self, connection: Connection, run_no: int) -> set[str]:
        """Return the hashes of the binaries of a run's kernels, as far as backends record them."""
        query = select(results.c.detail).where(results.c.run_no == run_no)
        with whole("a stored result"):
            return {binary_hash(row.detail) for row in connection.execute(query)} - {""}

    def roof_sources(
        self, connection: Connection, suites: Sequence[str], **selection: Unpack[CaseSelection]
    ) -> Iterator[tuple[Environment, Result]]:
        """Yield (environment, result) of every microbenchmark in runs of these suites."""
        conditions = _conditions({**selection, "status": Status.OK})
        environment = environments.c.document.label("environment")
        query = (
            whole_results(environments.c.no.label("environment_no"), environment)
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
            with whole("a stored roof"):
                roof = self._environment(row.environment_no, row.environment), self.decode(row)
            yield roof

    def _run(self, row: Any) -> Run:
        """Return the run of a row, cached by its document: pages list the same fifty runs
        repeatedly."""
        with whole(f"stored run {row.id}"):
            checksum = checksum_run(row._mapping, row.environment)
            if row.checksum is not None and row.checksum != checksum:
                raise ValueError("its checksum does not match")
        key = (row.environment_no, row.environment, row.document)
        run = self._runs.get(key)
        if run is None:
            if len(self._runs) > _MOST_RUNS:
                self._runs.clear()
            where = self._environment(row.environment_no, row.environment)
            run = dataclasses.replace(codec.loads(row.document, Run), environment=where)
            self._runs[key] = run
        return run

    def _environment(self, number: int, document: str) -> Environment:
        if number not in self._environments:
            self._environments[number] = complete(document, Environment())
        return self._environments[number]

    def decode(self, row: Any) -> Result:
        """Return the result of a row."""
        case, detail = self.verify(row)
        error, (device, arch, status), (flops, size) = row[3], row[8:11], row[17:19]
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

    def verify(self, row: Any) -> tuple[Case, bytes]:
        """Return the case and the unsealed detail of a row; raise ValueError if a checksum does
        not match."""
        # Unpacked in the order of `whole_results`: access by name takes 20 % of reading a run.
        _, case_no, timing_no, error, detail, timing, run_id, checksum, *columns = row[:19]
        device, arch, status, modes, metrics, doubt, *numbers = columns
        decoded_case = self._cases.get((case_no, timing_no))
        if decoded_case is None:
            if len(self._cases) > _REMEMBERED:
                self._cases.clear()
            case = Case(
                problem=parse_key(row.key),
                backend=row.backend,
                timing=self._timing(timing_no, timing),
                config=json.loads(row.config),
            )
            series = " | ".join((row.key, row.backend, row.config, row.timing))
            decoded_case = self._cases[case_no, timing_no] = case, series
        case, series = decoded_case
        texts = (device, arch, status, modes, metrics, doubt)
        if checksum is not None and checksum != checksum_result(run_id, series, texts, numbers):
            raise ValueError("its checksum does not match")
        return case, unseal(detail, timing, error, required=checksum is not None)

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
        select(*runs.c, environments.c.document.label("environment"))
        .join(environments, environments.c.no == runs.c.environment_no)
        .where(*conditions)
        .order_by(runs.c.started.desc(), runs.c.no.desc())
    )


def results_query(
    run_no: int, selection: CaseSelection, first_problems: int | None = None
) -> Select[Any]:
    """Return the query for results of a run, in the order they were added. With `first_problems`,
    only those of so many problems, and all that are not ok."""
    conditions = _conditions(selection)
    query = whole_results().where(
        results.c.run_no == run_no, *conditions["results"], *conditions["cases"]
    )
    if first_problems is not None:
        first = (
            select(cases.c.problem_no)
            .join(results, results.c.case_no == cases.c.no)
            .where(results.c.run_no == run_no)
            .group_by(cases.c.problem_no)
            .order_by(func.min(results.c.no))
            .limit(first_problems)
        )
        is_failure = results.c.status != Status.OK.value
        query = query.where(or_(cases.c.problem_no.in_(first), is_failure))
    return query.order_by(results.c.no)


def whole_results(*more: Any) -> Select[Any]:
    """Return the query for all columns that a result is decoded from, and `more`."""
    columns = ("device", "arch", "status", "modes", "metrics", "doubt")
    numbers = ("median_s", "low_s", "high_s", "flops", "bytes")
    return (
        select(
            *(results.c[name] for name in ("no", "case_no", "timing_no", "error", "detail")),
            timings.c.document,
            runs.c.id,
            *(results.c[name] for name in ("checksum", *columns, *numbers)),
            problems.c.key,
            cases.c.backend,
            cases.c.config,
            cases.c.timing,
            *more,
        )
        .select_from(results)
        .join(runs, runs.c.no == results.c.run_no)
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
    results.c.checksum,
)


def history(connection: Connection, selection: Selection, limit: int | None) -> list[SeriesPoint]:
    """Return the points, oldest first; `limit` keeps the newest."""
    query = _joined(select(*_POINT), selection).order_by(runs.c.started.desc(), results.c.no.desc())
    rows = connection.execute(query.limit(limit)).all()
    with whole("a stored result"):
        points = _points(connection, rows[::-1])
    conditions = _conditions(selection)
    if limit is None and not (conditions["cases"] or conditions["results"]):
        totals: dict[str, int] = {}
        for _, _, run_id, *_, checksum in rows:
            totals[run_id] = totals.get(run_id, 0) + (checksum or 0)
        for run_id, tally in connection.execute(
            select(runs.c.id, runs.c.tally).where(runs.c.tally.is_not(None), *conditions["runs"])
        ):
            if totals.get(run_id, 0) != tally:
                raise incomplete(run_id)
    return points


def incomplete(run: int | str) -> StoreError:
    return StoreError(f"results of the stored run {run} are missing or damaged", hint=CHECK_HINT)


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
    with whole("a stored result"):
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


_NO_METRIC = ("", None, "", "lower")  # metric, value, unit, better


def _points(connection: Connection, rows: Sequence[Any]) -> list[SeriesPoint]:
    texts = _case_texts(connection, sorted({row[0] for row in rows}))
    statuses = {status.value: status for status in Status}
    # A failed result has no metrics: it is a failed point of every metric that its case has.
    metrics_by_point: dict[tuple[int, str], dict[str, tuple[Any, ...]]] = {}
    for case_no, arch, *_, headlines, _, _ in rows:
        if headlines:
            named = {name: (name, None, *rest) for name, _, *rest in json.loads(headlines)}
            metrics_by_point.setdefault((case_no, arch), {}).update(named)
    points = []
    for row in rows:
        # Unpacked in the order of `_POINT`: access by name takes longer than the query.
        case_no, arch, run_id, started, status, device, fingerprint, *rest = row
        median_s, low_s, high_s, flops, size, modes, headlines, doubt, checksum = rest
        if checksum is not None and checksum != checksum_result(
            run_id,
            texts[case_no],
            (device, arch, status, modes, headlines, doubt),
            (median_s, low_s, high_s, flops, size),
        ):
            raise ValueError(f"the checksum of a result of run {run_id} does not match")
        series = f"{texts[case_no]} | {arch}"
        point = _make_point(
            series,
            run_id,
            started,
            statuses[status],
            device,
            fingerprint,
            median_s,
            low_s,
            high_s,
            flops,
            size,
            _modes(modes) if modes else (),
            read_reason(json.loads(doubt)) if doubt else None,
            *_NO_METRIC,
        )
        metrics = (
            json.loads(headlines)
            if headlines
            else metrics_by_point.get((case_no, arch), {}).values()
        )
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
