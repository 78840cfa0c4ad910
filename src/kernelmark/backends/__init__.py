"""Backends. One file (or folder) each; an unavailable one says why in one sentence."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.backends.base import Backend

registry: Registry[Backend] = Registry("kernelmark.backends", "backend")

# How the files of a user's own kernels end: Python, or a source that is compiled at run time.
FILES = (".py", ".cu", ".hip")


def find(name: str) -> Backend:
    """Return the backend called `name`; a path to a Python file is a kernel of the user's own."""
    if is_file(name):
        # The name alone is that of another file once the working folder changes.
        return _of_file(canonical(name), _whole(name))
    return registry.get(name)


def canonical(name: str) -> str:
    """Return the one name of a backend, however its file is written: `./mine.py` for a file in the
    working folder or below, else its whole path. Series in history go by it."""
    if not is_file(name):
        return name
    path, here = _whole(name), Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)


def is_file(name: str) -> bool:
    """Return whether a backend's name is that of a user's own kernel file."""
    # No registered name has a slash: for paths, the registry need not read the entry points of
    # every installed distribution.
    return name.endswith(FILES) and ("/" in name or name not in registry)


def _whole(name: str) -> Path:
    return Path(name).expanduser().resolve()


@functools.cache
def _of_file(name: str, path: Path) -> Backend:
    from kernelmark.backends._file import FileBackend, SourceBackend

    return FileBackend(name) if name.endswith(".py") else SourceBackend(name)
