"""The tables for queries, and connections: SQLite with safe settings, PostgreSQL by psycopg 3.

The tables have names only: types, keys and indexes are in the migrations, and a test checks that
both agree. A series is a case on an architecture: (`cases`, `results.arch`). Columns of `results`
are what queries select and sort by; `detail` holds everything else, exactly (see packing). Where
SQL cannot hold a value (nan, NUL), the column is NULL or cleaned, and `detail` has the exact value.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import TableClause, column, create_engine, event, table
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from kernelmark.core.errors import NothingToDo, StoreError
from kernelmark.core.files import user_path
from kernelmark.core.reason import TEXT, Reason
from kernelmark.host.permissions import find_unsafe, make_folder, temporary_folder
from kernelmark.stores import default_path

_ELSEWHERE = "choose another path with --store or KERNELMARK_STORE"
_SCHEMES = "a store is a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The file, or the PostgreSQL database and schema, of a store. `shown` hides the password."""

    shown: str
    path: Path | None = None
    url: URL | None = None
    schema: str = ""
    is_explicit: bool = True

    @property
    def address(self) -> str:
        """The path or URL that opens this store in another process, with its password."""
        if self.url is None:
            return str(self.path and self.path.absolute())
        url = self.url.set(drivername="postgresql").update_query_dict({"schema": self.schema})
        return url.render_as_string(hide_password=False)


def locate(where: str | os.PathLike[str] | None) -> Location:
    """Return the location of a path or URL; None is $KERNELMARK_STORE or the default path."""
    if where is None:
        where = os.environ.get("KERNELMARK_STORE") or None
    if where is None:
        path = default_path()
        return Location(shown=str(path), path=path, is_explicit=False)
    text = os.fspath(where)
    if "://" in text:
        return _locate_url(text)
    if not text or text == ":memory:" or "\0" in text:
        raise StoreError(f"{text!r} is not the path or URL of a store", hint=_SCHEMES)
    path = user_path(text)
    return Location(shown=str(path), path=path)


def _locate_url(text: str) -> Location:
    scheme = text.partition("://")[0].lower()
    try:
        url = make_url(scheme + text[len(scheme) :])
    except (ArgumentError, ValueError):
        raise StoreError("the store's URL cannot be read", hint=_SCHEMES) from None
    if scheme == "sqlite":
        return locate(url.database or ":memory:")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise StoreError(f"unknown kind of store {scheme!r}", hint=_SCHEMES)
    schema = url.query.get("schema", "kernelmark")
    if not isinstance(schema, str) or not schema.isidentifier() or not schema.isascii():
        raise StoreError(f"{schema!r} cannot be the name of a schema", hint=_SCHEMES)
    url = url.set(drivername="postgresql+psycopg").difference_update_query(["schema"])
    secret = [name for name in url.query if "password" in name.lower()]
    plain = url.set(drivername="postgresql").difference_update_query(secret)
    shown = plain.render_as_string(hide_password=True)
    return Location(shown=shown, url=url, schema=schema)


def check_file(location: Location, path: Path, *, readonly: bool) -> None:
    """Raise StoreError for a path at which no SQLite store can be opened; for writing, create the
    folder of the user's own store.

    Other users may be able to write to a store that was named, but not to the user's own."""
    if not location.is_explicit and (unsafe := find_unsafe(path)) is not None:
        raise StoreError(f"the store {location.shown} is not used: {unsafe}", hint=_ELSEWHERE)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        _check_new(location, path, readonly=readonly)
        return
    except OSError as error:
        raise _unusable(location, error) from None
    if stat.S_ISDIR(mode):
        raise StoreError(
            f"{location.shown} is a folder, not a file",
            hint=f"name a file in it: {path / 'results.sqlite'}",
        )
    if not stat.S_ISREG(mode):
        raise StoreError(f"{location.shown} is not a regular file", hint=_ELSEWHERE)
    _check_existing(location, path, readonly=readonly)


def may_write(path: Path) -> bool:
    """Return whether the effective user of this process can write to a file or into a folder."""
    mode = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _check_new(location: Location, path: Path, *, readonly: bool) -> None:
    if readonly:
        missing = StoreError if location.is_explicit else NothingToDo
        raise missing(
            Reason(
                f"there is no store at {location.shown} yet", "store-missing", store=location.shown
            ),
            hint="`kmark run` adds results",
        )
    try:
        if not location.is_explicit:
            make_folder(path.parent)
        elif not path.parent.exists():  # most likely a typing error
            raise StoreError(
                f"{location.shown} cannot be written: there is no folder {path.parent}",
                hint=f"make it: mkdir -p {shlex.quote(str(path.parent))}",
            )
    except OSError as error:
        raise _unusable(location, error) from None
    if not may_write(path.parent):
        raise StoreError(f"the folder of {location.shown} cannot be written to", hint=_ELSEWHERE)


