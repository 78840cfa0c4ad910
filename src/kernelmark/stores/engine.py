"""Connections: SQLite with the settings that make it safe and fast, PostgreSQL by psycopg 3."""

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

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from kernelmark.core.errors import StoreError
from kernelmark.stores import trouble
from kernelmark.stores.place import Place, check_file, may_write

BUSY_S = 60.0  # how long a writer waits for another one before it gives up
_ATTEMPTS = 8
# The log is moved into the file every 16 MiB: pages that change often are then moved once.
_SETTINGS = (
    "synchronous=NORMAL",
    "foreign_keys=ON",
    "cache_size=-65536",
    "wal_autocheckpoint=4096",
)


def connect(place: Place, *, readonly: bool) -> Engine:
    """Return an engine for the place. Nothing in the place is changed yet."""
    if place.path is not None:
        check_file(place, place.path, readonly=readonly)
        return _connect_sqlite(place, place.path, readonly=readonly)
    return _connect_postgres(place, readonly=readonly)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that sees one state of the store from its first query on."""
    with engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection inside a transaction that holds SQLite's write lock from the start.

    A transaction that only asks for the lock when it first writes fails at once, without
    waiting, if another process wrote in between; BEGIN IMMEDIATE waits its turn.
    """
    with (
        engine.connect().execution_options(kernelmark_write=True) as connection,
        connection.begin(),
    ):
        yield connection


class Watch:
    """Whether the store has changed, without reading any of it. Threads may share one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: PoolProxiedConnection | None = None

    def version(self) -> str:
        """Return a text that is another one after every commit to the store, by whomever."""
        with self._lock:
            if self._engine.dialect.name != "sqlite":
                # Every writing transaction is in it while open and no longer after.
                with self._engine.connect() as connection:
                    query = "SELECT CAST(pg_current_snapshot() AS text)"
                    return str(connection.exec_driver_sql(query).scalar())
            # SQLite counts the commits of others, for each connection: it must stay the same one.
            # A raw one has no transaction, which would go on seeing the state at its start.
            if self._connection is None:
                self._connection = self._engine.raw_connection()
            return str(self._connection.cursor().execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _connect_sqlite(place: Place, path: Path, *, readonly: bool) -> Engine:
    if not readonly:
        _create(path)
        return _sqlite_engine(path, "mode=rwc")
    if may_write(path) and may_write(path.parent):
        # A connection that may write tidies SQLite's helper files away when it closes.
        return _sqlite_engine(path, "mode=rw", "query_only=ON")
    engine = _sqlite_engine(path, "mode=ro")
    try:
        with trouble.explained(place.shown), engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
    except StoreError:
        engine.dispose()
        # In a folder that cannot be written to SQLite cannot make its shared-memory file.
        # Nobody can be writing there either, unless a log file says that somebody was.
        if _size(path.with_name(path.name + "-wal")):
            raise
        return _sqlite_engine(path, "mode=ro&immutable=1")
    return engine


def _create(path: Path) -> None:
    """Make the file for this user alone, as it holds variables of the environment; SQLite gives
    its helper files the same mode."""
    with suppress(OSError):  # it is there, or SQLite's own error says why it cannot be
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
    """Let readers and a writer work at once. SQLite keeps the setting in the file, so mostly it
    is there already; the change itself does not wait for a lock, so we do."""
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
            if not trouble.code(error).startswith("SQLITE_BUSY") or time.monotonic() > give_up:
                raise
            time.sleep(0.02)
        finally:
            raw.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _connect_postgres(place: Place, *, readonly: bool) -> Engine:
    assert place.url is not None
    if importlib.util.find_spec("psycopg") is None:
        raise StoreError(
            "a store in PostgreSQL needs psycopg", hint='pip install "psycopg[binary]"'
        )
    try:
        engine = create_engine(place.url, pool_pre_ping=True)
    except ImportError as error:
        raise StoreError(
            f"psycopg cannot be loaded: {str(error).splitlines()[0]}",
            hint='pip install "psycopg[binary]"',
        ) from None

    @event.listens_for(engine, "connect")
    def settle(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f'SET search_path TO "{place.schema}"')
            if readonly:
                cursor.execute("SET default_transaction_read_only = on")
        connection.commit()

    with trouble.explained(place.shown), engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    return engine


def retried(error: DBAPIError, attempt: int) -> bool:
    """Return whether to try a transaction again: PostgreSQL resolves a deadlock by ending one
    side."""
    if trouble.code(error) not in trouble.RETRIED or attempt >= _ATTEMPTS:
        return False
    time.sleep(0.01 * 2**attempt)
    return True
