"""Plain clang as the compiler for AMD targets without ROCm.

Precompiled bundles for AMD GPUs can so be built on any machine, with an installed clang or the one
inside the ziglang wheel. clang alone has neither HIP's headers nor its device library:
hip_prelude.h defines the few functions that our kernels use. The code objects have the same form as
hipRTC's; they have not yet been run on AMD hardware.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.errors import CompileError
from kernelmark.core.reason import Reason
from kernelmark.host.cache import digest
from kernelmark.host.processes import run_child

# NVRTC writes file(12): error: …, clang file:12:3: error: …
_NVRTC = re.compile(r"^(?P<file>[^()\n]*)\((?P<line>\d+)\): (?:catastrophic )?error\b")
_CLANG = re.compile(r"^(?P<file>[^:\n]*):(?P<line>\d+):\d+: (?:fatal )?error\b")
_LOG_CHARACTERS = 1500


def explain(log: str, source: str, name: str) -> Reason:
    """Return the compiler's first error with its line of `source`, and the end of the log."""
    end = log[-_LOG_CHARACTERS:]
    for text in log.splitlines():
        found = _NVRTC.match(text) or _CLANG.match(text)
        if found:
            file = found["file"].rpartition("/")[2]
            shown = _line(source, file, name, int(found["line"]))
            place = f"  {file}:{found['line']}: {shown}\n" if shown else ""
            return Reason(f"{text.strip()}\n{place}{end}")
    return Reason(f"{name} does not compile: {end}")


def _line(source: str, file: str, name: str, number: int) -> str:
    """Return line `number` of `file`; in `source`, a #line directive starts each file."""
    _, directive, after = source.partition(f'#line 1 "{file}"\n')
    if not directive and file != name:
        return ""
    lines = (after if directive else source).splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


OLDEST = 17  # first version that supports gfx942
_NEWEST = 40  # clang-40 … clang-17 are searched for, newest first
_SECONDS = 300
_FLAGS = (
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
        with tempfile.TemporaryDirectory(prefix="kernelmark-") as folder:
            Path(folder, name).write_text(source, encoding="utf-8")
            command = [
                *(self.path, *filter(None, [self.word])),
                *self._linker(folder),
                *(*_FLAGS, f"--offload-arch={arch}", "-include", str(_PRELUDE)),
                *(*options, name, "-o", "out.bin"),
            ]
            try:
                done = run_child(command, cwd=folder, timeout_s=_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CompileError(f"{self.path} did not run to its end: {error}") from None
            log = done.stderr.decode(errors="replace").strip()
            out = Path(folder, "out.bin")
            if done.returncode or not out.is_file():
                raise CompileError(*self._refused(log, source, arch, name))
            return out.read_bytes(), log

    def _linker(self, folder: str) -> tuple[str, ...]:
        """Return the flags with which clang uses the lld inside the same executable."""
        if not self.linker_word:
            return ()
        script = Path(folder, "lld")
        # clang runs: lld -flavor gnu …
        script.write_text(
            f'#!/bin/sh\nshift 2\nexec {shlex.quote(self.path)} {self.linker_word} "$@"\n',
            encoding="utf-8",
        )
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


def recipe() -> str:
    """Return a hash of what affects every compilation besides the source: flags and prelude."""
    return digest(*_FLAGS, _PRELUDE.read_bytes())


def find() -> Clang | None:
    """Return ROCm's clang, else the newest one on PATH that can compile for AMD, else that of the
    ziglang wheel, else None."""
    return _find(os.environ.get("ROCM_PATH", "/opt/rocm"), os.environ.get("PATH", ""))


@functools.cache
def _find(rocm: str, path: str) -> Clang | None:
    numbered = [f"clang-{number}" for number in range(_NEWEST, OLDEST - 1, -1)]
    for name in [str(Path(rocm) / "llvm" / "bin" / "clang"), *numbered, "clang"]:
        place = shutil.which(name, path=path)
        version = _usable(place) if place else None
        if place and version:
            return Clang(path=place, version=version)
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
    found = re.search(r"clang version (\d+)([.\d]*)", _run_output(*command, "--version"))
    if found is None or int(found[1]) < OLDEST:
        return None
    targets = _run_output(*command, "--print-targets")
    return found[1] + found[2] if re.search(r"\bamd(gcn|gpu)\b", targets) else None


def _run_output(*command: str) -> str:
    """Return the output of a program; "" if it does not run."""
    try:
        done = run_child(command, timeout_s=20.0)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
