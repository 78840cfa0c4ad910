"""Folders that only this user, or root, can put something into.

Code and compiled kernels are loaded from caches and bundles: anyone who can write there can run
code as this user. A folder is safe if it and every folder and link on the way belong to this user
or root and nobody else can write to them. A sticky folder such as /tmp may be on the way: others
can add to it, but cannot replace what is in it.
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

_MAX_LINKS = 40  # as in Linux; a loop of links ends here


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsafe:
    """Why a path is not trusted: `at` is the file, folder or link on the way that is to blame.

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
    """A folder that another user could put files into. An OSError, since a caller that can do
    without a folder it cannot use can do without this one too."""

    def __init__(self, unsafe: Unsafe) -> None:
        super().__init__(None, str(unsafe), str(unsafe.path))
        self.unsafe = unsafe


def find_unsafe(path: str | os.PathLike[str]) -> Unsafe | None:
    """Return why `path` is not safe to load from, or None. What does not exist yet is judged by
    the folder that it would be made in."""
    # Not os.path.abspath, which drops `link/..` although that need not lead back.
    asked = Path.cwd() / path
    done, left = Path(asked.anchor), list(reversed(asked.parts[1:]))
    links = 0
    fault = _fault(asked, done, os.lstat(done), last=not left)
    while fault is None and left:
        name = left.pop()
        if name == "..":
            done = done.parent  # checked on the way down
            continue
        here = done / name
        try:
            status = os.lstat(here)
        except OSError:  # not there, or not ours to see: nothing is loaded from it
            return None
        fault = _fault(asked, here, status, last=not left)
        if fault is None and stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return Unsafe(code="link-loop", path=asked, at=here)
            target = here.readlink()
            done = Path(target.anchor) if target.is_absolute() else done
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        done = here
    return fault


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Make the folder, for this user alone, and return it; raise OSError if it cannot be made or
    is not safe."""
    folder = make_folder(path)
    # After it was made: before, another user could have made it in between.
    if (unsafe := find_unsafe(folder)) is not None:
        raise UnsafeFolder(unsafe)
    return folder


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make the folder and those above it, as far as they are missing, for this user alone: the
    XDG specification asks for it, and a umask may let a group in."""
    folder = Path(path)
    for one in (*reversed(folder.parents), folder):
        if not one.is_dir():
            one.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.cache
def temporary_folder() -> Path:
    """Return a folder of this process alone, which is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="kernelmark-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, maker: int) -> None:
    if os.getpid() == maker:  # a fork inherits the call, and not the folder
        shutil.rmtree(folder, ignore_errors=True)


def _fault(asked: Path, here: Path, status: os.stat_result, *, last: bool) -> Unsafe | None:
    """Return what is wrong with one file, folder or link on the way to `asked`."""
    link = stat.S_ISLNK(status.st_mode)
    if status.st_uid not in _trusted(way=not last):
        code = "foreign-link" if link else "foreign-owner"
        return Unsafe(code=code, path=asked, at=here, owner=status.st_uid)
    # The mode of a link means nothing. In a sticky folder only the owner can rename or remove an
    # entry, so that the next step's owner decides; but the last step's content is what is loaded.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and not last
    if link or sticky or not _writable_by_others(status):
        return None
    return Unsafe(code="writable-by-others", path=asked, at=here, owner=status.st_uid)


def _writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _own_group(status.st_gid)


@functools.cache
def _own_group(number: int) -> bool:
    """Return whether nobody but this user and root is in a group. Many systems give every user such
    a group and a umask of 002, so that a home folder is writable by it."""
    user = os.geteuid()
    try:
        members = set(grp.getgrgid(number).gr_mem)
    except KeyError:
        members = set()
    names = {pwd.getpwuid(one).pw_name for one in {0, user} if _has_name(one)}
    return number in (0, user) and members <= names


@functools.cache
def _trusted(*, way: bool) -> frozenset[int]:
    """Users whose files are trusted; for what is on the `way`, also the user that root is shown as
    in a container without a root of its own."""
    known = {0, os.geteuid()}
    if way and (shown := _unmapped_root()) is not None:
        known.add(shown)
    return frozenset(known)


def _unmapped_root() -> int | None:
    """Return the user that files of root seem to belong to in a user namespace that does not map
    root, as those of Apptainer; None elsewhere."""
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
    except KeyError:  # a user of a container that no list has
        return False
