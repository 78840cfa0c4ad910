"""Listing GPUs of which one does not answer."""

import pytest

from kernelmark import devices
from kernelmark.cli.store import listing
from kernelmark.core.errors import OutOfMemory, UsageError
from kernelmark.gpu.driver import Driver, GpuError
from kernelmark_dev.emulator import emulated
from kernelmark_dev.raising import raises


@pytest.fixture
def kind(monkeypatch):
    """Two GPUs, the first of which has fallen off its bus."""
    plain = Driver.total_bytes

    def total_bytes(self, index):
        if index == 0:
            raise GpuError("cuDeviceTotalMem_v2 failed: CUDA_ERROR_UNKNOWN (no text)", code=999)
        return plain(self, index)

    monkeypatch.setattr(Driver, "total_bytes", total_bytes)
    with emulated(devices=2):
        yield devices.registry.get("cuda")


def test_one_that_does_not_answer_is_listed_with_its_reason(kind):
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


def test_one_that_does_not_answer_is_not_opened(kind):
    with raises(UsageError, device="cuda:0"):
        kind.open(0)
    kind.open(1).close()


def test_a_gpu_that_is_full_is_unusable_too(kind, monkeypatch):
    def total_bytes(self, index):
        raise OutOfMemory("cuDeviceTotalMem_v2 failed: out of memory")

    monkeypatch.setattr(Driver, "total_bytes", total_bytes)
    assert all(info.unusable for info in kind.infos())
