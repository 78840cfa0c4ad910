"""The tables for queries: names only, as types, keys and indexes are in the migrations. A test
checks that both agree.

A series is a case on an architecture: (`cases`, `results.arch`). Columns of `results` are what
queries select and sort by; `detail` holds everything else, exactly (see packing). Where SQL cannot
hold a value (nan, NUL), the column is NULL or cleaned, and `detail` has the exact value.
"""

from __future__ import annotations

from sqlalchemy import TableClause, column, table

VERSION_KEY = "schema"
APPLICATION_ID = 0x6B6D726B  # "kmrk", in the header of SQLite stores


def _table(name: str, columns: str) -> TableClause:
    return table(name, *map(column, columns.split()))


meta = _table("meta", "key value")
environments = _table("environments", "no fingerprint document")
runs = _table("runs", "no id started finished label suite state cases environment_no document")
problems = _table("problems", "no key op")
timings = _table("timings", "no document")
cases = _table("cases", "no id problem_no backend config timing")
# `modes` is [[seconds, share], …] as JSON, if there are several; `metrics` is
# [[name, value, unit, better], …] of headlines, if any; `doubt` is the reason why the median is
# unreliable, if it is.
results = _table(
    "results",
    "no run_no case_no device process arch timing_no status median_s low_s high_s flops bytes"
    " started error detail modes metrics doubt",
)
pins = _table("pins", "name run_no pinned")
tokens = _table("tokens", "name digest scope created")
TABLES = (meta, environments, runs, problems, timings, cases, results, pins, tokens)
