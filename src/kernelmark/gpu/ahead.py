"""Compile kernel files for many architectures into a precompiled bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import CompileError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.gpu import pack
from kernelmark.gpu.architectures import is_known, known_names
from kernelmark.gpu.rtc import cache_key, compile_source, vendor_of

_EMPTY = 'extern "C" __global__ void empty() {}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One kernel file for one architecture: its path and size, or the reason why it was not
    compiled and a hint."""

    name: str
    arch: str
    path: Path | None = None
    nbytes: int = 0
    seconds: float = 0.0
    reason: str = ""
    hint: str = ""


def check(arch: str) -> None:
    """Raise UsageError for an unknown GPU architecture, or if no compiler supports it."""
    if vendor_of(arch) == "cuda" and arch[-1] in "af":
        plain = arch[:-1]
        raise UsageError(
            Reason("arch-of-kernels", arch=arch, gpu=plain),
            hint=f"ask for {plain}: what needs {arch} is built for that",
        )
    if is_known(arch):
        return
    try:
        compile_source(_EMPTY, arch=arch, name="empty.cu")
    except CompileError:
        raise UsageError(Reason("arch-not-compiled", arch=arch), hint=known_names()) from None


def precompile(sources: Mapping[str, str], archs: Sequence[str], folder: Path) -> Iterator[Packed]:
    """Compile `sources` (by file name) for each of `archs` into the bundle in `folder`."""
    return (_one(name, text, arch, folder) for arch in archs for name, text in sources.items())


def _one(name: str, source: str, arch: str, folder: Path) -> Packed:
    try:
        binary = compile_source(source, arch=arch, name=name)
    except CompileError as error:
        return Packed(name=name, arch=arch, reason=error.message, hint=error.hint or "")
    path = pack.add(folder, cache_key(source, arch, ()), arch, binary.code)
    size, seconds = len(binary.code), binary.seconds
    return Packed(name=name, arch=arch, path=path, nbytes=size, seconds=seconds)
