"""Backends, one file or folder each. `available` returns a sentence if one cannot run here.

A name is parsed once, by `parse`, into a `BackendRef`: a registered name, of a built-in or of a
plugin, or the path of a user's kernel file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.core.errors import UsageError
from kernelmark.core.files import user_path
from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.backends.base import Backend

registry: Registry[Backend] = Registry("kernelmark.backends", "backend")

# Extensions of users' kernel files: Python, or a source that is compiled at run time.
FILES = (".py", ".cu", ".hip")


@dataclass(frozen=True, slots=True)
class BackendRef:
    """A backend as it was named, not loaded yet: a file may need packages that only another
    environment has. `name` keys series in history: for a kernel file `./mine.py` if it is in the
    working directory or below, else its full path. `parts` are those of several backends that are
    tuned as one, `cublaslt,triton`."""

    name: str
    file: Path | None = None  # the resolved path of a kernel file; None for a registered backend
    parts: tuple[BackendRef, ...] = ()

    def load(self) -> Backend:
        """Import the backend. The file of a user is executed, once per process: only workers do
        this, and others use `runners.kernel_files`."""
        if self.parts:
            from kernelmark.backends._several import Several

            return Several([part.load() for part in self.parts])
        if self.file is None:
            return registry.get(self.name)
        # By the path too: after a change of directory, the same name is another file.
        return _of_file(self.name, self.file)


def parse(text: str) -> BackendRef:
    """Return the backend that a user or a stored case names, or several with commas between them.

    A kernel file may be missing; a name that is neither of a registered backend nor of a kernel
    file raises UsageError."""
    if "," in text:
        parts = parse_all(names_of(text))
        return parts[0] if len(parts) == 1 else BackendRef(_joined(parts), parts=parts)
    if is_file(text):
        # Resolve now: a relative path would name another file after a change of directory.
        return BackendRef(canonical(text), user_path(text).resolve())
    for name in (text, text.replace("-", "_")):
        if name in registry:
            return BackendRef(name)
    raise _unknown(text)


def parse_all(names: Iterable[str]) -> tuple[BackendRef, ...]:
    """Return the backends of several names, without duplicates."""
    return tuple(dict.fromkeys(map(parse, names)))


def find(name: str) -> Backend:
    """Return the backend called `name`; a path to a kernel file returns a backend for that file."""
    return parse(name).load()


def _joined(parts: Iterable[BackendRef]) -> str:
    return ",".join(part.name for part in parts)


def names_of(name: str) -> tuple[str, ...]:
    """Return the names of several backends that are tuned as one; of one backend, its own."""
    return tuple(dict.fromkeys(part.strip() for part in name.split(",") if part.strip()))


def canonical(name: str) -> str:
    """Return the name in a BackendRef; that of a registered or unknown backend is unchanged."""
    if "," in name:
        return ",".join(dict.fromkeys(map(canonical, names_of(name))))
    if not is_file(name):
        return name
    path, folder = user_path(name).resolve(), Path.cwd()
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)


def is_file(name: str) -> bool:
    """Return whether a backend's name is the path of a user's kernel file."""
    # No registered name has a slash: for paths, the registry need not read the entry points of
    # every installed distribution.
    return name.endswith(FILES) and "," not in name and ("/" in name or name not in registry)


def _unknown(name: str) -> UsageError:
    if _exists(name):
        return UsageError(
            f"{name} is no kernel file",
            hint="one ends in .py, .cu or .hip; a .py file calls a compiled library by ctypes",
        )
    close = f"{name}.py" if _exists(f"{name}.py") else registry.closest(name)
    meant = f"did you mean {close}? " if close else ""
    return UsageError(
        f"unknown backend {name!r}",
        hint=f"{meant}known: {', '.join(registry)}, or a .py, .cu or .hip file",
    )


def _exists(name: str) -> bool:
    try:
        return user_path(name).is_file()
    except (OSError, RuntimeError):  # the name is too long, or ~user does not exist
        return False


@functools.cache
def _of_file(name: str, path: Path) -> Backend:
    from kernelmark.backends._file import FileBackend, SourceBackend

    return FileBackend(name) if path.suffix == ".py" else SourceBackend(name)
