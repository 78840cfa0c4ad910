"""GpuKind: list and open the GPUs of one vendor."""

from __future__ import annotations

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, UsageError
from kernelmark.devices.base import Device, DeviceKind
from kernelmark.gpu import pack, rtc
from kernelmark.gpu.driver import Driver, driver, unavailable


class GpuKind(DeviceKind):
    """The GPUs that are visible to this process, by the driver's own indices."""

    def __init__(self, vendor: str) -> None:
        self.name = vendor

    def available(self) -> str | None:
        reason = unavailable(self.name)
        if reason is not None:
            return reason
        # Kernels compiled ahead do without a compiler.
        prepared = pack.holds("sm_" if self.name == "cuda" else "gfx")
        return None if prepared else rtc.unavailable(self.name)

    def infos(self) -> list[DeviceInfo]:
        if unavailable(self.name):
            return []
        found = driver(self.name)
        return [_info(found, index) for index in range(found.count())]

    def open(self, index: int, threads: int = 0) -> Device:
        from kernelmark.devices import _gpu

        reason = self.available()
        if reason:
            raise UsageError(f"{self.name}: {reason}")
        found = driver(self.name)
        if not 0 <= index < found.count():
            raise UsageError(
                f"there is no device {self.name}:{index}",
                hint=f"this machine has {self.name}:0 to {self.name}:{found.count() - 1}",
            )
        known = _info(found, index)
        if known.unusable:
            raise UsageError(f"{known.name} is {known.model}")
        return _gpu.GpuDevice(found, index)

    def worker_variables(self, index: int, threads: int) -> dict[str, str]:
        # References are computed beside what is timed: a BLAS that spins on every core would
        # keep the launching thread waiting.
        return {"OPENBLAS_NUM_THREADS": "1"}


def _info(found: Driver, index: int) -> DeviceInfo:
    """What the driver says of a device; one that does not answer must not hide the others."""
    from kernelmark.devices._gpu_info import info

    try:
        return info(found, index)
    except CaseError as error:
        vendor, reason = found.table.vendor, error.message
        return DeviceInfo(
            name=f"{vendor}:{index}",
            kind=vendor,
            model=f"unusable: {reason}",
            arch="",
            index=index,
            attributes={"unusable": reason},
        )
