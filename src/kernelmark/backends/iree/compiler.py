"""From MLIR to a binary: from a pack, else a disk cache, else the real compiler.

It runs in a process of its own, since a compiler that aborts must not take the worker along; and
any number of workers may compile at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import re
import signal
import tempfile
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.children import run_child
from kernelmark.core.diskcache import DiskCache, cache_root, digest
from kernelmark.core.errors import CompileError, Unsupported
from kernelmark.gpu import pack

# In a pack, modules lie in folders of this beginning, with a note on who made them.
PACK_PREFIX = "iree-"
PACK_NOTE = "compiler.txt"

SPEC_FLAG = "--iree-codegen-tuning-spec-path"
_CACHE_BYTES = 512 * 2**20
_LOG_CHARACTERS = 2000
_REMEMBERED = 32
_DIAGNOSTIC = re.compile(r"^(?:<stdin>|-):(\d+):\d+: error: ", re.MULTILINE)
_ANY_ERROR = re.compile(r"^.*\berror: (.*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A compiled module, the seconds it took to get, and whether it came from a cache."""

    binary: bytes
    seconds: float
    cached: bool

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.binary).hexdigest()


# The last few, so that a cache folder that cannot be written costs one compilation a case and
# not one a block.
_recent: OrderedDict[str, bytes] = OrderedDict()


def build(
    source: str, flags: tuple[str, ...], identity: str, pack_name: str = "", spec: str = ""
) -> Build:
    """The module for `source`, compiled with the tuning spec `spec` if there is one; `identity` is
    what the flags do not say of the target machine.

    Packs are looked at first, in their folder `pack_name`: a machine with a GPU and no compiler
    needs nothing else."""
    start = time.perf_counter()
    key = pack_key(source, (*flags, spec) if spec else flags)
    packed = pack.find(key, pack_name) if pack_name else None
    if packed is not None:
        return Build(binary=packed, seconds=time.perf_counter() - start, cached=True)
    with pack.blamed(key, pack_name):
        if compiler_present():
            return compile_now(source, flags, identity, spec)
        where = f"no pack in KERNELMARK_PACK holds this problem in {pack_name}" if pack_name else ""
        raise Unsupported(
            f"iree-base-compiler is not installed{' and ' if where else ''}{where}",
            hint="where it is installed: python -m kernelmark.backends.iree.pack",
        )


def compile_now(source: str, flags: tuple[str, ...], identity: str, spec: str = "") -> Build:
    """What the compiler that is installed here makes of `source`, now or on an earlier day."""
    start = time.perf_counter()
    key = digest(source, "\n".join(flags), compiler_identity(), identity, *([spec] if spec else []))
    cache = _cache(cache_root())
    binary = _recent.get(key) or cache.get(key)
    cached = binary is not None
    if binary is None:
        binary = run_compiler(source, flags, spec)
        cache.put(key, binary)
    _recent[key] = binary
    _recent.move_to_end(key)
    while len(_recent) > _REMEMBERED:
        _recent.popitem(last=False)
    return Build(binary=binary, seconds=time.perf_counter() - start, cached=cached)


def pack_key(source: str, flags: tuple[str, ...]) -> str:
    """The name of a module in a pack: no compiler is needed to know it."""
    return digest(source, "\n".join(flags))


def compiler_present() -> bool:
    """Whether the compiler is installed."""
    return present("iree.compiler")


def present(module: str) -> bool:
    """Whether a module could be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package `iree` itself is absent
        return False


def packed_by() -> str | None:
    """The version of the compiler that filled the first pack with modules, or None."""
    for folder in pack.safe_folders():
        for note in sorted(folder.glob(f"{PACK_PREFIX}*/{PACK_NOTE}")):
            with contextlib.suppress(OSError):
                return note.read_text(encoding="utf-8").strip()
    return None


def compiler_version() -> str:
    """The compiler's version and commit."""
    from iree.compiler.version import REVISIONS, VERSION

    commit = REVISIONS.get("IREE", "")[:12]
    return f"{VERSION} ({commit})" if commit else str(VERSION)


@functools.cache
def _cache(root: Path) -> DiskCache:
    return DiskCache(root / "iree", _CACHE_BYTES)


@functools.cache
def compiler_identity() -> str:
    """Version, commit and file of the compiler: a rebuilt one must not find the old one's code."""
    from iree.compiler import version

    program = Path(tool("iree-compile"))
    status = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in _files(program)]
    return f"{version.VERSION} {version.REVISIONS} {status}"


def _files(program: Path) -> list[Path]:
    return sorted({program, *program.parent.glob("libIREECompiler.*")})


def tool(name: str) -> str:
    """The path of one of the compiler's programs."""
    from iree.compiler.tools.binaries import find_tool

    return str(find_tool(name))


def run_compiler(source: str, flags: tuple[str, ...], spec: str = "") -> bytes:
    """What iree-compile writes to its output."""
    if spec:
        with tempfile.NamedTemporaryFile("w", suffix=".mlir", encoding="utf-8") as file:
            file.write(spec)
            file.flush()
            return run_compiler(source, (*flags, f"{SPEC_FLAG}={file.name}"))
    try:
        done = run_child([tool("iree-compile"), "-", *flags], input=source.encode())
    except OSError as error:
        raise CompileError(
            f"iree-compile cannot be started: {error}",
            hint='install it again: pip install --force-reinstall "kernelmark[iree]"',
        ) from None
    if done.returncode == 0 and done.stdout:
        return done.stdout
    raise CompileError(
        explain(done.returncode, done.stderr.decode(errors="replace"), source),
        hint=f"flags: {' '.join(flags)}",
    )


def explain(code: int, log: str, source: str) -> str:
    """One sentence with the first error and the first place in the MLIR, then the log's beginning.

    The first error causes the others, which may be the only ones with a place."""
    located, first = _DIAGNOSTIC.search(log), _ANY_ERROR.search(log)
    if located and first:
        number, text = int(located[1]), first[1]
        lines = source.splitlines()
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        sentence = f"iree-compile: {text.rstrip(': ')} (line {number} of the MLIR: {line[:160]})"
    elif code < 0:
        sentence = f"iree-compile was ended by {signal_name(-code)}"
    elif first:
        sentence = f"iree-compile: {first[1].rstrip(': ')}"
    else:
        line = next((x.strip() for x in log.splitlines() if x.strip()), "no message")
        sentence = f"iree-compile failed with exit code {code}: {line}"
    return f"{sentence}\n{log.strip()[:_LOG_CHARACTERS]}".strip()


def signal_name(number: int) -> str:
    """The name of a signal, SIGSEGV for example."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
