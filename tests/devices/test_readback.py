"""Readback: asynchronous copies from the emulated GPU, and the reuse of their slots."""

from __future__ import annotations

import gc

import numpy as np

from kernelmark.devices._gpu import GpuDevice
from kernelmark.devices._gpu_memory import Readback

BYTES = 200_000


def filled(device: GpuDevice, byte: int) -> int:
    buffer = device.scratch(f"of {byte}", BYTES)
    device.driver.fill(buffer.address, byte, BYTES, device.stream)
    return buffer.address


def test_a_transfer_has_the_memory_as_it_was(gpu: GpuDevice) -> None:
    readback = Readback(gpu.driver, gpu.stream)
    address = filled(gpu, 7)
    first = readback.start(address, BYTES)
    gpu.driver.fill(address, 8, BYTES, gpu.stream)
    second = readback.start(address, 100)
    assert np.all(second() == 8)
    assert second().size == 100
    assert np.all(first() == 7)
    assert first().size == BYTES


def test_a_slot_is_reused_once_its_transfer_is_gone(gpu: GpuDevice) -> None:
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


def test_a_slot_goes_both_ways(gpu: GpuDevice) -> None:
    """What was written to it for the device is not overwritten before the device has read it."""
    readback = Readback(gpu.driver, gpu.stream)
    slot = readback.slot(64)
    slot.bytes[:64] = 9
    target = gpu.scratch("target", 64).address
    gpu._upload(target, slot.bytes[:64], gpu.stream)
    assert np.all(readback.start(target, 64, slot)() == 9)
