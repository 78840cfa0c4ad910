"""Limits that a container puts on a process: cores and memory, from cgroup v1 or v2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
# cgroup v1 writes a number above this for "unlimited".
_NO_LIMIT = 2**60


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPU quota in cores, or None if there is no quota."""
    quotas = []
    for folder in _folders("cpu", root):
        words = read_text(folder / "cpu.max").split()
        if not words:
            words = [
                read_text(folder / "cpu.cfs_quota_us").strip(),
                read_text(folder / "cpu.cfs_period_us").strip(),
            ]
        if len(words) == 2 and all(_is_count(word) for word in words) and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_headroom(root: Path = ROOT) -> int | None:
    """Return the bytes left under the tightest memory limit, or None if there is no limit."""
    rooms = []
    for folder in _folders("memory", root):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is None or used is None or limit >= _NO_LIMIT:
            continue
        rooms.append(limit - used + _reclaimable(folder))
    return min(rooms, default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the tightest memory limit in bytes, or None if there is no limit."""
    limits = []
    for folder in _folders("memory", root):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is not None and limit < _NO_LIMIT:
            limits.append(limit)
    return min(limits, default=None)


def oom_kills(root: Path = ROOT) -> int:
    """Return the number of OOM kills in this control group so far. If the group does not count
    them, return the count of the whole machine, or 0."""
    groups = _folders("memory", root)
    files = [folder / name for folder in groups for name in ("memory.events", "memory.oom_control")]
    for path in (*files, root / "proc/vmstat"):
        value = _value(path, "oom_kill")
        if value is not None:
            return value
    return 0


def read_text(path: Path) -> str:
    """Return the file's text, or "" if it cannot be read: kernels differ in the files they
    expose."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the process's control group and its ancestors for one controller. Inside a container
    the path may be the host's and not exist, so the root of the mount is included."""
    base = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names == "":
            mounts = [base, base / "unified"]
        elif controller in names.split(","):
            mounts = list(dict.fromkeys([base / names, base / controller]))
        else:
            continue
        for mount in mounts:
            folder = mount / path.strip("/")
            while folder.is_relative_to(mount):
                if folder.is_dir():
                    yield folder
                if folder == mount:
                    break
                folder = folder.parent


def _reclaimable(folder: Path) -> int:
    """Return the group's file cache, which the kernel drops before it refuses memory."""
    return _value(folder / "memory.stat", "inactive_file", "total_inactive_file") or 0


def _value(path: Path, *names: str) -> int | None:
    """Return the value of the first `NAME VALUE` line whose name is one of `names`."""
    for line in read_text(path).splitlines():
        name, _, value = line.partition(" ")
        if name in names and _is_count(value):
            return int(value)
    return None


def _number(*paths: Path) -> int | None:
    for path in paths:
        text = read_text(path).strip()
        if _is_count(text):
            return int(text)
    return None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()
