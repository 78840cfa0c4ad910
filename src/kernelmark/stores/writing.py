"""Fast inserts: rows are plain tuples, and numbers of cases are looked up once."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import StatisticsError
from typing import Any

from sqlalchemy import TableClause, func, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import TEXT, reason_document
from kernelmark.core.result import Block, Case, Measurement, Result, ResultSet, Run, config_key
from kernelmark.core.timing import Timing
from kernelmark.stores.engine import cases, environments, problems, results, runs, timings
from kernelmark.stores.packing import SEAL_BYTES, checksum_result, pack, seal
from kernelmark.stores.reading import Decoder, checksum_run, results_query

BATCH = 4000  # results in one transaction: long enough to be fast, short enough to share
_LOOKUP = 400  # values in one IN (…)
_REMEMBERED = 300_000  # numbers kept in memory
_EXACT = 2**53  # floats are exact for integers up to here

Row = tuple[Any, ...]
Numbers = dict[str, int]
Write = Callable[[Callable[[Connection], tuple[Numbers, Numbers]]], tuple[Numbers, Numbers]]
_Keys = tuple[int, int, str]  # case number, timing number, document of the timing
COLUMNS = [column.name for column in results.columns if column.name != "no"]
_KEY = ("run_no", "case_no", "device", "process")
Position = tuple[str, str, int]  # key of a result in a run: Case.id, device, process


class Catalogue:
    """A cache of the row numbers of cases and timings; new ones are added to the store.

    They are committed before the results that use them, and never removed, so that cached numbers
    stay valid.
    """

    def __init__(self) -> None:
        self._cases: Numbers = {}
        self._timings: dict[Timing, tuple[int, str]] = {}

    def numbers(self, batch: Sequence[Result], write: Write) -> list[_Keys]:
        """Return the keys of each result."""
        if len(self._cases) > _REMEMBERED:
            self._cases.clear()
        texts = [result.case.series for result in batch]
        new_cases = {
            text: result.case
            for text, result in zip(texts, batch, strict=True)
            if text not in self._cases
        }
        # By identity first: most results of a run share one timing, and comparing it is slow.
        timings = {id(result.case.timing): result.case.timing for result in batch}
        by_object: dict[int, tuple[int, str]] = {}
        new_timings: dict[int, str] = {}
        for number, timing in timings.items():
            timing_number = self._timings.get(timing)
            if timing_number is None:
                new_timings[number] = compact(timing)
            else:
                by_object[number] = timing_number
        if new_cases or new_timings:
            case_numbers, timing_numbers = write(
                lambda connection: (
                    _case_numbers(connection, new_cases),
                    _timing_numbers(connection, sorted(set(new_timings.values()))),
                )
            )
            self._cases.update(case_numbers)
            for number, document in new_timings.items():
                by_object[number] = timing_numbers[document], document
                self._timings[timings[number]] = by_object[number]
        return [
            (self._cases[text], *by_object[id(result.case.timing)])
            for text, result in zip(texts, batch, strict=True)
        ]


def batches(stream: Iterable[Result]) -> Iterator[list[Result]]:
    """Yield the results in lists of at most BATCH."""
    batch: list[Result] = []
    for result in stream:
        batch.append(result)
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def result_rows(
    batch: Sequence[Result], keys: Sequence[_Keys], run: tuple[int, str], process: int
) -> list[Row]:
    """Return the rows for `insert_results`; `run` is the number and id of the run."""
    return [_row(result, run, key, process) for result, key in zip(batch, keys, strict=True)]


def insert_results(
    connection: Connection, rows: list[Row], *, replace: bool, alone: bool = False
) -> None:
    """Insert rows. With `replace`, they replace rows of the same run, case, device and process;
    without it, those raise an IntegrityError, which makes inserting 20 % faster. With `alone`, all
    earlier rows of the same run and case are deleted first."""
    is_postgres = connection.dialect.name == "postgresql"
    mark = "%s" if is_postgres else "?"
    run_nos = sorted({row[0] for row in rows})
    if replace or alone:
        # In PostgreSQL, the tally would miss rows that another writer of the run adds meanwhile.
        connection.execute(
            select(runs.c.no).where(runs.c.no.in_(run_nos)).with_for_update(key_share=True)
        )
    if alone:
        connection.exec_driver_sql(
            f"DELETE FROM results WHERE run_no = {mark} AND case_no = {mark}",
            sorted({(run_no, case_no) for run_no, case_no, *_ in rows}),
        )
    if is_postgres and not replace:
        _copy(connection, rows)
    else:
        marks = ", ".join([mark] * len(COLUMNS))
        statement = f"INSERT INTO results ({', '.join(COLUMNS)}) VALUES ({marks})"
        if replace:
            new = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in _KEY)
            statement += f" ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET {new}"
        connection.exec_driver_sql(statement, rows)
    if replace or alone:
        for run_no in run_nos:
            set_tally(connection, run_no)
    elif rows:
        added = runs.c.tally + sum(row[-1] or 0 for row in rows)  # None: of an older version
        connection.execute(update(runs).where(runs.c.no == rows[0][0]).values(tally=added))


def _copy(connection: Connection, rows: Sequence[Row]) -> None:
    """Insert rows by COPY, in PostgreSQL's binary form: a third of the time of INSERT."""
    names = ", ".join(COLUMNS)
    statement = f"COPY results ({names}) FROM STDIN (FORMAT BINARY)"
    raw = connection.connection.driver_connection
    assert raw is not None
    dbapi = connection.dialect.loaded_dbapi
    try:
        with raw.cursor() as cursor:
            types = cursor.execute(f"SELECT {names} FROM results LIMIT 0").description
            with cursor.copy(statement) as copy:
                copy.set_types([column.type_code for column in types])
                for row in rows:
                    copy.write_row(row)
    except dbapi.Error as error:  # SQLAlchemy wraps the errors of its own statements only
        raise DBAPIError.instance(statement, None, error, dbapi.Error) from error


