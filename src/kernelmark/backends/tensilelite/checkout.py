"""The user's TensileLite: where it is, a process that runs it, and what is made by it.

Nothing of it is part of kernelmark: a checkout of hipBLASLt or rocm-libraries is given by its path,
as is the Python that has the packages it needs.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kernelmark.core.errors import CompileError, UsageError
from kernelmark.core.files import user_path
from kernelmark.core.reason import Reason
from kernelmark.gpu import rocm
from kernelmark.gpu.rtc import Clang, find_clang
from kernelmark.host.cache import DiskCache, cache_root, digest
from kernelmark.host.permissions import temporary_folder

VARIABLE = "KERNELMARK_TENSILELITE"
PYTHON_VARIABLE = "KERNELMARK_TENSILELITE_PYTHON"
HINT = (
    f"give a checkout of hipBLASLt or rocm-libraries: --tensilelite DIR, or {VARIABLE}=DIR; the "
    f"packages of its tensilelite/requirements.txt must be in this Python, or in that of "
    f"{PYTHON_VARIABLE}"
)
# From the folder that the user gives to the one that has the package Tensile.
_INSIDE = ("", "tensilelite", "projects/hipblaslt/tensilelite")
_GENERATOR = Path(__file__).with_name("generator.py")
_CACHE_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Checkout:
    """The folder of the package Tensile, and the Python that runs it."""

    folder: Path
    python: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its programs: Tensile, the compiled `rocisa` of newer ones, and the
        tools at which it looks for its compiler."""
        built = {str(path.parent) for path in _above(self.folder).glob("build*/**/rocisa*.so")}
        paths = [str(self.folder), *sorted(built), *filter(None, [os.environ.get("PYTHONPATH")])]
        root = str(toolchain().parent.parent)
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "ROCM_PATH": root}


def _above(folder: Path) -> Path:
    """Return the project that a Tensile belongs to, in which it is built."""
    return folder.parent if folder.name == "tensilelite" else folder


def find() -> Checkout | None:
    """Return the checkout that the environment names, or None; raise UsageError if it has no
    TensileLite."""
    if not (given := os.environ.get(VARIABLE)):
        return None
    root = user_path(given).resolve()
    for inside in _INSIDE:
        if (root / inside / "Tensile" / "KernelWriterAssembly.py").is_file():
            folder = (root / inside).resolve()
            # hipBLASLt's build makes a Python for Tensile.
            own = sorted(_above(folder).glob("build*/*/virtualenv/bin/python"))
            chosen = os.environ.get(PYTHON_VARIABLE) or next(iter(map(str, own)), sys.executable)
            return Checkout(folder, chosen)
    raise UsageError(
        f"{root} has no TensileLite: there is no Tensile/KernelWriterAssembly.py", hint=HINT
    )


def the_checkout() -> Checkout:
    """Return the checkout; raise UsageError if none is given."""
    if (checkout := find()) is None:
        raise UsageError(f"no TensileLite is given: {VARIABLE} is not set", hint=HINT)
    return checkout


@functools.lru_cache(maxsize=4)
def content(folder: Path) -> str:
    """Return a digest of the source of a Tensile, by which what it made is found again."""
    files = sorted((folder / "Tensile").rglob("*.py"))
    return digest(*(part for file in files for part in (file.name, file.read_bytes())))


def clang() -> Clang:
    """Return the clang that assembles kernels; raise UsageError if there is none."""
    if (found := find_clang()) is None:
        raise UsageError(
            "TensileLite needs a clang for AMD GPUs", hint="install ROCm, or: pip install ziglang"
        )
    return found


@functools.cache
def toolchain() -> Path:
    """Return the path of an amdclang++ as Tensile calls it. Without one of ROCm it is a script that
    runs another clang, which has nothing to link what Tensile only assembles to see if it can."""
    if (own := rocm.program("amdclang++")) is not None:
        return Path(own)
    found, root = clang(), _own_folder()
    run = f'exec "{found.path}" {found.word} "$@"'
    probing = f'for last; do :; done\n[ "$last" = - ] && {run} -c -o /dev/null\n'
    programs = {"bin/amdclang++": f"{probing}{run}"}
    # The newest Tensile looks for these too, which no kernel needs.
    programs |= dict.fromkeys(
        ("bin/hipconfig", "bin/rocm-smi", "lib/llvm/bin/ld.lld"), "echo 0.0.0"
    )
    for name, script in programs.items():
        program = root / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
    return root / "bin" / "amdclang++"


