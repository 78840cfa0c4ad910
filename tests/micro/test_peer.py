"""What is sent between GPUs is what was written, in the order of the sender's stream."""

from __future__ import annotations

import pytest

from kernelmark.core.result import Status
from kernelmark.gpu.driver import Driver
from kernelmark.micro import registry
from kernelmark.micro.execute import execute, open_rig
from kernelmark_dev import emulator

pytestmark = pytest.mark.usefixtures("compiler")


def test_a_plain_copy_that_is_late_does_not_matter(tmp_path, monkeypatch):
    """From pageable memory it may return before the bytes are there, and no stream of our own
    waits for them."""
    late = []
    plain, call = Driver.copy_to_device, Driver.call

    def copy_to_device(self, *arguments):
        late.append(lambda: plain(self, *arguments))

    def with_late(self, word, *arguments):
        call(self, word, *arguments)
        if word == "stream_synchronize":
            while late:
                late.pop()()

    monkeypatch.setenv("KERNELMARK_CACHE", str(tmp_path))
    with emulator.emulated(devices=2, block=64):
        rig = open_rig("cuda:0")
        monkeypatch.setattr(Driver, "copy_to_device", copy_to_device)
        monkeypatch.setattr(Driver, "call", with_late)
        result = execute(registry.get("peer"), rig, "quick", {"nbytes": 2**20, "repeats": 2})
        rig.close()
    assert result.status is Status.OK, result.error
