"""A CUDA driver made of host memory and fibers: GPU code runs, and is checked, without a GPU.

`emulated()` makes the device kinds believe in a small GPU. Everything above the driver's functions
is the real code: the binding, streams, graphs, argument packing, kernels. Its times mean nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from kernelmark.core.errors import CompileError
from kernelmark.gpu import driver as drivers
from kernelmark.gpu.library import CUDA
from kernelmark.gpu.rtc import Binary
from kernelmark.host.cache import digest
from kernelmark.host.permissions import private_folder, temporary_folder
from kernelmark.kernels import rtc
from kernelmark.micro import _kernels
from kernelmark_dev.emulated_driver import SOURCES, EmulatedLibrary

_PRELUDE = Path(__file__).parent / "simt.h"
_KERNELS = Path(rtc.__file__).parent

# The matrix instructions have no plain form; this stands in for one of them, so that the code
# around it can run.
_STAND_IN = {
    "micro_matrix.cu": """
KERNEL matrix_bf16(u32 rounds, u32 pattern, u32 mask, u64* clocks, float* out, u64* facts) {
  union { u32 bits; float value; } one = {pattern & 0xffff0000u};
  const u64 begin = start_block();
  float total = 0.0f;
  for (u32 r = 0; r < rounds; ++r)
    for (u32 k = 0; k < 64; ++k) total += one.value * one.value;
  stop_block(clocks, begin, 0);
  out[thread_number()] = total;
  note_facts(facts, 2 * 64 * blockDim.x, 64);
}
"""
}


def emulation_source(name: str) -> str:
    """A kernel file behind the emulator's prelude; tests may change what this gives."""
    prelude, text = (path.read_text("utf-8") for path in (_PRELUDE, _KERNELS / name))
    return f'#line 1 "simt.h"\n{prelude}\n#line 1 "{name}"\n{text}{_STAND_IN.get(name, "")}'


def compile_for_emulation(
    source: str, *, arch: str, name: str = "kernel.cu", options: tuple[str, ...] = ()
) -> Binary:
    """In place of a run-time compiler: a library for the host, and its place as the code."""
    if (_KERNELS / name).exists():
        text = emulation_source(name)
    else:  # a user's own
        macros = "".join(f"#define {option[2:].replace('=', ' ')}\n" for option in options)
        text = macros + _PRELUDE.read_text("utf-8") + source
        SOURCES[name] = source
    made = _folder() / f"{digest(text)[:24]}.so"
    names = made.with_suffix(".txt")
    if not made.exists():
        _build(text, name, made, names)
    _KNOWN[name] = frozenset(names.read_text("utf-8").split())
    return Binary(code=f"{name}\n{made}".encode(), arch=arch, log="", seconds=0.0, cached=True)


def _folder() -> Path:
    """Where emulated kernels are kept: by the temporary folder, since tests have caches of their
    own each and would build all of them again."""
    try:
        return private_folder(Path(tempfile.gettempdir()) / f"kernelmark-emulator-{os.getuid()}")
    except OSError:
        return temporary_folder()


def _build(text: str, name: str, made: Path, names: Path) -> None:
    flags = ["c++", "-std=c++17", "-O1", "-w", "-ffp-contract=off"]
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        program, out = Path(folder) / f"{name}.cc", Path(folder) / "out.so"
        program.write_text(text, encoding="utf-8")
        words = [*flags, "-E", "-P", str(program)]
        expanded = subprocess.run(words, capture_output=True, text=True, check=True)
        entries = _kernels.entries(expanded.stdout)
        program.write_text(text + "".join(entries.values()), encoding="utf-8")
        words = [*flags, "-shared", "-fPIC", str(program), "-o", str(out)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(done.stderr)
        names.write_text("\n".join(entries), encoding="utf-8")
        out.replace(made)


_KNOWN: dict[str, frozenset[str]] = {}


def _resources(code: bytes) -> dict[str, dict[str, int]]:
    return {name: {} for name in _KNOWN[code.decode().split("\n")[0]]}


@contextlib.contextmanager
def emulated(memory_bytes: int = 2**30, block: int = 128, devices: int = 1) -> Iterator[None]:
    """While this holds, there is a small emulated GPU called cuda:0; blocks are `block` wide."""
    driver = drivers.Driver(CUDA, EmulatedLibrary(memory_bytes, devices))  # type: ignore[arg-type]
    targets = {
        "kernelmark.devices._gpu.compile_source": compile_for_emulation,
        "kernelmark.devices._gpu_memory.compile_source": compile_for_emulation,
        "kernelmark.judge.gpu_values.compile_source": compile_for_emulation,
        "kernelmark.micro._rigs.compile_source": compile_for_emulation,
        "kernelmark.backends.rtc.compile_source": compile_for_emulation,
        "kernelmark.backends._file.compile_source": compile_for_emulation,
        "kernelmark.micro._rigs.resources": _resources,
        "kernelmark.micro._rigs.FULL_BLOCK": block,
        "kernelmark.micro._rigs._WARM_UP_S": 0.0,
        "kernelmark.devices._gpu_kind.unavailable": lambda vendor: None,
        "kernelmark.devices._gpu_kind.driver": lambda vendor: driver,
        "kernelmark.gpu.rtc.unavailable": lambda vendor: None,
        # The emulator's times are those of a busy host: an audit may not judge by them.
        "kernelmark.measure.audit.FACTOR": math.inf,
        "kernelmark.measure.audit.FACTOR_UNCACHED": math.inf,
        "kernelmark.measure.audit.CLEAR": math.inf,
    }
    with contextlib.ExitStack() as stack:
        for target, replacement in targets.items():
            stack.enter_context(mock.patch(target, replacement))
        yield
