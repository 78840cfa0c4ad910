"""Mailbox: what comes back from the model of a GPU without waiting, and what happens to slots."""

from __future__ import annotations

import gc

import numpy as np

from kernelmark.devices._gpu import GpuDevice
from kernelmark.devices._mailbox import Mailbox

BYTES = 200_000


def filled(device: GpuDevice, byte: int) -> int:
    buffer = device.scratch(f"of {byte}", BYTES)
    device.driver.fill(buffer.address, byte, BYTES, device.stream)
    return buffer.address


def test_letters_stand_for_the_memory_as_it_was(gpu: GpuDevice) -> None:
    mailbox = Mailbox(gpu.driver, gpu.stream)
    address = filled(gpu, 7)
    first = mailbox.send(address, BYTES)
    gpu.driver.fill(address, 8, BYTES, gpu.stream)
    second = mailbox.send(address, 100)
    assert np.all(second() == 8)
    assert second().size == 100
    assert np.all(first() == 7)
    assert first().size == BYTES


def test_a_slot_serves_again_once_its_letter_is_gone(gpu: GpuDevice) -> None:
    mailbox = Mailbox(gpu.driver, gpu.stream)
    letters = [mailbox.send(filled(gpu, byte), 64) for byte in (1, 2)]
    slots = {letter._slot.address for letter in letters}
    assert len(slots) == 2
    del letters  # unread
    gc.collect()
    again = [mailbox.send(filled(gpu, byte), 64) for byte in (3, 4)]
    assert {letter._slot.address for letter in again} == slots
    assert [int(letter()[0]) for letter in again] == [3, 4]
    larger = mailbox.send(filled(gpu, 5), BYTES)
    assert larger._slot.address not in slots


def test_a_slot_goes_both_ways(gpu: GpuDevice) -> None:
    """What was written to it for the device is not overwritten before the device has read it."""
    mailbox = Mailbox(gpu.driver, gpu.stream)
    slot = mailbox.slot(64)
    slot.bytes[:64] = 9
    target = gpu.scratch("target", 64).address
    gpu._upload(target, slot.bytes[:64], gpu.stream)
    assert np.all(mailbox.send(target, 64, slot)() == 9)