def _check_existing(location: Location, path: Path, *, readonly: bool) -> None:
    # Not by opening it: closing it again drops the locks of a store that is open in this process.
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise StoreError(f"{location.shown} cannot be read", hint=_ELSEWHERE)
    if readonly:
        return
    if not may_write(path):
        raise StoreError(
            Reason(f"{location.shown} is read-only", "store-read-only", store=location.shown),
            hint=f"it can be shown and exported, but to add to it {_ELSEWHERE}",
        )
    if not may_write(path.parent):
        raise StoreError(
            Reason(
                f"the folder of {location.shown} cannot be written to, and SQLite needs"
                " that to add results",
                "store-folder-read-only",
                store=location.shown,
            ),
            hint=f"it can be shown and exported, but to add to it {_ELSEWHERE}",
        )


def _unusable(location: Location, error: OSError) -> StoreError:
    cause = error.strerror or type(error).__name__
    return StoreError(f"the store {location.shown} cannot be opened: {cause}", hint=_ELSEWHERE)


VERSION_KEY = "schema"
APPLICATION_ID = 0x6B6D726B  # "kmrk", in the header of SQLite stores


def _table(name: str, columns: str) -> TableClause:
    return table(name, *map(column, columns.split()))


meta = _table("meta", "key value")
environments = _table("environments", "no fingerprint document")
# `checksum` and `tally`: see checksums.
runs = _table(
    "runs", "no id started finished label suite state cases environment_no document checksum tally"
)
problems = _table("problems", "no key op")
timings = _table("timings", "no document")
cases = _table("cases", "no id problem_no backend config timing")
# `modes` is [[seconds, share], …] as JSON, if there are several; `metrics` is
# [[name, value, unit, better], …] of headlines, if any; `doubt` is the reason why the median is
# unreliable, if it is.
results = _table(
    "results",
    "no run_no case_no device process arch timing_no status median_s low_s high_s flops bytes"
    " started error detail modes metrics doubt checksum",
)
pins = _table("pins", "name run_no pinned")
tokens = _table("tokens", "name digest scope created")
# By series and not by case, as a microbenchmark has one series for each of its metrics.
marks = _table("marks", "series kind state run_id started before_id level reason author created")
TABLES = (meta, environments, runs, problems, timings, cases, results, pins, tokens, marks)


BUSY_S = 60.0  # how long a writer waits for the lock
_ATTEMPTS = 8
_NOT_THE_DISK = ("store-not-sqlite", "store-damaged", "store-locked")
# Checkpoint the WAL every 16 MiB: pages that change often are then copied once.
_SETTINGS = (
    "synchronous=NORMAL",
    "foreign_keys=ON",
    "cache_size=-65536",
    "wal_autocheckpoint=4096",
)


def connect(location: Location, *, readonly: bool) -> Engine:
    """Return an engine for the store, without changing anything in it."""
    if location.path is not None:
        check_file(location, location.path, readonly=readonly)
        return _connect_sqlite(location, location.path, readonly=readonly)
    return _connect_postgres(location, readonly=readonly)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection that reads one snapshot of the store, taken at its first query."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":  # each query would have its own
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
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


_LAST_WRITERS = " UNION ALL ".join(
    f"SELECT count(*), sum(CAST(CAST(xmin AS text) AS bigint)) FROM {table}"
    for table in ("runs", "pins", "marks", "tokens")
)


