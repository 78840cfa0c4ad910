"""Replays on a GPU: captured graphs, launches queued behind a gate, or a runtime's own queue.

Each replay stamps the clocks of every SM/CU before and after its launches, which gives the core
clock during the replay. The cost of the stamps is fixed and cancels between replays of N and 2N
launches.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.errors import Unsupported
from kernelmark.core.timing import Timer
from kernelmark.devices._gpu_memory import Readback
from kernelmark.devices.base import (
    BeforeReplay,
    Buffer,
    Deferred,
    Launch,
    OwnQueue,
    Reading,
    Replay,
)
from kernelmark.gpu.driver import Driver, pack

_u32, _u64, _ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
# Bound here, before a kernel file is imported that may replace it in `time`.
_CLOCK = time.perf_counter
# Maximum replays enqueued at once; the device keeps the stamps of this many.
ROOM = 64
# Cycles after which a gate opens without the host, so that a host that died cannot hang the GPU. On
# any GPU that is at least _GATE_HOLDS_S.
_GATE_CYCLES = 8_000_000_000
_GATE_HOLDS_S = 2.0
# If an SM/CU's clock deviates from the median by more than this fraction, its stamp is from an
# earlier replay.
_MAX_CLOCK_DEVIATION = 0.2


class Stamps:
    """Core and wall clocks of every SM/CU before and after a replay. Up to `ROOM` such pairs are
    kept on the device."""

    def __init__(
        self,
        driver: Driver,
        readback: Readback,
        function: int,
        buffer: Buffer,
        slots: int,
        wall_khz: float,
        units: int,
    ) -> None:
        self._driver = driver
        self._readback = readback
        self._function = function
        self._address = buffer.address
        self._slots = slots
        self._wall_khz = wall_khz
        self._units = units
        self._pair_bytes = slots * 32
        self._last: NDArray[np.int64] = np.zeros((2, slots), np.int64)  # core clocks read last

    @staticmethod
    def nbytes(slots: int) -> int:
        """Return the device bytes of the current pair and the kept pairs."""
        return 32 * slots * (1 + ROOM)

    def enqueue(self, stream: int, half: int) -> None:
        """Enqueue a kernel that writes the clocks into half 0 (before) or 1 (after) of the current
        pair."""
        address = self._address + half * self._slots * 16
        # Two blocks per SM/CU, so that each gets at least one.
        self._driver.launch(
            self._function,
            (self._units * 2, 1, 1),
            (32, 1, 1),
            pack(_ptr(address), _u32(self._slots)),
            stream,
        )

    def keep(self, stream: int, index: int) -> None:
        """Enqueue a copy of the current pair to the kept pair `index`."""
        target = self._address + (1 + index) * self._pair_bytes
        self._driver.copy_on_device(target, self._address, self._pair_bytes, stream)

    def clock_mhz(self) -> float | None:
        """Return the mean core clock between the stamps."""
        return self._clocks(self._address, 1)()[0]

    def kept_clocks(self, count: int) -> Deferred[list[float | None]]:
        """Enqueue a copy of the first `count` kept pairs. The result returns their mean core
        clocks."""
        return self._clocks(self._address + self._pair_bytes, count)

    def _clocks(self, address: int, count: int) -> Deferred[list[float | None]]:
        transfer = self._readback.start(address, count * self._pair_bytes)
        return lambda: self._clocks_of(transfer().view(np.int64), count)

    def _clocks_of(self, stamps: NDArray[np.int64], count: int) -> list[float | None]:
        pairs = stamps.reshape(count, 2, self._slots, 2)
        written = pairs[-1, 1, :, 0] != 0
        # On AMD most slots are never written: CU ids have gaps.
        used = slice(None) if written.all() else np.flatnonzero(written)
        pairs = pairs[:, :, used]
        # Copy core clocks into a separate array: NumPy is slow along a last axis of length two.
        clocks = np.empty((1 + count, *pairs.shape[1:3]), np.int64)
        clocks[0], clocks[1:] = self._last[:, used], pairs[..., 0]
        self._last[:, used] = clocks[-1]
        core = clocks[1:, 1] - clocks[1:, 0]
        wall = pairs[:, 1, :, 1] - pairs[:, 0, :, 1]
        # Stamps are not cleared: an SM/CU that did not write both stamps still holds one of the
        # pair before, and is left out.
        is_new = clocks[1:] != clocks[:-1]
        valid = is_new[:, 0] & is_new[:, 1] & (core > 0) & (wall > 0)
        # The stamps of `run_ahead` were never read, so the first pair may still contain some of
        # them.
        valid[0] = _near_median(core[0], wall[0], valid[0])
        core *= valid
        wall *= valid
        return [
            cycles / ticks * self._wall_khz / 1e3 if ticks else None
            for cycles, ticks in zip(core.sum(1).tolist(), wall.sum(1).tolist(), strict=True)
        ]


def _near_median(
    core: NDArray[np.int64], wall: NDArray[np.int64], valid: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return a mask of the valid SMs/CUs whose clock is near the median."""
    if not valid.any():
        return valid
    clocks = core[valid] / wall[valid]
    middle = np.partition(clocks, clocks.size // 2)[clocks.size // 2]
    near = valid.copy()
    near[valid] = np.abs(clocks - middle) <= _MAX_CLOCK_DEVIATION * middle
    return near


class Gate:
    """A flag in host memory that a waiting kernel polls."""

    def __init__(self, driver: Driver, function: int) -> None:
        self._driver = driver
        self._function = function
        self._host = driver.host_allocate(4)
        self._device = driver.host_device_pointer(self._host)
        self._flag = ctypes.c_uint32.from_address(self._host)

    def close_behind(self, stream: int) -> None:
        """Block the stream until `open`."""
        self._flag.value = 0
        arguments = pack(_ptr(self._device), _u64(_GATE_CYCLES))
        self._driver.launch(self._function, (1, 1, 1), (1, 1, 1), arguments, stream)

    def open(self) -> None:
        self._flag.value = 1

    def close(self) -> None:
        """Free the flag; nothing may be waiting on it."""
        self._driver.host_free(self._host)


class _TimedReplay(Replay):
    """A replay timed by events before and after what a subclass enqueues."""

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
    """Launches captured once as a graph and replayed: no launch overhead between them."""

    method = Timer.GRAPH

    def __init__(
        self, driver: Driver, stream: int, graph: int, launches: int, stamps: Stamps, gate: Gate
    ) -> None:
        try:
            self._executable = driver.instantiate(graph)
        finally:
            driver.destroy("graph", graph)
        super().__init__(driver, stream, launches, stamps)
        self._gate = gate

    def run(self) -> Reading:
        driver, stream = self._driver, self._stream
        # On an idle stream, the time from the start event to the graph is host time: 20 µs, and on
        # an H200 up to 550 µs while other threads of this process check results.
        self._gate.close_behind(stream)
        try:
            driver.record(self._start, stream)
            driver.launch_graph(self._executable, stream)
            driver.record(self._end, stream)
        finally:
            self._gate.open()
        elapsed_s = driver.elapsed_s(self._start, self._end)
        return Reading(elapsed_s=elapsed_s, clock_mhz=self._stamps.clock_mhz())

    def enqueue(self) -> None:
        """Enqueue the graph without waiting."""
        self._driver.launch_graph(self._executable, self._stream)

    def close(self) -> None:
        super().close()
        self._driver.destroy("graph_exec", self._executable)


class Series:
    """Graphs replayed back to back; the host waits once, for the last one."""

    def __init__(self, driver: Driver, stream: int, stamps: Stamps) -> None:
        self._driver = driver
        self._stream = stream
        self._stamps = stamps
        self._events: list[tuple[int, int]] = []
        self._ahead_events: tuple[int, int] | None = None

    def run(
        self,
        replays: Sequence[GraphReplay],
        before: BeforeReplay,
        meanwhile: Callable[[], None] | None,
    ) -> list[Reading]:
        """Return the readings in order. `before` enqueues untimed work ahead of each replay;
        `meanwhile` runs on the host while the first replays run."""
        readings: list[Reading] = []
        for start in range(0, len(replays), ROOM):
            clocks = self._enqueue(replays[start : start + ROOM], start, before)
            try:
                if not start and meanwhile is not None:
                    meanwhile()
            finally:
                self._driver.call("stream_synchronize", _ptr(self._stream))
            readings += self._readings(clocks())
        return readings

    def run_ahead(self, replays: Sequence[GraphReplay]) -> Callable[[], float]:
        """Enqueue replays whose readings are not needed. Calling the result waits and returns
        their device seconds."""
        driver, stream = self._driver, self._stream
        if self._ahead_events is None:
            self._ahead_events = driver.event(), driver.event()
        start, end = self._ahead_events
        driver.record(start, stream)
        for replay in replays:
            replay.enqueue()
        driver.record(end, stream)
        return lambda: driver.elapsed_s(start, end)

    def _enqueue(
        self, replays: Sequence[GraphReplay], first: int, before: BeforeReplay
    ) -> Deferred[list[float | None]]:
        driver, stream = self._driver, self._stream
        while len(self._events) < len(replays):
            self._events.append((driver.event(), driver.event()))
        for index, (replay, (start, end)) in enumerate(zip(replays, self._events, strict=False)):
            before(first + index)
            driver.record(start, stream)
            replay.enqueue()
            driver.record(end, stream)
            self._stamps.keep(stream, index)
        return self._stamps.kept_clocks(len(replays))

    def _readings(self, clocks: Sequence[float | None]) -> list[Reading]:
        return [
            Reading(elapsed_s=self._driver.between_s(*events), clock_mhz=clock)
            for events, clock in zip(self._events, clocks, strict=False)
        ]

    def close(self) -> None:
        for events in [*self._events, self._ahead_events or ()]:
            for event in events:
                self._driver.destroy("event", event)
        self._events.clear()
        self._ahead_events = None


def capture(
    driver: Driver, stream: int, launch: Launch, order: Sequence[int], stamps: Stamps | None = None
) -> int:
    """Capture a graph of launches, between clock stamps if `stamps` is given."""
    # A garbage collection during capture may unload a module and so invalidate the graph.
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
            driver.forget_error()  # of a library that the stream refused
            raise
        return driver.end_capture(stream)
    finally:
        if collecting:
            gc.enable()


class GateReplay(_TimedReplay):
    """Launches queued while a gate blocks the stream, so that host launch overhead is not timed."""

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
        self._loaded = False

    def run(self) -> Reading:
        driver, stream = self._driver, self._stream
        if not self._loaded:
            # The first launch of a kernel may load its code, for which CUDA waits until the device
            # is idle. Behind the gate that would last until the gate times out.
            self._launch(stream, self._order[0])
            driver.call("stream_synchronize", _ptr(stream))
            self._loaded = True
        begun = _CLOCK()
        self._gate.close_behind(stream)
        try:
            if self.behind_gate is not None:
                self.behind_gate()
            driver.record(self._start, stream)
            self._stamps.enqueue(stream, 0)
            for set_index in self._order:
                self._launch(stream, set_index)
            self._stamps.enqueue(stream, 1)
            driver.record(self._end, stream)
            if _CLOCK() - begun >= _GATE_HOLDS_S:
                self._refuse_if_gate_opened()
        finally:
            self._gate.open()
        elapsed_s = driver.elapsed_s(self._start, self._end)
        return Reading(elapsed_s=elapsed_s, clock_mhz=self._stamps.clock_mhz())

    def _refuse_if_gate_opened(self) -> None:
        """Raise Unsupported if the gate has timed out: the launches were not queued behind it, and
        every further replay would wait for the same timeout."""
        unused = ctypes.c_float()
        start = _ptr(self._start)
        # The start event has completed only if the gate is open.
        if self._driver.code("event_elapsed", ctypes.byref(unused), start, start) == 0:
            raise Unsupported(
                "a launch waits for the stream, or its kernels are too many for the"
                " queue: a gate cannot time it",
                hint="take what waits, such as a copy to the host, out of the launch",
            )


class QueueReplay(Replay):
    """Launches on a runtime's own queue, timed by the host's clock. The cost of starting and
    synchronizing the queue is fixed. For a kernel shorter than its host-side launch, the launch
    time is measured."""

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

    def _stamp(self, half: int) -> None:
        self._stamps.enqueue(self._stream, half)
        self._driver.call("stream_synchronize", _ptr(self._stream))
