"""Folders with code or results, and whether other users could write to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.host.cache import chosen_cache_root
from kernelmark.host.permissions import Unsafe, find_unsafe

SAFE = "safe"  # the state of a folder that no other user can write to
# Commands that load compiled code.
_LOADING = ("run", "ab", "gate", "bisect", "nightly", "tune", "micro", "roofs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder and why it is unsafe; `used` is False if another folder is used instead."""

    what: str
    path: Path
    unsafe: Unsafe | None
    used: bool

    @property
    def state(self) -> str:
        return self.unsafe.code if self.unsafe else SAFE


def examined() -> Iterator[Folder]:
    """Yield the cache, the precompiled bundles and Triton's cache, if set."""
    yield _folder("cache", chosen_cache_root(), checked=True)
    for name, what in (("KERNELMARK_PACK", "pack"), ("TRITON_CACHE_DIR", "Triton's cache")):
        for path in filter(None, os.environ.get(name, "").split(os.pathsep)):
            yield _folder(what, Path(path), checked=what == "pack")


def _folder(what: str, path: Path, *, checked: bool) -> Folder:
    unsafe = find_unsafe(path)
    return Folder(what=what, path=path, unsafe=unsafe, used=unsafe is None or not checked)


def notes(words: Sequence[str]) -> list[str]:
    """Return warnings about unsafe folders, for commands that load code."""
    if not words or words[0] not in _LOADING or {"-h", "--help"} & set(words):
        return []
    return [
        f"{'' if folder.used else 'the '}{folder.what} {folder.path} is "
        f"{'unsafe' if folder.used else 'not used'}: {folder.unsafe}"
        for folder in examined()
        if folder.unsafe is not None
    ]
