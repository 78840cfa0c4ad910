"""Where results are kept: one SQL schema, in SQLite (the default) or PostgreSQL.

Importing this package is cheap; SQLAlchemy is loaded when a store is opened.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kernelmark.stores.ids import new_run_id
from kernelmark.stores.values import Imported, SeriesPoint

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

__all__ = ["Imported", "SeriesPoint", "new_run_id", "open_store"]


def open_store(where: str | os.PathLike[str] | None = None, *, readonly: bool = False) -> Store:
    """The store at a path or URL; None is $KERNELMARK_STORE or the user's own one.

    For writing it is made where it is missing. `readonly` never makes one, and opens a store
    that this user may not write to.
    """
    from kernelmark.stores.store import Store

    return Store.open(where, readonly=readonly)