def _own_folder() -> Path:
    """Return a new folder that is removed when this process ends."""
    return Path(tempfile.mkdtemp(dir=temporary_folder()))


class Generator:
    """A process of the checkout's Tensile for one architecture."""

    def __init__(self, checkout: Checkout, arch: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        try:
            self._process = subprocess.Popen(
                [checkout.python, "-P", str(_GENERATOR)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=checkout.environment,
                cwd=_own_folder(),  # Tensile leaves files in its working directory
            )
        except OSError as error:
            raise UsageError(
                f"the Python of TensileLite does not start: {error}", hint=HINT
            ) from None
        atexit.register(self._process.kill)
        self.version = str(self.ask(arch=arch, compiler=str(toolchain()))["version"])

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request; raise CompileError if Tensile refuses or ends."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            generator.cache_clear()  # the next request starts another process
            self._log.seek(0)
            last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise CompileError(
                f"TensileLite ended: {''.join(last) or 'without a message'}", hint=HINT
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            lacks = "ModuleNotFoundError" in answer["error"]
            why = answer["error"] if lacks else answer["said"] or answer["error"]
            raise CompileError(Reason(f"TensileLite: {why}"), hint=HINT if lacks else None)
        return answer


@functools.cache
def generator(arch: str) -> Generator:
    """Return this process's generator for an architecture."""
    return Generator(the_checkout(), arch)


@functools.cache
def _cache() -> DiskCache:
    return DiskCache(cache_root() / "tensilelite", _CACHE_BYTES)


def _key(kind: str, arch: str, *parts: object) -> str:
    compiler = clang()
    made_by = (content(the_checkout().folder), compiler.version, arch)
    return digest(kind, *made_by, *(json.dumps(part, sort_keys=True) for part in parts))


def generate(
    arch: str, problem: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[bytes, bool]:
    """Return the code object of a config's kernel, and whether it was cached. Raise CompileError if
    it cannot be generated, for example because it overflows the registers."""
    key = _key("kernel", arch, problem, config)
    if (stored := _cache().get(key)) is not None:
        return stored, True
    made = generator(arch).ask(do="source", problem=problem, config=config)
    code = clang().assemble(made["source"], arch)
    _cache().put(key, code)
    return code, False


def refusals(
    arch: str, problem: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return why Tensile's own check rejects each config, "" if it does not."""
    if not configs:
        return []
    reasons: list[str] = generator(arch).ask(do="check", problem=problem, configs=configs)[
        "reasons"
    ]
    return reasons


def logic(
    arch: str, problem: Mapping[str, Any], config: Mapping[str, Any], size: Sequence[int]
) -> list[Any]:
    """Return a logic file, as its parts, that gives the config's kernel to one size."""
    request = {"problem": problem, "config": config, "size": list(size)}
    parts: list[Any] = generator(arch).ask(do="logic", **request)["logic"]
    return parts


def library(arch: str, parts: Sequence[Any]) -> Path:
    """Return a folder with the library that the checkout's TensileCreateLibrary makes of a logic
    file, made once; it is removed when this process ends."""
    key = _key("library", arch, parts)
    folder = _own_folder()
    packed = _cache().get(key)
    if packed is None:
        packed = _create_library(arch, parts)
        _cache().put(key, packed)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _create_library(arch: str, parts: Sequence[Any]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kernelmark-") as work:
        source, out = Path(work, "logic", "Equality"), Path(work, "out")
        source.mkdir(parents=True)
        text = yaml.safe_dump(list(parts), default_flow_style=None)
        (source / f"{arch}.yaml").write_text(text, encoding="utf-8")
        generator(arch).ask(do="library", source=str(source.parent), out=str(out))
        if not any((out / "library").rglob("TensileLibrary*")):
            raise CompileError("TensileCreateLibrary wrote no library")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(out / "library", arcname=".")
        return packed.getvalue()
