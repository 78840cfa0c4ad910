"""The store of results: one SQL schema, in SQLite (the default) or PostgreSQL.

Importing this package is cheap; SQLAlchemy is loaded when a store is opened.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, TypeAlias

from kernelmark.core.environment import Environment
from kernelmark.core.errors import StoreError, UsageError
from kernelmark.core.files import user_path
from kernelmark.core.reason import Reason
from kernelmark.core.result import Mode, Status
from kernelmark.core.units import counted

if TYPE_CHECKING:
    from kernelmark.stores.store import Store

    # What an argument `store=` of the Python API may be.
    StoreArgument: TypeAlias = bool | str | os.PathLike[str] | Store | None

__all__ = ["Imported", "SeriesPoint", "new_run_id", "open_store", "opened", "require_sql"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPoint:
    """One result of a series without its samples, or its headline metric `metric`. `started` is the
    start of the run, in seconds since the epoch.

    `median_s` and its bounds are None if nothing was measured. `fingerprint` is that of the run's
    environment: a change of it may explain a step.
    """

    series: str
    run_id: str
    started: float
    status: Status
    device: str
    fingerprint: str
    median_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    flops: float = 0.0
    bytes: float = 0.0
    modes: tuple[Mode, ...] = ()
    doubt: Reason | None = None  # why the median is unreliable
    metric: str = ""
    value: float | None = None
    unit: str = ""
    better: str = "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEnvironment:
    """An environment with the number of its runs and the start of the newest one."""

    environment: Environment
    fingerprint: str
    runs: int
    newest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The outcome of adding a result set: the number of new results and of known ones."""

    run_id: str
    added: int
    known: int
    changed: bool

    def __str__(self) -> str:
        if not self.changed:
            return f"run {self.run_id} is already in the store; nothing was added"
        already = f", {self.known} were already there" if self.known else ""
        return f"run {self.run_id}: {counted(self.added, 'result')} added{already}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The outcome of checking a store: a sentence for each problem, and how many runs and results
    were read, `unchecked` of them without a checksum, because an older version stored them."""

    problems: tuple[str, ...]
    runs: int
    results: int
    unchecked: int


# Crockford's base 32: without i, l and o, which look like digits, and without u.
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
_LEGAL = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}\Z")


def new_run_id(now: float | None = None, random: Random | None = None) -> str:
    """Return an id like 20261115-031502-k3f9x2: UTC to the second, then 30 random bits."""
    moment = time.gmtime(time.time() if now is None else now)
    source = SystemRandom() if random is None else random
    tail = "".join(source.choice(_LETTERS) for _ in range(6))
    return f"{time.strftime('%Y%m%d-%H%M%S', moment)}-{tail}"


def check_name(what: str, name: str) -> str:
    """Return `name`; raise UsageError if it is not valid as the name of a `what`."""
    if not _LEGAL.match(name) or name.lower().startswith("latest"):
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a {what}",
            hint="use up to 64 letters, digits, '.', '_' or '-', not beginning with 'latest'",
        )
    return name


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
    return user_path(root) / "kernelmark" / "results.sqlite"


def may_exist() -> bool:
    """Return whether the default store may exist, without loading SQLAlchemy: False only for a
    file that is not there."""
    location = os.environ.get("KERNELMARK_STORE") or default_path()
    return "://" in str(location) or user_path(location).exists()


def open_store(
    where: str | os.PathLike[str] | None = None, *, readonly: bool = False, check: bool = True
) -> Store:
    """Open the store at a path or URL (default: $KERNELMARK_STORE, or the user's store).

        with km.open_store() as store:
            run = store.run("latest")

    A store that does not exist is created, unless `readonly`, which also opens stores that this
    user cannot write to. `check` looks for damage in the lists of runs and environments; results
    are checked as they are read.
    """
    require_sql()
    from kernelmark.stores.store import Store

    return Store.open(where, readonly=readonly, check=check)


@contextlib.contextmanager
def opened(store: StoreArgument, *, readonly: bool = False) -> Iterator[Store | None]:
    """Yield the store that an argument `store=` names: True is the user's own; None and False are
    no store. A store that was open already is left open."""
    if store is None or store is False:
        yield None
    elif store is True or isinstance(store, str | os.PathLike):
        with open_store(None if store is True else store, readonly=readonly) as open_one:
            yield open_one
    elif hasattr(store, "result_set"):
        yield store
    else:
        raise UsageError(
            f"store={store!r} is not a store",
            hint="give True for your own store, a path, a URL or an open store",
        )
