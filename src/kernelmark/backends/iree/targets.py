"""Target: what IREE compiles for, and the driver that runs the result."""

from __future__ import annotations

import functools
import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.environment import DeviceInfo

# What IREE's CUDA target accepts. A newer GPU runs the newest of them that it understands: IREE
# emits PTX, which the driver translates.
_CUDA_ARCHITECTURES = (60, 80, 86, 89)
_HOST_LINES = ("flags", "features", "model name", "cpu implementer", "cpu part", "cpu variant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`identity` tells apart machines for which equal flags give different code."""

    name: str
    driver: str
    flags: tuple[str, ...]
    gpu: bool
    identity: str = ""


def target(info: DeviceInfo) -> Target | None:
    """The target for a device, or None where IREE has none."""
    if info.kind == "cpu":
        return _cpu()
    if info.kind == "cuda":
        return _cuda(info.arch)
    if info.kind == "hip":
        flags = ("--iree-hal-target-device=hip", f"--iree-rocm-target={info.arch}")
        return Target(name=f"rocm {info.arch}", driver="hip", flags=flags, gpu=True)
    return None


@functools.cache
def _cpu() -> Target:
    return Target(
        name="llvm-cpu",
        driver="local-task",
        flags=(
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
        ),
        gpu=False,
        identity=_host_identity(),
    )


def _cuda(arch: str) -> Target | None:
    number = arch.removeprefix("sm_").rstrip("af")
    known = [a for a in _CUDA_ARCHITECTURES if number.isdecimal() and a <= int(number)]
    if not known:
        return None
    flags = ("--iree-hal-target-device=cuda", f"--iree-cuda-target=sm_{known[-1]}")
    return Target(name=f"cuda sm_{known[-1]}", driver="cuda", flags=flags, gpu=True)


def _host_identity() -> str:
    """A hash of what the kernel says of the first core: `host` code is good for its like only."""
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        first = ""
    lines = sorted(x for x in first.splitlines() if x.lower().startswith(_HOST_LINES))
    text = "\n".join([platform.machine(), platform.processor(), *lines])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
