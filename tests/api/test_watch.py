"""Live readings: files of the kernel, without using the device."""

from __future__ import annotations

import itertools

import pytest

from kernelmark.api import watch
from kernelmark.cli.hardware.doctor import spark
from kernelmark.core.errors import UsageError


def test_the_cpu_is_read_from_the_kernels_files(tmp_path, monkeypatch):
    stats = itertools.cycle(["cpu 0 0 0 100 0 0 0 0\n", "cpu 30 0 0 110 0 0 0 0\n"])
    monkeypatch.setattr(watch, "_cpu_times", _times(stats))
    freq = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"
    heat = tmp_path / "sys/class/thermal/thermal_zone0/temp"
    for path, text in ((freq, "2100000\n"), (heat, "45000\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n")
    reading = watch._cpu_reader(tmp_path)()
    assert reading["utilisation"] == pytest.approx(75)
    assert reading["clock"] == 2100
    assert reading["temperature"] == 45


def _times(stats):
    def times(root):
        fields = [float(word) for word in next(stats).split()[1:]]
        return sum(fields) - fields[3], sum(fields)

    return times


def test_this_machine_can_be_read():
    (first, second) = watch.watch("cpu", every_s=0.01, count=2)
    assert {"utilisation", "memory"} <= first.keys()
    assert 0 <= second["utilisation"] <= 100


def test_a_device_without_a_library_is_refused():
    with pytest.raises(UsageError):
        watch.open_reader("cuda:99")


def test_trends_of_percentages_have_a_fixed_scale():
    assert spark([0.0, 100.0, 50.0], "%")[:2] == "▁█"
    assert spark([50.0, 50.0], "%") == "▅▅"
    assert spark([3.0, 3.0], "W") == "▁▁"
    assert spark([1.0, 2.0], "W") == "▁█"
