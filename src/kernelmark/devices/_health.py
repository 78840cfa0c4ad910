"""CPU telemetry during a measurement: clock, temperature, throttling, load by other processes.

Files are located once and read each time, so that a reading takes well under a millisecond.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmark.core.result import Telemetry
from kernelmark.devices._cores import ROOT, read_text

# Reading one core's clock can take microseconds, so only this many cores are sampled.
_CLOCK_CORES = 8
_SENSORS = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "acpitz")
_HWMON = ("coretemp", "k10temp", "zenpower")
_THROTTLES = {
    "core_throttle_count": "the core's thermal limit",
    "package_throttle_count": "the package's thermal limit",
}


@dataclass(frozen=True, slots=True)
class _Usage:
    """Busy core-seconds on the measured cores, by all processes and by this one."""

    at_s: float
    busy_s: float
    own_s: float


class Health:
    """Telemetry of the cores that launches run on; throttling and load are since the previous
    reading."""

    def __init__(self, cores: Sequence[int], root: Path = ROOT) -> None:
        self._cores = tuple(cores)
        self._root = root
        cpus = root / "sys/devices/system/cpu"
        self._clocks = _present(
            cpus / f"cpu{c}/cpufreq/scaling_cur_freq" for c in self._cores[:_CLOCK_CORES]
        )
        self._temperature = _temperature_file(root)
        self._throttles = {
            path: why
            for core in self._cores
            for name, why in _THROTTLES.items()
            for path in _present([cpus / f"cpu{core}/thermal_throttle/{name}"])
        }
        self._throttle_counts = self._read_throttles()
        self._usage = self._read_usage()

    def read(self) -> Telemetry:
        """Return the current clock and temperature, and throttling and load since the last reading.

        `load` is work by other processes (or time stolen by a hypervisor) on these cores, in cores.
        The system's load average would include our own work and cover the last minutes.
        """
        counts, usage = self._read_throttles(), self._read_usage()
        throttled = {
            self._throttles[path]
            for path, count in counts.items()
            if count > self._throttle_counts.get(path, count)
        }
        load = _load_by_others(self._usage, usage, len(self._cores))
        self._throttle_counts, self._usage = counts, usage
        clocks = [value for path in self._clocks if (value := _integer(path)) is not None]
        millidegrees = _integer(self._temperature) if self._temperature else None
        return Telemetry(
            clock_mhz=sum(clocks) / len(clocks) / 1e3 if clocks else None,
            temperature_c=millidegrees / 1e3 if millidegrees is not None else None,
            load=load,
            throttle=tuple(sorted(throttled)),
        )

    def _read_throttles(self) -> dict[Path, int]:
        return {path: value for path in self._throttles if (value := _integer(path)) is not None}

    def _read_usage(self) -> _Usage | None:
        wanted = {f"cpu{core}" for core in self._cores}
        busy = matched = 0
        for line in read_text(self._root / "proc/stat").splitlines():
            if not line.startswith("cpu"):
                break
            name, *values = line.split()
            if name in wanted and len(values) >= 8:
                user, nice, system, _idle, _iowait, irq, soft, steal = map(int, values[:8])
                busy += user + nice + system + irq + soft + steal
                matched += 1
        if matched != len(wanted):
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        return _Usage(time.monotonic(), busy / ticks, time.process_time())


def _load_by_others(before: _Usage | None, after: _Usage | None, cores: int) -> float | None:
    """Return the load by other processes between two readings, in cores, at most `cores`; None if
    the interval is shorter than a few of the kernel's 10 ms ticks.

    A busy virtual machine accounts ticks late and stolen ticks twice: 5.6 of 2 cores were
    measured.
    """
    if before is None or after is None or after.at_s - before.at_s < 0.05:
        return None
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(max(0.0, others / (after.at_s - before.at_s)), float(cores))


def _temperature_file(root: Path) -> Path | None:
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*"))
    by_type = {read_text(zone / "type").strip(): zone / "temp" for zone in reversed(zones)}
    for name in _SENSORS:
        if name in by_type and _integer(by_type[name]) is not None:
            return by_type[name]
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        path = chip / "temp1_input"
        if read_text(chip / "name").strip() in _HWMON and _integer(path) is not None:
            return path
    return None


def _present(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if _integer(path) is not None]


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
