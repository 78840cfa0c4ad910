"""One timing at a time on a device, across every kernelmark process of this machine.

A lock file a device, held by flock: the kernel gives it back when its holder dies, however it
dies. On the CPU, compiling disturbs timing, so compiling holds the lock too, shared with other
compilations. Processes that use different cache folders do not see each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelmark.core.diskcache import cache_root
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.private import private_folder

OnWait = Callable[[str], None]  # told once, with who holds the lock


def lock_path(info: DeviceInfo) -> Path:
    """The file that stands for a device. A shared home folder serves many hosts: the name holds
    the host's."""
    identity = f"{platform.node()}-{info.uuid or info.name}"
    return cache_root() / "locks" / (re.sub(r"[^A-Za-z0-9._-]", "_", identity) + ".lock")


@contextlib.contextmanager
def held(info: DeviceInfo, on_wait: OnWait, *, shared: bool = False) -> Iterator[None]:
    """Hold the device's lock; where the folder cannot be written, measure without it."""
    handle = _open(lock_path(info))
    if handle is None:
        yield
        return
    try:
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(_holder(handle))
            fcntl.flock(handle, mode)
        if not shared:
            _sign(handle)
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int | None:
    # A file that another user made can still be locked when it can only be read.
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            private_folder(path.parent)
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return None


def _sign(handle: int) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


def _holder(handle: int) -> str:
    # A compilation holds the lock without signing: the text may name an earlier holder, which
    # is only worth telling while that one lives.
    text = os.pread(handle, 32, 0).decode(errors="replace").strip()
    if text.isdigit() and Path(f"/proc/{text}").exists():
        return f"process {text}"
    return "another process"
