"""Build the same kernel files with the host's C++ compiler, as a shared library."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.core.reason import Reason
from kernelmark.gpu.clang import explain
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import UnsafeFolder, find_unsafe, private_folder
from kernelmark.host.processes import run_child
from kernelmark.kernels import rtc

_FOLDER = Path(rtc.__file__).parent
_HINT = "install g++ or clang++, or set CXX"
_LIMIT_S = 120.0
_WHOLE_LOOP = 1024
_DEFINED = re.compile(r'extern "C" void\s+(\w+)\s*\(([^)]*)\)\s*\{')


class HostLibrary:
    """A built kernel file: `host_NAME` takes the arguments of kernel NAME as an array of addresses,
    `host_run` runs a kernel on pinned threads."""

    def __init__(self, path: Path, kernels: frozenset[str], seconds: float, note: str = "") -> None:
        self.note = note  # how it was built, if not as requested
        self.library = ctypes.CDLL(str(path))
        self.kernels = kernels
        self.seconds = seconds
        self.vector_bytes = int(self.library.host_vector_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """A compiler with its flags."""

    words: tuple[str, ...]
    version: str
    asked: bool = False  # from $CXX

    def run(self, *more: str) -> subprocess.CompletedProcess[bytes]:
        return run_child([*self.words, *more], timeout_s=_LIMIT_S)


def source(file: str) -> str:
    """Return a kernel file as a C++ program."""
    texts = (
        f'#line 1 "{name}"\n{(_FOLDER / name).read_text(encoding="utf-8")}'
        for name in ("host.h", file)
    )
    # GCC's pragma has another name and requires a number.
    return re.sub(
        r"#pragma unroll\b *(\d*)",
        lambda match: f"#pragma GCC unroll {match[1] or _WHOLE_LOOP}",
        "\n".join(texts),
    )


def entries(expanded: str) -> dict[str, str]:
    """Return, for each kernel in preprocessed source, a function that unpacks its arguments."""
    made = {}
    for name, parameters in _DEFINED.findall(expanded):
        given = [p.rsplit(None, 1) for p in parameters.split(",") if p.strip()]
        # For both `quad* data` and `quad *data`, the name is the last word without its stars.
        kinds = [kind.strip() + "*" * name.count("*") for kind, name in given]
        values = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(kinds))
        made[name] = f'extern "C" void host_{name}(void** a) {{ (void)a; {name}({values}); }}\n'
    return made


@functools.cache
def library(file: str) -> HostLibrary:
    """Return the library of a kernel file built for this CPU model, from the cache if possible."""
    start = time.perf_counter()
    found = list(_commands())
    if not found:
        raise Unsupported(Reason("no-host-compiler"))
    complaint = ""
    for command in found:
        try:
            with _built(command, file) as (path, kernels, fresh):
                seconds = time.perf_counter() - start if fresh else 0.0
                return HostLibrary(path, kernels, seconds, _note(command))
        except CompileError as error:
            complaint = complaint or error.message
    raise CompileError(complaint, hint=_HINT)


def _note(used: _Command) -> str:
    """Return a note if $CXX is set but another compiler was used."""
    asked = os.environ.get("CXX")
    if not asked or used.asked:
        return ""
    return f"$CXX is {asked!r}, which does not work here: {used.words[0]} was used instead"


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unterminated quote
        return []


def _commands() -> list[_Command]:
    """Return the compilers to try, $CXX first, each with native tuning and then without."""
    asked = os.environ.get("CXX", "")
    found = []
    for text in filter(None, (asked, "c++", "g++", "clang++")):
        words = _split(text)
        path = shutil.which(words[0]) if words else None
        version = _output([path, "--version"]) if path else None
        if path is None or version is None:
            continue
        for tuned in ((_tuning_flag(),), ()):
            flags = ("-std=c++17", "-O3", *tuned, "-fno-math-errno", "-Wno-unknown-pragmas")
            command = (path, *words[1:], *flags)
            found.append(_Command(words=command, version=version, asked=text == asked))
    return found


@contextlib.contextmanager
def _built(command: _Command, file: str) -> Iterator[tuple[Path, frozenset[str], bool]]:
    """Yield (library, its kernels, whether it was built now). The library must be loaded inside the
    context: without a usable cache it is in a temporary folder."""
    text = source(file)
    identity = "\0".join((*command.words, command.version, _cpu_identity(), text))
    name = hashlib.sha256(identity.encode()).hexdigest()[:24]
    try:
        ready = private_folder(cache_root() / "micro") / f"{name}.so"
        if (unsafe := find_unsafe(ready)) is not None:
            raise UnsafeFolder(unsafe)
        found = _ready(command, text, file, ready)
    except OSError:
        found = None
    if found is not None:
        yield found
        return
    try:
        with tempfile.TemporaryDirectory(prefix="kernelmark-") as folder:
            yield _ready(command, text, file, Path(folder) / "kernels.so")
    except OSError as error:
        reason = Reason("no-build-folder", error=error.strerror or str(error))
        raise CompileError(reason) from None


def _ready(
    command: _Command, text: str, file: str, ready: Path
) -> tuple[Path, frozenset[str], bool]:
    """Return the library at `ready`; build it if it does not exist."""
    fresh = not ready.exists()
    if fresh:
        _compile(command, text, file, ready)
    names = ready.with_suffix(".txt").read_text(encoding="utf-8").split()
    return ready, frozenset(names), fresh


def _compile(command: _Command, text: str, file: str, ready: Path) -> None:
    """Compile under temporary names, so that another process never loads a partial file."""
    with tempfile.TemporaryDirectory(dir=ready.parent) as folder:
        program, made = Path(folder) / "kernels.cc", Path(folder) / "kernels.so"
        program.write_text(text, encoding="utf-8")
        try:
            expanded = command.run("-E", "-P", str(program))
            found = entries(expanded.stdout.decode(errors="replace"))
            program.write_text(text + "".join(found.values()), encoding="utf-8")
            done = command.run("-shared", "-fPIC", "-pthread", str(program), "-o", str(made))
        except subprocess.TimeoutExpired:
            reason = Reason("program-timed-out", program=command.words[0], limit_s=_LIMIT_S)
            raise CompileError(reason) from None
        if done.returncode:
            raise CompileError(explain(done.stderr.decode(errors="replace").strip(), text, file))
        names = Path(folder) / "kernels.txt"
        names.write_text("\n".join(found), encoding="utf-8")
        names.replace(ready.with_suffix(".txt"))
        made.replace(ready)


def _tuning_flag() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _output(command: list[str]) -> str | None:
    try:
        done = run_child(command, timeout_s=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _cpu_identity() -> str:
    """Return what `-march=native` depends on: several machines may share a cache in a home
    folder."""
    lines = [platform.machine()]
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.lower().startswith(("flags", "features", "model name", "cpu part")):
            lines.append(line)
    return "\n".join(sorted(set(lines)))
