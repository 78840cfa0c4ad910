"""Load a run by its name in the store, or from an exported file."""

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
    """Yield the results of a run with their roofs, and the open store; None instead of the store
    if the run is in a file."""
    if is_file(ref):
        yield Results(read_run(ref, None)), None
        return
    with open_store(place, readonly=True) as store:
        result_set = store.result_set(store.run(ref).id)
        yield Results(result_set, stored_roofs(store, result_set)), store
