"""Load a run by its name in the store, or from an exported file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernelmark.api.reading import is_file, read_run
from kernelmark.api.results import Results
from kernelmark.api.roofs import stored_roofs
from kernelmark.core.errors import UsageError
from kernelmark.core.reason import Reason
from kernelmark.stores import opened

if TYPE_CHECKING:
    from kernelmark.stores import StoreArgument
    from kernelmark.stores.store import Store


@contextlib.contextmanager
def loaded(
    ref: str | os.PathLike[str], place: StoreArgument
) -> Iterator[tuple[Results, Store | None]]:
    """Yield the results of a run with their roofs, and the open store; None instead of the store
    if the run is in a file. A `place` of None is the user's own store."""
    if not isinstance(ref, str | os.PathLike):
        raise UsageError(
            Reason("argument-type", name="ref", given=repr(ref), wanted="the name of a run"),
            hint='give a run\'s id, its label, "latest", "latest~1", or a JSON file',
        )
    ref = os.fspath(ref)
    if is_file(ref):
        yield Results(read_run(ref, None)), None
        return
    with opened(True if place is None else place, readonly=True) as store:
        if store is None:
            yield Results(read_run(ref, None)), None  # raises: `ref` is not a file
            return
        result_set = store.result_set(store.run(ref).id)
        yield Results(result_set, stored_roofs(store, result_set)), store
