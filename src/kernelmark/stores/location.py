"""The location of a store: resolve and check a path or URL."""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from kernelmark.core.errors import NothingToDo, StoreError
from kernelmark.core.reason import Reason
from kernelmark.host.permissions import find_unsafe, make_folder
from kernelmark.stores import default_path

_SQLITE_HEADER = b"SQLite format 3\0"
_ELSEWHERE = "choose another path with --store or KERNELMARK_STORE"
_SCHEMES = "a store is a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The file, or the PostgreSQL database and schema, of a store. `shown` hides the password."""

    shown: str
    path: Path | None = None
    url: URL | None = None
    schema: str = ""
    given: bool = True


def locate(where: str | os.PathLike[str] | None) -> Location:
    """Return the location of a path or URL; None is $KERNELMARK_STORE or the default path."""
    if where is None:
        where = os.environ.get("KERNELMARK_STORE") or None
    if where is None:
        path = default_path()
        return Location(shown=str(path), path=path, given=False)
    text = os.fspath(where)
    if "://" in text:
        return _locate_url(text)
    if not text or text == ":memory:" or "\0" in text:
        raise StoreError(f"{text!r} is not the path or URL of a store", hint=_SCHEMES)
    path = Path(text).expanduser()
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


def check_file(place: Location, path: Path, *, readonly: bool) -> None:
    """Raise StoreError for a path at which no SQLite store can be opened; for writing, create the
    folder of the user's own store.

    Other users may be able to write to a store that was named, but not to the user's own."""
    if not place.given and (unsafe := find_unsafe(path)) is not None:
        raise StoreError(f"the store {place.shown} is not used: {unsafe}", hint=_ELSEWHERE)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        _check_new(place, path, readonly=readonly)
        return
    except OSError as error:
        raise _unusable(place, error) from None
    if stat.S_ISDIR(mode):
        raise StoreError(
            f"{place.shown} is a folder, not a file",
            hint=f"name a file in it: {path / 'results.sqlite'}",
        )
    if not stat.S_ISREG(mode):
        raise StoreError(f"{place.shown} is not a regular file", hint=_ELSEWHERE)
    _check_existing(place, path, readonly=readonly)


def may_write(path: Path) -> bool:
    """Return whether the effective user of this process can write to a file or into a folder."""
    mode = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _check_new(place: Location, path: Path, *, readonly: bool) -> None:
    if readonly:
        missing = StoreError if place.given else NothingToDo
        raise missing(
            Reason(f"there is no store at {place.shown} yet", "store-missing", store=place.shown),
            hint="`kmark run` adds results",
        )
    try:
        if not place.given:
            make_folder(path.parent)
        elif not path.parent.exists():  # most likely a typing error
            raise StoreError(
                f"{place.shown} cannot be written: there is no folder {path.parent}",
                hint=f"make it: mkdir -p {shlex.quote(str(path.parent))}",
            )
    except OSError as error:
        raise _unusable(place, error) from None
    if not may_write(path.parent):
        raise StoreError(f"the folder of {place.shown} cannot be written to", hint=_ELSEWHERE)


def _check_existing(place: Location, path: Path, *, readonly: bool) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_HEADER))
    except OSError as error:
        raise _unusable(place, error) from None
    if head and head != _SQLITE_HEADER:
        raise StoreError(
            Reason(
                f"the store {place.shown} is not an SQLite file",
                "store-not-sqlite",
                store=place.shown,
            ),
            hint=_ELSEWHERE,
        )
    if readonly:
        return
    if not may_write(path):
        raise StoreError(
            Reason(f"{place.shown} is read-only", "store-read-only", store=place.shown),
            hint=f"it can be shown and exported, but to add to it {_ELSEWHERE}",
        )
    if not may_write(path.parent):
        raise StoreError(
            Reason(
                f"the folder of {place.shown} cannot be written to, and SQLite needs"
                " that to add results",
                "store-folder-read-only",
                store=place.shown,
            ),
            hint=f"it can be shown and exported, but to add to it {_ELSEWHERE}",
        )


def _unusable(place: Location, error: OSError) -> StoreError:
    cause = error.strerror or type(error).__name__
    return StoreError(f"the store {place.shown} cannot be opened: {cause}", hint=_ELSEWHERE)
