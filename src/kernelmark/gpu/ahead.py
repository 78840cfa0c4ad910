"""Compile kernel files for many architectures into a pack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import CompileError
from kernelmark.gpu import pack
from kernelmark.gpu.rtc import cache_key, compile_source, vendor_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One file for one architecture: where it is and its bytes, or why it could not be made and
    what would help."""

    name: str
    arch: str
    path: Path | None = None
    nbytes: int = 0
    seconds: float = 0.0
    reason: str = ""
    hint: str = ""


def precompile(sources: Mapping[str, str], archs: Sequence[str], folder: Path) -> Iterator[Packed]:
    """Each of `sources` (by file name) for each of `archs`, into the pack in `folder`.

    An architecture that is none at all is a usage error before anything is compiled."""
    for arch in archs:
        vendor_of(arch)
    return (_one(name, text, arch, folder) for arch in archs for name, text in sources.items())


def _one(name: str, source: str, arch: str, folder: Path) -> Packed:
    try:
        binary = compile_source(source, arch=arch, name=name)
    except CompileError as error:
        return Packed(name=name, arch=arch, reason=error.message, hint=error.hint or "")
    path = pack.add(folder, cache_key(source, arch, ()), arch, binary.code)
    size, seconds = len(binary.code), binary.seconds
    return Packed(name=name, arch=arch, path=path, nbytes=size, seconds=seconds)
