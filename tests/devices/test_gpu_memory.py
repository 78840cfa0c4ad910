"""Copies to the host, and clock stamps."""

import ctypes
import gc
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from kernelmark.devices._gpu_memory import Readback
from kernelmark.devices._replay import Stamps
from kernelmark.gpu.driver import Driver

BYTES = 200_000


def filled(device, byte):
    buffer = device.scratch(f"of {byte}", BYTES)
    device.driver.fill(buffer.address, byte, BYTES, device.stream)
    return buffer.address


def test_a_transfer_has_the_memory_as_it_was(gpu):
    readback = Readback(gpu.driver, gpu.stream)
    address = filled(gpu, 7)
    first = readback.start(address, BYTES)
    gpu.driver.fill(address, 8, BYTES, gpu.stream)
    second = readback.start(address, 100)
    assert np.all(second() == 8)
    assert second().size == 100
    assert np.all(first() == 7)
    assert first().size == BYTES


def test_a_slot_is_reused_once_its_transfer_is_gone(gpu):
    readback = Readback(gpu.driver, gpu.stream)
    transfers = [readback.start(filled(gpu, byte), 64) for byte in (1, 2)]
    slots = {transfer._slot.address for transfer in transfers}
    assert len(slots) == 2
    del transfers  # unread
    gc.collect()
    again = [readback.start(filled(gpu, byte), 64) for byte in (3, 4)]
    assert {transfer._slot.address for transfer in again} == slots
    assert [int(transfer()[0]) for transfer in again] == [3, 4]
    larger = readback.start(filled(gpu, 5), BYTES)
    assert larger._slot.address not in slots


def test_a_slot_goes_both_ways(gpu):
    """What was written to it for the device is not overwritten before the device has read it."""
    readback = Readback(gpu.driver, gpu.stream)
    slot = readback.slot(64)
    slot.bytes[:64] = 9
    target = gpu.scratch("target", 64).address
    gpu._upload(target, slot.bytes[:64], gpu.stream)
    assert np.all(readback.start(target, 64, slot)() == 9)


UNITS = 4
MHZ = 1500.0


class Memory:
    """The stamps' memory and a device whose units run at `MHZ` while a replay runs, and whose core
    clocks stand still between replays."""

    def __init__(self):
        self.data = np.zeros(Stamps.nbytes(UNITS) // 8, np.uint64)
        self.core = self.wall = 10**6
        self.kept = 0

    def start(self, source, nbytes):
        found = np.frombuffer(ctypes.string_at(source, nbytes), np.uint8)
        return lambda: found

    @property
    def pairs(self):
        return self.data.reshape(-1, 2, UNITS, 2)

    def replay(self, nanoseconds, missing=(), mhz=(MHZ,) * UNITS, keep=False):
        """Stamps around a replay, but those of `missing`: (before or after, unit)."""
        self.wall += 10**7  # it rests before
        for place in (0, 1):
            for unit in range(UNITS):
                if (place, unit) not in missing:
                    cycles = round(place * nanoseconds * mhz[unit] / 1e3)
                    self.pairs[0, place, unit] = self.core + cycles, self.wall + place * nanoseconds
        self.core += round(nanoseconds * MHZ / 1e3)
        self.wall += nanoseconds
        if keep:
            self.kept += 1
            self.pairs[self.kept] = self.pairs[0]


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def stamps(memory):
    buffer = SimpleNamespace(address=memory.data.ctypes.data, nbytes=memory.data.nbytes)
    return Stamps(cast(Driver, None), cast(Readback, memory), 0, buffer, UNITS, 1e6, UNITS)


def test_the_clock_is_the_mean_of_the_units(memory, stamps):
    memory.replay(200_000, mhz=(1500.0, 1500.0, 1540.0, 1580.0))
    assert stamps.clock_mhz() == pytest.approx(1530.0)


def test_units_that_never_wrote_say_nothing(memory, stamps):
    assert stamps.clock_mhz() is None
    memory.replay(200_000, missing=((0, 0), (1, 0), (1, 2), (0, 3)))
    assert stamps.clock_mhz() == pytest.approx(MHZ)


@pytest.mark.parametrize("missing", [((0, 1),), ((1, 1),), ((0, 1), (1, 1))])
def test_a_stamp_of_the_replay_before_says_nothing(memory, stamps, missing):
    memory.replay(200_000, mhz=(MHZ, 1200.0, MHZ, MHZ))
    stamps.clock_mhz()
    memory.replay(200_000, missing)
    assert stamps.clock_mhz() == pytest.approx(MHZ)
    # Also where every unit missed one: then nobody knows the clock.
    memory.replay(200_000, tuple((0, unit) for unit in range(UNITS)))
    assert stamps.clock_mhz() is None


def test_kept_stamps_are_compared_with_the_pair_before(memory, stamps):
    memory.replay(100_000)
    stamps.clock_mhz()
    for missing in (((0, 0),), (), ((0, 1), (1, 2)), tuple((1, unit) for unit in range(UNITS))):
        memory.replay(100_000, missing, keep=True)
    assert stamps.kept_clocks(4)() == [pytest.approx(MHZ)] * 3 + [None]
    memory.replay(100_000, ((0, 2),))
    assert stamps.clock_mhz() == pytest.approx(MHZ)


def test_a_stamp_of_a_replay_that_nobody_read_is_left_out(memory, stamps):
    """What is run ahead is not read; a unit that rested since is far from the others."""
    memory.replay(100_000)
    memory.replay(100_000, ((0, 1),))
    assert stamps.clock_mhz() == pytest.approx(MHZ)
