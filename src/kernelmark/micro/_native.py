"""Build `roofs.c` for this very CPU with the host's C compiler, keep it in the cache, call it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from kernelmark.core.children import run_child
from kernelmark.core.diskcache import cache_root
from kernelmark.core.private import UnsafeFolder, find_unsafe, private_folder

FMA = {"f32": 0, "f64": 1, "f16": 2}
STREAM = {"read": 3, "copy": 4, "triad": 5}
# Arrays that one pass of a stream reads or writes.
ARRAYS = {"read": 1, "copy": 2, "triad": 3}

_BUILD_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """One call. `whole_s` is the shortest pass of all threads together, `alone_s` each thread's
    own shortest, or the whole where threads may have shared a core; `total` is what they computed
    in the last pass."""

    whole_s: float
    alone_s: tuple[float, ...]
    total: float


class Library:
    """The loaded shared library."""

    def __init__(self, path: Path, compiler: str) -> None:
        self._library = ctypes.CDLL(str(path))
        self.compiler = compiler
        self.vector_bytes = int(self._library.kmark_vector_bytes())
        self.chains = int(self._library.kmark_chains())
        self.parts = int(self._library.kmark_parts())
        self.has_f16 = bool(self._library.kmark_has_f16())

    def run(self, kind: int, cpus: Sequence[int], amount: int, passes: int) -> Passes | None:
        """`amount` of work on each CPU, `passes` times; None when memory or threads are short."""
        whole, total = ctypes.c_double(), ctypes.c_double()
        alone = (ctypes.c_double * len(cpus))()
        failed = self._library.kmark_roof(
            ctypes.c_int(kind),
            ctypes.c_int(len(cpus)),
            (ctypes.c_int * len(cpus))(*cpus),
            ctypes.c_int64(amount),
            ctypes.c_int(passes),
            ctypes.byref(whole),
            alone,
            ctypes.byref(total),
        )
        if failed:
            return None
        return Passes(whole_s=whole.value, alone_s=tuple(alone), total=total.value)

    def release(self) -> None:
        """Give back the memory that streams keep from one call to the next."""
        self._library.kmark_release()


def library() -> Library | None:
    """The library built for this CPU, or None where there is no working C compiler."""
    for command in _compilers():
        for tuned in (_tuning_flag(), ""):
            flags = ["-O3", *([tuned] if tuned else []), "-shared", "-fPIC", "-pthread"]
            path = _built((*command, *flags))
            if path is not None:
                return Library(path, f"{Path(command[0]).name} {' '.join(flags[:-3])}")
    return None


def _compilers() -> list[tuple[str, ...]]:
    """Commands to try, $CC first; only those that exist."""
    asked = [os.environ["CC"]] if os.environ.get("CC") else []
    found = []
    for words in map(shlex.split, [*asked, "cc", "gcc", "clang"]):
        place = shutil.which(words[0]) if words else None
        if place is not None:
            found.append((place, *words[1:]))
    return found


def _tuning_flag() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _built(command: tuple[str, ...]) -> Path | None:
    """The shared library that `command` makes, from the cache where it is there already."""
    source = resources.files(__package__).joinpath("roofs.c").read_bytes()
    version = _output([command[0], "--version"])
    if version is None:
        return None
    identity = "\0".join((*command, version, _cpu_identity())).encode()
    name = hashlib.sha256(source + identity).hexdigest()[:24]
    try:
        ready = private_folder(cache_root() / "roofs") / f"{name}.so"
        if (unsafe := find_unsafe(ready)) is not None:
            raise UnsafeFolder(unsafe)
        if ready.exists() or _compile(command, source, ready):
            return ready
    except OSError:
        return _built_for_now(command, source)
    return None


@functools.cache
def _built_for_now(command: tuple[str, ...], source: bytes) -> Path | None:
    """As above where the cache cannot be written: gone with this process."""
    folder = tempfile.TemporaryDirectory(prefix="kernelmark-")
    _kept.append(folder)
    ready = Path(folder.name) / "roofs.so"
    try:
        return ready if _compile(command, source, ready) else None
    except OSError:
        return None


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _compile(command: tuple[str, ...], source: bytes, ready: Path) -> bool:
    """Through a temporary name, so that another process never loads half a file."""
    with tempfile.TemporaryDirectory(dir=ready.parent) as folder:
        text, made = Path(folder) / "roofs.c", Path(folder) / "roofs.so"
        text.write_bytes(source)
        if _output([*command, str(text), "-o", str(made)]) is None:
            return False
        made.replace(ready)
        return True


def _output(command: list[str]) -> str | None:
    try:
        done = run_child(command, timeout_s=_BUILD_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _cpu_identity() -> str:
    """What `native` depends on: a cache on a shared home folder may serve several machines."""
    lines = [platform.machine()]
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.lower().startswith(("flags", "features", "model name", "cpu part")):
            lines.append(line)
    return "\n".join(sorted(set(lines)))
