"""DiskCache: bytes by key on disk, shared by concurrent processes, limited in size.

An entry is one file, written to a temporary name and renamed, with a checksum over its key and
contents: a torn, truncated or foreign file is a miss, never a wrong answer. The least recently used
entries are evicted first. If the folder cannot be written, or another user can write to it, nothing
is cached, and `warning` holds the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kernelmark.core.files import user_path
from kernelmark.host.permissions import find_unsafe, private_folder, temporary_folder

_MAGIC = b"kmcache1"
_HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
_SUFFIX = ".entry"
# A killed writer leaves its temporary file; no live writer keeps one this long.
_STALE_S = 3600.0


def cache_root() -> Path:
    """Return the folder for caches: the configured one, or a temporary one if another user could
    write to that, because compiled code is loaded from it."""
    chosen = chosen_cache_root()
    return chosen if find_unsafe(chosen) is None else temporary_folder()


def chosen_cache_root() -> Path:
    """Return the configured folder, safe or not: $KERNELMARK_CACHE, or `kernelmark` in
    $XDG_CACHE_HOME or ~/.cache."""
    if folder := os.environ.get("KERNELMARK_CACHE"):
        return user_path(folder)
    # The XDG specification requires that relative paths are ignored.
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return xdg / "kernelmark"
    try:
        return Path.home() / ".cache" / "kernelmark"
    except RuntimeError:  # no HOME and no passwd entry: a bare container user
        return Path(tempfile.gettempdir()) / f"kernelmark-{os.getuid()}"


def digest(*parts: str | bytes) -> str:
    """Return a hexadecimal SHA-256 of the parts, which depends on how the text is split."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()


def sealed(key: str, payload: bytes) -> bytes:
    """Return `payload` prefixed by a checksum over it and `key`."""
    whole = hashlib.sha256(hashlib.sha256(key.encode()).digest() + payload)
    return _MAGIC + whole.digest() + payload


def unsealed(key: str, data: bytes) -> bytes | None:
    """Return the payload sealed under `key`; None if it is torn, truncated or of another key."""
    payload = data[_HEADER_BYTES:]
    return payload if data == sealed(key, payload) else None


class DiskCache:
    """Bytes by key under `folder`, at most about `max_bytes` of them."""

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        if max_bytes <= 0:
            raise ValueError("max_bytes must be positive")
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.warning: str | None = None
        # Bytes that this process may write before it scans the folder again; 0 makes the first put
        # scan. Scanning at every put would be slow.
        self._until_scan = 0

    def get(self, key: str) -> bytes | None:
        """Return what was put under `key`, or None."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        # The checksum only detects damage: anyone who can write here can write a valid one too.
        if (unsafe := find_unsafe(path)) is not None:
            self.warning = f"the cache {self.folder} is not used: {unsafe}"
            return None
        payload = unsealed(key, data)
        if payload is None:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        # The modification time is the time of last use: with noatime there is no other.
        with contextlib.suppress(OSError):
            os.utime(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store `payload` under `key`, unless it exceeds the size limit by itself."""
        data = sealed(key, payload)
        if len(data) > self.max_bytes:
            return
        path = self._path(key)
        temporary = path.with_name(f".{path.stem[:16]}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            private_folder(path.parent)
            with temporary.open("xb") as file:
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            self.warning = f"the cache {self.folder} cannot be written ({error.strerror or error})"
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._until_scan -= len(data)
        if self._until_scan < 0:
            self._until_scan = self.max_bytes // 16
            self._shrink()

    def total_bytes(self) -> int:
        """Return the total size of all entries."""
        return sum(size for _, size, _ in self._entries())

    def clear(self) -> None:
        """Remove every entry."""
        for _, _, path in self._entries():
            with contextlib.suppress(OSError):
                path.unlink()

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.folder / name[:2] / f"{name}{_SUFFIX}"

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Yield (last use, bytes, path) of every entry; other processes may remove files."""
        now = time.time()
        for part in self._scan(self.folder):
            for file in self._scan(part) if part.is_dir() else ():
                try:
                    status = file.stat()
                except OSError:
                    continue
                if file.suffix == _SUFFIX:
                    yield status.st_mtime, status.st_size, file
                elif file.name.startswith(".") and now - status.st_mtime > _STALE_S:
                    with contextlib.suppress(OSError):
                        file.unlink()

    @staticmethod
    def _scan(folder: Path) -> list[Path]:
        try:
            return list(folder.iterdir())
        except OSError:
            return []

    def _shrink(self) -> None:
        """If above the limit, evict least recently used entries down to 90 % of it."""
        entries = sorted(self._entries(), key=lambda entry: entry[0])
        total = sum(size for _, size, _ in entries)
        if total <= self.max_bytes:
            return
        for _, size, path in entries:
            if total <= self.max_bytes * 9 // 10:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