class Watch:
    """Detects changes of the store without reading its tables. Threads may share an instance."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: PoolProxiedConnection | None = None
        self._snapshot = self._rows = ""

    def version(self) -> str:
        """Return a text that changes with every commit to the store, by any process."""
        with self._lock:
            if self._engine.dialect.name != "sqlite":
                return self._postgres_version()
            # SQLite counts commits of other connections per connection, so keep the same one. A raw
            # connection has no transaction, which would keep reading the snapshot at its start.
            if self._connection is None:
                self._connection = self._engine.raw_connection()
            return str(self._connection.cursor().execute("PRAGMA data_version").fetchone()[0])

    def _postgres_version(self) -> str:
        """Return the transactions that last wrote the rows of the small tables; every change of the
        store writes one. The snapshot, which lists open writing transactions, decides whether to
        look: it also changes with every commit to other databases of the server."""
        with self._engine.connect() as connection:
            query = "SELECT CAST(pg_current_snapshot() AS text)"
            snapshot = str(connection.exec_driver_sql(query).scalar())
            if snapshot != self._snapshot:
                self._rows = str(connection.exec_driver_sql(_LAST_WRITERS).all())
                self._snapshot = snapshot
            return self._rows

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _connect_sqlite(location: Location, path: Path, *, readonly: bool) -> Engine:
    if not readonly:
        _create(path)
        # Not rwc: a new connection must not create another file where the store was removed.
        return _sqlite_engine(path, "mode=rw")
    writable = may_write(path) and may_write(path.parent)
    # A connection that may write removes SQLite's helper files when it closes.
    engine = _sqlite_engine(path, "mode=rw", "query_only=ON") if writable else _readonly(path)
    try:
        with explained(location.shown), engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
    except StoreError as error:
        engine.dispose()
        # SQLite cannot create its shared-memory file in a read-only folder or on a full disk.
        if error.message.code in _NOT_THE_DISK:
            raise
        # In a read-only folder no process can be writing, unless a WAL file shows that one was.
        if not _size(path.with_name(path.name + "-wal")):
            return _sqlite_engine(path, "mode=ro&immutable=1")
        if not writable:
            raise
        # On a full disk, a process that was killed may have left a WAL. No process uses it, or its
        # shared-memory file would be there.
        copy = temporary_folder() / path.name
        for ending in ("", "-wal"):
            shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")
        return _sqlite_engine(copy, "mode=rw", "query_only=ON")
    return engine


def _readonly(path: Path) -> Engine:
    return _sqlite_engine(path, "mode=ro")


class Guard:
    """Detects that the file of an open SQLite store was removed or replaced: SQLite goes on
    writing to the file that it opened, which nobody can open any more."""

    def __init__(self, location: Location) -> None:
        self._place = location
        self._path = None if location.path is None else location.path.absolute()
        self._identity = self._current()
        self._copy: str | None = None

    def _current(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat() if self._path else None
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if status else None

    def check(self, engine: Engine) -> None:
        """Raise StoreError if the file is not there any more, after saving its contents."""
        if self._path is None or self._current() == self._identity:
            return
        where = f"the store {self._place.shown} was removed or replaced while it was open"
        for folder in (self._path.parent, Path(tempfile.gettempdir())):
            with suppress(OSError, SQLAlchemyError, sqlite3.Error):
                self._save(engine, folder)
                raise StoreError(
                    f"{where}; everything in it was saved to {self._copy}",
                    hint=f"move it back, or read it there: kmark list runs --store {self._copy}",
                )
        raise StoreError(
            f"{where}, and its contents could not be saved: all results in it are lost",
            hint="restore a copy; next time, also write a file: kmark run --json FILE",
        )

    def _save(self, engine: Engine, folder: Path) -> None:
        """Copy the database that the connections have open; a later call writes the same file."""
        assert self._path is not None
        if self._copy is None:
            handle, copy = tempfile.mkstemp(".sqlite", f"{self._path.stem}-saved-", folder)
            os.close(handle)
        else:
            copy = self._copy
            os.truncate(copy, 0)
        try:
            with engine.connect() as connection:
                raw = connection.connection.driver_connection
                assert raw is not None
                raw.execute("VACUUM INTO ?", (copy,))
        except BaseException:
            Path(copy).unlink()
            raise
        self._copy = copy


# What a corrupt index or page would hide without a word. Results are checked as they are read.
_CHECKED = ("meta", "environments", "runs", "pins", "tokens")


def check_tables(engine: Engine, shown: str) -> None:
    """Raise StoreError if SQLite finds damage in a small table or its indexes."""
    if engine.dialect.name != "sqlite":
        return
    with reading(engine) as connection:
        for name in _CHECKED:
            damage = connection.exec_driver_sql(f"PRAGMA integrity_check({name})").scalar()
            if damage != "ok":
                reason = Reason(
                    f"the store {shown} is damaged: {damage}", "store-damaged", store=shown
                )
                raise StoreError(reason, hint=_DAMAGE_HINT)


def _create(path: Path) -> None:
    """Create the file with mode 0600, because it holds environment variables; SQLite gives its
    helper files the same mode."""
    with suppress(OSError):  # it exists already, or SQLite reports the error
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def database_problems(connection: Connection) -> list[str]:
    """Return what SQLite finds wrong in its file, and references to rows that do not exist."""
    if connection.dialect.name != "sqlite":
        return []
    problems = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    lost = [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in broken]
    return [text for text in problems if text != "ok"] + lost


def _sqlite_engine(path: Path, mode: str, *settings: str) -> Engine:
    uri = f"file:{quote(str(path.absolute()))}?{mode}"

    def new_connection() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        for setting in (*settings, *_SETTINGS):
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


def _connect_postgres(location: Location, *, readonly: bool) -> Engine:
    assert location.url is not None
    if importlib.util.find_spec("psycopg") is None:
        raise StoreError(
            "a store in PostgreSQL needs psycopg, which is not installed",
            hint='pip install "psycopg[binary]"',
        )
    try:
        engine = create_engine(location.url, pool_pre_ping=True)
    except ImportError as error:
        cause = str(error).splitlines()[0]
        raise StoreError(
            f"the store {location.shown} cannot be opened: psycopg: {cause}",
            hint='pip install "psycopg[binary]"',
        ) from None

    @event.listens_for(engine, "connect")
    def settle(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f'SET search_path TO "{location.schema}"')
            # History sorts some 60,000 points: with the usual 4 MB it does so on disk.
            cursor.execute("SET work_mem = '64MB'")
            if readonly:
                cursor.execute("SET default_transaction_read_only = on")
        connection.commit()

    with explained(location.shown), engine.connect() as connection:
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

_DAMAGE_HINT = (
    "`kmark store check` lists all damage; restore a copy, or save what can be read with"
    " `sqlite3 FILE .recover`"
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
    ("SQLITE_CORRUPT", "store-damaged", "the store {} is damaged", _DAMAGE_HINT),
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
