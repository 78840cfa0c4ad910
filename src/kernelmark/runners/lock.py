"""One timing at a time on a device, across every kernelmark process and user of this machine.

A lock file a device in /tmp, held by flock: the kernel gives it back when its holder dies, however
it dies. Files there are only ever opened for reading and hold nothing, so that a user who puts a
link or a file of another kind in the place of one can at most stop others from waiting. On the CPU,
compiling disturbs timing, so compiling holds the lock too, shared with other compilations.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.printable import printable

OnWait = Callable[[str], None]  # called once, with who holds the lock
# Not $TMPDIR: users who have their own would not meet.
_FOLDER = "/tmp"
_COMMAND_CHARACTERS = 60
_WORKER = "kernelmark.runners.worker"


def lock_path(info: DeviceInfo) -> Path:
    """The file that stands for a device. $KERNELMARK_LOCKS is another folder than /tmp: one that
    containers share."""
    identity = info.uuid or f"{_machine()}-{info.name}"
    name = re.sub(r"[^A-Za-z0-9._-]", "_", identity)
    return Path(os.environ.get("KERNELMARK_LOCKS") or _FOLDER) / f"kernelmark-{name}.lock"


@contextlib.contextmanager
def held(info: DeviceInfo, on_wait: OnWait, *, shared: bool = False) -> Iterator[None]:
    """Hold the device's lock; where there can be none, measure without it."""
    handle = _locked(lock_path(info), fcntl.LOCK_SH if shared else fcntl.LOCK_EX, on_wait)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _locked(path: Path, mode: int, on_wait: OnWait) -> int | None:
    """An open file that is locked, or None."""
    while (handle := _open(path)) is not None:
        try:
            try:
                fcntl.flock(handle, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait(describe_holder(handle))
                fcntl.flock(handle, mode)
            if _is_there(path, handle):
                return handle
        except OSError:  # a file system without locks
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # whoever tidies /tmp removed the file while it was waited for
    return None


def _open(path: Path) -> int | None:
    """The file, opened for reading: nothing can be done to what another user put there. Where it
    exists it is not opened with O_CREAT, which Linux refuses for others' files in /tmp
    (fs.protected_regular)."""
    usual = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO would wait
    for flags in (usual, usual | os.O_CREAT | os.O_EXCL, usual):
        try:
            handle = os.open(path, flags, 0o644)
        except OSError:
            continue
        if stat.S_ISREG(os.fstat(handle).st_mode):
            if flags & os.O_CREAT:
                os.fchmod(handle, 0o644)  # others have to open it, whatever the umask
            return handle
        os.close(handle)
    return None


def _is_there(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except OSError:
        return False


def describe_others(info: DeviceInfo) -> str:
    """Programs that use a GPU and do not wait for its lock, in words; "" for none that is seen.

    NVML lists them by PID; of another container there is nothing more to say. Workers of kernelmark
    wait for each other."""
    if info.kind != "cuda" or not info.uuid:
        return ""
    from kernelmark.gpu.telemetry import compute_processes

    pids = [pid for pid in compute_processes(info.uuid) if _WORKER not in _command(pid)]
    holders = [_describe(pid) or f"process {pid}" for pid in pids if pid != os.getpid()]
    return " and ".join(holders)


def describe_holder(handle: int) -> str:
    """Who holds the lock of an open file: `process 123 of ann (kmark run -s demo)`.

    By the kernel's list of locks, not by anything that a holder wrote: that can be wrong. It leaves
    out processes of other PID namespaces, such as those of other containers."""
    holders = [text for pid in _holders(handle) if (text := _describe(pid))]
    return " and ".join(holders) or "another process"


def _holders(handle: int) -> list[int]:
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    inode = os.fstat(handle).st_ino
    found = []
    for words in map(str.split, lines):
        # 1: FLOCK ADVISORY WRITE 303 fe:00:2932917 0 EOF; a line with -> waits.
        if len(words) > 5 and words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
            found.append(int(words[4]))
    return [pid for pid in dict.fromkeys(found) if pid > 0 and pid != os.getpid()]


def _describe(pid: int) -> str:
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
        words = _command(pid)
        if _WORKER in words:  # a worker is known to nobody; who started it is
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            words = _command(int(status[1])) or words
    except (OSError, ValueError, IndexError):
        return ""
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = f"user {owner}"
    # The interpreter is of no interest: /usr/bin/python /usr/bin/kmark run -s demo.
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        words = words[1:]
    text = " ".join([Path(words[0]).name, *words[1:]]) if words else ""
    text = re.sub(r"://[^@\s]*@", "://…@", text)  # the password of a store
    if len(text) > _COMMAND_CHARACTERS:
        text = text[: _COMMAND_CHARACTERS - 1] + "…"
    command = f" ({printable(text)})" if text else ""
    return f"process {pid} of {user}{command}"


def _command(pid: int) -> list[str]:
    """The words of a process's command line; none where they cannot be read."""
    try:
        whole = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in whole.split(b"\0") if word]


def _machine() -> str:
    """A name that containers of one machine share and no other machine has."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "local"
