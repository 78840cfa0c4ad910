"""CPU model, cores, caches and memory, read from /proc and /sys."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
# cgroup v1 writes a number above this for "unlimited".
_NO_LIMIT = 2**60


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPU quota in cores, or None if there is no quota."""
    quotas = []
    for folder in _folders("cpu", root):
        limits = read_text(folder / "cpu.max").split()
        if not limits:
            limits = [
                read_text(folder / "cpu.cfs_quota_us").strip(),
                read_text(folder / "cpu.cfs_period_us").strip(),
            ]
        if len(limits) == 2 and all(_is_count(word) for word in limits) and int(limits[1]) > 0:
            quotas.append(int(limits[0]) / int(limits[1]))
    return min(quotas, default=None)


def memory_headroom(root: Path = ROOT) -> int | None:
    """Return the bytes left under the tightest memory limit, or None if there is no limit."""
    rooms = []
    for folder, limit in _memory_limits(root):
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        # The kernel drops a group's file cache before it refuses memory.
        cache = _value(folder / "memory.stat", "inactive_file", "total_inactive_file") or 0
        if used is not None:
            rooms.append(limit - used + cache)
    return min(rooms, default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the tightest memory limit in bytes, or None if there is no limit."""
    return min((limit for _, limit in _memory_limits(root)), default=None)


def _memory_limits(root: Path) -> Iterator[tuple[Path, int]]:
    for folder in _folders("memory", root):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is not None and limit < _NO_LIMIT:
            yield folder, limit


def oom_kills(root: Path = ROOT) -> int:
    """Return the number of OOM kills in this control group so far. If the group does not count
    them, return the count of the whole machine, or 0."""
    return next((n for path in _oom_files(root) if (n := _value(path, "oom_kill")) is not None), 0)


@functools.cache  # asked twice a request: walking the groups takes longer than reading the file
def _oom_files(root: Path) -> tuple[Path, ...]:
    groups = _folders("memory", root)
    files = [folder / name for folder in groups for name in ("memory.events", "memory.oom_control")]
    return *files, root / "proc/vmstat"


def read_text(path: Path) -> str:
    """Return the file's text, or "" if it cannot be read: kernels differ in the files they
    expose."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the process's control group and its ancestors for one controller. Inside a container
    the path may be the host's and not exist, so the root of the mount is included."""
    base = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names == "":
            mounts = [base, base / "unified"]
        elif controller in names.split(","):
            mounts = list(dict.fromkeys([base / names, base / controller]))
        else:
            continue
        for mount in mounts:
            folder = mount / path.strip("/")
            while folder.is_relative_to(mount):
                if folder.is_dir():
                    yield folder
                if folder == mount:
                    break
                folder = folder.parent


def _value(path: Path, *names: str) -> int | None:
    """Return the value of the first `NAME VALUE` line whose name is one of `names`."""
    for line in read_text(path).splitlines():
        name, _, value = line.partition(" ")
        if name in names and _is_count(value):
            return int(value)
    return None


def _number(*paths: Path) -> int | None:
    for path in paths:
        text = read_text(path).strip()
        if _is_count(text):
            return int(text)
    return None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


# Used if the kernel exposes no caches: large enough for most last-level caches.
ASSUMED_CACHE_BYTES = 64 * 2**20

_SIMD = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "asimdfhm", "sve", "sve2", "bf16", "i8mm"),
    *("svebf16", "svei8mm", "sme"),
)

_IMPLEMENTERS = {
    0x41: "Arm",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}
_PARTS = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD44): "Cortex-X1",
    (0x41, 0xD46): "Cortex-A510",
    (0x41, 0xD47): "Cortex-A710",
    (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4A): "Neoverse-E1",
    (0x41, 0xD4B): "Cortex-A78C",
    (0x41, 0xD4D): "Cortex-A715",
    (0x41, 0xD4E): "Cortex-X3",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD80): "Cortex-A520",
    (0x41, 0xD81): "Cortex-A720",
    (0x41, 0xD82): "Cortex-X4",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD85): "Cortex-X925",
    (0x41, 0xD87): "Cortex-A725",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "TaiShan-v110",
    (0x4E, 0x004): "Carmel",
    (0x6D, 0xD49): "Cobalt-100",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1A",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The cores that a process may use; the first logical CPU of each physical core comes first."""

    model: str
    cores: tuple[int, ...]
    logical: int
    isa: tuple[str, ...]


