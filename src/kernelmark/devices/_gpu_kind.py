"""GpuKind: list and open the GPUs of one vendor."""

from __future__ import annotations

import contextlib
from pathlib import Path

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, UsageError
from kernelmark.devices.base import Device, DeviceKind
from kernelmark.gpu import pack, rtc
from kernelmark.gpu.driver import Driver, GpuError, driver, unavailable


class GpuKind(DeviceKind):
    """The GPUs that are visible to this process, by the driver's indices."""

    def __init__(self, vendor: str) -> None:
        self.name = vendor

    def available(self) -> str | None:
        reason = unavailable(self.name)
        if reason is not None:
            return reason
        # A precompiled bundle needs no run-time compiler.
        has_bundle = pack.holds("sm_" if self.name == "cuda" else "gfx")
        return None if has_bundle else rtc.unavailable(self.name)

    def infos(self) -> list[DeviceInfo]:
        if unavailable(self.name):
            return []
        gpus = driver(self.name)
        return [_info(gpus, index) for index in range(gpus.count())]

    def open(self, index: int, threads: int = 0) -> Device:
        from kernelmark.devices import _gpu

        reason = self.available()
        if reason:
            raise UsageError(f"{self.name} cannot be used: {reason}")
        gpus = driver(self.name)
        if not 0 <= index < gpus.count():
            raise UsageError(
                f"there is no device '{self.name}:{index}'",
                hint=f"this machine has {self.name}:0 to {self.name}:{gpus.count() - 1}",
            )
        info = _info(gpus, index)
        if info.unusable:
            raise UsageError(f"{info.name} cannot be used: {info.unusable}")
        return _gpu.GpuDevice(gpus, index)

    def worker_variables(self, index: int, threads: int) -> dict[str, str]:
        # References are computed while the GPU is timed: a BLAS that spins on every core would
        # delay the launching thread.
        return {"OPENBLAS_NUM_THREADS": "1"}


def _info(gpus: Driver, index: int) -> DeviceInfo:
    """Return a device's facts. A device that fails is listed as unusable, so that the others are
    still listed."""
    try:
        return info(gpus, index)
    except CaseError as error:
        vendor, reason = gpus.table.vendor, error.message
        return DeviceInfo(
            name=f"{vendor}:{index}",
            kind=vendor,
            model=f"unusable: {reason}",
            arch="",
            index=index,
            attributes={"unusable": reason},
        )


_FACTS = (
    "clock_khz",
    "memory_clock_khz",
    "bus_bits",
    "ecc",
    "shared_per_block",
    "shared_per_unit",
    "registers_per_unit",
    "threads_per_unit",
    "warp_size",
    "managed",
    "concurrent_managed",
    "pageable_access",
)

_PCI = Path("/sys/bus/pci/devices")
# Memory-side caches that the L2 attribute does not count, by architecture: the largest of its
# GPUs, from ROCm's table of GPU specifications.
_MEMORY_SIDE_CACHE = {
    "gfx942": 256 * 2**20,
    "gfx950": 256 * 2**20,
    "gfx1030": 128 * 2**20,
    "gfx1031": 96 * 2**20,
    "gfx1032": 32 * 2**20,
    "gfx1100": 96 * 2**20,
    "gfx1101": 64 * 2**20,
    "gfx1102": 32 * 2**20,
    "gfx1151": 32 * 2**20,
    "gfx1200": 32 * 2**20,
    "gfx1201": 64 * 2**20,
}


def info(driver: Driver, index: int) -> DeviceInfo:
    """Return the facts of device `index`."""
    arch = driver.arch(index)
    vendor = driver.table.vendor
    return DeviceInfo(
        name=f"{vendor}:{index}",
        kind=vendor,
        model=driver.name(index),
        arch=arch,
        index=index,
        units=driver.attribute(index, "units"),
        memory_bytes=driver.total_bytes(index),
        cache_bytes=driver.attribute(index, "l2_bytes") + _MEMORY_SIDE_CACHE.get(arch, 0),
        driver=driver.driver_version(),
        uuid=driver.uuid(index),
        attributes={
            **{name: str(driver.attribute(index, name)) for name in _FACTS},
            **(_amd_facts(driver, index) if vendor == "hip" else {}),
        },
    )


def _amd_facts(driver: Driver, index: int) -> dict[str, str]:
    """Return target features, chiplets, and the compute (SPX … CPX) and memory (NPS1 … NPS4)
    partitioning, which changes a device's speed and size severalfold. Facts that the driver does
    not report are left out."""
    facts = {"features": driver.full_arch(index).partition(":")[2]}
    with contextlib.suppress(GpuError):
        facts["chiplets"] = str(driver.attribute(index, "chiplets"))
    with contextlib.suppress(GpuError, OSError):  # amdgpu's files may be missing in a container
        folder = _PCI / driver.bus_id(index).lower()
        for name in ("compute_partition", "memory_partition"):
            text = (folder / f"current_{name}").read_text(encoding="utf-8")
            facts[name] = text.strip()
    return facts
