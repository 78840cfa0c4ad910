"""Results of other tools as runs: one file a format.

A time that comes as a bare mean becomes a measurement of one sample: it has no dispersion, so it
enters history and threshold rules, never an interval.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kernelmark.core.errors import UsageError
from kernelmark.core.registry import Registry

if TYPE_CHECKING:
    from kernelmark.core.result import ResultSet
    from kernelmark.workloads.importers.base import Given, Importer

registry: Registry[Importer] = Registry("kernelmark.workloads.importers", "importer")
_HEAD_BYTES = 16384


def names() -> list[str]:
    """Every format as a user types it."""
    return [name.replace("_", "-") for name in registry.names()]


def named(name: str) -> Importer:
    """The importer of that format."""
    return registry.get(name.replace("-", "_"))


def recognized(path: Path) -> Importer | None:
    """The importer that knows the file by its name and its beginning."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    known = (registry.get(name) for name in registry.names())
    return next((one for one in known if one.recognizes(path.name, head)), None)


def read(path: Path, given: Given, name: str | None = None) -> ResultSet:
    """The run in a file of another tool; its format is found out unless it is named."""
    try:
        importer = recognized(path) if name is None else named(name)
        if importer is not None:
            return importer.read(path, given)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    raise UsageError(
        f"{path}: is in no format that can be read",
        hint=f"name one by --as: {', '.join(names())}",
    )