def set_tally(connection: Connection, run_no: int) -> None:
    """Set the sum of the checksums of a run's results; runs of older versions have none."""
    mine = select(func.coalesce(func.sum(results.c.checksum), 0)).where(results.c.run_no == run_no)
    changed = update(runs).where(runs.c.no == run_no, runs.c.tally.is_not(None))
    connection.execute(changed.values(tally=mine.scalar_subquery()))


def add_result_set(connection: Connection, new: ResultSet) -> None:
    """Insert a new run with its results."""
    connection.execute(runs.insert().values(**run_values(connection, new.run), tally=0))
    number = lookup(connection, runs, "id", [new.run.id])[new.run.id]
    for (_, _, process), result in positions(new.results).items():
        keys = Catalogue().numbers([result], lambda work: work(connection))
        rows = result_rows([result], keys, (number, new.run.id), process)
        insert_results(connection, rows, replace=False)


def positions(results: Sequence[Result]) -> dict[Position, Result]:
    """Return the results of a run by case, device and process. Files do not contain the process,
    but results of one case and device are in its order."""
    by_position: dict[Position, Result] = {}
    for result in results:
        case_id, device, process = result.case.id, clean(result.device), 0
        while (case_id, device, process) in by_position:
            process += 1
        by_position[case_id, device, process] = result
    return by_position


def run_values(connection: Connection, run: Run) -> dict[str, Any]:
    """Return the columns of a run."""
    if not math.isfinite(run.started):
        raise UsageError(f"run {run.id}: started={run.started} is not finite")
    fingerprint = run.environment.fingerprint
    document = compact(run.environment)
    add_missing(connection, environments, [{"fingerprint": fingerprint, "document": document}])
    # Of environments with one fingerprint, the first is stored.
    query = select(environments.c.no, environments.c.document)
    ((number, document),) = connection.execute(
        query.where(environments.c.fingerprint == fingerprint)
    )
    values = {
        "id": run.id,
        "started": run.started,
        "finished": run.finished,
        "label": clean(run.label),
        "suite": clean(run.suite),
        "state": run.state.value,
        "cases": run.cases,
        "environment_no": number,
        # The environment is stored once, in its own table.
        "document": codec.dumps(dataclasses.replace(run, environment=Environment())),
    }
    return {**values, "checksum": checksum_run(values, document)}


