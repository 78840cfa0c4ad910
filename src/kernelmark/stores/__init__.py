"""Where results are kept: one SQL schema, in SQLite (the default) or PostgreSQL.

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
    """A sentence, not a traceback, where kernelmark was copied without what the store needs."""
    if importlib.util.find_spec("sqlalchemy") is None:
        raise StoreError(
            Reason("not-installed", name="SQLAlchemy", needs="the store"),
            hint="pip install SQLAlchemy, or run with --no-store --json FILE",
        )


def open_store(where: str | os.PathLike[str] | None = None, *, readonly: bool = False) -> Store:
    """Return the store at a path or URL; None is $KERNELMARK_STORE or the user's own one.

    For writing it is made where it is missing. `readonly` never makes one, and opens a store
    that this user may not write to.
    """
    require_sql()
    from kernelmark.stores.store import Store

    return Store.open(where, readonly=readonly)
