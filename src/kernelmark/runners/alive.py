"""Detect whether the process that measures a run is still alive.

A process holds a lock file for each of its runs by flock, which the kernel releases however the
process ends. A run whose process was killed may stay `running` in the store; an unlocked lock file
shows that the process has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelmark.core.result import Run, RunState
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder


@contextlib.contextmanager
def hold_run_locks(run_ids: Sequence[str]) -> Iterator[None]:
    """Hold the locks of runs while they are measured; without a writable folder, continue
    unlocked."""
    locks: list[tuple[int, Path]] = []
    for run_id in run_ids:
        path = _path(run_id)
        with contextlib.suppress(OSError):
            private_folder(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(path, flags, 0o600)
            locks.append((handle, path))
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try:
        yield
        # After an error the file stays: the run may still be `running` in the store.
        for _, path in locks:
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        for handle, _ in locks:
            os.close(handle)


def current_state(run: Run) -> RunState:
    """Return the stored state of a run, but `interrupted` if its process has ended: it ran on this
    host and left an unlocked lock file."""
    if run.state is not RunState.RUNNING or run.environment.host != platform.node():
        return run.state
    try:
        handle = os.open(_path(run.id), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return run.state
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return run.state
    else:
        return RunState.INTERRUPTED
    finally:
        os.close(handle)


def _path(run_id: str) -> Path:
    """Return the lock file of a run. Its name contains the host, since hosts may share a home
    folder."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"run-{platform.node()}-{run_id}")
    return cache_root() / "locks" / f"{name}.lock"
