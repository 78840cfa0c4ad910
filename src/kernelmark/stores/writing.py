"""Fast inserts: rows are plain tuples, and numbers of cases are looked up once."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import StatisticsError
from typing import Any

from sqlalchemy import TableClause, select, update
from sqlalchemy.engine import Connection

from kernelmark.core import codec
from kernelmark.core.environment import Environment
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import TEXT, reason_document
from kernelmark.core.result import Block, Case, Measurement, Result, ResultSet, Run, config_key
from kernelmark.core.timing import Timing
from kernelmark.stores.engine import cases, environments, problems, results, runs, timings
from kernelmark.stores.packing import pack
from kernelmark.stores.reading import Decoder, results_query

BATCH = 4000  # results in one transaction: long enough to be fast, short enough to share
_LOOKUP = 400  # values in one IN (…)
_REMEMBERED = 300_000  # numbers kept in memory
_EXACT = 2**53  # floats are exact for integers up to here

Row = tuple[Any, ...]
Numbers = dict[str, int]
Write = Callable[[Callable[[Connection], tuple[Numbers, Numbers]]], tuple[Numbers, Numbers]]
_COLUMNS = [column.name for column in results.columns if column.name != "no"]
_KEY = ("run_no", "case_no", "device", "process")
Position = tuple[str, str, int]  # key of a result in a run: Case.id, device, process


class Catalogue:
    """A cache of the row numbers of cases and timings; new ones are added to the store.

    They are committed before the results that use them, and never removed, so that cached numbers
    stay valid.
    """

    def __init__(self) -> None:
        self._cases: Numbers = {}
        self._timings: dict[Timing, int] = {}

    def numbers(self, batch: Sequence[Result], write: Write) -> list[tuple[int, int]]:
        """Return (case number, timing number) of each result."""
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
        by_object: dict[int, int] = {}
        new_timings: dict[int, str] = {}
        for number, timing in timings.items():
            known = self._timings.get(timing)
            if known is None:
                new_timings[number] = compact(timing)
            else:
                by_object[number] = known
        if new_cases or new_timings:
            case_numbers, timing_numbers = write(
                lambda connection: (
                    _case_numbers(connection, new_cases),
                    _timing_numbers(connection, sorted(set(new_timings.values()))),
                )
            )
            self._cases.update(case_numbers)
            for number, document in new_timings.items():
                by_object[number] = self._timings[timings[number]] = timing_numbers[document]
        return [
            (self._cases[text], by_object[id(result.case.timing)])
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
    batch: Sequence[Result], numbers: Sequence[tuple[int, int]], run_no: int, process: int
) -> list[Row]:
    """Return the rows for `insert_results`."""
    return [
        _row(result, run_no, case_no, timing_no, process)
        for result, (case_no, timing_no) in zip(batch, numbers, strict=True)
    ]


def insert_results(
    connection: Connection, rows: list[Row], *, replace: bool, alone: bool = False
) -> None:
    """Insert rows. With `replace`, they replace rows of the same run, case, device and process;
    without it, those raise an IntegrityError, which makes inserting 20 % faster. With `alone`, all
    earlier rows of the same run and case are deleted first."""
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    if alone:
        connection.exec_driver_sql(
            f"DELETE FROM results WHERE run_no = {mark} AND case_no = {mark}",
            sorted({(run_no, case_no) for run_no, case_no, *_ in rows}),
        )
    marks = ", ".join([mark] * len(_COLUMNS))
    statement = f"INSERT INTO results ({', '.join(_COLUMNS)}) VALUES ({marks})"
    if replace:
        new = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in _KEY)
        statement += f" ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET {new}"
    connection.exec_driver_sql(statement, rows)


def add_result_set(connection: Connection, new: ResultSet) -> None:
    """Insert a new run with its results."""
    connection.execute(runs.insert().values(**run_values(connection, new.run)))
    number = lookup(connection, runs, "id", [new.run.id])[new.run.id]
    for (_, _, process), result in positions(new.results).items():
        numbers = Catalogue().numbers([result], lambda work: work(connection))
        rows = result_rows([result], numbers, number, process)
        insert_results(connection, rows, replace=False)


def positions(found: Sequence[Result]) -> dict[Position, Result]:
    """Return the results of a run by case, device and process. Files do not contain the process,
    but results of one case and device are in its order."""
    made: dict[Position, Result] = {}
    for result in found:
        case_id, process = result.case.id, 0
        while (case_id, result.device, process) in made:
            process += 1
        made[case_id, result.device, process] = result
    return made


def run_values(connection: Connection, run: Run) -> dict[str, Any]:
    """Return the columns of a run."""
    if not math.isfinite(run.started):
        raise UsageError(f"run {run.id}: started={run.started} is not finite")
    fingerprint = run.environment.fingerprint
    document = compact(run.environment)
    add_missing(connection, environments, [{"fingerprint": fingerprint, "document": document}])
    number = lookup(connection, environments, "fingerprint", [fingerprint])[fingerprint]
    return {
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
    wanted = list(values)
    numbers: Numbers = {}
    for start in range(0, len(wanted), _LOOKUP):
        query = select(table.c[column], table.c.no).where(
            table.c[column].in_(wanted[start : start + _LOOKUP])
        )
        numbers.update((text, no) for text, no in connection.execute(query))
    return numbers


def packed(result: Result) -> bytes:
    """Return the column `detail` of a result."""
    return bytes(_row(result, 0, 0, 0, 0)[_COLUMNS.index("detail")])


def _row(result: Result, run_no: int, case_no: int, timing_no: int, process: int) -> Row:
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
    return (
        run_no,
        case_no,
        device,
        process,
        arch,
        timing_no,
        result.status.value,
        median,
        low,
        high,
        float(flops),
        float(size),
        started if started == started else None,
        error,
        pack(result, exact),
        _modes(measurement),
        _metrics(result),
        _doubt(measurement),
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
    known = lookup(connection, problems, "key", ops)
    fresh = sorted(ops.keys() - known.keys())
    add_missing(connection, problems, [{"key": key, "op": ops[key]} for key in fresh])
    known.update(lookup(connection, problems, "key", fresh))
    for case in new.values():
        name = case.name or case.backend
        if clean(name) != name:
            raise UsageError(f"{name!r} cannot be the name of a backend")
    ids = {case.id: text for text, case in new.items()}
    found = lookup(connection, cases, "id", ids)
    missing = sorted(ids.keys() - found.keys())
    add_missing(
        connection, cases, [_case_row(id, new[ids[id]], known[keys[ids[id]]]) for id in missing]
    )
    found.update(lookup(connection, cases, "id", missing))
    return {ids[id]: no for id, no in found.items()}


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
            values = {"detail": packed(thinned)}
            connection.execute(update(results).where(results.c.no == row.no).values(values))
            count += 1
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
