"""A run as a user names it: in the store, or in an exported file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.core.errors import CodecError, UsageError

if TYPE_CHECKING:
    from kernelmark.api.results import Results
    from kernelmark.core.result import ResultSet
    from kernelmark.stores.store import Store


@contextlib.contextmanager
def loaded(ref: str, place: str | None) -> Iterator[tuple[Results, Store | None]]:
    """The results of a run with the roofs known for them, and the store they are in."""
    from kernelmark.api.results import Results
    from kernelmark.api.roofs import stored_roofs
    from kernelmark.stores import open_store

    if ref.endswith(".json"):
        yield Results(read_results(ref)), None
        return
    with open_store(place, readonly=True) as store:
        found = store.result_set(store.run(ref).id)
        yield Results(found, stored_roofs(store, found)), store


def read_results(place: str) -> ResultSet:
    """The result set in a file that `--json` or `export` wrote; `-` is stdin."""
    from kernelmark.core import codec
    from kernelmark.core.result import ResultSet

    try:
        data = sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{place}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{place}: cannot be read: {error.strerror}") from None
    try:
        return codec.loads(data, ResultSet)
    except CodecError as error:
        raise CodecError(f"{place}: {error.message}", hint=error.hint) from None
