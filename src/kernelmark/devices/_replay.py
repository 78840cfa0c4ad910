"""Replays on a GPU: captured graphs, launches queued behind a gate, or a runtime's own queue.

All put a pair of clock stamps around the launches, on every unit, so that each replay knows the
core clock it ran at. The stamps' cost is fixed, and cancels between replays of N and 2N launches.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Sequence

import numpy as np

from kernelmark.core.timing import Timer
from kernelmark.devices.base import Buffer, Launch, OwnQueue, Reading, Replay
from kernelmark.gpu.driver import Driver, pack

_u32, _u64, _ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
# Cycles after which a gate opens by itself: seconds, so that a lost host cannot hang the GPU.
_GATE_CYCLES = 8_000_000_000


class Stamps:
    """Core and wall clocks of every unit, before and after."""

    def __init__(
        self,
        driver: Driver,
        function: int,
        buffer: Buffer,
        slots: int,
        wall_khz: float,
        units: int,
    ) -> None:
        self._driver = driver
        self._function = function
        self._address = buffer.address
        self._slots = slots
        self._wall_khz = wall_khz
        self._units = units
        self._host = np.zeros((2, slots, 2), np.uint64)

    def enqueue(self, stream: int, place: int) -> None:
        """Write the clocks into place 0 (before) or 1 (after)."""
        address = self._address + place * self._slots * 16
        # Several blocks a unit, so that every unit gets one.
        self._driver.launch(
            self._function,
            (self._units * 2, 1, 1),
            (32, 1, 1),
            pack(_ptr(address), _u32(self._slots)),
            stream,
        )

    def clock_mhz(self) -> float | None:
        """The mean core clock of the units between the stamps."""
        raw = self._host
        self._driver.copy_to_host(raw.ctypes.data, self._address, raw.nbytes)
        seen = (raw[0, :, 1] > 0) & (raw[1, :, 1] > raw[0, :, 1]) & (raw[1, :, 0] > raw[0, :, 0])
        if not seen.any():
            return None
        core = (raw[1, seen, 0] - raw[0, seen, 0]).astype(np.float64)
        wall_s = (raw[1, seen, 1] - raw[0, seen, 1]).astype(np.float64) / (self._wall_khz * 1e3)
        return float(core.sum() / wall_s.sum()) / 1e6


class Gate:
    """A flag in host memory that a waiting kernel watches."""

    def __init__(self, driver: Driver, function: int) -> None:
        self._driver = driver
        self._function = function
        self._host = driver.host_allocate(4)
        self._device = driver.host_device_pointer(self._host)
        self._flag = ctypes.c_uint32.from_address(self._host)

    def close_behind(self, stream: int) -> None:
        """Hold the stream until `open`."""
        self._flag.value = 0
        arguments = pack(_ptr(self._device), _u64(_GATE_CYCLES))
        self._driver.launch(self._function, (1, 1, 1), (1, 1, 1), arguments, stream)

    def open(self) -> None:
        self._flag.value = 1

    def close(self) -> None:
        """Give its memory back; nothing may be waiting behind it."""
        self._driver.host_free(self._host)


class _TimedReplay(Replay):
    """Two events around what a subclass enqueues."""

    def __init__(self, driver: Driver, stream: int, launches: int, stamps: Stamps) -> None:
        self.launches = launches
        self._driver = driver
        self._stream = stream
        self._stamps = stamps
        self._start, self._end = driver.event(), driver.event()

    def close(self) -> None:
        for event in (self._start, self._end):
            self._driver.destroy("event", event)


class GraphReplay(_TimedReplay):
    """Launches captured once as a graph and replayed: no launch cost between them."""

    method = Timer.GRAPH

    def __init__(
        self, driver: Driver, stream: int, launch: Launch, order: Sequence[int], stamps: Stamps
    ) -> None:
        graph = _capture(driver, stream, launch, order, stamps)
        try:
            self._executable = driver.instantiate(graph)
        finally:
            driver.destroy("graph", graph)
        super().__init__(driver, stream, len(order), stamps)

    def run(self) -> Reading:
        driver, stream = self._driver, self._stream
        driver.record(self._start, stream)
        driver.launch_graph(self._executable, stream)
        driver.record(self._end, stream)
        elapsed_s = driver.elapsed_s(self._start, self._end)
        return Reading(elapsed_s=elapsed_s, clock_mhz=self._stamps.clock_mhz())

    def close(self) -> None:
        super().close()
        self._driver.destroy("graph_exec", self._executable)


def capture(driver: Driver, stream: int, launch: Launch, order: Sequence[int]) -> int:
    """A graph of bare launches, without stamps."""
    return _capture(driver, stream, launch, order, None)


def _capture(
    driver: Driver, stream: int, launch: Launch, order: Sequence[int], stamps: Stamps | None
) -> int:
    # A collection during capture may unload a module and so invalidate the graph.
    collecting = gc.isenabled()
    gc.disable()
    try:
        driver.begin_capture(stream)
        try:
            if stamps:
                stamps.enqueue(stream, 0)
            for set_index in order:
                launch(stream, set_index)
            if stamps:
                stamps.enqueue(stream, 1)
        except BaseException:
            with contextlib.suppress(Exception):
                driver.destroy("graph", driver.end_capture(stream))
            raise
        return driver.end_capture(stream)
    finally:
        if collecting:
            gc.enable()


class GateReplay(_TimedReplay):
    """Launches queued while a gate holds the stream, so that the host's pace does not show."""

    method = Timer.GATE

    def __init__(
        self,
        driver: Driver,
        stream: int,
        launch: Launch,
        order: Sequence[int],
        stamps: Stamps,
        gate: Gate,
    ) -> None:
        super().__init__(driver, stream, len(order), stamps)
        self._launch = launch
        self._order = tuple(order)
        self._gate = gate

    def run(self) -> Reading:
        driver, stream = self._driver, self._stream
        self._gate.close_behind(stream)
        try:
            driver.record(self._start, stream)
            self._stamps.enqueue(stream, 0)
            for set_index in self._order:
                self._launch(stream, set_index)
            self._stamps.enqueue(stream, 1)
            driver.record(self._end, stream)
        finally:
            self._gate.open()
        elapsed_s = driver.elapsed_s(self._start, self._end)
        return Reading(elapsed_s=elapsed_s, clock_mhz=self._stamps.clock_mhz())


class QueueReplay(Replay):
    """Launches on a runtime's own queue, by the host's clock: what it costs to fill the queue and
    to see its end is fixed, but a kernel shorter than its launch is timed at the host's pace."""

    method = Timer.LOOP

    def __init__(
        self, driver: Driver, stream: int, queue: OwnQueue, order: Sequence[int], stamps: Stamps
    ) -> None:
        self.launches = len(order)
        self._driver = driver
        self._stream = stream
        self._queue = queue
        self._order = tuple(order)
        self._stamps = stamps

    def run(self) -> Reading:
        self._stamp(0)
        elapsed_s = self._queue.replay_s(self._order)
        self._stamp(1)
        return Reading(elapsed_s=elapsed_s, clock_mhz=self._stamps.clock_mhz())

    def _stamp(self, place: int) -> None:
        self._stamps.enqueue(self._stream, place)
        self._driver.call("stream_synchronize", _ptr(self._stream))
