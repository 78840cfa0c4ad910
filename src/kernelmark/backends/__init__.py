"""Backends. One file (or folder) each; an unavailable one says why in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.backends.base import Backend

registry: Registry[Backend] = Registry("kernelmark.backends", "backend")


def find(name: str) -> Backend:
    """The backend called `name`; a path to a Python file is a kernel of the user's own."""
    if name.endswith(".py") and name not in registry:
        from kernelmark.backends._file import FileBackend

        registry.add(name, FileBackend(name))
    return registry.get(name)
