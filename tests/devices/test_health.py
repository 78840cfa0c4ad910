from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kernelmark.devices.cpu import Health

CPUS = "sys/devices/system/cpu"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def stat(busy_s: tuple[float, ...]) -> str:
    ticks = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{i} {int(s * ticks)} 0 0 1000 0 0 0 0 0 0" for i, s in enumerate(busy_s)]
    return "\n".join(["cpu 1 2 3 4 5 6 7 8", *lines, "intr 5"]) + "\n"


def test_clock_is_the_mean_of_the_cores(tmp_path: Path) -> None:
    files = {
        f"{CPUS}/cpu{i}/cpufreq/scaling_cur_freq": f"{2_000_000 + i * 500_000}" for i in (0, 1)
    }
    assert Health([0, 1], tree(tmp_path, files)).read().clock_mhz == 2250.0


def test_nothing_readable_says_nothing(tmp_path: Path) -> None:
    found = Health([0], tmp_path).read()
    assert (found.clock_mhz, found.temperature_c, found.load, found.throttle) == (
        None,
        None,
        None,
        (),
    )


def test_temperature_from_a_zone_or_a_chip(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {"sys/class/hwmon/hwmon3/name": "k10temp\n", "sys/class/hwmon/hwmon3/temp1_input": "51500"},
    )
    assert Health([0], tmp_path).read().temperature_c == 51.5
    tree(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/type": "acpitz\n",
            "sys/class/thermal/thermal_zone0/temp": "20000",
            "sys/class/thermal/thermal_zone1/type": "x86_pkg_temp\n",
            "sys/class/thermal/thermal_zone1/temp": "64000",
        },
    )
    assert Health([0], tmp_path).read().temperature_c == 64.0


def test_throttling_counts_from_the_last_reading(tmp_path: Path) -> None:
    path = f"{CPUS}/cpu1/thermal_throttle/package_throttle_count"
    health = Health([0, 1], tree(tmp_path, {path: "7\n"}))
    assert health.read().throttle == ()
    tree(tmp_path, {path: "9\n"})
    assert health.read().throttle == ("the package's thermal limit",)
    assert health.read().throttle == ()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The clock of the wall and that of this process, which stand still until they are set."""
    clocks = {"wall": 100.0, "own": 5.0}
    monkeypatch.setattr(time, "monotonic", lambda: clocks["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clocks["own"])
    return clocks


def test_load_is_what_others_did_on_these_cores(tmp_path: Path, now: dict[str, float]) -> None:
    health = Health([0, 1], tree(tmp_path, {"proc/stat": stat((10.0, 10.0, 50.0))}))
    # In two seconds, cores 0 and 1 were busy for 3.5 s, of which 2 were ours; core 2 is not used.
    now.update(wall=102.0, own=7.0)
    tree(tmp_path, {"proc/stat": stat((12.0, 11.5, 52.0))})
    assert health.read().load == pytest.approx(0.75)


def test_load_is_never_more_than_the_cores(tmp_path: Path, now: dict[str, float]) -> None:
    health = Health([0, 1], tree(tmp_path, {"proc/stat": stat((10.0, 10.0))}))
    now.update(wall=100.5, own=5.0)
    tree(tmp_path, {"proc/stat": stat((11.4, 11.4))})  # 2.8 busy seconds in half a second
    assert health.read().load == 2.0


def test_load_needs_more_than_a_few_ticks(tmp_path: Path, now: dict[str, float]) -> None:
    health = Health([0], tree(tmp_path, {"proc/stat": stat((1.0,))}))
    now["wall"] += 0.04
    assert health.read().load is None
    now["wall"] += 0.06
    assert health.read().load == 0.0


def test_missing_core_in_stat_says_nothing(tmp_path: Path, now: dict[str, float]) -> None:
    health = Health([0, 5], tree(tmp_path, {"proc/stat": stat((1.0,))}))
    now["wall"] += 1.0
    assert health.read().load is None


def test_a_reading_reads_few_files_and_looks_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes it fast enough to be taken between two samples, however many cores there are."""
    clocks = {f"{CPUS}/cpu{i}/cpufreq/scaling_cur_freq": "2000000" for i in range(64)}
    heat = {
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        "sys/class/thermal/thermal_zone0/temp": "64000",
    }
    files = {**clocks, **heat, "proc/stat": stat((1.0,) * 64)}
    health = Health(range(64), tree(tmp_path, files))
    opened: list[Path] = []
    plain = Path.read_text

    def counted(path: Path, **how: str) -> str:
        opened.append(path)
        return plain(path, **how)

    monkeypatch.setattr(Path, "read_text", counted)
    monkeypatch.setattr(Path, "glob", lambda *given: pytest.fail("a reading looks for files"))
    found = health.read()
    assert (found.clock_mhz, found.temperature_c) == (2000.0, 64.0)
    assert len(opened) == len(set(opened)) == 10  # eight clocks, the temperature, the usage
