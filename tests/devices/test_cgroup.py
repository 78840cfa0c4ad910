from __future__ import annotations

from pathlib import Path

import pytest

from kernelmark.devices._cores import cpu_quota, memory_headroom, memory_limit, oom_kills


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


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


def test_version_2_takes_the_tightest_of_the_groups(tmp_path: Path) -> None:
    root = tree(tmp_path, V2)
    assert cpu_quota(root) == 1.5
    assert memory_limit(root) == 1_000_000
    assert memory_headroom(root) == 350_000


def test_version_1_knows_its_way_of_saying_no_limit(tmp_path: Path) -> None:
    root = tree(tmp_path, V1)
    assert cpu_quota(root) == 2.0
    assert memory_limit(root) == 2000
    assert memory_headroom(root) == 1600


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1/abc\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    }
    assert cpu_quota(tree(tmp_path, files)) == 4.0


@pytest.mark.parametrize("text", ["max 100000", "", "garbage", "100000 0", "1 2 3", "-1 100000"])
def test_no_quota(tmp_path: Path, text: str) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text}
    assert cpu_quota(tree(tmp_path, files)) is None


def test_nothing_there_means_no_limits(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None
    assert memory_headroom(tmp_path) is None
    assert oom_kills(tmp_path) == 0


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
def test_kills_for_memory_are_those_of_the_group(tmp_path: Path, files, kills) -> None:
    root = tree(tmp_path, files | {"proc/vmstat": "nr_free_pages 5\noom_kill 9\n"})
    assert oom_kills(root) == kills
