"""Precompiled bundles: folders of compiled kernels, for machines without a compiler.

A bundle holds ARCH/KEY.bin; the folders in $KERNELMARK_PACK are searched before any compiler is
used. Each file carries a checksum. Damaged files, and files that another user could have written,
are skipped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.core.files import write_whole
from kernelmark.core.units import join_and, join_commas
from kernelmark.host.cache import sealed, unsealed
from kernelmark.host.permissions import Unsafe, find_unsafe

_BINARY = ".bin"


def folders() -> list[Path]:
    """Return the bundles in $KERNELMARK_PACK, in order of preference."""
    return [Path(p) for p in os.environ.get("KERNELMARK_PACK", "").split(os.pathsep) if p]


def safe_folders() -> list[Path]:
    """Return the bundles that no other user can write to; only they are used."""
    return [folder for folder in folders() if find_unsafe(folder) is None]


def refused() -> list[Unsafe]:
    """Return the bundles that are not used, with the reason."""
    return [unsafe for folder in folders() if (unsafe := find_unsafe(folder)) is not None]


def path_in(folder: Path, key: str, arch: str, suffix: str = _BINARY) -> Path:
    """Return the path of the binary of `key` in the bundle in `folder`."""
    return folder / arch / f"{key}{suffix}"


def find(key: str, arch: str, suffix: str = _BINARY) -> bytes | None:
    """Return the binary of `key` from the first bundle with an intact one, or None. Another
    `suffix` selects a file that was added alongside it."""
    return next((code for _, code in _files(key, arch, suffix) if code is not None), None)


@contextlib.contextmanager
def blamed(key: str, arch: str) -> Iterator[None]:
    """Report a damaged bundle file instead of the compiler error that it caused."""
    try:
        yield
    except (CompileError, Unsupported) as error:
        bad = [str(path) for path, code in _files(key, arch) if code is None]
        unsafe = [str(item) for item in refused()]
        if not bad and not unsafe:
            raise
        raise CompileError(
            (f"a bundle is not used: {join_commas(unsafe)}; " if unsafe else "")
            + (f"damaged: {join_and(bad)}; " if bad else "")
            + error.message,
            hint="copy the bundle again, or make it anew",
        ) from None


def _files(key: str, arch: str, suffix: str = _BINARY) -> Iterator[tuple[Path, bytes | None]]:
    """Yield each bundle's file of `key` with its binary, or None if the file is damaged."""
    for folder in safe_folders():
        path = path_in(folder, key, arch, suffix)
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if find_unsafe(path) is not None:
            continue
        yield path, unsealed(f"{arch}/{key}", data)


def holds(prefix: str) -> bool:
    """Return whether any bundle has kernels for an architecture whose name begins with `prefix`."""
    for folder in safe_folders():
        with contextlib.suppress(OSError):  # skip a bundle that cannot be read
            if any(True for _ in folder.glob(f"{prefix}*/*.bin")):
                return True
    return False


def inventory(folder: Path) -> dict[str, tuple[int, int]]:
    """Count the intact and the damaged kernels of a bundle by architecture; raise OSError if the
    bundle cannot be read."""
    sizes = {}
    for subfolder in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = list(subfolder.glob("*.bin"))
        whole = sum(
            unsealed(f"{subfolder.name}/{path.stem}", path.read_bytes()) is not None
            for path in files
        )
        if files:
            sizes[subfolder.name] = whole, len(files) - whole
    return sizes


def add(folder: Path, key: str, arch: str, code: bytes, suffix: str = _BINARY) -> Path:
    """Write a binary into the bundle in `folder` atomically; with another `suffix`, a file
    alongside it."""
    path = path_in(folder, key, arch, suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, sealed(f"{arch}/{key}", code))
    return path
