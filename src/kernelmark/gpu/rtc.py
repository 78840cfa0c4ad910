"""Compile kernels at run time with NVRTC or hipRTC, with a cache on disk.

The result is always a cubin or a code object for one architecture, never PTX: PTX of a newer
compiler does not load on an older driver. hipRTC compiles in a child process, because some versions
abort on an unknown architecture. Without hipRTC, a plain clang compiles for AMD.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmark.core.errors import CompileError, UsageError
from kernelmark.core.reason import Reason, read_reason, reason_document
from kernelmark.core.result import KernelInfo
from kernelmark.gpu import pack, rocm
from kernelmark.gpu.library import HIP, first_of, mapped, missing_library, path_of
from kernelmark.host.cache import DiskCache, cache_root, digest
from kernelmark.host.processes import last_line, own_command, run_child

# Plain clang as the compiler for AMD targets without ROCm.
#
# Precompiled bundles for AMD GPUs can so be built on any machine, with an installed clang or the
# one inside the ziglang wheel. clang alone has neither HIP's headers nor its device library:
# hip_prelude.h defines the few functions that our kernels use. The code objects have the same form
# as hipRTC's; they have not yet been run on AMD hardware.

# NVRTC writes file(12): error: …, clang file:12:3: error: …
_NVRTC = re.compile(r"^(?P<file>[^()\n]*)\((?P<line>\d+)\): (?:catastrophic )?error\b")
_CLANG = re.compile(r"^(?P<file>[^:\n]*):(?P<line>\d+):\d+: (?:fatal )?error\b")
_LOG_CHARACTERS = 1500


def explain(log: str, source: str, name: str) -> Reason:
    """Return the compiler's first error with its line of `source`, and the end of the log."""
    end = log[-_LOG_CHARACTERS:]
    for text in log.splitlines():
        match = _NVRTC.match(text) or _CLANG.match(text)
        if match:
            file = match["file"].rpartition("/")[2]
            shown = _line(source, file, name, int(match["line"]))
            quoted = f"  {file}:{match['line']}: {shown}\n" if shown else ""
            return Reason(f"{text.strip()}\n{quoted}{end}")
    return Reason(f"{name} does not compile: {end}")


def _line(source: str, file: str, name: str, number: int) -> str:
    """Return line `number` of `file`; in `source`, a #line directive starts each file."""
    _, directive, after = source.partition(f'#line 1 "{file}"\n')
    if not directive and file != name:
        return ""
    lines = (after if directive else source).splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


