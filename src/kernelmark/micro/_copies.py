"""Copies between host and GPU by the driver, timed on streams."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark.devices._gpu import GpuDevice

_P = ctypes.c_void_p
COPY_S = 1e-2  # length of a timing, so that its start-up is negligible


class Copier:
    """Pinned and pageable host memory, GPU memory, and two streams to copy on."""

    def __init__(self, device: GpuDevice, nbytes: int) -> None:
        self._device = device
        self._driver = device.driver
        self.nbytes = nbytes
        self._pinned = [self._driver.host_allocate(nbytes) for _ in range(2)]
        self.pageable: NDArray[np.uint8] = np.zeros(nbytes, np.uint8)
        self.device_memory = [device.allocate(nbytes) for _ in range(2)]
        self._second = self._driver.stream()
        for address in self._pinned:
            ctypes.memset(address, 1, nbytes)

    def pinned(self, which: int) -> NDArray[np.uint8]:
        """Return the pinned memory as an array."""
        view = (ctypes.c_uint8 * self.nbytes).from_address(self._pinned[which])
        return np.ctypeslib.as_array(view)

    def close(self) -> None:
        self._device.synchronize()
        self._driver.call("stream_synchronize", _P(self._second))
        self._driver.destroy("stream", self._second)
        for address in self._pinned:
            self._driver.host_free(address)
        for buffer in self.device_memory:
            self._device.free(buffer)

    # -- single copies; the asynchronous ones do not wait

    def to_device(self, nbytes: int, stream: int) -> None:
        target, source = self.device_memory[0].address, self._pinned[0]
        self._async("copy_to_device_async", target, source, nbytes, stream)

    def to_host(self, nbytes: int, stream: int) -> None:
        target, source = self._pinned[1], self.device_memory[1].address
        self._async("copy_to_host_async", target, source, nbytes, stream)

    def on_device(self, nbytes: int, stream: int) -> None:
        target, source = self.device_memory[0].address, self.device_memory[1].address
        self._async("copy_on_device_async", target, source, nbytes, stream)

    def _async(self, word: str, target: int, source: int, nbytes: int, stream: int) -> None:
        self._driver.call(word, _P(target), _P(source), ctypes.c_size_t(nbytes), _P(stream))

    # -- seconds of one copy

    def seconds(self, direction: str, memory: str, nbytes: int) -> float:
        """Return the seconds per copy: h2d, d2h, both (concurrently, one each way) or d2d."""
        if memory == "pageable":
            return self._pageable(direction, nbytes)
        if direction == "both":
            return self._both(nbytes)
        copy = {"h2d": self.to_device, "d2h": self.to_host, "d2d": self.on_device}[direction]
        stream = self._device.stream
        first = self._timed(lambda: copy(nbytes, stream), 1)
        return self._timed(lambda: copy(nbytes, stream), _repeats(first))

    def _timed(self, copy: Callable[[], None], repeats: int) -> float:
        """Return the seconds per copy between events around `repeats` copies, queued behind a
        gate."""
        driver, stream, gate = self._driver, self._device.stream, self._device._gate
        start, end = driver.event(), driver.event()
        gate.close_behind(stream)
        try:
            driver.record(start, stream)
            for _ in range(repeats):
                copy()
            driver.record(end, stream)
        finally:
            gate.open()
        elapsed = driver.elapsed_s(start, end)
        for event in (start, end):
            driver.destroy("event", event)
        return elapsed / repeats

    def _both(self, nbytes: int) -> float:
        """Time concurrent copies on two streams, one each way, with the host's clock: events on two
        streams have no common start and end."""
        stream = self._device.stream

        def once(repeats: int) -> float:
            begin = time.perf_counter()
            for _ in range(repeats):
                self.to_device(nbytes, stream)
                self.to_host(nbytes, self._second)
            self._device.synchronize()
            self._driver.call("stream_synchronize", _P(self._second))
            return (time.perf_counter() - begin) / repeats

        return once(_repeats(once(1)))

    def _pageable(self, direction: str, nbytes: int) -> float:
        memory = self.pageable.ctypes.data
        device = self.device_memory[0 if direction == "h2d" else 1].address

        def once(repeats: int) -> float:
            begin = time.perf_counter()
            for _ in range(repeats):
                if direction == "h2d":
                    self._driver.copy_to_device(device, memory, nbytes)
                else:
                    self._driver.copy_to_host(memory, device, nbytes)
            return (time.perf_counter() - begin) / repeats

        return once(_repeats(once(1)))

    # -- verification

    def check(self, seed: int) -> str | None:
        """Copy random bytes to the device and back on every path; return an error or None."""
        count = min(self.nbytes, 2**20)
        wanted = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
        stream = self._device.stream
        self.pinned(0)[:count] = wanted
        self.to_device(count, stream)
        self._device.synchronize()
        first, second = (buffer.address for buffer in self.device_memory)
        self._async("copy_on_device_async", second, first, count, stream)
        self.to_host(count, stream)
        self._device.synchronize()
        if not np.array_equal(self.pinned(1)[:count], wanted):
            return "what came back through pinned memory is not what was sent"
        self.pageable[:count] = wanted[::-1]
        self._driver.copy_to_device(first, self.pageable.ctypes.data, count)
        self.pageable[:count] = 0
        self._driver.copy_to_host(self.pageable.ctypes.data, first, count)
        if not np.array_equal(self.pageable[:count], wanted[::-1]):
            return "what came back through pageable memory is not what was sent"
        return None


def _repeats(first_s: float) -> int:
    return int(min(200, max(1, COPY_S / max(first_s, 1e-7))))


def as_gpu(device: Any) -> GpuDevice:
    assert isinstance(device, GpuDevice)
    return device
