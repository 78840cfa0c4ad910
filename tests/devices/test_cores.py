"""CPU model, cores, caches and limits, from /proc and /sys."""

import pytest

from kernelmark.devices import _cores as cores
from kernelmark.devices._cores import cpu_quota, memory_headroom, memory_limit, oom_kills

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


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cache(cpu, index, level, kind, size, shared):
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def siblings(lists):
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{text}\n"
        for cpu, text in lists.items()
    }


def test_x86_model_and_isa(tmp_path):
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
def test_arm_model(tmp_path, implementer, part, model):
    text = ARM.format(implementer=implementer, part=part)
    found = cores.describe(tree(tmp_path, {"proc/cpuinfo": text}), usable={0})
    assert found.model == model
    assert found.isa == ("asimd", "asimdhp", "sve", "bf16")


def test_one_logical_cpu_of_each_core(tmp_path):
    root = tree(tmp_path, siblings({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}))
    found = cores.describe(root, usable={0, 1, 4, 5})
    assert found.cores == (0, 1)
    assert found.logical == 4
    assert cores.physical_cores([4, 5], root) == [4, 5]


def test_a_quota_limits_the_cores(tmp_path):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}
    assert cores.describe(tree(tmp_path, files), usable=range(8)).cores == (0, 1)
    tree(tmp_path, {"sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert cores.describe(tmp_path, usable=range(8)).cores == (0,)


def test_each_cache_counts_once(tmp_path):
    files = {}
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
def test_parse_size(text, size):
    assert cores.parse_size(text) == size


def test_memory_is_the_lesser_of_machine_and_container(tmp_path):
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
def test_huge_pages(tmp_path, text, given):
    root = tree(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})
    assert cores.huge_pages(root) is given


V2 = {
    "proc/self/cgroup": "0::/user/job\n",
    "sys/fs/cgroup/user/cpu.max": "300000 100000\n",
    "sys/fs/cgroup/user/memory.max": "max\n",
    "sys/fs/cgroup/user/job/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/user/job/memory.max": "1000000\n",
    "sys/fs/cgroup/user/job/memory.current": "700000\n",
    "sys/fs/cgroup/user/job/memory.stat": "anon 5\ninactive_file 50000\n",
}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/job\n4:memory:/job\n",
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "500\n",
    "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 100\n",
}


OF_THE_HOST = {
    "proc/self/cgroup": "0::/kubepods/pod1/abc\n",
    "sys/fs/cgroup/cpu.max": "400000 100000\n",
}


@pytest.mark.parametrize(
    ("files", "quota", "limit", "headroom"),
    [
        (V2, 1.5, 1_000_000, 350_000),  # the tightest of the groups
        (V1, 2.0, 2000, 1600),  # with its way of saying that there is no limit
        (OF_THE_HOST, 4.0, None, None),  # falls back to the mount
        ({}, None, None, None),
    ],
)
def test_limits_of_a_container(tmp_path, files, quota, limit, headroom):
    root = tree(tmp_path, files)
    assert (cpu_quota(root), memory_limit(root), memory_headroom(root)) == (quota, limit, headroom)
    assert oom_kills(root) == 0


@pytest.mark.parametrize("text", ["max 100000", "", "garbage", "100000 0", "1 2 3", "-1 100000"])
def test_no_quota(tmp_path, text):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text}
    assert cpu_quota(tree(tmp_path, files)) is None


EVENTS = "sys/fs/cgroup/user/job/memory.events"
CONTROL = "sys/fs/cgroup/memory/job/memory.oom_control"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        (V2 | {EVENTS: "oom 3\noom_kill 2\noom_group_kill 0\n"}, 2),
        (V1 | {CONTROL: "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}, 4),
        (V1 | {CONTROL: "oom_kill_disable 0\nunder_oom 0\n"}, 9),  # Linux before 4.13
    ],
)
def test_kills_for_memory_are_those_of_the_group(tmp_path, files, kills):
    root = tree(tmp_path, files | {"proc/vmstat": "nr_free_pages 5\noom_kill 9\n"})
    assert oom_kills(root) == kills
