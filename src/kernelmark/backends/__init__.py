"""Backends. One file (or folder) each; an unavailable one says why in one sentence."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.backends.base import Backend

registry: Registry[Backend] = Registry("kernelmark.backends", "backend")


def find(name: str) -> Backend:
    """The backend called `name`; a path to a Python file is a kernel of the user's own."""
    if name.endswith(".py") and name not in registry:
        return _of_file(name)
    return registry.get(name)


@functools.cache
def _of_file(path: str) -> Backend:
    from kernelmark.backends._file import FileBackend

    return FileBackend(path)
