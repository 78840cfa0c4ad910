"""Where results are kept: one SQL schema, in SQLite (the default) or PostgreSQL.

Importing this package is cheap; SQLAlchemy is loaded when a store is opened.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from kernelmark.core.errors import StoreError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.stores.ids import new_run_id
from kernelmark.stores.values import Imported, SeriesPoint

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

    # What an argument `store=` of the Python API may be.
    StoreArgument: TypeAlias = bool | str | os.PathLike[str] | Store | None

__all__ = ["Imported", "SeriesPoint", "new_run_id", "open_store", "opened", "require_sql"]


def require_sql() -> None:
    """A sentence, not a traceback, where kernelmark was copied without what the store needs."""
    if importlib.util.find_spec("sqlalchemy") is None:
        raise StoreError(
            Reason("not-installed", name="SQLAlchemy", needs="the store"),
            hint="pip install SQLAlchemy, or run with --no-store --json FILE",
        )


def open_store(where: str | os.PathLike[str] | None = None, *, readonly: bool = False) -> Store:
    """The store at a path or URL; None is $KERNELMARK_STORE or the user's own one.

    For writing it is made where it is missing. `readonly` never makes one, and opens a store
    that this user may not write to.
    """
    require_sql()
    from kernelmark.stores.store import Store

    return Store.open(where, readonly=readonly)


@contextlib.contextmanager
def opened(store: StoreArgument, *, readonly: bool = False) -> Iterator[Store | None]:
    """Yield the store that an argument `store=` names: True is the user's own; None and False are
    no store. A store that was open already is left open."""
    if store is None or store is False:
        yield None
    elif store is True or isinstance(store, str | os.PathLike):
        with open_store(None if store is True else store, readonly=readonly) as found:
            yield found
    elif hasattr(store, "result_set"):
        yield store
    else:
        raise UsageError(
            Reason("argument-type", name="store", given=repr(store), wanted="a store"),
            hint="give True for your own store, a path, a URL or an open store",
        )
