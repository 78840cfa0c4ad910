"""The tables for queries, and connections: SQLite with safe settings, PostgreSQL by psycopg 3.

The tables have names only: types, keys and indexes are in the migrations, and a test checks that
both agree. A series is a case on an architecture: (`cases`, `results.arch`). Columns of `results`
are what queries select and sort by; `detail` holds everything else, exactly (see packing). Where
SQL cannot hold a value (nan, NUL), the column is NULL or cleaned, and `detail` has the exact value.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import TableClause, column, create_engine, event, table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from kernelmark.core.errors import StoreError
from kernelmark.core.reason import TEXT, Reason
from kernelmark.stores.location import Location, check_file, may_write

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


BUSY_S = 60.0  # how long a writer waits for the lock
_ATTEMPTS = 8
# Checkpoint the WAL every 16 MiB: pages that change often are then copied once.
_SETTINGS = (
    "synchronous=NORMAL",
    "foreign_keys=ON",
    "cache_size=-65536",
    "wal_autocheckpoint=4096",
)


def connect(place: Location, *, readonly: bool) -> Engine:
    """Return an engine for the store, without changing anything in it."""
    if place.path is not None:
        check_file(place, place.path, readonly=readonly)
        return _connect_sqlite(place, place.path, readonly=readonly)
    return _connect_postgres(place, readonly=readonly)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that reads one snapshot of the store, taken at its first query."""
    with engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction that has SQLite's write lock from the start.

    A transaction that requests the lock at its first write fails at once, without waiting, if
    another process wrote in between; BEGIN IMMEDIATE waits for the lock.
    """
    with (
        engine.connect().execution_options(kernelmark_write=True) as connection,
        connection.begin(),
    ):
        yield connection


class Watch:
    """Detects changes of the store without reading its tables. Threads may share an instance."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: PoolProxiedConnection | None = None

    def version(self) -> str:
        """Return a text that changes with every commit to the store, by any process."""
        with self._lock:
            if self._engine.dialect.name != "sqlite":
                # The snapshot lists open writing transactions.
                with self._engine.connect() as connection:
                    query = "SELECT CAST(pg_current_snapshot() AS text)"
                    return str(connection.exec_driver_sql(query).scalar())
            # SQLite counts commits of other connections per connection, so keep the same one. A raw
            # connection has no transaction, which would keep reading the snapshot at its start.
            if self._connection is None:
                self._connection = self._engine.raw_connection()
            return str(self._connection.cursor().execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _connect_sqlite(place: Location, path: Path, *, readonly: bool) -> Engine:
    if not readonly:
        _create(path)
        return _sqlite_engine(path, "mode=rwc")
    if may_write(path) and may_write(path.parent):
        # A connection that may write removes SQLite's helper files when it closes.
        return _sqlite_engine(path, "mode=rw", "query_only=ON")
    engine = _sqlite_engine(path, "mode=ro")
    try:
        with explained(place.shown), engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
    except StoreError:
        engine.dispose()
        # SQLite cannot create its shared-memory file in a read-only folder. No process can be
        # writing there, unless a WAL file shows that one was.
        if _size(path.with_name(path.name + "-wal")):
            raise
        return _sqlite_engine(path, "mode=ro&immutable=1")
    return engine


def _create(path: Path) -> None:
    """Create the file with mode 0600, because it holds environment variables; SQLite gives its
    helper files the same mode."""
    with suppress(OSError):  # it exists already, or SQLite reports the error
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _sqlite_engine(path: Path, mode: str, *settings: str) -> Engine:
    uri = f"file:{quote(str(path.absolute()))}?{mode}"

    def new_connection() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        for setting in (*_SETTINGS, *settings):
            connection.execute(f"PRAGMA {setting}")
        return connection

    engine = create_engine("sqlite://", creator=new_connection, poolclass=QueuePool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("kernelmark_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def share(engine: Engine) -> None:
    """Enable WAL mode, which lets readers and a writer work at once. The setting is kept in the
    file, so it is usually set already. Changing it does not wait for a lock, hence the loop."""
    if engine.dialect.name != "sqlite":
        return
    give_up = time.monotonic() + BUSY_S
    while True:
        raw = engine.raw_connection()
        try:
            if raw.cursor().execute("PRAGMA journal_mode").fetchone() != ("wal",):
                raw.cursor().execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if not code(error).startswith("SQLITE_BUSY") or time.monotonic() > give_up:
                raise
            time.sleep(0.02)
        finally:
            raw.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _connect_postgres(place: Location, *, readonly: bool) -> Engine:
    assert place.url is not None
    if importlib.util.find_spec("psycopg") is None:
        raise StoreError(
            "a store in PostgreSQL needs psycopg, which is not installed",
            hint='pip install "psycopg[binary]"',
        )
    try:
        engine = create_engine(place.url, pool_pre_ping=True)
    except ImportError as error:
        cause = str(error).splitlines()[0]
        raise StoreError(
            f"the store {place.shown} cannot be opened: psycopg: {cause}",
            hint='pip install "psycopg[binary]"',
        ) from None

    @event.listens_for(engine, "connect")
    def settle(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f'SET search_path TO "{place.schema}"')
            if readonly:
                cursor.execute("SET default_transaction_read_only = on")
        connection.commit()

    with explained(place.shown), engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    return engine


def retried(error: DBAPIError, attempt: int) -> bool:
    """Return whether to repeat a transaction, after a pause: PostgreSQL resolves a deadlock by
    aborting one side."""
    if code(error) not in RETRIED or attempt >= _ATTEMPTS:
        return False
    time.sleep(0.01 * 2**attempt)
    return True


_CHECK_URL = "check the host, user, password and database in the store's URL"

_FREE_SPACE = (
    "free some space, or choose another path with --store; what was stored before is intact"
)
_PERMISSIONS = (
    "check the permissions of the file and its folder, or choose another path with --store"
)

# (prefix of SQLite's error name or PostgreSQL's SQLSTATE, code, sentence about the store, hint)
_CAUSES = (
    ("SQLITE_FULL", "store-disk-full", "the disk under the store {} is full", _FREE_SPACE),
    (
        "SQLITE_BUSY",
        "store-locked",
        "another process keeps the store {} locked",
        "wait for it, or write to another store with --store",
    ),
    ("SQLITE_READONLY", "store-unwritable", "the store {} cannot be written to", _PERMISSIONS),
    ("SQLITE_CANTOPEN", TEXT, "the store {} cannot be opened", _PERMISSIONS),
    (
        "SQLITE_NOTADB",
        "store-not-sqlite",
        "the store {} is not an SQLite file",
        "choose another path with --store",
    ),
    (
        "SQLITE_CORRUPT",
        "store-damaged",
        "the store {} is damaged",
        "restore a copy, or save what can be read with `sqlite3 FILE .recover`",
    ),
    (
        "SQLITE_IOERR",
        TEXT,
        "the disk under the store {} fails to read or write",
        "check the disk, its free space and the file's size limit",
    ),
    ("53100", "store-disk-full", "the disk under the store {} is full", _FREE_SPACE),
    (
        "53300",
        TEXT,
        "the store {} takes no more connections",
        "close some, or raise max_connections",
    ),
    ("42501", TEXT, "the store {} refuses this user", "grant the user rights on the schema"),
    (
        "25006",
        TEXT,
        "the store {} can only be read",
        "write to the primary server, or choose another --store",
    ),
    ("3D000", TEXT, "the store {} does not exist", "create the database first: createdb NAME"),
    ("28", TEXT, "the store {} refuses the login", _CHECK_URL),
    ("08", TEXT, "the connection to the store {} failed", _CHECK_URL),
    (
        "57P",
        TEXT,
        "the server of the store {} is shutting down or starting",
        "try again in a moment",
    ),
)
RETRIED = ("40001", "40P01")  # a serialisation failure or a deadlock: a retry succeeds


@contextmanager
def explained(shown: str) -> Iterator[None]:
    """Raise errors of the database as a StoreError about the store `shown`."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise explain(error, shown) from error


def explain(error: Exception, shown: str) -> StoreError:
    """Return the StoreError for an error of the database."""
    name, original = code(error), _original(error)
    for start, kind, sentence, hint in _CAUSES:
        if name.startswith(start):
            return StoreError(Reason(sentence.format(shown), kind, store=shown), hint=hint)
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    cause = lines[0] if lines else type(original).__name__
    if type(original).__module__.startswith("psycopg"):
        return StoreError(f"the store {shown} does not answer: {cause}", hint=_CHECK_URL)
    return StoreError(f"the store {shown} failed: {cause}")


def code(error: Exception) -> str:
    """Return SQLite's error name or PostgreSQL's SQLSTATE; "" if there is none."""
    for attribute in ("sqlite_errorname", "sqlstate"):
        value = getattr(_original(error), attribute, None)
        if isinstance(value, str):
            return value
    return ""


def _original(error: Exception) -> BaseException:
    """Return the driver's error that SQLAlchemy wraps."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
