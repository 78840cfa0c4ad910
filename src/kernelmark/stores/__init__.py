"""The store of results: one SQL schema, in SQLite (the default) or PostgreSQL.

Importing this package is cheap; SQLAlchemy is loaded when a store is opened.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kernelmark.core.errors import StoreError, UsageError
from kernelmark.stores.values import Imported, SeriesPoint, new_run_id

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

    # What an argument `store=` of the Python API may be.
    StoreArgument: TypeAlias = bool | str | os.PathLike[str] | Store | None

__all__ = ["Imported", "SeriesPoint", "new_run_id", "open_store", "opened", "require_sql"]


def require_sql() -> None:
    """Raise StoreError if SQLAlchemy is not installed."""
    if importlib.util.find_spec("sqlalchemy") is None:
        raise StoreError(
            "the store needs SQLAlchemy, which is not installed",
            hint="pip install SQLAlchemy, or run with --no-store --json FILE",
        )


def default_path() -> Path:
    """Return the path of the user's store: kernelmark/results.sqlite in $XDG_DATA_HOME or
    ~/.local/share."""
    root = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(root).expanduser() / "kernelmark" / "results.sqlite"


def may_exist() -> bool:
    """Return whether the default store may exist, without loading SQLAlchemy: False only for a
    file that is not there."""
    given = os.environ.get("KERNELMARK_STORE") or default_path()
    return "://" in str(given) or Path(given).expanduser().exists()


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
            f"store={store!r} is not a store",
            hint="give True for your own store, a path, a URL or an open store",
        )
