"""Device facts from a vendor's driver."""

from __future__ import annotations

from kernelmark.core.environment import DeviceInfo
from kernelmark.gpu.driver import Driver

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

# Memory-side caches that the L2 attribute does not count, by architecture (vendor's figures).
_MEMORY_SIDE_CACHE = {
    "gfx942": 256 * 2**20,
    "gfx950": 256 * 2**20,
    "gfx1030": 128 * 2**20,
    "gfx1100": 96 * 2**20,
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
        attributes={word: str(driver.attribute(index, word)) for word in _FACTS},
    )
