"""Folders that only this user or root can write to.

Code and compiled kernels are loaded from caches and bundles: anyone who can write there can run
code as this user. A folder is safe if it and every folder and link on its path belong to this user
or root, and no other user can write to them. A sticky folder such as /tmp may be on the path: other
users can add to it, but cannot replace what is in it.
"""

from __future__ import annotations

import atexit
import functools
import grp
import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

_MAX_LINKS = 40  # as in Linux, to end loops of links


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsafe:
    """Why a path is not trusted: `at` is the file, folder or link on it that is unsafe.

    Codes: foreign-owner, foreign-link, writable-by-others, link-loop."""

    code: str
    path: Path
    at: Path
    owner: int = -1

    def __str__(self) -> str:
        text = {
            "foreign-owner": f"{self.at} belongs to {_user_name(self.owner)}",
            "foreign-link": f"the link {self.at} belongs to {_user_name(self.owner)}",
            "writable-by-others": f"other users can write to {self.at}",
            "link-loop": f"{self.at} is a loop of links",
        }[self.code]
        return text if self.at == self.path else f"{text}, which leads to {self.path}"


class UnsafeFolder(OSError):
    """A folder that another user could write to. It is an OSError, so that callers handle it like a
    folder that is not writable."""

    def __init__(self, unsafe: Unsafe) -> None:
        super().__init__(None, str(unsafe), str(unsafe.path))
        self.unsafe = unsafe


def find_unsafe(path: str | os.PathLike[str]) -> Unsafe | None:
    """Return why `path` is not safe to load from, or None. A path that does not exist yet is judged
    by the folder in which it would be created."""
    # Not os.path.abspath, which drops `link/..` even if the link leads elsewhere.
    absolute = Path.cwd() / path
    done, left = Path(absolute.anchor), list(reversed(absolute.parts[1:]))
    links = 0
    fault = _fault(absolute, done, os.lstat(done), last=not left)
    while fault is None and left:
        name = left.pop()
        if name == "..":
            done = done.parent  # checked before
            continue
        here = done / name
        try:
            status = os.lstat(here)
        except OSError:  # missing or not accessible: nothing is loaded from it
            return None
        fault = _fault(absolute, here, status, last=not left)
        if fault is None and stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return Unsafe(code="link-loop", path=absolute, at=here)
            target = here.readlink()
            done = Path(target.anchor) if target.is_absolute() else done
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        done = here
    return fault


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Create the folder, accessible only to this user, and return it; raise OSError if that fails
    or the folder is not safe."""
    folder = make_folder(path)
    # Check after creating it: another user could create it in between.
    if (unsafe := find_unsafe(folder)) is not None:
        raise UnsafeFolder(unsafe)
    return folder


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Create the folder and its missing parents with mode 0700: the XDG specification requires it,
    and a umask may give access to a group."""
    folder = Path(path)
    for parent in (*reversed(folder.parents), folder):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.cache
def temporary_folder() -> Path:
    """Return a private folder that is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="kernelmark-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a forked process inherits the atexit call
        shutil.rmtree(folder, ignore_errors=True)


def _fault(requested: Path, here: Path, status: os.stat_result, *, last: bool) -> Unsafe | None:
    """Return why the file, folder or link `here`, on the path `requested`, is unsafe; else None."""
    link = stat.S_ISLNK(status.st_mode)
    if status.st_uid not in _trusted(way=not last):
        code = "foreign-link" if link else "foreign-owner"
        return Unsafe(code=code, path=requested, at=here, owner=status.st_uid)
    # The mode of a link has no effect. In a sticky folder only the owner can rename or remove an
    # entry, so that the owner of the next step matters; but the last step is what gets loaded.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and not last
    if link or sticky or not _writable_by_others(status):
        return None
    return Unsafe(code="writable-by-others", path=requested, at=here, owner=status.st_uid)


def _writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _own_group(status.st_gid)


@functools.cache
def _own_group(number: int) -> bool:
    """Return whether this user and root are the only members of a group. Many systems give every
    user such a group and a umask of 002, which makes home folders writable by it."""
    user = os.geteuid()
    try:
        members = set(grp.getgrgid(number).gr_mem)
    except KeyError:
        members = set()
    names = {pwd.getpwuid(item).pw_name for item in {0, user} if _has_name(item)}
    return number in (0, user) and members <= names


@functools.cache
def _trusted(*, way: bool) -> frozenset[int]:
    """Return the users whose files are trusted; for the folders on the `way`, also the user that
    root is mapped to in a container without root."""
    owners = {0, os.geteuid()}
    if way and (shown := _unmapped_root()) is not None:
        owners.add(shown)
    return frozenset(owners)


def _unmapped_root() -> int | None:
    """Return the user that owns root's files in a user namespace that does not map root, as in
    Apptainer; None elsewhere."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        if any(line.split()[0] == "0" for line in lines):
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError, IndexError):
        return None


def _user_name(number: int) -> str:
    return f"user {pwd.getpwuid(number).pw_name if _has_name(number) else number}"


def _has_name(number: int) -> bool:
    try:
        return bool(pwd.getpwuid(number))
    except KeyError:  # a container's user without a passwd entry
        return False
