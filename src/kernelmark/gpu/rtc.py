"""Compile kernels at run time: NVRTC and hipRTC behind one function, with a cache on disk.

The result is always a cubin or a code object for one architecture, never PTX: PTX of a newer
compiler does not load on an older driver. hipRTC compiles in a child process, because some
versions abort on an architecture they do not know.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.diskcache import DiskCache, cache_root
from kernelmark.core.errors import CompileError, UsageError

_CACHE_BYTES = 512 * 2**20
_CHILD_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A compiled kernel file: `code` for the driver, the compiler's `log`, and what it took."""

    code: bytes
    arch: str
    log: str
    seconds: float
    cached: bool

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.code).hexdigest()[:16]


def vendor_of(arch: str) -> str:
    """`cuda` for sm_90, `hip` for gfx942; anything else is a usage error."""
    if re.fullmatch(r"sm_\d+[af]?", arch):
        return "cuda"
    if re.fullmatch(r"gfx[0-9a-f]+", arch):
        return "hip"
    raise UsageError(f"{arch!r} is not a GPU architecture", hint="write sm_90 or gfx942")


def compile_source(
    source: str, *, arch: str, name: str = "kernel.cu", options: tuple[str, ...] = ()
) -> Binary:
    """`source` for `arch`: from a pack, else from the cache, else compiled now."""
    vendor = vendor_of(arch)
    key = cache_key(source, arch, options)
    packed = _from_packs(key, arch)
    if packed is not None:
        return Binary(code=packed, arch=arch, log="", seconds=0.0, cached=True)
    reason = unavailable(vendor)
    if reason:
        raise CompileError(reason)
    version = _Compiler(vendor).version()
    cache = _cache()
    cache_name = f"{key}-{vendor}rtc-{version}"
    found = cache.get(cache_name)
    if found is not None:
        return Binary(code=found, arch=arch, log="", seconds=0.0, cached=True)
    start = time.perf_counter()
    if vendor == "hip":
        code, log = _compile_in_child(source, arch, name, options)
    else:
        code, log = compile_here(source, arch, name, options)
    cache.put(cache_name, code)
    taken = time.perf_counter() - start
    return Binary(code=code, arch=arch, log=log, seconds=taken, cached=False)


def cache_key(source: str, arch: str, options: tuple[str, ...]) -> str:
    """Same source, options and architecture: same key."""
    text = json.dumps([source, arch, list(options)])
    return hashlib.sha256(text.encode()).hexdigest()


def unavailable(vendor: str) -> str | None:
    """None when this vendor's run-time compiler is here, else one sentence."""
    if _library(vendor) is not None:
        return None
    if vendor == "cuda":
        return 'NVRTC not found; install it with: pip install "kernelmark[nvrtc]"'
    return "hipRTC not found; install ROCm, or set ROCM_PATH to where it is"


# -- the two libraries


@functools.cache
def _library(vendor: str) -> ctypes.CDLL | None:
    for candidate in _candidates(vendor):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    return None


def _candidates(vendor: str) -> list[str]:
    if vendor == "hip":
        # Since 6 hipRTC is a library of its own; before, it lived in the runtime.
        names = ["libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.5"]
        root = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
        return names + [str(root / "lib" / name) for name in names]
    names = [f"libnvrtc.so.{major}" for major in (13, 12, 11)]
    return _wheel_libraries() + names + ["libnvrtc.so"]


