"""Clocks, power, temperature, energy and throttle reasons, from the driver's management library.

NVML is called through ctypes: it comes with the driver, so nothing has to be installed. AMD SMI is
used through its Python package, because its C structures change between releases: an installed one,
else that in a ROCm's share folder. Without it, the kernel driver's files are read, which have no
energy and no reasons for throttling.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernelmark.core.result import Telemetry
from kernelmark.gpu import rocm

Reader = Callable[[], Telemetry]

_MOST_PROCESSES = 64
# Bits of nvmlClocksEventReasons. Left out are 0x1 (idle) and 0x2 (clocks set by the user), which do
# not disturb a measurement.
_NVML_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
_SM, _MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
# Accumulated time since start-up that an AMD GPU was throttled, by reason.
_AMD_REASONS = {
    "prochot_residency_acc": "processor hot",
    "ppt_residency_acc": "power cap",
    "socket_thm_residency_acc": "thermal (socket)",
    "vr_thm_residency_acc": "thermal (voltage regulator)",
    "hbm_thm_residency_acc": "thermal (memory)",
}
_AMD_STATUS = ("throttle_status", "indep_throttle_status")


_PCI = Path("/sys/bus/pci/devices")
# The libraries refresh power and clocks about this often, and a reading takes milliseconds.
REFRESH_S = 0.1


def watcher(vendor: str, uuid: str, bus_id: Callable[[], str]) -> Watcher:
    """Return a reader of the device's state; its telemetry is empty if nothing can be read."""
    if vendor == "cuda":
        # Initialising NVML takes tens of milliseconds; the host prepares blocks meanwhile.
        reader = _background().submit(_nvml_reader, uuid)
        return Watcher(lambda: (reader.result() or Telemetry)())
    if amd := _amd_reader(bus_id):
        return Watcher(amd, amd.ended)
    return Watcher(_sysfs_reader(bus_id) or Telemetry)


class Watcher:
    """Reads telemetry while timed work runs; returns the last reading if the library has not
    refreshed its values since."""

    def __init__(
        self, read: Reader, ended: Callable[[Telemetry], Telemetry] = lambda begun: begun
    ) -> None:
        self._read = read
        self._ended = ended
        self._pending: Future[Telemetry] | None = None
        self._at = 0.0

    def begin(self) -> None:
        """Start a reading, unless one is in progress or the last is recent enough."""
        now = time.monotonic()
        if self._pending is None or (self._pending.done() and now - self._at >= REFRESH_S):
            self._pending, self._at = _background().submit(self._read), now

    def read(self) -> Telemetry:
        """Wait for the last reading, and add the values that are known only at its end."""
        if self._pending is None:
            self.begin()
        assert self._pending is not None
        return self._ended(self._pending.result())


@functools.cache
def _background() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="telemetry")


@functools.cache
def _nvml() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library


def _nvml_reader(uuid: str) -> Reader | None:
    library = _nvml()
    handle = None if library is None else _nvml_device(library, uuid)
    if library is None or handle is None:
        return None
    return functools.partial(_read_nvml, library, handle)


def _nvml_device(library: ctypes.CDLL, uuid: str) -> ctypes.c_void_p | None:
    # NVML takes the driver's 16 bytes in groups of 8, 4, 4, 4 and 12 digits.
    parts = (uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])
    handle = ctypes.c_void_p()
    name = ("GPU-" + "-".join(parts)).encode()
    return None if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) else handle


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, from version 2 of the query on."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def compute_processes(uuid: str) -> tuple[int, ...]:
    """Return the PIDs, in the host's namespace, of processes with a CUDA context on a GPU; ()
    without NVML."""
    library = _nvml()
    handle = None if library is None else _nvml_device(library, uuid)
    if library is None or handle is None:
        return ()
    count = ctypes.c_uint(_MOST_PROCESSES)
    processes = (_ProcessInfo * _MOST_PROCESSES)()
    try:
        code = library.nvmlDeviceGetComputeRunningProcesses_v3(
            handle, ctypes.byref(count), ctypes.byref(processes)
        )
    except AttributeError:  # a driver older than 510
        return ()
    return () if code else tuple(item.pid for item in processes[: count.value])