def describe(root: Path = ROOT, usable: Iterable[int] | None = None) -> Cpu:
    """Return a description of the CPU, limited to the cores that this process may use."""
    allowed = sorted(usable if usable is not None else usable_cpus())
    # A quota throttles all threads together once it is spent: more threads than it only stall.
    cores = physical_cores(allowed, root)
    quota = cpu_quota(root)
    if quota is not None:
        cores = cores[: max(1, int(quota))]
    fields = _cpuinfo(root)
    present = set((fields.get("flags") or fields.get("Features") or "").split())
    return Cpu(
        model=_model(fields),
        cores=tuple(cores),
        logical=len(allowed),
        isa=tuple(name for name in _SIMD if name in present),
    )


def usable_cpus() -> set[int]:
    """Return the logical CPUs in the scheduler affinity of this process."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def physical_cores(allowed: Iterable[int], root: Path = ROOT) -> list[int]:
    """Return the first allowed logical CPU of each physical core: SMT siblings share execution
    units and would disturb each other."""
    seen: set[str] = set()
    cores = []
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = (
            read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        ).strip()
        if (siblings or f"cpu{cpu}") not in seen:
            seen.add(siblings or f"cpu{cpu}")
            cores.append(cpu)
    return cores


def cache_sizes(cores: Iterable[int], root: Path = ROOT) -> dict[int, int]:
    """Return data cache bytes by level, counting each distinct cache of these cores once."""
    size_of: dict[tuple[int, str], int] = {}
    for cpu in cores:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
        for index in sorted(folder.glob("index*")):
            level = read_text(index / "level").strip()
            size = parse_size(read_text(index / "size"))
            if level.isdigit() and size and read_text(index / "type").strip() != "Instruction":
                shared = read_text(index / "shared_cpu_list").strip() or str(cpu)
                size_of[int(level), shared] = size
    sizes: dict[int, int] = {}
    for (number, _), size in size_of.items():
        sizes[number] = sizes.get(number, 0) + size
    return sizes


def last_level_bytes(cores: Iterable[int], root: Path = ROOT) -> int:
    """Return the bytes of last-level cache of these cores; 0 if unknown."""
    sizes = cache_sizes(cores, root)
    return sizes[max(sizes)] if sizes else 0


def parse_size(text: str) -> int:
    """Parse a size as the kernel writes it (32768K, 1M); 0 for anything else."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    if not match:
        return 0
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]


def total_memory(root: Path = ROOT) -> int:
    """Return the bytes of memory that the process may use, under the container's limit."""
    total = _meminfo("MemTotal", root)
    limit = memory_limit(root)
    return min(total, limit) if limit is not None else total


def available_memory(root: Path = ROOT) -> int:
    """Return the bytes available without swapping, under the container's limit."""
    available = _meminfo("MemAvailable", root)
    headroom = memory_headroom(root)
    return min(available, headroom) if headroom is not None else available


def huge_pages(root: Path = ROOT) -> bool:
    """Return whether the kernel supports huge pages through madvise."""
    setting = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return "[madvise]" in setting or "[always]" in setting


def _meminfo(name: str, root: Path) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    first, _, _ = read_text(root / "proc/cpuinfo").partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _model(fields: dict[str, str]) -> str:
    if fields.get("model name"):
        return " ".join(fields["model name"].split())
    try:
        implementer = int(fields["CPU implementer"], 16)
        part = int(fields["CPU part"], 16)
    except (KeyError, ValueError):
        return platform.processor() or platform.machine()
    maker = _IMPLEMENTERS.get(implementer, f"implementer 0x{implementer:02x}")
    return f"{maker} {_PARTS.get((implementer, part), f'part 0x{part:03x}')}"
