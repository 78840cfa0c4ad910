"""Target: the device that IREE compiles for, and the driver that runs the result."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.devices._cores import describe
from kernelmark.gpu.objects import resources

# Architectures that IREE's CUDA target accepts. A newer GPU runs the newest of them: IREE emits
# PTX, which the driver translates.
_CUDA = (60, 80, 86, 89)
# The caller passes fences and does not wait; launches of a batch run one after the other, each with
# its own intermediate results, instead of interleaving their steps.
_GPU_FLAGS = (
    "--iree-execution-model=async-external",
    "--iree-stream-partitioning-favor=min-peak-memory",
)
_GFX = re.compile(r"gfx\d+[0-9a-f]*")
_ELF = re.compile(rb"\x7fELF\x02\x01")
# A kernel entry in PTX, and its number of threads.
_PTX_ENTRY = re.compile(rb"\.visible \.entry ([\w$]+)\([^)]*\)\s*(?:\.maxntid ([\d, ]+))?")
_HOST_LINES = ("flags", "features", "model name", "cpu implementer", "cpu part", "cpu variant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A compilation target. `identity` distinguishes machines for which equal flags give different
    code; `pack` is the folder in a bundle. A CPU core has `registers` of `vector_bytes` each."""

    name: str
    driver: str
    flags: tuple[str, ...]
    gpu: bool
    identity: str = ""
    pack: str = ""
    vector_bytes: int = 16
    registers: int = 32

    @property
    def device_flags(self) -> tuple[str, ...]:
        """Return the flags that select the device, without those for launches with our fences."""
        return tuple(flag for flag in self.flags if flag not in _GPU_FLAGS)


def target(info: DeviceInfo) -> Target | None:
    """Return the target for a device, or None if IREE has none."""
    if info.kind == "cpu":
        return _cpu()
    if info.kind == "cuda":
        return _cuda(info.arch)
    if info.kind == "hip":
        return _hip(info.arch)
    return None


def target_named(name: str) -> Target | None:
    """Return the target called cpu, gfx942, sm_80, vulkan or vulkan:rdna3; None if IREE has
    none."""
    kind, colon, model = name.partition(":")
    kind = {"gfx": "hip", "sm_": "cuda"}.get(name[:3], kind)
    if (colon and (kind != "vulkan" or not model)) or (kind == "hip" and not _GFX.fullmatch(name)):
        return None
    if kind == "vulkan":
        chosen = (f"--iree-vulkan-target={model}",) if model else ()
        return Target(
            name=f"vulkan-spirv {model}".strip(),
            driver="vulkan",
            flags=("--iree-hal-target-device=vulkan", *chosen, *_GPU_FLAGS),
            gpu=True,
        )
    return target(DeviceInfo(name=name, kind=kind, model=name, arch=name))


def kernel_resources(binary: bytes) -> dict[str, dict[str, int]]:
    """Return the resources of each GPU kernel of a compiled module: registers, spills, shared
    bytes.

    The module contains AMD code objects unchanged. For NVIDIA it contains PTX, whose registers are
    assigned by the driver and whose shared memory is sized at launch: only the threads are
    known."""
    resources_of: dict[str, dict[str, int]] = {}
    for match in _ELF.finditer(binary):
        try:
            resources_of |= resources(binary[match.start() :])
        except UsageError:
            continue  # CPU code, or the magic number inside other data
    for entry in _PTX_ENTRY.finditer(binary):
        threads = [int(size) for size in entry[2].split(b",")] if entry[2] else []
        name = entry[1].decode()
        resources_of[name] = {"threads": functools.reduce(int.__mul__, threads)} if threads else {}
    return resources_of


@functools.cache
def _cpu() -> Target:
    vector_bytes, registers = vector_unit(describe().isa)
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
        vector_bytes=vector_bytes,
        registers=registers,
    )


def vector_unit(isa: Sequence[str]) -> tuple[int, int]:
    """Return the bytes of a vector register and the number of registers, by a CPU's instruction
    sets.

    `host` code with fixed-width vectors does not use SVE, and then has 128 bits."""
    if "avx512f" in isa:
        return 64, 32
    if "avx" in isa:
        return 32, 16
    return 16, 16 if "sse4_2" in isa else 32


def _cuda(arch: str) -> Target | None:
    number = arch.removeprefix("sm_").rstrip("af")
    supported = [a for a in _CUDA if number.isdecimal() and a <= int(number)]
    if not supported:
        return None
    chosen = f"sm_{supported[-1]}"
    return Target(
        name=f"cuda {chosen}",
        driver="cuda",
        flags=("--iree-hal-target-device=cuda", f"--iree-cuda-target={chosen}", *_GPU_FLAGS),
        gpu=True,
        pack=f"iree-{chosen}",
    )


def _hip(arch: str) -> Target:
    return Target(
        name=f"rocm {arch}",
        driver="hip",
        flags=("--iree-hal-target-device=hip", f"--iree-rocm-target={arch}", *_GPU_FLAGS),
        gpu=True,
        pack=f"iree-{arch}",
    )


def _host_identity() -> str:
    """Return a hash of the kernel's description of the first core: `host` code is only valid for
    equal cores."""
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        first = ""
    lines = sorted(x for x in first.splitlines() if x.lower().startswith(_HOST_LINES))
    text = "\n".join([platform.machine(), platform.processor(), *lines])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
