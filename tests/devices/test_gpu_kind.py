"""Listing GPUs of which one does not answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelmark import devices
from kernelmark.cli import listing
from kernelmark.core.errors import OutOfMemory, UsageError
from kernelmark.devices.base import DeviceKind
from kernelmark.gpu.driver import Driver, GpuError
from kernelmark_dev.emulator import emulated
from kernelmark_dev.raising import raises


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceKind]:
    """Two GPUs, the first of which has fallen off its bus."""
    plain = Driver.total_bytes

    def total_bytes(self: Driver, index: int) -> int:
        if index == 0:
            raise GpuError("cuDeviceTotalMem_v2 failed: CUDA_ERROR_UNKNOWN (no text)", code=999)
        return plain(self, index)

    monkeypatch.setattr(Driver, "total_bytes", total_bytes)
    with emulated(devices=2):
        yield devices.registry.get("cuda")


def test_one_that_does_not_answer_is_listed_with_its_reason(kind: DeviceKind) -> None:
    broken, fine = kind.infos()
    assert (broken.name, broken.index, fine.name, fine.index) == ("cuda:0", 0, "cuda:1", 1)
    reason = "cuDeviceTotalMem_v2 failed: CUDA_ERROR_UNKNOWN (no text)"
    assert broken.model == f"unusable: {reason}"
    assert broken.unusable == reason
    assert fine.arch == "sm_90"
    assert not fine.unusable
    rows = {row[0]: row for row in listing.table("devices").rows}
    assert reason in rows["cuda:0"][-1]
    assert rows["cuda:1"][1] == rows["cpu"][1] == "yes"


def test_one_that_does_not_answer_is_not_opened(kind: DeviceKind) -> None:
    with raises(UsageError, device="cuda:0"):
        kind.open(0)
    kind.open(1).close()


def test_a_gpu_that_is_full_is_unusable_too(
    kind: DeviceKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def total_bytes(self: Driver, index: int) -> int:
        raise OutOfMemory("cuDeviceTotalMem_v2 failed: out of memory")

    monkeypatch.setattr(Driver, "total_bytes", total_bytes)
    assert all(info.unusable for info in kind.infos())
