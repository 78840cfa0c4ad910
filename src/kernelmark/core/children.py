"""Child processes that end with this one, whatever they started and however this one ends.

A compiler is mostly a driver that starts the real one: killing the child leaves the grandchild. So
a child gets a process group of its own, with a guard in it that waits at a pipe whose other end
only this process holds. When this process is gone, SIGKILL included, the guard reads the end of the
pipe and kills the group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

_GUARD = ("/bin/sh", "-c", "read _ || kill -9 0")


@contextlib.contextmanager
def child_group() -> Iterator[int]:
    """Yield a process group for children, as `process_group` of Popen takes it; whatever is still
    in it at the end is killed."""
    guard = _start_guard(process_group=0)
    try:
        yield guard.pid
    finally:
        kill_group(guard.pid)
        guard.communicate()


def last_line(output: bytes) -> str:
    """Return the last line that a command wrote: mostly why it failed."""
    return "".join(output.decode(errors="replace").strip().splitlines()[-1:])


def run_child(
    command: Sequence[str],
    *,
    input: bytes | None = None,
    timeout_s: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end and return what it wrote. Raises OSError where it cannot be started
    and subprocess.TimeoutExpired; it and all that it started are gone afterwards."""
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
    """Have what this process starts end with it, where it leads a process group."""
    if os.getpgrp() != os.getpid():
        return  # the group has other members, which are not ours to kill
    guard = _start_guard(process_group=None)
    assert guard.stdin is not None
    # A fork that starts no program would keep the pipe open.
    os.register_at_fork(after_in_child=guard.stdin.close)
    _guards.append(guard)


_guards: list[subprocess.Popen[bytes]] = []  # a guard that is collected has its pipe closed


def kill_group(number: int) -> None:
    """Kill every process of a group; one that is gone already is as good."""
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
