"""None"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

_GUARD = ("/bin/sh", "-c", "read _ || kill -9 0")


@contextlib.contextmanager
def child_group() -> Iterator[int]:
    """Yield a process group for children, for `process_group` of Popen; processes that are still
    in it at the end are killed."""
    guard = _start_guard(process_group=0)
    try:
        yield guard.pid
    finally:
        kill_group(guard.pid)
        guard.communicate()


def last_line(output: bytes) -> str:
    """Return the last line that a command wrote, which usually says why it failed."""
    return "".join(output.decode(errors="replace").strip().splitlines()[-1:])


def run_child(
    command: Sequence[str],
    *,
    input: bytes | None = None,
    timeout_s: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end and return its output. Raise OSError if it cannot be started, and
    subprocess.TimeoutExpired. All processes that it started are killed afterwards."""
    pipe = subprocess.PIPE
    with (
        child_group() as group,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if input is None else pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=cwd,
            env=env,
            process_group=group,
        ) as process,
    ):
        try:
            out, err = process.communicate(input, timeout_s)
        except BaseException:
            kill_group(group)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def guard_own_group() -> None:
    """If this process leads its process group, kill the group when this process ends."""
    if os.getpgrp() != os.getpid():
        return  # the group has other members, which must not be killed
    guard = _start_guard(process_group=None)
    assert guard.stdin is not None
    # A fork that starts no program would keep the pipe open.
    os.register_at_fork(after_in_child=guard.stdin.close)
    _guards.append(guard)


_guards: list[subprocess.Popen[bytes]] = []  # garbage collection would close the pipe


def kill_group(number: int) -> None:
    """Kill every process of a group; a group that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


def _start_guard(*, process_group: int | None) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(
        _GUARD,
        stdin=subprocess.PIPE,
        stdout=null,
        stderr=null,
        bufsize=0,
        process_group=process_group,
    )


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
