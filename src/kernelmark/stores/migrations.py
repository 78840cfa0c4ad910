"""Numbered migrations of the schema, each a list of DDL statements.

A released migration never changes. All missing ones run in one transaction, so that a store has
the old schema or the new one, nothing between. A migration that moves rows also has a function that
uses today's code to write them, which runs after all statements.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby

from sqlalchemy import inspect, select, text
from sqlalchemy.engine import Connection

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import CodecError, StoreError
from kernelmark.core.metric import Roof
from kernelmark.core.micro import micro_case, old_run, upgraded
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, Status
from kernelmark.stores import roofs, writing
from kernelmark.stores.engine import APPLICATION_ID, VERSION_KEY, Location, meta

_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);

CREATE TABLE environments (
  no {serial},
  fingerprint TEXT NOT NULL UNIQUE,
  document TEXT NOT NULL
);

CREATE TABLE runs (
  no {serial},
  id TEXT NOT NULL UNIQUE,
  started {real} NOT NULL,
  finished {real},
  label TEXT NOT NULL,
  suite TEXT NOT NULL,
  state TEXT NOT NULL,
  cases {int} NOT NULL,
  environment_no {int} NOT NULL REFERENCES environments (no),
  document TEXT NOT NULL
);
CREATE INDEX ix_runs_started ON runs (started);
CREATE INDEX ix_runs_label ON runs (label);

CREATE TABLE problems (
  no {serial},
  key TEXT NOT NULL UNIQUE,
  op TEXT NOT NULL
);
CREATE INDEX ix_problems_op ON problems (op);

CREATE TABLE timings (
  no {serial},
  document TEXT NOT NULL UNIQUE
);

CREATE TABLE cases (
  no {serial},
  id TEXT NOT NULL UNIQUE,
  problem_no {int} NOT NULL REFERENCES problems (no),
  backend TEXT NOT NULL,
  config TEXT NOT NULL,
  timing TEXT NOT NULL
);
CREATE INDEX ix_cases_problem_no ON cases (problem_no);

CREATE TABLE results (
  no {serial},
  run_no {int} NOT NULL REFERENCES runs (no),
  case_no {int} NOT NULL REFERENCES cases (no),
  device TEXT NOT NULL,
  process {int} NOT NULL,
  arch TEXT NOT NULL,
  timing_no {int} NOT NULL REFERENCES timings (no),
  status TEXT NOT NULL,
  median_s {real},
  low_s {real},
  high_s {real},
  flops {real} NOT NULL,
  bytes {real} NOT NULL,
  started {real},
  error TEXT NOT NULL,
  detail {blob} NOT NULL,
  UNIQUE (run_no, case_no, device, process)
);

CREATE TABLE roofs (
  no {serial},
  host TEXT NOT NULL,
  device TEXT NOT NULL,
  arch TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  unit TEXT NOT NULL,
  threads {int} NOT NULL,
  measured {real} NOT NULL,
  document TEXT NOT NULL
);

CREATE TABLE pins (
  name TEXT PRIMARY KEY,
  run_no {int} NOT NULL REFERENCES runs (no),
  pinned {real} NOT NULL
);
"""
# Results of microbenchmarks.
_MICRO = """
CREATE TABLE micro (
  no {serial},
  run_id TEXT NOT NULL,
  host TEXT NOT NULL,
  benchmark TEXT NOT NULL,
  device TEXT NOT NULL,
  arch TEXT NOT NULL,
  status TEXT NOT NULL,
  started {real} NOT NULL,
  document TEXT NOT NULL
);
CREATE INDEX ix_micro_benchmark ON micro (benchmark, started);
"""
# For clients that read or push over the network.
_TOKENS = (
    "CREATE TABLE tokens (name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE,"
    " scope TEXT NOT NULL, created {real} NOT NULL)"
)
# NULL: stored by an older version.
_CHECKSUMS = """
ALTER TABLE runs ADD COLUMN checksum {int};
ALTER TABLE runs ADD COLUMN tally {int};
ALTER TABLE results ADD COLUMN checksum {int};
"""
# Decisions about series: regressions that were confirmed, and those that were accepted.
_MARKS = (
    "CREATE TABLE marks (series TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,"
    " run_id TEXT NOT NULL, started {real} NOT NULL, before_id TEXT NOT NULL, level {real},"
    " reason TEXT NOT NULL, author TEXT NOT NULL, created {real} NOT NULL,"
    " PRIMARY KEY (series, kind))"
)
# SQLite compares texts by bytes, and ignores case in ASCII only; so must PostgreSQL, whose default
# depends on the database, or the same names would be found and sorted differently.
_BY_BYTES = """
ALTER TABLE runs ALTER COLUMN id TYPE TEXT COLLATE "C", ALTER COLUMN label TYPE TEXT COLLATE "C",
  ALTER COLUMN suite TYPE TEXT COLLATE "C", ALTER COLUMN state TYPE TEXT COLLATE "C";
ALTER TABLE pins ALTER COLUMN name TYPE TEXT COLLATE "C";
ALTER TABLE tokens ALTER COLUMN name TYPE TEXT COLLATE "C";
ALTER TABLE marks ALTER COLUMN series TYPE TEXT COLLATE "C";
"""
# A case of ten architectures is ten series: the index finds the points of one of them.
_BY_SERIES = """
DROP INDEX ix_results_case_no;
CREATE INDEX ix_results_series ON results (case_no, arch, run_no);
"""
_MIGRATIONS = {
    1: _FIRST,
    2: _MICRO,
    3: "ALTER TABLE results ADD COLUMN modes TEXT",  # history judges a result by its modes
    4: "ALTER TABLE results ADD COLUMN metrics TEXT",  # microbenchmarks become ordinary results
    5: _TOKENS,
    6: "ALTER TABLE results ADD COLUMN doubt TEXT",  # why history does not judge a point
    7: _MARKS,
    8: _CHECKSUMS,
    9: "",  # of PostgreSQL only
}
_TYPES = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY", "int": "INTEGER", "real": "REAL", "blob": "BLOB"},
    "postgresql": {
        "serial": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        "int": "BIGINT",
        "real": "DOUBLE PRECISION",
        "blob": "BYTEA",
    },
}
_OF_ONE_DIALECT = {
    # SQLite would rewrite a page of this index for every result, which doubles the time of adding
    # one. Without it, a series is found through the index of each run.
    (1, "postgresql"): "CREATE INDEX ix_results_case_no ON results (case_no, run_no)",
    # "kmrk" identifies stores among SQLite files, also for file(1).
    (1, "sqlite"): f"PRAGMA application_id = {APPLICATION_ID}",
    (9, "postgresql"): _BY_BYTES + _BY_SERIES,
}