def clean(text: str) -> str:
    """Return `text` with NUL and lone surrogates escaped, which SQL cannot hold."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    if text.isascii():  # the common case, and fast
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def compact(value: Timing | Environment) -> str:
    """Return a value as JSON without an envelope; `reading.complete` reads it."""
    return json.dumps(codec.plain(value), separators=(",", ":"), allow_nan=False)


def add_missing(connection: Connection, table: TableClause, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows that do not exist yet, even if another process inserts them concurrently."""
    if not rows:
        return
    names = list(rows[0])
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({', '.join(names)})"
        f" VALUES ({', '.join([mark] * len(names))}) ON CONFLICT DO NOTHING",
        [tuple(row.values()) for row in rows],
    )


def lookup(
    connection: Connection, table: TableClause, column: str, values: Iterable[str]
) -> Numbers:
    """Return the numbers of the rows whose `column` is one of `values`."""
    remaining = list(values)
    numbers: Numbers = {}
    for start in range(0, len(remaining), _LOOKUP):
        query = select(table.c[column], table.c.no).where(
            table.c[column].in_(remaining[start : start + _LOOKUP])
        )
        numbers.update((text, no) for text, no in connection.execute(query))
    return numbers


def checksum_of(run_id: str, result: Result) -> int:
    """Return the checksum of everything in a result: of its columns, and of the packed rest."""
    row = _row(result, (0, run_id), (0, 0, compact(result.case.timing)), 0)
    return joint(row[-1], row[COLUMNS.index("detail")][:SEAL_BYTES])


def joint(columns: int, seal: bytes) -> int:
    """Return the checksum of a row with this column `checksum`, and `detail` with this seal."""
    return zlib.crc32(seal, columns)


def is_same(stored: Result, new: Result) -> bool:
    """Return whether a result is what was stored, perhaps with its samples thinned since."""
    forms = filter(None, (new, _thinned(new)))
    return _every_field(stored) in map(_every_field, forms)


def _every_field(result: Result) -> str:
    """Return all values as text: NaN is not equal to itself, and `repr(result)` is a summary."""
    return repr([getattr(result, field.name) for field in dataclasses.fields(result)])


def packed(result: Result, timing: str) -> bytes:
    """Return the column `detail` of a result whose timing has this document."""
    return bytes(_row(result, (0, ""), (0, 0, timing), 0)[COLUMNS.index("detail")])


def _row(result: Result, run: tuple[int, str], keys: _Keys, process: int) -> Row:
    (run_no, run_id), (case_no, timing_no, timing) = run, keys
    device, arch, error = clean(result.device), clean(result.arch), clean(result.error)
    exact: dict[str, object] = {}
    if (device, arch, error) != (result.device, result.arch, result.error):
        exact = {"device": result.device, "arch": result.arch, "error": result.error}
    if result.error.code != TEXT:
        exact["reason"] = reason_document(result.error)
    flops, size = result.flops, result.bytes
    if not (-_EXACT <= flops <= _EXACT and -_EXACT <= size <= _EXACT):
        exact |= {"flops": flops, "bytes": size}
        flops, size = _within(flops), _within(size)
    measurement, started = result.measurement, result.started
    median, low, high = (None, None, None) if measurement is None else _times(measurement)
    modes, metrics, doubt = _modes(measurement), _metrics(result), _doubt(measurement)
    status, numbers = result.status.value, (median, low, high, float(flops), float(size))
    texts = (device, arch, status, modes, metrics, doubt)
    return (
        run_no,
        case_no,
        device,
        process,
        arch,
        timing_no,
        status,
        *numbers,
        started if started == started else None,
        error,
        seal(pack(result, exact), timing, error),
        modes,
        metrics,
        doubt,
        checksum_result(run_id, result.case.series, texts, numbers),
    )


