"""Copy runs between stores, of whatever databases, and verify the copies.

Rows are copied as they are stored, in their order, and only the numbers that link them are new: a
copy keeps its checksums, and runs of several stores can be merged into one. Each row is checked as
it is read, and the digest of a copied run is compared with that of its source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection

from kernelmark.core.result import Run
from kernelmark.stores.engine import cases, problems, results, runs, timings
from kernelmark.stores.reading import Decoder, incomplete, whole, whole_results
from kernelmark.stores.writing import (
    BATCH,
    COLUMNS,
    add_missing,
    insert_results,
    lookup,
    run_values,
)

# Columns that are numbers of this store; what they refer to is compared instead.
_NUMBERS = ("no", "case_no", "timing_no")


def insert_copy(
    target: Connection, source: Connection, run_no: int, run: Run, decoder: Decoder
) -> str:
    """Insert a run and its results, read from `source`; return the digest of what was read."""
    target.execute(runs.insert().values(**run_values(target, run), tally=0))
    number = lookup(target, runs, "id", [run.id])[run.id]
    digest, total = hashlib.sha256(), 0
    for rows in _batches(source, run_no):
        for row in rows:
            with whole(f"stored result {row.no}"):
                decoder.verify(row)
            total += row.checksum or 0
        _add_digest(digest, rows)
        case_numbers, timing_numbers = _numbers(target, rows)
        copied = []
        for row in rows:
            values = {
                **row._mapping,
                "run_no": number,
                "case_no": case_numbers[row.case_id],
                "timing_no": timing_numbers[row.document],
            }
            copied.append(tuple([values[name] for name in COLUMNS]))
        insert_results(target, copied, replace=False)
    tally = source.execute(select(runs.c.tally).where(runs.c.no == run_no)).scalar()
    if tally is not None and tally != total:
        raise incomplete(run.id)
    return digest.hexdigest()


def run_digest(connection: Connection, run_no: int) -> str:
    """Return the digest of all results of a run: of every column, and of what the numbers of cases
    and timings refer to. It is the same in every store."""
    digest = hashlib.sha256()
    for rows in _batches(connection, run_no):
        _add_digest(digest, rows)
    return digest.hexdigest()


def _batches(connection: Connection, run_no: int) -> Iterator[Sequence[Any]]:
    more = (results.c.process, results.c.started, cases.c.id.label("case_id"), problems.c.op)
    query = whole_results(*more).where(results.c.run_no == run_no).order_by(results.c.no)
    yield from connection.execution_options(yield_per=BATCH).execute(query).partitions()


def _add_digest(digest: Any, rows: Sequence[Any]) -> None:
    for row in rows:
        # SQLite stores -0.0 as 0.
        values = [
            value + 0.0 if isinstance(value, float) else value
            for name, value in zip(row._fields, row, strict=True)
            if name not in _NUMBERS
        ]
        digest.update(repr(values).encode("utf-8", "surrogatepass"))


def _numbers(target: Connection, rows: Sequence[Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the numbers of the cases and timings of the rows in `target`, and add new ones."""
    documents = sorted({row.document for row in rows})
    add_missing(target, timings, [{"document": document} for document in documents])
    ops = {row.key: row.op for row in rows}
    # All writers insert in the same order, which avoids deadlocks.
    add_missing(target, problems, [{"key": key, "op": ops[key]} for key in sorted(ops)])
    problem_numbers = lookup(target, problems, "key", ops)
    by_id = {row.case_id: row for row in rows}
    new = [
        {
            "id": case_id,
            "problem_no": problem_numbers[by_id[case_id].key],
            **{name: by_id[case_id]._mapping[name] for name in ("backend", "config", "timing")},
        }
        for case_id in sorted(by_id)
    ]
    add_missing(target, cases, new)
    return lookup(target, cases, "id", by_id), lookup(target, timings, "document", documents)
