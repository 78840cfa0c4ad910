"""Facts about GPU architectures, to plan and to precompile for a GPU that is not present."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CompileError, UsageError
from kernelmark.gpu import pack
from kernelmark.gpu.rtc import cache_key, compile_source, vendor_of

_KIB = 1024
# Shared memory (LDS) per block, and SMs/CUs of the largest product, from vendors' programming
# guides and data sheets. The config space depends on the first, only its default on the second.
_SHARED_KIB_UNITS = {
    "sm_75": (64, 72),
    "sm_80": (163, 108),
    "sm_86": (99, 84),
    "sm_89": (99, 142),
    "sm_90": (227, 132),
    "sm_100": (227, 148),
    "sm_103": (227, 148),
    "sm_120": (99, 188),
    "sm_121": (99, 48),
    "gfx908": (64, 120),
    "gfx90a": (64, 110),
    "gfx942": (64, 304),
    "gfx950": (160, 256),
    "gfx1100": (64, 96),
    "gfx1200": (64, 32),
    "gfx1201": (64, 64),
    "gfx1250": (320, 256),
}


def known_names() -> str:
    """Return a hint that lists the known architectures."""
    return f"known: {', '.join(_SHARED_KIB_UNITS)}"


def is_known(arch: str) -> bool:
    """Return whether facts about an architecture are known."""
    return arch in _SHARED_KIB_UNITS


def absent(arch: str) -> DeviceInfo:
    """Return the facts of an architecture; raise UsageError for an unknown one. Target features, as
    in gfx942:sramecc+:xnack-, are left out."""
    if arch.startswith("gfx"):
        arch = arch.partition(":")[0]
    try:
        kind = vendor_of(arch)
    except UsageError as error:
        raise UsageError(error.message, hint=known_names()) from None
    # The driver reports sm_90 also if kernels for the GPU are built as sm_90a.
    name = arch.rstrip("af") if kind == "cuda" else arch
    if name not in _SHARED_KIB_UNITS:
        raise UsageError(f"the architecture {arch} is unknown", hint=known_names())
    shared, units = _SHARED_KIB_UNITS[name]
    return DeviceInfo(
        name=f"{kind}:0",
        kind=kind,
        model=f"absent {name}",
        arch=name,
        units=units,
        attributes={"shared_per_block": str(shared * _KIB)},
    )


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
            f"{arch} is a target of single kernels; the GPU's architecture is {plain}",
            hint=f"ask for {plain}: what needs {arch} is built for that",
        )
    if is_known(arch):
        return
    try:
        compile_source(_EMPTY, arch=arch, name="empty.cu")
    except CompileError:
        raise UsageError(f"the compiler has no target {arch}", hint=known_names()) from None


def precompile(sources: Mapping[str, str], archs: Sequence[str], folder: Path) -> Iterator[Packed]:
    """Compile `sources` (by file name) for each of `archs` into the bundle in `folder`."""
    return (
        _compile_source(name, text, arch, folder)
        for arch in archs
        for name, text in sources.items()
    )


def _compile_source(name: str, source: str, arch: str, folder: Path) -> Packed:
    try:
        binary = compile_source(source, arch=arch, name=name)
    except CompileError as error:
        return Packed(name=name, arch=arch, reason=error.message, hint=error.hint or "")
    path = pack.add(folder, cache_key(source, arch, ()), arch, binary.code)
    size, seconds = len(binary.code), binary.seconds
    return Packed(name=name, arch=arch, path=path, nbytes=size, seconds=seconds)
