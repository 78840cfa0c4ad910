"""Numbered migrations: m0001_….py, m0002_….py, each with `statements(dialect) -> list[str]`.

A released migration never changes. All missing ones run in one transaction, so that a store has
the old schema or the new one, nothing between. A migration that moves rows also has
`convert(connection)`, which uses today's code to write them, and runs after all statements.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import inspect, select
from sqlalchemy.engine import Connection

from kernelmark.core.errors import StoreError
from kernelmark.core.reason import Reason
from kernelmark.stores.engine import APPLICATION_ID, VERSION_KEY, meta
from kernelmark.stores.location import Place

Statements = Callable[[str], list[str]]
Convert = Callable[[Connection], None]
_NAME = re.compile(r"m(\d{4})_\w+\Z")


def known() -> dict[int, Statements]:
    """Return the statements of every migration by its number."""
    return {number: module.statements for number, module in _modules().items()}


def _conversions() -> dict[int, Convert]:
    every = _modules().items()
    return {number: module.convert for number, module in every if hasattr(module, "convert")}


def _modules() -> dict[int, Any]:
    found = {}
    for module in pkgutil.iter_modules(__path__):
        match = _NAME.match(module.name)
        if match:
            found[int(match[1])] = importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(found.items()))


def version(connection: Connection, place: Place) -> int:
    """Return the schema version of a store, 0 if it is empty; raise StoreError for a database of
    another program."""
    tables = set(inspect(connection).get_table_names(schema=place.schema or None))
    if not tables:
        return 0
    if not {"meta", "runs", "results"} <= tables:
        raise StoreError(
            Reason("store-of-another-program", store=place.shown),
            hint="choose another path with --store or KERNELMARK_STORE",
        )
    value = connection.execute(select(meta.c.value).where(meta.c.key == VERSION_KEY)).scalar()
    if value is None or not value.isdigit():
        raise StoreError(
            Reason("store-without-schema", store=place.shown),
            hint="restore a copy of it",
        )
    return int(value)


def is_current(found: int, place: Place, migrations: Mapping[int, Statements]) -> bool:
    """Return whether schema `found` is the newest; raise StoreError if it is newer."""
    newest = max(migrations)
    if found > newest:
        raise StoreError(
            Reason("store-too-new", store=place.shown, schema=found, newest=newest),
            hint="upgrade kernelmark, or choose another path with --store",
        )
    return found == newest


def migrate(connection: Connection, place: Place, migrations: Mapping[int, Statements]) -> None:
    """Migrate the store to the newest schema, in the caller's write transaction."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        # SQLite's write lock prevents concurrent migrations; PostgreSQL needs an explicit lock.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")
        connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{place.schema}"')
    found = version(connection, place)
    if is_current(found, place, migrations):
        return
    for number, statements in migrations.items():
        if number > found:
            for statement in statements(dialect):
                connection.exec_driver_sql(statement)
    for number, convert in _conversions().items():
        if number > found:
            convert(connection)
    connection.execute(meta.delete().where(meta.c.key == VERSION_KEY))
    connection.execute(meta.insert().values(key=VERSION_KEY, value=str(max(migrations))))
