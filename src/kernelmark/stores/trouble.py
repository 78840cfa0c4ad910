"""A database's errors in our words: one sentence and what to do next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from kernelmark.core.errors import StoreError

_INTACT = "what was stored before is intact"
_CHECK_URL = "check the host, user, password and database in the store's URL"

# By the beginning of the name of SQLite's error code.
_SQLITE = (
    (
        "SQLITE_FULL",
        "the disk under {0} is full",
        f"free some space and resume; {_INTACT}",
    ),
    (
        "SQLITE_BUSY",
        "another process keeps {0} locked",
        "wait for it, or write to another store with --store",
    ),
    (
        "SQLITE_READONLY",
        "{0} cannot be written to",
        "check the permissions of the file and its folder, or choose another path with --store",
    ),
    (
        "SQLITE_CANTOPEN",
        "{0} cannot be opened",
        "check the permissions of the file and its folder, or choose another path with --store",
    ),
    ("SQLITE_NOTADB", "{0} is not an SQLite file", "choose another path with --store"),
    (
        "SQLITE_CORRUPT",
        "{0} is damaged",
        "restore a copy, or save what can be read with `sqlite3 FILE .recover`",
    ),
    (
        "SQLITE_IOERR",
        "the disk under {0} fails to read or write",
        "check the disk, its free space and the file's size limit",
    ),
)

# By the beginning of PostgreSQL's SQLSTATE.
_POSTGRES = (
    ("53100", "the disk under {0} is full", f"free some space and resume; {_INTACT}"),
    ("53300", "{0} takes no more connections", "close some, or raise max_connections"),
    ("42501", "{0} refuses this user", "grant the user rights on the schema"),
    ("25006", "{0} can only be read", "write to the primary server, or choose another --store"),
    ("3D000", "{0} does not exist", "create the database first: createdb NAME"),
    ("28", "{0} refuses the login", _CHECK_URL),
    ("08", "the connection to {0} failed", _CHECK_URL),
    ("57P", "the server of {0} is shutting down or starting", "try again in a moment"),
)
RETRIED = ("40001", "40P01")  # a deadlock or a serialisation failure: the same again works


@contextmanager
def explained(shown: str) -> Iterator[None]:
    """Turn the database's errors into a `StoreError` about the store called `shown`."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise explain(error, shown) from error


def explain(error: Exception, shown: str) -> StoreError:
    """The `StoreError` that says what `error` means to a user."""
    name, original = code(error), _original(error)
    for start, sentence, hint in (*_SQLITE, *_POSTGRES):
        if name.startswith(start):
            return StoreError(sentence.format(f"the store {shown}"), hint=hint)
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    reason = lines[0] if lines else type(original).__name__
    if type(original).__module__.startswith("psycopg"):
        return StoreError(f"the store {shown} does not answer: {reason}", hint=_CHECK_URL)
    return StoreError(f"the store {shown} failed: {reason}")


def code(error: Exception) -> str:
    """SQLite's error name or PostgreSQL's SQLSTATE; "" where there is none."""
    for attribute in ("sqlite_errorname", "sqlstate"):
        value = getattr(_original(error), attribute, None)
        if isinstance(value, str):
            return value
    return ""


def _original(error: Exception) -> BaseException:
    """The driver's own error inside SQLAlchemy's."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
