"""Backends, one file or folder each. `available` returns a sentence if one cannot run here."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.backends.base import Backend

registry: Registry[Backend] = Registry("kernelmark.backends", "backend")

# Extensions of users' kernel files: Python, or a source that is compiled at run time.
FILES = (".py", ".cu", ".hip")


def find(name: str) -> Backend:
    """Return the backend called `name`; a path to a kernel file returns a backend for that file."""
    if is_file(name):
        # Resolve now: a relative name would refer to another file after a change of directory.
        return _of_file(canonical(name), _whole(name))
    return registry.get(name)


def canonical(name: str) -> str:
    """Return the canonical name of a backend: for a kernel file `./mine.py` if it is in the working
    directory or below, else its full path. History series are keyed by this name."""
    if not is_file(name):
        return name
    path, here = _whole(name), Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)


def is_file(name: str) -> bool:
    """Return whether a backend's name is the path of a user's kernel file."""
    # No registered name has a slash: for paths, the registry need not read the entry points of
    # every installed distribution.
    return name.endswith(FILES) and ("/" in name or name not in registry)


def _whole(name: str) -> Path:
    return Path(name).expanduser().resolve()


@functools.cache
def _of_file(name: str, path: Path) -> Backend:
    from kernelmark.backends._file import FileBackend, SourceBackend

    return FileBackend(name) if name.endswith(".py") else SourceBackend(name)