def _times(measurement: Measurement) -> tuple[float | None, float | None, float | None]:
    """Return median and bounds, None for nan, which SQLite stores as NULL and PostgreSQL sorts
    last."""
    low, high = measurement.low_s, measurement.high_s
    try:
        median = measurement.median_s
    except StatisticsError:  # a block without samples
        median = math.nan
    return (
        median if median == median else None,
        low if low == low else None,
        high if high == high else None,
    )


def _modes(measurement: Measurement | None) -> str | None:
    if measurement is None or not measurement.modes:
        return None
    return json.dumps([[mode.value_s, mode.share] for mode in measurement.modes])


def _doubt(measurement: Measurement | None) -> str | None:
    doubt = None if measurement is None else measurement.doubt
    return None if doubt is None else json.dumps(reason_document(doubt))


def _metrics(result: Result) -> str | None:
    """Return the headline metrics, which history tracks, as JSON."""
    if not result.metrics:
        return None
    return json.dumps([[m.name, m.value, m.unit, m.better] for m in result.headlines])


def _within(count: int) -> int:
    """Return `count`, limited to the range of a float column."""
    return max(min(count, 10**300), -(10**300))


def _timing_numbers(connection: Connection, documents: Sequence[str]) -> Numbers:
    # All writers insert in the same order, which avoids deadlocks.
    add_missing(connection, timings, [{"document": document} for document in documents])
    return lookup(connection, timings, "document", documents)


def _case_numbers(connection: Connection, new: dict[str, Case]) -> Numbers:
    keys = {text: case.problem.key for text, case in new.items()}
    ops = {keys[text]: case.problem.op for text, case in new.items()}
    problem_numbers = lookup(connection, problems, "key", ops)
    fresh = sorted(ops.keys() - problem_numbers.keys())
    add_missing(connection, problems, [{"key": key, "op": ops[key]} for key in fresh])
    problem_numbers.update(lookup(connection, problems, "key", fresh))
    for case in new.values():
        name = case.name or case.backend
        if clean(name) != name:
            raise UsageError(f"{name!r} cannot be the name of a backend")
    ids = {case.id: text for text, case in new.items()}
    case_numbers = lookup(connection, cases, "id", ids)
    missing = sorted(ids.keys() - case_numbers.keys())
    add_missing(
        connection,
        cases,
        [_case_row(id, new[ids[id]], problem_numbers[keys[ids[id]]]) for id in missing],
    )
    case_numbers.update(lookup(connection, cases, "id", missing))
    return {ids[id]: no for id, no in case_numbers.items()}


def _case_row(id: str, case: Case, problem_no: int) -> dict[str, Any]:
    return {
        "id": id,
        "problem_no": problem_no,
        "backend": case.name or case.backend,
        "config": config_key(case.config),
        "timing": case.timing.identity,
    }


def thin_samples(connection: Connection, decoder: Decoder, number: int) -> int:
    """Replace the samples of each block by their median, and return how many results changed.
    Medians, intervals and what rules compute from blocks stay the same."""
    rows = connection.execute(results_query(number, {})).all()
    count = 0
    for row in rows:
        thinned = _thinned(decoder.decode(row))
        if thinned is not None:
            values = {"detail": packed(thinned, row.document)}
            connection.execute(update(results).where(results.c.no == row.no).values(values))
            count += 1
    set_tally(connection, number)  # it is the same; a write of the run's row shows the change
    return count


def _thinned(result: Result) -> Result | None:
    measured = result.measurement
    # A single block with one sample would look like a bare mean from another tool.
    if measured is None or len(measured.blocks) < 2 or measured.samples == len(measured.blocks):
        return None
    blocks = tuple(map(_median, measured.blocks))
    return dataclasses.replace(result, measurement=dataclasses.replace(measured, blocks=blocks))


def _median(block: Block) -> Block:
    clock = block.clock_mhz
    whole = len(block.clocks_mhz) == len(block.samples_s)
    return dataclasses.replace(
        block,
        samples_s=(block.median_s,),
        clocks_mhz=(clock,) if clock is not None and whole else (),
    )
