"""Translate errors of the database into a StoreError with a hint."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from kernelmark.core.errors import StoreError
from kernelmark.core.reason import Reason

_CHECK_URL = "check the host, user, password and database in the store's URL"

# (prefix of SQLite's error name, code of the Reason, hint)
SQLITE = (
    (
        "SQLITE_FULL",
        "store-disk-full",
        Reason("free-space"),
    ),
    (
        "SQLITE_BUSY",
        "store-locked",
        "wait for it, or write to another store with --store",
    ),
    (
        "SQLITE_READONLY",
        "store-unwritable",
        "check the permissions of the file and its folder, or choose another path with --store",
    ),
    (
        "SQLITE_CANTOPEN",
        "store-not-opened",
        "check the permissions of the file and its folder, or choose another path with --store",
    ),
    ("SQLITE_NOTADB", "store-not-sqlite", "choose another path with --store"),
    (
        "SQLITE_CORRUPT",
        "store-damaged",
        "restore a copy, or save what can be read with `sqlite3 FILE .recover`",
    ),
    (
        "SQLITE_IOERR",
        "store-disk-fails",
        "check the disk, its free space and the file's size limit",
    ),
)

# (prefix of PostgreSQL's SQLSTATE, code of the Reason, hint)
POSTGRES = (
    ("53100", "store-disk-full", Reason("free-space")),
    ("53300", "store-connections", "close some, or raise max_connections"),
    ("42501", "store-refuses-user", "grant the user rights on the schema"),
    ("25006", "store-replica", "write to the primary server, or choose another --store"),
    ("3D000", "store-no-database", "create the database first: createdb NAME"),
    ("28", "store-refuses-login", _CHECK_URL),
    ("08", "store-disconnected", _CHECK_URL),
    ("57P", "store-server-down", "try again in a moment"),
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
    for start, reason, hint in (*SQLITE, *POSTGRES):
        if name.startswith(start):
            return StoreError(Reason(reason, store=shown), hint=hint)
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    cause = lines[0] if lines else type(original).__name__
    if type(original).__module__.startswith("psycopg"):
        return StoreError(Reason("store-no-answer", store=shown, error=cause), hint=_CHECK_URL)
    return StoreError(Reason("store-failed", store=shown, error=cause))


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
