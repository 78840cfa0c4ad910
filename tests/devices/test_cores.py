from __future__ import annotations

from pathlib import Path

import pytest

from kernelmark.devices import _cores as cores

X86 = """processor\t: 0
model name\t: Some  CPU   @ 3.00GHz
flags\t\t: fpu sse4_2 avx2 fma avx512f amx_bf16

processor\t: 1
model name\t: Another
"""
ARM = """processor\t: 0
Features\t: fp asimd asimdhp sve bf16
CPU implementer\t: {implementer}
CPU part\t: {part}
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cache(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def siblings(lists: dict[int, str]) -> dict[str, str]:
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{text}\n"
        for cpu, text in lists.items()
    }


def test_x86_model_and_isa(tmp_path: Path) -> None:
    found = cores.describe(tree(tmp_path, {"proc/cpuinfo": X86}), usable={0, 1})
    assert found.model == "Some CPU @ 3.00GHz"
    assert found.isa == ("sse4_2", "avx2", "fma", "avx512f", "amx_bf16")
    assert found.cores == (0, 1)


@pytest.mark.parametrize(
    ("implementer", "part", "model"),
    [
        ("0x41", "0xd0c", "Arm Neoverse-N1"),
        ("0x41", "0xd4f", "Arm Neoverse-V2"),
        ("0xc0", "0xac3", "Ampere Ampere-1"),
        ("0x41", "0xfff", "Arm part 0xfff"),
        ("0x99", "0x001", "implementer 0x99 part 0x001"),
    ],
)
def test_arm_model(tmp_path: Path, implementer: str, part: str, model: str) -> None:
    text = ARM.format(implementer=implementer, part=part)
    found = cores.describe(tree(tmp_path, {"proc/cpuinfo": text}), usable={0})
    assert found.model == model
    assert found.isa == ("asimd", "asimdhp", "sve", "bf16")


def test_one_logical_cpu_of_each_core(tmp_path: Path) -> None:
    root = tree(tmp_path, siblings({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}))
    found = cores.describe(root, usable={0, 1, 4, 5})
    assert found.cores == (0, 1)
    assert found.logical == 4
    assert cores.physical_cores([4, 5], root) == [4, 5]


def test_a_quota_limits_the_cores(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}
    assert cores.describe(tree(tmp_path, files), usable=range(8)).cores == (0, 1)
    tree(tmp_path, {"sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert cores.describe(tmp_path, usable=range(8)).cores == (0,)


def test_each_cache_counts_once(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for cpu in range(4):
        files |= cache(cpu, 0, 1, "Data", "32K", str(cpu))
        files |= cache(cpu, 1, 1, "Instruction", "64K", str(cpu))
        files |= cache(cpu, 2, 2, "Unified", "1M", str(cpu))
        files |= cache(cpu, 3, 3, "Unified", "16384K", "0-1" if cpu < 2 else "2-3")
    root = tree(tmp_path, files)
    assert cores.cache_sizes([0, 1], root) == {1: 2 * 2**15, 2: 2 * 2**20, 3: 2**24}
    assert cores.last_level_bytes([0], root) == 2**24
    assert cores.last_level_bytes([0, 1, 2, 3], root) == 2 * 2**24
    assert cores.last_level_bytes([9], root) == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("32768K\n", 2**25), ("1M", 2**20), ("2G", 2**31), ("512", 512), ("", 0), ("many", 0)],
)
def test_parse_size(text: str, size: int) -> None:
    assert cores.parse_size(text) == size


def test_memory_is_the_lesser_of_machine_and_container(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable:  600 kB\n"})
    assert cores.total_memory(root) == 1_024_000
    assert cores.available_memory(root) == 614_400
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "500000\n",
            "sys/fs/cgroup/memory.current": "100000\n",
        },
    )
    assert cores.total_memory(root) == 500_000
    assert cores.available_memory(root) == 400_000


@pytest.mark.parametrize(
    ("text", "given"),
    [("always [madvise] never", True), ("[always] madvise never", True), ("[never]", False)],
)
def test_huge_pages(tmp_path: Path, text: str, given: bool) -> None:
    root = tree(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})
    assert cores.huge_pages(root) is given
