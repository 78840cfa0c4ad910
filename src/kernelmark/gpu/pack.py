"""Packs: folders of kernels compiled ahead of time, for machines without a compiler.

A pack holds ARCH/KEY.bin; the folders in $KERNELMARK_PACK are looked at before any compiler.
"""

from __future__ import annotations

import os
from pathlib import Path

from kernelmark.core.files import write_whole


def folders() -> list[Path]:
    """The packs in $KERNELMARK_PACK, in their order of preference."""
    return [Path(p) for p in os.environ.get("KERNELMARK_PACK", "").split(os.pathsep) if p]


def path_in(folder: Path, key: str, arch: str) -> Path:
    """Where the pack in `folder` keeps the binary of `key`."""
    return folder / arch / f"{key}.bin"


def find(key: str, arch: str) -> bytes | None:
    """The binary of `key` from the first pack that has it, or None."""
    for folder in folders():
        try:
            return path_in(folder, key, arch).read_bytes()
        except OSError:
            continue
    return None


def holds(prefix: str) -> bool:
    """Whether any pack has kernels for an architecture whose name begins with `prefix`."""
    return any(True for folder in folders() for _ in folder.glob(f"{prefix}*/*.bin"))


def add(folder: Path, key: str, arch: str, code: bytes) -> Path:
    """Put a binary into the pack in `folder`; it appears whole or not at all."""
    path = path_in(folder, key, arch)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, code)
    return path
