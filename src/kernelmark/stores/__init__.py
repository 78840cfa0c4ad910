"""The store of results: one SQL schema, in SQLite (the default) or PostgreSQL.

Importing this package is cheap; SQLAlchemy is loaded when a store is opened.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from kernelmark.core.errors import StoreError
from kernelmark.core.reason import Reason
from kernelmark.stores.ids import new_run_id
from kernelmark.stores.values import Imported, SeriesPoint

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

__all__ = ["Imported", "SeriesPoint", "new_run_id", "open_store", "require_sql"]


def require_sql() -> None:
    """Raise StoreError if SQLAlchemy is not installed."""
    if importlib.util.find_spec("sqlalchemy") is None:
        raise StoreError(
            Reason("not-installed", name="SQLAlchemy", needs="the store"),
            hint="pip install SQLAlchemy, or run with --no-store --json FILE",
        )


def open_store(where: str | os.PathLike[str] | None = None, *, readonly: bool = False) -> Store:
    """Open the store at a path or URL (default: $KERNELMARK_STORE, or the user's store).

        with km.open_store() as store:
            run = store.run("latest")

    A store that does not exist is created, unless `readonly`, which also opens stores that this
    user cannot write to.
    """
    require_sql()
    from kernelmark.stores.store import Store

    return Store.open(where, readonly=readonly)
