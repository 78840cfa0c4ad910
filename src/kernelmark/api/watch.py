"""Live readings of a device: clocks, power, temperature, utilisation and memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.devices._cores import available_memory, total_memory
from kernelmark.gpu import telemetry
from kernelmark.runners.targets import find

# What is read, with its unit; a device that does not report a value leaves it out.
METRICS: Mapping[str, str] = {
    "utilisation": "%",
    "clock": "MHz",
    "memory clock": "MHz",
    "power": "W",
    "temperature": "°C",
    "memory": "GiB",
}
Reading = dict[str, float]
Read = Callable[[], Reading]
KEPT = 120  # readings in a chart
_GIB = 2**30


def open_reader(device: str = "cpu") -> Read:
    """Return a function that reads the state of a device now, without using the device."""
    _, info = find(device)
    if info.kind == "cpu":
        return _cpu_reader()
    read = _nvml_reader(info) if info.kind == "cuda" else _amd_reader(info)
    if read is None:
        raise UsageError(
            f"{device} cannot be watched: its management library cannot be read",
            hint="NVIDIA: libnvidia-ml.so.1 of the driver; AMD: the Python package amdsmi; "
            "'kmark watch -d cpu' needs neither",
        )
    return read


def watch(device: str = "cpu", every_s: float = 1.0, count: int = 0) -> Iterator[Reading]:
    """Yield a reading every `every_s` seconds: `count` of them, or without end."""
    read, done = open_reader(device), 0
    while True:
        yield read()
        done += 1
        if done == count:
            return
        time.sleep(every_s)


class History:
    """The newest readings of each metric."""

    def __init__(self) -> None:
        self.values: dict[str, deque[float]] = {}

    def add(self, reading: Reading) -> None:
        for name, value in reading.items():
            self.values.setdefault(name, deque(maxlen=KEPT)).append(value)


def _cpu_reader(root: Path = Path("/")) -> Read:
    before = _cpu_times(root)

    def read() -> Reading:
        nonlocal before
        while (now := _cpu_times(root))[1] == before[1]:  # a tick is 10 ms
            time.sleep(0.02)
        reading = {"utilisation": 100 * (now[0] - before[0]) / (now[1] - before[1])}
        before = now
        if clocks := _cpu_clocks(root):
            reading["clock"] = statistics.fmean(clocks)
        if heat := _temperatures(root):
            reading["temperature"] = max(heat)
        if whole := total_memory(root):
            reading["memory"] = (whole - available_memory(root)) / _GIB
        return reading

    return read


def _cpu_times(root: Path) -> tuple[float, float]:
    """Return the busy and all ticks of the cores since the start of the machine."""
    fields = [float(word) for word in _text(root / "proc/stat").splitlines()[0].split()[1:9]]
    return sum(fields) - sum(fields[3:5]), sum(fields)  # idle and iowait are not busy


def _cpu_clocks(root: Path) -> list[float]:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    texts = [_text(path) for path in files]
    if clocks := [float(text) / 1e3 for text in texts if text.strip()]:
        return clocks
    text = _text(root / "proc/cpuinfo")
    if re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE):
        return []  # a virtual machine reads the nominal clock
    return [float(clock) for clock in re.findall(r"^cpu MHz\s*: ([\d.]+)", text, re.MULTILINE)]


def _temperatures(root: Path) -> list[float]:
    texts = [_text(path) for path in (root / "sys/class/thermal").glob("thermal_zone*/temp")]
    return [float(text) / 1e3 for text in texts if text.strip()]


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


def _named(clock: Any, memory_clock: Any, power: Any, heat: Any) -> Reading:
    pairs = {"clock": clock, "memory clock": memory_clock, "power": power, "temperature": heat}
    return {name: value for name, value in pairs.items() if value is not None}


class _Rates(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


def _nvml_reader(info: DeviceInfo) -> Read | None:
    library = telemetry._nvml()
    handle = None if library is None else telemetry._nvml_device(library, info.uuid)
    if library is None or handle is None:
        return None

    def read() -> Reading:
        state, rates, memory = telemetry._read_nvml(library, handle), _Rates(), _Memory()
        reading = _named(
            state.clock_mhz, state.memory_clock_mhz, state.power_w, state.temperature_c
        )
        if not library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)):
            reading["utilisation"] = float(rates.gpu)
        if not library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            reading["memory"] = memory.used / _GIB
        return reading

    return read


def _amd_reader(info: DeviceInfo) -> Read | None:
    """Read sysfs, which needs no package. Not yet run on AMD hardware."""
    cards = [
        card
        for card in sorted(Path("/sys/class/drm").glob("card[0-9]*/device"))
        if _text(card / "vendor").strip() == "0x1002"
    ]
    shown = os.environ.get("HIP_VISIBLE_DEVICES", "")
    index = int(shown.split(",")[info.index]) if shown.replace(",", "").isdigit() else info.index
    if index >= len(cards):
        return None
    card = cards[index]

    def number(pattern: str, scale: float) -> float | None:
        texts = [_text(path).strip() for path in card.glob(pattern)]
        return next((float(text) / scale for text in texts if text.isdigit()), None)

    def read() -> Reading:
        reading = _named(
            number("hwmon/hwmon*/freq1_input", 1e6),
            number("hwmon/hwmon*/freq2_input", 1e6),
            number("hwmon/hwmon*/power1_average", 1e6) or number("hwmon/hwmon*/power1_input", 1e6),
            number("hwmon/hwmon*/temp1_input", 1e3),
        )
        for name, value in (
            ("utilisation", number("gpu_busy_percent", 1)),
            ("memory", number("mem_info_vram_used", _GIB)),
        ):
            if value is not None:
                reading[name] = value
        return reading

    return read
