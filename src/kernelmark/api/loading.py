"""A run as a user names it: in the store, or in an exported file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernelmark.api.reading import is_file, read_run
from kernelmark.api.results import Results
from kernelmark.api.roofs import stored_roofs
from kernelmark.stores import open_store

if TYPE_CHECKING:
    from kernelmark.stores.store import Store


@contextlib.contextmanager
def loaded(
    ref: str, place: str | os.PathLike[str] | None
) -> Iterator[tuple[Results, Store | None]]:
    """Yield the results of a run with the roofs known for them, and the open store they are in;
    None for those of a file."""
    if is_file(ref):
        yield Results(read_run(ref, None)), None
        return
    with open_store(place, readonly=True) as store:
        result_set = store.result_set(store.run(ref).id)
        yield Results(result_set, stored_roofs(store, result_set)), store