def _read_nvml(library: ctypes.CDLL, handle: ctypes.c_void_p) -> Telemetry:
    def number(function: str, kind: Any, *arguments: int) -> float | None:
        value = kind()
        try:
            code = library[function](handle, *arguments, ctypes.byref(value))
        except AttributeError:
            return None
        return None if code else float(value.value)

    power = number("nvmlDeviceGetPowerUsage", ctypes.c_uint)
    energy = number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
    reasons = number("nvmlDeviceGetCurrentClocksEventReasons", ctypes.c_ulonglong)
    if reasons is None:  # the name in older drivers
        reasons = number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
    mask = int(reasons or 0)
    # NVML counts milliwatts and millijoules.
    return Telemetry(
        clock_mhz=number("nvmlDeviceGetClockInfo", ctypes.c_uint, _SM),
        memory_clock_mhz=number("nvmlDeviceGetClockInfo", ctypes.c_uint, _MEMORY),
        power_w=None if power is None else power / 1e3,
        temperature_c=number("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
        energy_j=None if energy is None else energy / 1e3,
        throttle=tuple(text for bit, text in _NVML_REASONS.items() if mask & bit),
    )


def _amd_reader(bus_id: Callable[[], str]) -> _AmdReader | None:
    try:
        amdsmi = _amdsmi()  # raises KeyError without its C library
        amdsmi.amdsmi_init()
        address = bus_id().lower()
        # Matched by bus id: HIP_VISIBLE_DEVICES renumbers HIP's devices but not AMD SMI's.
        for handle in amdsmi.amdsmi_get_processor_handles():
            if amdsmi.amdsmi_get_gpu_device_bdf(handle).lower() == address:
                return _AmdReader(amdsmi, handle)
    except Exception:
        return None
    return None


def _amdsmi() -> Any:
    """Import AMD SMI; raise ImportError without it."""
    folder = rocm.python_folder("amd_smi")
    path = [*sys.path, *([str(folder)] if folder else [])]
    sys.path, before = path, sys.path
    try:
        return importlib.import_module("amdsmi")
    finally:
        sys.path = before


def _sysfs_reader(bus_id: Callable[[], str]) -> Reader | None:
    try:
        (folder,) = (_PCI / bus_id().lower() / "hwmon").iterdir()
    except Exception:  # no such files, or no bus id
        return None
    return functools.partial(_read_sysfs, folder)


def _read_sysfs(folder: Path) -> Telemetry:
    """Read amdgpu's hwmon files: hertz, microwatts and thousandths of a degree."""

    def number(scale: float, *names: str) -> float | None:
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                return float((folder / name).read_text(encoding="ascii")) * scale
        return None

    return Telemetry(
        clock_mhz=number(1e-6, "freq1_input"),
        memory_clock_mhz=number(1e-6, "freq2_input"),
        # GPUs report the average, the momentary power, or both.
        power_w=number(1e-6, "power1_input", "power1_average"),
        # The hot spot; some GPUs have only the edge.
        temperature_c=number(1e-3, "temp2_input", "temp1_input"),
    )


class _AmdReader:
    """Reads an AMD GPU's telemetry and keeps its accumulated throttle times."""

    def __init__(self, amdsmi: Any, handle: Any) -> None:
        self._amdsmi = amdsmi
        self._handle = handle
        self._throttled: dict[str, float] = {}

    def __call__(self) -> Telemetry:
        metrics = self._metrics()
        self._throttled = _amd_throttled(metrics)
        number = functools.partial(_amd_number, metrics)
        energy = number("energy_accumulator")
        return Telemetry(
            clock_mhz=number("current_gfxclk", "average_gfxclk_frequency", "current_gfxclks"),
            memory_clock_mhz=number("current_uclk", "average_uclk_frequency"),
            power_w=number("current_socket_power", "average_socket_power"),
            temperature_c=number("temperature_hotspot", "temperature_edge"),
            # The accumulator counts steps of 15.259 µJ.
            energy_j=None if energy is None else energy * 15.259e-6,
            # Always 0 from MI300 on; older GPUs report throttling only here.
            throttle=("throttled",) if any(map(number, _AMD_STATUS)) else (),
        )

    def ended(self, begun: Telemetry) -> Telemetry:
        """Return the reading with the reasons for throttling since it began."""
        before, self._throttled = self._throttled, _amd_throttled(self._metrics())
        grown = [name for name, time in self._throttled.items() if time > before.get(name, time)]
        reasons = tuple(_AMD_REASONS[name] for name in grown)
        return dataclasses.replace(begun, throttle=reasons or begun.throttle)

    def _metrics(self) -> dict[str, Any]:
        try:
            return dict(self._amdsmi.amdsmi_get_gpu_metrics_info(self._handle))
        except Exception:
            return {}


def _amd_throttled(metrics: dict[str, Any]) -> dict[str, float]:
    reported = {name: _amd_number(metrics, name) for name in _AMD_REASONS}
    return {name: time for name, time in reported.items() if time is not None}


def _amd_number(metrics: dict[str, Any], *names: str) -> float | None:
    """Return the first of the fields `names` that the GPU reports."""
    for name in names:
        value = metrics.get(name)
        if isinstance(value, list):
            value = next((v for v in value if isinstance(v, int | float)), None)
        # All bits set and "N/A" both mean that the GPU does not report the field.
        if isinstance(value, int | float) and value not in (0xFFFF, 0xFFFFFFFF, 2**64 - 1):
            return float(value)
    return None