OLDEST_CLANG = 17  # first version that supports gfx942
_NEWEST_CLANG = 40  # clang-40 … clang-17 are searched for, newest first
_CLANG_SECONDS = 300
_CLANG_FLAGS = (
    *("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"),
    # clang 22 defaults to version 6, which ROCm before 6.2 does not load.
    *("-mcode-object-version=5", "-O3", "-std=c++17"),
)
_PRELUDE = Path(__file__).parent.parent / "kernels" / "rtc" / "hip_prelude.h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clang:
    """A clang that can compile for AMD GPUs."""

    path: str
    version: str
    # Subcommands for clang and for the linker, if the executable is a multi-tool such as zig.
    word: str = ""
    linker_word: str = ""

    def compile(
        self, source: str, arch: str, name: str, options: tuple[str, ...] = ()
    ) -> tuple[bytes, str]:
        """Return the code object of `source` and the log."""
        flags = (*_CLANG_FLAGS, f"--offload-arch={arch}", "-include", str(_PRELUDE), *options)
        code, log = self._run(source, name, flags)
        if code is None:
            raise CompileError(*self._refused(log, source, arch, name))
        return code, log

    def assemble(self, source: str, arch: str) -> bytes:
        """Return the code object of a kernel in assembly."""
        # Metadata 1.1 is that of code-object version 4, 1.2 that of 5.
        minor = re.search(r"amdhsa\.version:\s*- 1\s*- (\d)", source)
        version = f"-mcode-object-version={3 + int(minor[1]) if minor else 4}"
        flags = ("-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", version)
        code, log = self._run(source, "kernel.s", flags)
        if code is None:
            raise CompileError(*self._refused(log, source, arch, "kernel.s"))
        return code

    def _run(self, source: str, name: str, flags: Sequence[str]) -> tuple[bytes | None, str]:
        """Return what clang makes of a file, None if it fails, and its log."""
        with tempfile.TemporaryDirectory(prefix="kernelmark-") as folder:
            Path(folder, name).write_text(source, encoding="utf-8")
            command = [
                *(self.path, *filter(None, [self.word])),
                *(*self._linker(folder), *flags, name, "-o", "out.bin"),
            ]
            try:
                done = run_child(command, cwd=folder, timeout_s=_CLANG_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CompileError(f"{self.path} did not run to its end: {error}") from None
            out = Path(folder, "out.bin")
            good = not done.returncode and out.is_file()
            log = done.stderr.decode(errors="replace").strip()
            return out.read_bytes() if good else None, log

    def _linker(self, folder: str) -> tuple[str, ...]:
        """Return the flags with which clang uses the lld inside the same executable."""
        if not self.linker_word:
            return ()
        # clang runs `lld -flavor gnu …` for HIP, and `ld.lld …` for assembly.
        for name, skipped in (("lld", "shift 2\n"), ("ld.lld", "")):
            script = Path(folder, name)
            run = f'exec {shlex.quote(self.path)} {self.linker_word} "$@"\n'
            script.write_text(f"#!/bin/sh\n{skipped}{run}", encoding="utf-8")
            script.chmod(0o755)
        return ("-B", folder)

    def _refused(self, log: str, source: str, arch: str, name: str) -> tuple[Reason, str | None]:
        # clang has one exit code for every error: only its log contains the cause.
        if re.search(rf"error: .*\b{arch}\b", log) and f"{name}:" not in log:
            reason = Reason(f"the compiler clang {self.version} has no target {arch}")
            return reason, "use a newer clang, or ROCm"
        if "lld" in log and "error: unable to execute" in log:
            return Reason(
                f"clang {self.version} has no lld to link with"
            ), "install lld of its version"
        return explain(log, source, name), None


def clang_recipe() -> str:
    """Return a hash of what affects every compilation besides the source: flags and prelude."""
    return digest(*_CLANG_FLAGS, _PRELUDE.read_bytes())


def find_clang() -> Clang | None:
    """Return ROCm's clang, else the newest one on PATH that can compile for AMD, else that of the
    ziglang wheel, else None."""
    roots = tuple(map(str, rocm.roots()))
    return _find_clang(roots, os.environ.get("PATH", ""))


@functools.cache
def _find_clang(roots: tuple[str, ...], path: str) -> Clang | None:
    numbered = [f"clang-{number}" for number in range(_NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
    # In ROCm's wheels, llvm is under lib; elsewhere, that is a link or missing.
    own = [f"{root}/{folder}/bin/clang" for root in roots for folder in ("llvm", "lib/llvm")]
    for name in [*own, *numbered, "clang"]:
        path_of_clang = shutil.which(name, path=path)
        version = _usable(path_of_clang) if path_of_clang else None
        if path_of_clang and version:
            return Clang(path=path_of_clang, version=version)
    zig = _zig()
    version = _usable(zig, "clang") if zig else None
    if zig and version:
        return Clang(path=zig, version=version, word="clang", linker_word="ld.lld")
    return None


def _zig() -> str | None:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "zig")


def _usable(*command: str) -> str | None:
    """Return the version of a clang if it is new enough and supports AMD's target."""
    version = re.search(r"clang version (\d+)([.\d]*)", _run_output(*command, "--version"))
    if version is None or int(version[1]) < OLDEST_CLANG:
        return None
    targets = _run_output(*command, "--print-targets")
    return version[1] + version[2] if re.search(r"\bamd(gcn|gpu)\b", targets) else None


def _run_output(*command: str) -> str:
    """Return the output of a program; "" if it does not run."""
    try:
        done = run_child(command, timeout_s=20.0)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


# (source, arch, name, options) -> (code, log)
Compile = Callable[[str, str, str, tuple[str, ...]], tuple[bytes, str]]

_CACHE_BYTES = 512 * 2**20
_CHILD_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A compiled kernel file: `code` for the driver, the compiler's `log`, and the compile time."""

    code: bytes
    arch: str
    log: str
    seconds: float
    cached: bool

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.code).hexdigest()[:16]

    def kernel_info(self, name: str) -> KernelInfo:
        return KernelInfo(
            name=name, compile_s=self.seconds, cached=self.cached, binary_hash=self.hash
        )


def vendor_of(arch: str) -> str:
    """Return `cuda` for sm_90, `hip` for gfx942; raise UsageError for anything else."""
    if re.fullmatch(r"sm_\d+[af]?", arch):
        return "cuda"
    if re.fullmatch(r"gfx[0-9a-f]+", arch):
        return "hip"
    raise UsageError(f"{arch!r} is not a GPU architecture", hint="write sm_90 or gfx942")


def compile_source(
    source: str, *, arch: str, name: str = "kernel.cu", options: tuple[str, ...] = ()
) -> Binary:
    """Return `source` compiled for `arch`: from a bundle, else from the cache, else compile it
    now."""
    vendor = vendor_of(arch)
    key = cache_key(source, arch, options)
    packed = pack.find(key, arch)
    if packed is not None:
        return Binary(code=packed, arch=arch, log="", seconds=0.0, cached=True)
    with pack.blamed(key, arch):
        label, compile_one = _compiler(vendor, arch)
        cache = _cache()
        cached = cache.get(f"{key}-{label}")
        if cached is not None:
            return Binary(code=cached, arch=arch, log="", seconds=0.0, cached=True)
        start = time.perf_counter()
        code, log = compile_one(source, arch, name, options)
    cache.put(f"{key}-{label}", code)
    taken = time.perf_counter() - start
    return Binary(code=code, arch=arch, log=log, seconds=taken, cached=False)


def _compiler(vendor: str, arch: str) -> tuple[str, Compile]:
    """Return the name and version of the compiler to use, and its function."""
    library = _library(vendor)
    # The version is part of the cache key: a newer compiler may produce faster code.
    if library is not None:
        label = f"{vendor}rtc-{_Compiler(vendor).version()}"
        if vendor == "cuda":
            return label, compile_here
        return f"{label}-{_hip_build(library)}", _compile_in_child
    plain = find_clang() if vendor == "hip" else None
    if plain is not None:
        return f"clang-{plain.version}", plain.compile
    hint = f"the packs in KERNELMARK_PACK hold other kernels for {arch}, or another version's"
    raise CompileError(unavailable(vendor) or "", hint if pack.holds(arch) else None)


@functools.cache
def _hip_build(library: ctypes.CDLL) -> str:
    """Return a string that identifies the ROCm release: hipRTC's version query returns 9.0 in
    all."""
    own = path_of(library, "hiprtcVersion")
    # comgr, the actual compiler, is often loaded only on first use.
    alongside = sorted(own.parent.glob("libamd_comgr.so*")) if own else []
    paths = {path.resolve() for path in alongside or map(Path, mapped("libamd_comgr"))}
    facts = []
    for path in sorted(paths | ({own} if own else set())):
        with contextlib.suppress(OSError):
            facts.append(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}")
    return digest(*facts)[:12]


def cache_key(source: str, arch: str, options: tuple[str, ...]) -> str:
    """Return the cache key of source, options and architecture. AMD's includes what clang adds to
    the source, since a bundle does not record which compiler built it."""
    added = [clang_recipe()] if vendor_of(arch) == "hip" else []
    text = json.dumps([source, arch, list(options), *added])
    return hashlib.sha256(text.encode()).hexdigest()


def unavailable(vendor: str) -> Reason | None:
    """Return None if this vendor's runtime compiler is present, else the reason why not."""
    if _library(vendor) is not None:
        return None
    if vendor == "cuda":
        return missing_library("NVRTC", 'install it with: pip install "kernelmark[nvrtc]"')
    if find_clang() is not None:
        return None
    hint = f"{HIP.install}, or install clang and lld {OLDEST_CLANG} or newer"
    return missing_library("hipRTC", hint)


# -- NVRTC and hipRTC


@functools.cache
def _library(vendor: str) -> ctypes.CDLL | None:
    if vendor == "hip":
        return rocm.load(("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so"))
    # The newest first: an older compiler does not know newer GPUs.
    names = [f"libnvrtc.so.{major}" for major in (13, 12, 11)]
    return first_of([*_wheel_libraries(), *names, "libnvrtc.so"])


def _wheel_libraries() -> list[str]:
    """Return NVRTC libraries of nvidia-cuda-nvrtc wheels, newest first."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    libraries = [str(p) for f in folders for p in Path(f).glob("*/lib/libnvrtc.so.*[0-9]")]
    whole = (p for p in libraries if "builtins" not in p)
    return sorted(whole, key=_number, reverse=True)


def _number(path: str) -> tuple[list[int], str]:
    """Return the version after .so as a numeric sort key: 9 sorts before 13."""
    return [int(part) for part in re.findall(r"\d+", path.rpartition(".so")[2])], path


class _Compiler:
    """NVRTC's and hipRTC's functions, which differ only in the prefix and the name of the code
    getter."""

    def __init__(self, vendor: str) -> None:
        library = _library(vendor)
        if library is None:
            raise CompileError(unavailable(vendor) or "")
        self._library = library
        self._prefix = "nvrtc" if vendor == "cuda" else "hiprtc"
        self._code = "CUBIN" if vendor == "cuda" else "Code"

    def call(self, name: str, *arguments: object) -> int:
        symbol = f"{self._prefix}{name}"
        try:
            function = self._library[symbol]
        except AttributeError:
            raise CompileError(f"{symbol} is not in the library: it is too old") from None
        return int(function(*arguments))

    def check(self, name: str, *arguments: object) -> None:
        code = self.call(name, *arguments)
        if code:
            call = f"{self._prefix}{name}"
            error = self._error(code)
            raise CompileError(
                Reason(
                    f"{call} failed with status {code}" + (f" ({error})" if error else ""),
                    "library-failed",
                    call=call,
                    status=code,
                    error=error,
                )
            )

    def _error(self, code: int) -> str:
        function = self._library[f"{self._prefix}GetErrorString"]
        function.restype = ctypes.c_char_p
        return str(function(code).decode())

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.check("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def text(self, what: str, program: ctypes.c_void_p) -> bytes:
        """Return the program's log or code, which the library returns as size and bytes."""
        size = ctypes.c_size_t()
        self.check(f"Get{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self.check(f"Get{what}", program, buffer)
        return buffer.raw[: size.value]

    def build(self, source: str, name: str, options: list[str]) -> tuple[bytes, str]:
        program = ctypes.c_void_p()
        self.check(
            "CreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None
        )
        try:
            array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            # Not `check`: the log says more than the code of a failed compilation.
            failed = self.call("CompileProgram", program, len(options), array)
            log = self.text("ProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
            if failed:
                raise CompileError(explain(log, source, name))
            return self.text(self._code, program), log
        finally:
            self.call("DestroyProgram", ctypes.byref(program))


def compile_here(source: str, arch: str, name: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Compile with the vendor's library in this process; return code and log."""
    vendor = vendor_of(arch)
    flag = f"--gpu-architecture={arch}" if vendor == "cuda" else f"--offload-arch={arch}"
    # HIP uses clang's spelling of the option, which NVRTC accepts too.
    return _Compiler(vendor).build(source, name, [flag, "--std=c++17", *options])


def _compile_in_child(
    source: str, arch: str, name: str, options: tuple[str, ...]
) -> tuple[bytes, str]:
    request = json.dumps({"source": source, "arch": arch, "name": name, "options": options})
    try:
        command = own_command("kernelmark.gpu.rtc")
        done = run_child(command, input=request.encode(), timeout_s=_CHILD_SECONDS)
    except subprocess.TimeoutExpired:
        raise CompileError(f"hipRTC did not end within {_CHILD_SECONDS} s for {arch}") from None
    header, _, code = done.stdout.partition(b"\n")
    try:
        answer = json.loads(header)
        error, log = answer["error"], str(answer["log"])
    except (ValueError, KeyError, TypeError):
        raise CompileError(
            f"hipRTC ended abnormally ({done.returncode}) compiling for {arch}: "
            f"{last_line(done.stderr)}",
            hint=f"this hipRTC may not know {arch}",
        ) from None
    if error or not code:
        raise CompileError(
            read_reason(error) if error else Reason(f"hipRTC returned no code for {arch}")
        )
    return code, log


@functools.cache
def _cache() -> DiskCache:
    return DiskCache(cache_root() / "rtc", _CACHE_BYTES)


def main() -> None:
    """Compile the request on stdin in this process, the child of `_compile_in_child`: write a
    header line and the code to stdout, and redirect what libraries print away from it."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    code, log = b"", ""
    error: Any = None
    try:
        code, log = compile_here(
            request["source"], request["arch"], request["name"], tuple(request["options"])
        )
    except CompileError as failed:
        error = reason_document(failed.message)
    with os.fdopen(answer_fd, "wb") as answer:
        answer.write(json.dumps({"error": error, "log": log}).encode() + b"\n" + code)


if __name__ == "__main__":
    main()