def _wheel_libraries() -> list[str]:
    """NVRTC as the nvidia-cuda-nvrtc wheels ship it, newest first."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [str(p) for f in folders for p in Path(f).glob("*/lib/libnvrtc.so.*[0-9]")]
    return sorted((p for p in found if "builtins" not in p), reverse=True)


class _Compiler:
    """NVRTC's and hipRTC's functions, which differ only in their prefix and the code's name."""

    def __init__(self, vendor: str) -> None:
        library = _library(vendor)
        if library is None:
            raise CompileError(unavailable(vendor) or "")
        self._library = library
        self._prefix = "nvrtc" if vendor == "cuda" else "hiprtc"
        self._code = "CUBIN" if vendor == "cuda" else "Code"

    def call(self, name: str, *arguments: object) -> int:
        return int(self._library[f"{self._prefix}{name}"](*arguments))

    def check(self, name: str, *arguments: object) -> None:
        code = self.call(name, *arguments)
        if code:
            raise CompileError(f"{self._prefix}{name} failed: {self._error(code)}")

    def _error(self, code: int) -> str:
        function = self._library[f"{self._prefix}GetErrorString"]
        function.restype = ctypes.c_char_p
        return str(function(code).decode())

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.check("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def text(self, what: str, program: ctypes.c_void_p) -> bytes:
        """A sized byte string of the program: its log or its code."""
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
            failed = self.call("CompileProgram", program, len(options), array)
            log = self.text("ProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
            if failed:
                raise CompileError(explain_log(log, source, name))
            return self.text(self._code, program), log
        finally:
            self.call("DestroyProgram", ctypes.byref(program))


def compile_here(source: str, arch: str, name: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """(code, log) from the vendor's library in this process."""
    vendor = vendor_of(arch)
    flag = f"--gpu-architecture={arch}" if vendor == "cuda" else f"--offload-arch={arch}"
    # HIP calls the dialect's options the same as clang; NVRTC knows --std as well.
    return _Compiler(vendor).build(source, name, [flag, "--std=c++17", *options])


def _compile_in_child(
    source: str, arch: str, name: str, options: tuple[str, ...]
) -> tuple[bytes, str]:
    request = json.dumps({"source": source, "arch": arch, "name": name, "options": options})
    done = subprocess.run(
        [sys.executable, "-m", "kernelmark.gpu.rtc_child"],
        input=request.encode(),
        capture_output=True,
        timeout=_CHILD_SECONDS,
        check=False,
    )
    if done.returncode < 0 or not done.stdout:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CompileError(
            f"hipRTC ended abnormally ({done.returncode}) compiling for {arch}: {' '.join(tail)}",
            hint=f"this hipRTC may not know {arch}",
        )
    header, _, code = done.stdout.partition(b"\n")
    answer = json.loads(header)
    if answer["error"]:
        raise CompileError(answer["error"])
    return code, answer["log"]


_LOCATION = re.compile(r"\((\d+)\): (?:catastrophic )?error|:(\d+):\d+: (?:fatal )?error")


def explain_log(log: str, source: str, name: str) -> str:
    """The compiler's first error, with the source line it speaks of."""
    # A shared header stands in front, with a #line directive that restarts the count.
    lines = source.split(f'#line 1 "{name}"\n')[-1].splitlines()
    for text in log.splitlines():
        found = _LOCATION.search(text)
        if found:
            number = int(found.group(1) or found.group(2))
            shown = lines[number - 1].strip() if 0 < number <= len(lines) else ""
            return f"{text.strip()}\n  {name}:{number}: {shown}\n{log[-1500:]}"
    return f"{name} does not compile: {log[-1500:]}"


# -- cache and packs


@functools.cache
def _cache() -> DiskCache:
    return DiskCache(cache_root() / "rtc", _CACHE_BYTES)


def _from_packs(key: str, arch: str) -> bytes | None:
    """A kernel compiled ahead of time, from the folders in $KERNELMARK_PACK."""
    for folder in filter(None, os.environ.get("KERNELMARK_PACK", "").split(os.pathsep)):
        path = pack_path(Path(folder), key, arch)
        if path.is_file():
            return path.read_bytes()
    return None


def pack_path(folder: Path, key: str, arch: str) -> Path:
    """Where a pack keeps the binary of `key`."""
    return folder / arch / f"{key}.bin"


def add_to_pack(
    folder: Path, source: str, *, arch: str, name: str, options: tuple[str, ...] = ()
) -> Path:
    """Compile `source` for `arch` and put it into the pack in `folder`."""
    binary = compile_source(source, arch=arch, name=name, options=options)
    path = pack_path(folder, cache_key(source, arch, options), arch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(binary.code)
    return path
