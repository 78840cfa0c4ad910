"""Large buffers of the CPU that are kept for the next one."""

import numpy as np
import pytest

from kernelmark.core.errors import OutOfMemory
from kernelmark.devices import cpu
from kernelmark.devices._host import MIN_BYTES, PagePool
from kernelmark.devices.cpu import CpuDevice


@pytest.fixture
def device():
    made = CpuDevice()
    yield made
    made.close()


def test_large_buffers_are_used_again(device, monkeypatch):
    monkeypatch.setattr(cpu, "available_memory", lambda: 2**40)  # other processes take some, too
    first = device.allocate(MIN_BYTES)
    address, free = first.address, device.free_bytes()
    first.array[:] = 7
    device.free(first)
    assert device.free_bytes() >= free + MIN_BYTES  # what is kept counts as free
    again = device.allocate(MIN_BYTES + 1000)
    assert again.address == address
    assert again.nbytes == again.array.size == MIN_BYTES + 1000
    other = device.allocate(MIN_BYTES)
    assert other.address != address


def test_small_buffers_are_fresh(device):
    small = device.allocate(4096)
    small.array[:] = 7
    device.free(small)
    assert small.array.size == 0
    assert not device.allocate(4096).array.any()


def test_two_are_kept_the_larger_ones():
    pool = PagePool()
    made = [cpu.HostBuffer(MIN_BYTES * n) for n in (3, 1, 2)]
    for buffer in made:
        pool.put(buffer)
    assert pool.nbytes == 5 * MIN_BYTES
    assert pool.take(MIN_BYTES) is made[2]
    assert pool.take(4 * MIN_BYTES) is None
    pool.clear()
    assert pool.nbytes == 0


def test_what_is_kept_is_given_back_when_memory_is_short(device, monkeypatch):
    device.free(device.allocate(MIN_BYTES))
    kept = device._pages
    monkeypatch.setattr(
        cpu, "available_memory", lambda: device._spare + MIN_BYTES * (1 if kept.nbytes else 2)
    )
    large = device.allocate(MIN_BYTES + MIN_BYTES // 4)  # more than is free beside what is kept
    assert device._pages.nbytes == 0
    assert large.nbytes == MIN_BYTES + MIN_BYTES // 4


def test_too_much_memory_is_refused(device, monkeypatch):
    monkeypatch.setattr(cpu, "available_memory", lambda: device._spare + MIN_BYTES)
    with pytest.raises(OutOfMemory) as refused:
        device.allocate(2 * MIN_BYTES)
    assert refused.value.message.code == "out-of-memory"


def test_eviction_reads_on_every_core(device):
    before = {*cpu.os.sched_getaffinity(0)}
    device.evict_cache()
    assert {*cpu.os.sched_getaffinity(0)} == before
    assert device._evictor.array.view(np.uint8).min() == 1
