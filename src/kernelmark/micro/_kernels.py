"""Kernel files: arguments packed by the declared parameters, and the build for the host.

An int passed where a kernel takes 8 bytes would leave four bytes undefined; types from the
declaration prevent that. For a CPU the same files are compiled with the host's C++ compiler, as a
shared library.
"""

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.errors import CompileError, Unsupported, UsageError
from kernelmark.core.units import duration_text
from kernelmark.gpu.rtc import explain
from kernelmark.host.cache import cache_root
from kernelmark.host.permissions import UnsafeFolder, find_unsafe, private_folder
from kernelmark.host.processes import run_child
from kernelmark.kernels import rtc

_FOLDER = Path(rtc.__file__).parent
_HINT = "install g++ or clang++, or set CXX"
_LIMIT_S = 120.0
_WHOLE_LOOP = 1024  # iterations: more than any unrolled loop of a kernel has
_DEFINED = re.compile(r'extern "C" void\s+(\w+)\s*\(([^)]*)\)\s*\{')
_TYPES: dict[str, Any] = {
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "int": ctypes.c_int32,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_KERNEL = re.compile(r"\bKERNEL\s+(?:BLOCK_OF\([^)]*\)\s*)?([\w#]+)\s*\(([^)]*)\)", re.DOTALL)
Declared = tuple[str, str]  # (C type, name) of a parameter


def parse(source: str) -> dict[str, tuple[Declared, ...]]:
    """Return the parameters of kernels by name pattern: `chain_##NAME##_##ILP` is
    `chain_\\w+_\\w+`."""
    declared = {}
    for name, parameters in _KERNEL.findall(re.sub(r"\\\n", "\n", source)):
        pattern = re.sub(r"\w*##\w+", lambda match: match[0].split("##")[0] + r"\w+", name)
        declared[pattern] = tuple(_parameter(p) for p in parameters.split(",") if p.strip())
    return declared


def _parameter(text: str) -> Declared:
    *kind, name = text.replace("*", " * ").replace("const ", " ").split()
    return " ".join(kind), name


@functools.cache
def of_file(name: str) -> dict[str, tuple[Declared, ...]]:
    return parse(rtc.source(name))


def parameters(file: str, kernel: str) -> tuple[Declared, ...]:
    """Return the parameters of `kernel` in `file`, in order."""
    every = of_file(file)
    if kernel in every:  # atomic_chain is not one of the kernels atomic_NAME
        return every[kernel]
    for pattern, declared in every.items():
        if re.fullmatch(pattern, kernel):
            return declared
    raise UsageError(f"{file} has no kernel {kernel!r}")


def pack(file: str, kernel: str, values: Sequence[Any], types: dict[str, str]) -> list[Any]:
    """Return `values` as C values of the declared types; `types` maps type parameters such as T."""
    declared, count = parameters(file, kernel), len(values)
    if len(declared) != count:
        raise UsageError(f"{kernel} takes {len(declared)} arguments, {count} were given")
    return [_packed(kernel, p, v, types) for p, v in zip(declared, values, strict=True)]


def _packed(kernel: str, parameter: Declared, value: Any, types: dict[str, str]) -> Any:
    kind, name = parameter
    if kind.endswith("*"):
        address = getattr(value, "address", value)
        if not isinstance(address, int) or address < 0:
            raise UsageError(f"{kernel}: {name} is an address, not {value!r}")
        return ctypes.c_void_p(address)
    c_type = _TYPES[types.get(kind, kind)]
    if c_type in (ctypes.c_float, ctypes.c_double):
        return c_type(float(value))
    bits = 8 * ctypes.sizeof(c_type)
    # From the least signed to the greatest unsigned number: kernels do not declare the sign.
    if not isinstance(value, int) or not -(2 ** (bits - 1)) <= value < 2**bits:
        raise UsageError(f"{kernel}: {name}={value!r} does not fit {kind}")
    return c_type(value)


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
class _CompilerCommand:
    """A compiler with its flags."""

    argv: tuple[str, ...]
    version: str
    from_cxx: bool = False  # from $CXX

    def run(self, *more: str) -> subprocess.CompletedProcess[bytes]:
        return run_child([*self.argv, *more], timeout_s=_LIMIT_S)


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
    functions = {}
    for name, parameters in _DEFINED.findall(expanded):
        pairs = [p.rsplit(None, 1) for p in parameters.split(",") if p.strip()]
        # For both `quad* data` and `quad *data`, the name is the last word without its stars.
        kinds = [kind.strip() + "*" * word.count("*") for kind, word in pairs]
        values = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(kinds))
        code = f'extern "C" void host_{name}(void** a) {{ (void)a; {name}({values}); }}\n'
        functions[name] = code
    return functions


