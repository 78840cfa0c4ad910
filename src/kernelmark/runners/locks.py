"""Lock files: exclusive timing on a device, and whether the process of a run is alive.

Each device has one lock file in /tmp, across all kernelmark processes and users of this machine,
locked by flock, which the kernel releases however its holder ends. The files are empty and only
opened for reading, so that a user who replaces one by a link or another kind of file can at most
stop others from waiting. On the CPU, compiling disturbs timing, so compilations hold a shared lock.

A process also holds a lock file for each of its runs. A run whose process was killed may stay
`running` in the store; an unlocked lock file shows that the process has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import pwd
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.core.result import Run, RunState
from kernelmark.core.text import printable
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import private_folder

OnWait = Callable[[str], None]  # called once, with a description of the lock's holder
# Not $TMPDIR: users with different values would not share a lock.
_FOLDER = "/tmp"
_COMMAND_CHARACTERS = 60
_WORKER = "kernelmark.runners.worker"
# Lock files that a `kmark lock` above this process holds, for which it must not wait.
_HELD = "KERNELMARK_HELD"


def lock_path(info: DeviceInfo) -> Path:
    """Return the lock file of a device. $KERNELMARK_LOCKS replaces /tmp by a folder that containers
    share."""
    identity = info.uuid or f"{_machine()}-{info.name}"
    name = re.sub(r"[^A-Za-z0-9._-]", "_", identity)
    return Path(os.environ.get("KERNELMARK_LOCKS") or _FOLDER) / f"kernelmark-{name}.lock"


@contextlib.contextmanager
def hold_lock(info: DeviceInfo, on_wait: OnWait, *, shared: bool = False) -> Iterator[None]:
    """Hold the device's lock; continue without it if no lock file can be opened."""
    if str(lock_path(info)) in _inherited():
        yield
        return
    handle = _acquire(lock_path(info), fcntl.LOCK_SH if shared else fcntl.LOCK_EX, on_wait)
    try:
        yield
    finally:
        if handle is not None:
            # A child that a kernel forked has a copy of the descriptor, which would keep the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def lock_for_program(infos: Sequence[DeviceInfo], on_wait: OnWait) -> None:
    """Lock devices until the program that replaces this process has ended, and all that it starts:
    they inherit the open files. kernelmark in it does not wait for these locks."""
    held = _inherited()
    # All in one order, or two programs could wait for each other.
    for path in sorted({lock_path(info) for info in infos}):
        if str(path) in held:
            continue
        handle = _acquire(path, fcntl.LOCK_EX, on_wait)
        if handle is None:
            raise UsageError(f"{path} cannot be locked", hint="set KERNELMARK_LOCKS to a folder")
        os.set_inheritable(handle, True)
        held.append(str(path))
    os.environ[_HELD] = os.pathsep.join(held)


def _inherited() -> list[str]:
    return [name for name in os.environ.get(_HELD, "").split(os.pathsep) if name]


def _acquire(path: Path, mode: int, on_wait: OnWait) -> int | None:
    """Return the descriptor of the locked file, or None if it cannot be locked."""
    while (handle := _open(path)) is not None:
        try:
            try:
                fcntl.flock(handle, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait(describe_holder(handle))
                fcntl.flock(handle, mode)
            if _is_same_file(path, handle):
                return handle
        except OSError:  # a file system without locks
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # /tmp was cleaned up while waiting: lock the new file
    return None


def _open(path: Path) -> int | None:
    """Open the file for reading only, so that a file created by another user is not changed. An
    existing file is opened without O_CREAT, which Linux refuses for other users' files in /tmp
    (fs.protected_regular)."""
    read_only = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO would block
    for flags in (read_only, read_only | os.O_CREAT | os.O_EXCL, read_only):
        try:
            handle = os.open(path, flags, 0o644)
        except OSError:
            continue
        if stat.S_ISREG(os.fstat(handle).st_mode):
            if flags & os.O_CREAT:
                os.fchmod(handle, 0o644)  # readable by other users, whatever the umask
            return handle
        os.close(handle)
    return None


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except OSError:
        return False


def describe_others(info: DeviceInfo) -> str:
    """Describe the programs that use a GPU without waiting for its lock; "" if there are none.

    NVML lists their PIDs, which is all that is visible of a process in another container. Workers
    of kernelmark do wait for the lock, and are left out."""
    if info.kind != "cuda" or not info.uuid:
        return ""
    from kernelmark.gpu.telemetry import compute_processes

    pids = [pid for pid in compute_processes(info.uuid) if _WORKER not in _command(pid)]
    holders = [_describe(pid) or f"process {pid}" for pid in pids if pid != os.getpid()]
    return " and ".join(holders)


def describe_holder(handle: int) -> str:
    """Describe the holder of an open file's lock: `process 123 of ann (kmark run -s demo)`.

    The kernel's list of locks omits processes of other PID namespaces, such as other containers."""
    holders = [text for pid in _holders(handle) if (text := _describe(pid))]
    return " and ".join(holders) or "another process"


def _holders(handle: int) -> list[int]:
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    inode = os.fstat(handle).st_ino
    pids = []
    for fields in map(str.split, lines):
        # 1: FLOCK ADVISORY WRITE 303 fe:00:2932917 0 EOF; in a waiter's line the second word is ->.
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            pids.append(int(fields[4]))
    return [pid for pid in dict.fromkeys(pids) if pid > 0 and pid != os.getpid()]


def _describe(pid: int) -> str:
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
        arguments = _command(pid)
        if _WORKER in arguments:  # show the command that started the worker instead
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            arguments = _command(int(status[1])) or arguments
    except (OSError, ValueError, IndexError):
        return ""
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = f"user {owner}"
    # Omit the interpreter: /usr/bin/python /usr/bin/kmark run -s demo.
    if len(arguments) > 1 and Path(arguments[0]).name.startswith("python"):
        arguments = arguments[1:]
    text = " ".join([Path(arguments[0]).name, *arguments[1:]]) if arguments else ""
    text = re.sub(r"://[^@\s]*@", "://…@", text)  # hide the password of a store URL
    if len(text) > _COMMAND_CHARACTERS:
        text = text[: _COMMAND_CHARACTERS - 1] + "…"
    command = f" ({printable(text)})" if text else ""
    return f"process {pid} of {user}{command}"


def _command(pid: int) -> list[str]:
    """Return the arguments of a process; [] if they cannot be read."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in line.split(b"\0") if word]


def _machine() -> str:
    """Return a name that is unique to this machine and the same in all its containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "local"


@contextlib.contextmanager
def hold_run_locks(run_ids: Sequence[str]) -> Iterator[None]:
    """Hold the locks of runs while they are measured; without a writable folder, continue
    unlocked."""
    locks: list[tuple[int, Path]] = []
    for run_id in run_ids:
        path = _run_lock_path(run_id)
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
        handle = os.open(_run_lock_path(run.id), os.O_RDONLY | os.O_CLOEXEC)
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


def _run_lock_path(run_id: str) -> Path:
    """Return the lock file of a run. Its name contains the host, since hosts may share a home
    folder."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"run-{platform.node()}-{run_id}")
    return cache_root() / "locks" / f"{name}.lock"
