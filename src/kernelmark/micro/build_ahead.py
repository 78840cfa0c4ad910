"""Compile the kernels of microbenchmarks on all cores, into the cache.

Run as `python -m kernelmark.micro.build_ahead ARCH FILE…`; writes how many it had to compile.
Processes, since a run-time compiler takes one source at a time in each.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from kernelmark.core.children import child_group
from kernelmark.core.errors import CompileError
from kernelmark.kernels import rtc
from kernelmark.micro._gpu_rig import build

_LIMIT_S = 300.0
# What takes longest to compile.
_LONG = ("micro_matrix.cu", "micro_ops.cu", "micro_roofline.cu")


def files() -> list[str]:
    """The kernel files of microbenchmarks, the longest to compile first."""
    names = [name for name in rtc.names() if name.startswith("micro_")]
    return sorted(names, key=lambda name: (name not in _LONG, name))


def build_all(arch: str) -> int:
    """Compile what is not in the cache; how many files that were. What fails is left to whoever
    uses it."""
    names = files()
    cores = min(len(names), len(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", __name__, arch]
    fresh = 0
    with child_group() as group:
        pipe = subprocess.PIPE
        started = [
            subprocess.Popen(
                [*command, *names[i::cores]], stdout=pipe, text=True, process_group=group
            )
            for i in range(cores)
        ]
        for process in started:
            try:
                said, _ = process.communicate(timeout=_LIMIT_S)
                fresh += int(said) if said.strip().isdigit() else 0
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return fresh


def _main(arch: str, names: list[str]) -> None:
    fresh = 0
    for name in names:
        with contextlib.suppress(CompileError):
            fresh += not build(name, arch).cached
    sys.stdout.write(str(fresh))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
