"""Whether the process that measures a run is still there.

A run that goes on holds a lock file of its own by flock, which the kernel gives back however the
process ends. A store only knows how a run ended if it could still be told: one whose process was
killed, or that ended by an error, may stay `running` there, and the free lock says that it is not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelmark.core.diskcache import cache_root
from kernelmark.core.private import private_folder
from kernelmark.core.result import Run, RunState


@contextlib.contextmanager
def living(run_ids: Sequence[str]) -> Iterator[None]:
    """Hold the locks of runs while they are measured; without a writable folder, go on."""
    held: list[tuple[int, Path]] = []
    for run_id in run_ids:
        path = _path(run_id)
        with contextlib.suppress(OSError):
            private_folder(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(path, flags, 0o600)
            held.append((handle, path))
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try:
        yield
        # After an error the file stays: the store may not have been told how the run ended.
        for _, path in held:
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        for handle, _ in held:
            os.close(handle)


def state(run: Run) -> RunState:
    """What the store says of a run, but `interrupted` for one whose process is known to be gone:
    it ran on this host and left a lock that nobody holds."""
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
    """A shared home folder serves many hosts: the name holds the host's."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"run-{platform.node()}-{run_id}")
    return cache_root() / "locks" / f"{name}.lock"
