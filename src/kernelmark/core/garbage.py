"""Short garbage collections in a process that has imported a large library."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def existing_objects_frozen() -> Iterator[None]:
    """Exclude objects that exist now from garbage collections within the `with` block.

    A full collection visits every object of the process: 170,000 with torch imported, which takes
    about 0.1 s in the middle of an import or a measurement. Objects that are created within the
    block are collected as usual."""
    if gc.get_freeze_count():  # the caller froze objects, which `unfreeze` would release too
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