@functools.cache
def library(file: str) -> HostLibrary:
    """Return the library of a kernel file built for this CPU model, from the cache if possible."""
    start = time.perf_counter()
    commands = list(_commands())
    if not commands:
        raise Unsupported("there is no C++ compiler here; install g++ or clang++, or set CXX")
    complaint = ""
    for command in commands:
        try:
            with _built(command, file) as (path, kernels, fresh):
                seconds = time.perf_counter() - start if fresh else 0.0
                return HostLibrary(path, kernels, seconds, _note(command))
        except CompileError as error:
            complaint = complaint or error.message
    raise CompileError(complaint, hint=_HINT)


def _note(command: _CompilerCommand) -> str:
    """Return a note if $CXX is set but another compiler was used."""
    cxx = os.environ.get("CXX")
    if not cxx or command.from_cxx:
        return ""
    return f"$CXX is {cxx!r}, which does not work here: {command.argv[0]} was used instead"


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unterminated quote
        return []


def _commands() -> list[_CompilerCommand]:
    """Return the compilers to try, $CXX first, each with native tuning and then without: an old one
    may not know the CPU that it runs on."""
    cxx = os.environ.get("CXX", "")
    commands = []
    for text in filter(None, (cxx, "c++", "g++", "clang++")):
        argv = _split(text)
        path = shutil.which(argv[0]) if argv else None
        version = _output([path, "--version"]) if path else None
        if path is None or version is None:
            continue
        for tuned in ((_tuning_flag(),), ()):
            flags = ("-std=c++17", "-O3", *tuned, "-fno-math-errno", "-Wno-unknown-pragmas")
            whole = (path, *argv[1:], *flags)
            commands.append(_CompilerCommand(argv=whole, version=version, from_cxx=text == cxx))
    return commands


@contextlib.contextmanager
def _built(command: _CompilerCommand, file: str) -> Iterator[tuple[Path, frozenset[str], bool]]:
    """Yield (library, its kernels, whether it was built now). The library must be loaded inside the
    context: without a usable cache it is in a temporary folder."""
    text = source(file)
    identity = "\0".join((*command.argv, command.version, _cpu_identity(), text))
    name = hashlib.sha256(identity.encode()).hexdigest()[:24]
    try:
        ready = private_folder(cache_root() / "micro") / f"{name}.so"
        if (unsafe := find_unsafe(ready)) is not None:
            raise UnsafeFolder(unsafe)
        built = _ready(command, text, file, ready)
    except OSError:
        built = None
    if built is not None:
        yield built
        return
    try:
        with tempfile.TemporaryDirectory(prefix="kernelmark-") as folder:
            yield _ready(command, text, file, Path(folder) / "kernels.so")
    except OSError as error:
        raise CompileError(
            f"no folder can be written to build the kernels in: {error.strerror or error}"
        ) from None


def _ready(
    command: _CompilerCommand, text: str, file: str, ready: Path
) -> tuple[Path, frozenset[str], bool]:
    """Return the library at `ready`; build it if it does not exist."""
    fresh = not ready.exists()
    if fresh:
        _compile(command, text, file, ready)
    names = ready.with_suffix(".txt").read_text(encoding="utf-8").split()
    return ready, frozenset(names), fresh


def _compile(command: _CompilerCommand, text: str, file: str, ready: Path) -> None:
    """Compile under temporary names, so that another process never loads a partial file."""
    with tempfile.TemporaryDirectory(dir=ready.parent) as folder:
        program, target = Path(folder) / "kernels.cc", Path(folder) / "kernels.so"
        program.write_text(text, encoding="utf-8")
        try:
            expanded = command.run("-E", "-P", str(program))
            functions = entries(expanded.stdout.decode(errors="replace"))
            program.write_text(text + "".join(functions.values()), encoding="utf-8")
            done = command.run("-shared", "-fPIC", "-pthread", str(program), "-o", str(target))
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"{command.argv[0]} did not end within {duration_text(_LIMIT_S)}"
            ) from None
        if done.returncode:
            raise CompileError(explain(done.stderr.decode(errors="replace").strip(), text, file))
        names = Path(folder) / "kernels.txt"
        names.write_text("\n".join(functions), encoding="utf-8")
        names.replace(ready.with_suffix(".txt"))
        target.replace(ready)


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