def numbers() -> list[int]:
    """Return the numbers of all migrations."""
    return list(_MIGRATIONS)


def statements(number: int, dialect: str) -> list[str]:
    """Return the DDL statements of a migration for `dialect`."""
    ddl = f"{_MIGRATIONS[number]};{_OF_ONE_DIALECT.get((number, dialect), '')}"
    return [part.strip() for part in ddl.format(**_TYPES[dialect]).split(";") if part.strip()]


def version(connection: Connection, location: Location) -> int:
    """Return the schema version of a store, 0 if it is empty; raise StoreError for a database of
    another program."""
    tables = set(inspect(connection).get_table_names(schema=location.schema or None))
    if not tables:
        return 0
    if not {"meta", "runs", "results"} <= tables:
        raise StoreError(
            f"{location.shown} is a database of another program",
            hint="choose another path with --store or KERNELMARK_STORE",
        )
    value = connection.execute(select(meta.c.value).where(meta.c.key == VERSION_KEY)).scalar()
    if value is None or not str(value).isdigit():
        raise StoreError(
            f"the store {location.shown} has no schema version", hint="restore a copy of it"
        )
    return int(value)


def is_current(schema: int, location: Location) -> bool:
    """Return whether `schema` is the newest; raise StoreError if it is newer."""
    newest = max(_MIGRATIONS)
    if schema > newest:
        raise StoreError(
            Reason(
                f"the store {location.shown} has schema {schema},"
                f" newer than the {newest} known here",
                "store-too-new",
                store=location.shown,
                schema=schema,
                newest=newest,
            ),
            hint="upgrade kernelmark, or choose another path with --store",
        )
    return schema == newest


def migrate(connection: Connection, location: Location) -> None:
    """Migrate the store to the newest schema, in the caller's write transaction."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        # SQLite's write lock prevents concurrent migrations; PostgreSQL needs an explicit lock.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")
        connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{location.schema}"')
    schema = version(connection, location)
    if is_current(schema, location):
        return
    for number in numbers():
        for statement in statements(number, dialect) if number > schema else ():
            connection.exec_driver_sql(statement)
    if schema < 4:
        _convert_microbenchmarks(connection)
    connection.execute(meta.delete().where(meta.c.key == VERSION_KEY))
    connection.execute(meta.insert().values(key=VERSION_KEY, value=str(max(_MIGRATIONS))))


def _convert_microbenchmarks(connection: Connection) -> None:
    """Move the rows of the tables `micro` and `roofs`, and drop the tables."""
    query = "SELECT run_id, host, document, benchmark, device, arch, started FROM micro"
    old_rows = connection.execute(text(f"{query} ORDER BY run_id, host, started, no")).all()
    taken = set(connection.execute(text("SELECT id FROM runs")).scalars())
    for (run_id, _), rows in groupby(old_rows, key=lambda row: (row[0], row[1])):
        free = run_id
        while free in taken:  # a file with several hosts was imported under one id
            free += "-2"
        taken.add(free)
        writing.add_result_set(connection, old_run(free, [_upgraded_row(*row[1:]) for row in rows]))
    hosts: dict[str, list[Roof]] = {}
    query = "SELECT host, document FROM roofs ORDER BY measured, no"
    for host, document in connection.execute(text(query)):
        with suppress(CodecError):  # a damaged roof will be measured again
            hosts.setdefault(host, []).append(codec.loads(document, Roof))
    for host, measured in hosts.items():
        kept = {(r.device, r.arch, r.kind, r.name, r.unit, r.threads): r for r in measured}
        for roof_run in roofs.recorded(kept.values(), host):
            writing.add_result_set(connection, roof_run)
    for table in ("micro", "roofs"):
        connection.execute(text(f"DROP TABLE {table}"))


def _upgraded_row(
    host: str, document: str, benchmark: str, device: str, arch: str, started: float
) -> tuple[Environment, Result]:
    """Return the environment and result of a row. A damaged row becomes a failed result, so that
    the store can still be opened."""
    try:
        return upgraded(codec.parse(document), benchmark)
    except (ValueError, TypeError, AttributeError, CodecError) as error:
        info = DeviceInfo(name=device, kind=device.partition(":")[0], model="", arch=arch)
        failed = Result(
            case=micro_case("damaged", "unknown", {"benchmark": benchmark}, 0),
            device=device,
            arch=arch,
            status=Status.CRASHED,
            started=started,
            error=Reason(f"the stored {benchmark} is damaged: {error}"),
        )
        return Environment(host=host, devices=(info,)), failed
