"""GpuKind: list and open the GPUs of one vendor."""

from __future__ import annotations

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import CaseError, UsageError
from kernelmark.core.reason import Reason
from kernelmark.devices.base import Device, DeviceKind
from kernelmark.gpu import pack, rtc
from kernelmark.gpu.driver import Driver, driver, unavailable


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
            raise UsageError(Reason("device-unusable", device=self.name, cause=reason))
        gpus = driver(self.name)
        if not 0 <= index < gpus.count():
            raise UsageError(
                Reason("device-missing", device=f"{self.name}:{index}"),
                hint=f"this machine has {self.name}:0 to {self.name}:{gpus.count() - 1}",
            )
        info = _info(gpus, index)
        if info.unusable:
            raise UsageError(Reason("device-unusable", device=info.name, cause=info.unusable))
        return _gpu.GpuDevice(gpus, index)

    def worker_variables(self, index: int, threads: int) -> dict[str, str]:
        # References are computed while the GPU is timed: a BLAS that spins on every core would
        # delay the launching thread.
        return {"OPENBLAS_NUM_THREADS": "1"}


def _info(gpus: Driver, index: int) -> DeviceInfo:
    """Return a device's facts. A device that fails is listed as unusable, so that the others are
    still listed."""
    from kernelmark.devices._gpu_kind import info

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
