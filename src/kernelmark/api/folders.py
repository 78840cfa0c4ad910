"""The folder that a run was started in: paths in its command are relative to it.

It is kept in the user's cache, not in the store: a store is shared, and must not reveal the paths
of a user's files.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from kernelmark.core.files import write_whole
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder

_MOST_RUNS = 1000  # the latest ones are kept


def remember_folder(run_id: str) -> None:
    """Store the working folder of a run. A failure to write is ignored: it only matters if the run
    is resumed from another folder."""
    known = {**_load(), run_id: str(Path.cwd())}
    with contextlib.suppress(OSError):
        private_folder(_place().parent)
        write_whole(_place(), json.dumps(dict(list(known.items())[-_MOST_RUNS:])).encode())


def folder_of(run_id: str) -> Path | None:
    """Return the folder that a run was started in; None if it is not in the cache."""
    found = _load().get(run_id)
    return None if found is None else Path(found)


def _place() -> Path:
    return cache_root() / "folders.json"


def _load() -> dict[str, str]:
    try:
        found = json.loads(_place().read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: folder for name, folder in found.items() if isinstance(folder, str)}
