"""Copies by the driver: between host and device, within each of them, and between GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.errors import CaseError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.micro.base import (
    EVERYWHERE,
    KIB,
    MIB,
    SPREAD,
    Column,
    Figure,
    Ints,
    MicroRun,
    Names,
    Panel,
    Parameter,
    fitting,
    microbenchmark,
)
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import Rig, Samples, Timed

if TYPE_CHECKING:
    from kernelmark.devices._gpu import GpuDevice
    from kernelmark.gpu.driver import Driver

_P = ctypes.c_void_p
_COPY_S = 1e-2  # length of a timing: start-ups of 10 µs are a thousandth of it
_MOST_COPIES = 200  # in one timing; the queue behind a gate has room for so many
_LARGE = 64 * MIB  # copies that the start-up does not shorten: a PCIe 5 link takes 1.2 ms
_PERIOD = 1021  # of the fill pattern
Seconds = Callable[[int], Timed]  # times a copy of a number of bytes


class Copier:
    """Pinned and pageable host memory, GPU memory, and two streams to copy on."""

    def __init__(self, device: GpuDevice, nbytes: int) -> None:
        self._device, self._driver = device, device.driver
        self._pinned = [self._driver.host_allocate(nbytes) for _ in range(2)]
        self._pageable: NDArray[np.uint8] = np.zeros(nbytes, np.uint8)
        self._memory = [device.allocate(nbytes) for _ in range(2)]
        self._second = self._driver.stream()
        for address in self._pinned:
            ctypes.memset(address, 1, nbytes)  # touches the pages

    def close(self) -> None:
        self._wait()
        self._driver.destroy("stream", self._second)
        for address in self._pinned:
            self._driver.host_free(address)
        for buffer in self._memory:
            self._device.free(buffer)

    def _wait(self) -> None:
        self._device.synchronize()
        self._driver.call("stream_synchronize", _P(self._second))

    def _enqueue(self, direction: str, nbytes: int, stream: int | None = None) -> None:
        """Copy pinned memory 0 → device memory 0, device memory 1 → pinned memory 1, or device
        memory 1 → 0, without waiting."""
        first, second = (buffer.address for buffer in self._memory)
        function, target, source = {
            "h2d": ("copy_to_device_async", first, self._pinned[0]),
            "d2h": ("copy_to_host_async", self._pinned[1], second),
            "d2d": ("copy_on_device_async", first, second),
            "check": ("copy_on_device_async", second, first),
        }[direction]
        on = self._device.stream if stream is None else stream
        self._driver.call(function, _P(target), _P(source), ctypes.c_size_t(nbytes), _P(on))

    def _copy_both_ways(self, nbytes: int) -> None:
        self._enqueue("h2d", nbytes)
        self._enqueue("d2h", nbytes, self._second)

    def _copy_pageable(self, direction: str, nbytes: int) -> None:
        memory = self._pageable.ctypes.data
        if direction == "h2d":
            self._driver.copy_to_device(self._memory[0].address, memory, nbytes)
        else:
            self._driver.copy_to_host(memory, self._memory[1].address, nbytes)

    def seconds(self, direction: str, memory: str, nbytes: int) -> float:
        """Return the seconds per copy: h2d, d2h, both (concurrently, one each way) or d2d."""
        timer: Callable[[int], float]
        if memory == "pageable":
            timer = _by_host(lambda: self._copy_pageable(direction, nbytes), lambda: None)
        elif direction == "both":
            # By the host's clock: events on two streams have no common start and end.
            timer = _by_host(lambda: self._copy_both_ways(nbytes), self._wait)
        else:
            timer = self._by_events(lambda: self._enqueue(direction, nbytes))
        return timer(int(min(_MOST_COPIES, max(1, _COPY_S / max(timer(1), 1e-7)))))

    def _by_events(self, copy: Callable[[], None]) -> Callable[[int], float]:
        """Return a timer of copies between events, queued behind a gate."""
        driver, stream, gate = self._driver, self._device.stream, self._device._gate

        def seconds(repeats: int) -> float:
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

        return seconds

    def check(self, seed: int) -> str | None:
        """Copy random bytes to the device and back on every path; return an error or None."""
        count = min(self._pageable.size, MIB)
        sent = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
        pinned = [
            np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))
            for address in self._pinned
        ]
        pinned[0][:] = sent
        for direction in ("h2d", "check", "d2h"):
            self._enqueue(direction, count)
        self._device.synchronize()
        if not np.array_equal(pinned[1], sent):
            return "what came back through pinned memory is not what was sent"
        first = self._memory[0].address
        self._pageable[:count] = sent[::-1]
        self._driver.copy_to_device(first, self._pageable.ctypes.data, count)
        self._pageable[:count] = 0
        self._driver.copy_to_host(self._pageable.ctypes.data, first, count)
        if not np.array_equal(self._pageable[:count], sent[::-1]):
            return "what came back through pageable memory is not what was sent"
        return None


def _by_host(copy: Callable[[], None], wait: Callable[[], None]) -> Callable[[int], float]:
    """Return a timer of copies by the host's clock."""

    def seconds(repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            copy()
        wait()
        return (time.perf_counter() - begin) / repeats

    return seconds


@microbenchmark(
    summary="Copies: host to device, device to host, both at once, on the device; on a CPU, "
    "memcpy.",
    kinds=EVERYWHERE,
    measures="Copies by the driver over sizes, from pinned memory (events on the stream, all "
    "copies queued before the first begins) and from pageable memory (host clock, because the "
    "driver stages them). `both` copies in both directions at once and counts both. On a CPU it is "
    "the C library's memcpy, on one core and on all. Bytes are counted once per copy.",
    misleads="Small copies measure the start-up, not the link. Pageable copies go through the "
    "driver's own pinned memory and depend on the host's cores. A copy on the device reads and "
    "writes: its rate is half that of a stream.",
    parameters={
        "sizes": Parameter(
            "bytes of a copy",
            quick=(4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB),
            full=tuple(4**n for n in range(5, 16)),
            brief=(128 * MIB,),
        ),
        "memory": Parameter(
            "pinned, pageable",
            quick=("pinned", "pageable"),
            brief=("pinned",),
            choices=("pinned", "pageable"),
        ),
        "samples": Parameter("timings of a copy", quick=3, full=7),
    },
    columns=(
        Column("direction", "h2d, d2h, both or d2d; on a CPU one core, or all"),
        Column("memory", "pinned, pageable or device"),
        Column("size_bytes", "bytes of one copy", "B"),
        Column(
            "bytes_per_s",
            "bytes copied per second",
            "B/s",
            # A copy that fits in the caches may reach their bandwidth; for copies over the link,
            # the metrics have a separate bound.
            lambda h: h.bandwidth("l1" if h.kind == "cpu" else "dram"),
        ),
        Column("seconds", "seconds per copy", "s"),
        SPREAD,
        Column("series", "direction and memory, for the figure"),
    ),
    host_paced=("h2d_pageable", "d2h_pageable"),
    figure=Figure(
        x="size_bytes",
        title="one copy (KiB)",
        per=KIB,
        scale="log",
        colour="series",
        panels=(Panel("bytes_per_s", "GB/s", per=1e9, scale="log"),),
    ),
)
def memcpy(run: MicroRun, *, sizes: Ints, memory: Names, samples: int) -> None:
    rig = run.rig
    # Two buffers on the device; on a CPU both are host memory.
    most, share = rig.device.free_bytes() // 4, "a quarter of what is free"
    kept, run.notes = fitting(sizes, most, share)
    prepare = _on_cpu if rig.info.kind == "cpu" else _on_gpu
    with prepare(rig, max(kept), memory) as (ways, check):
        run.begin_timing()
        for (direction, kind), seconds in ways.items():
            _add_rates(run, direction, kind, kept, [seconds] * samples)
        run.begin_checks()
        run.check(check())


def _add_rates(
    run: MicroRun, direction: str, memory: str, sizes: list[int], timers: list[Seconds]
) -> None:
    """Add a row for each size, and the best rate of the large ones as a metric."""
    moved = 2 if direction == "both" else 1
    rates = {}
    for size in sizes:
        times = [seconds(size) for seconds in timers]
        # The median counts on a CPU too: each is already the best of several.
        timed = Samples(
            seconds=tuple(t.elapsed_s for t in times), waited=tuple(t.waited for t in times)
        )
        rates[size] = size * moved / timed.typical_s
        run.row(
            direction=direction,
            memory=memory,
            size_bytes=size,
            bytes_per_s=rates[size],
            seconds=timed.typical_s,
            spread=timed.spread,
            series=f"{direction}, {memory}",
        )
    large = [size for size in sizes if size >= _LARGE] or [max(sizes)]
    run.metric(
        *(f"{direction}_{memory}".replace(" ", "_"), max(rates[n] for n in large), "B/s"),
        limit=_limit(run.rig.hardware, direction),
        headline=memory in ("pinned", "host") and direction != "both",
    )


def _limit(hardware: Hardware, direction: str) -> Limit:
    """Return the limit of a direction: the link between host and device, twice for both ways, or
    memory bandwidth."""
    if direction in ("h2d", "d2h"):
        return hardware.link("host")
    if direction == "both":
        return hardware.link("host", ways=2)
    return hardware.bandwidth("dram" if direction == "d2d" else "l1")


# How to time a copy, by direction and memory; and the check of what was copied.
_Prepared = tuple[dict[tuple[str, str], Seconds], Callable[[], "str | None"]]


@contextlib.contextmanager
def _on_gpu(rig: Rig, nbytes: int, memory: Names) -> Iterator[_Prepared]:
    from kernelmark.micro._rigs import as_gpu

    copier = Copier(as_gpu(rig.device), nbytes)
    pairs = [("h2d", m) for m in memory] + [("d2h", m) for m in memory]
    pairs += [("both", "pinned"), ("d2d", "device")]

    def timer(direction: str, memory: str) -> Seconds:
        return lambda n: Timed(elapsed_s=copier.seconds(direction, memory, n))

    try:
        yield {pair: timer(*pair) for pair in pairs}, lambda: copier.check(seed=7)
    finally:
        with contextlib.suppress(CaseError):
            copier.close()


@contextlib.contextmanager
def _on_cpu(rig: Rig, nbytes: int, memory: Names) -> Iterator[_Prepared]:
    file = "micro_stream.cu"
    a, b = rig.memory(nbytes), rig.memory(nbytes)
    rig.run(rig.call(file, "stream_fill", b, 0, nbytes // 8, _PERIOD, grid=rig.threads))

    def timer(threads: int) -> Seconds:
        def best(nbytes: int) -> Timed:
            call = rig.call(file, "stream_memcpy", a, b, nbytes, grid=threads)
            return rig.sample(call, samples=5, seconds=2e-3).best

        return best

    def check() -> str | None:
        count = min(nbytes, MIB + 13)  # no multiple of a vector: the rest is copied too
        rig.zero(a, count)
        rig.run(rig.call(file, "stream_memcpy", a, b, count, grid=rig.threads))
        same = np.array_equal(rig.read(a, np.uint8, count), rig.read(b, np.uint8, count))
        return None if same else "a copy differs from what was copied"

    ways = {("one core", "host"): timer(1)}
    if rig.threads > 1:
        ways["all cores", "host"] = timer(rig.threads)
    yield ways, check


@dataclass(frozen=True, slots=True)
class _End:
    """One GPU's memory and stream."""

    index: int
    memory: tuple[int, int]
    stream: int


def _lacks_peers(rig: Rig) -> str | None:
    from kernelmark.micro._rigs import as_gpu

    count = as_gpu(rig.device).driver.count()
    return None if count > 1 else Reason(f"there is only one {rig.info.kind} device here")


@microbenchmark(
    summary="Copies between every pair of GPUs, one way and both ways.",
    unsupported=_lacks_peers,
    measures="The driver copies from the memory of one GPU to that of another, for all pairs: one "
    "way by events on the sender's stream, both ways at once by the host clock.",
    misleads="If GPUs cannot access each other's memory, the driver copies through the host: see "
    "the column `direct`. Pairs are measured one after the other, so contention on links that "
    "several pairs share does not show.",
    parameters={
        "nbytes": Parameter("bytes of a copy", quick=256 * MIB, full=1024 * MIB),
        "repeats": Parameter("copies timed together", quick=5, full=20),
    },
    columns=(
        Column("from", "sending GPU"),
        Column("to", "receiving GPU"),
        Column("way", "one or both"),
        Column("direct", "whether they can access each other's memory"),
        Column("bytes_per_s", "bytes copied per second", "B/s", lambda h: h.link("peer", ways=2)),
        Column("series", "way and receiver, for the figure"),
    ),
    no_spread=FrozenDict(
        dict.fromkeys(
            ("one_way_least", "both_ways_least"), "the copies of a pair are timed together"
        )
    ),
    figure=Figure(
        x="from",
        title="sending GPU",
        scale="band",
        colour="series",
        panels=(Panel("bytes_per_s", "GB/s", per=1e9, mark="point"),),
    ),
)
def peer(run: MicroRun, *, nbytes: int, repeats: int) -> None:
    from kernelmark.micro._rigs import as_gpu

    driver, home = as_gpu(run.rig.device).driver, run.rig.info.index
    for index in range(driver.count()):
        driver.use(index)
        free = driver.memory_info()[0]
        driver.use(home)
        fitting([nbytes], free // 4, f"a quarter of what is free on device {index}")
    ends = []
    for index in range(driver.count()):
        driver.use(index)
        memory = (driver.allocate(nbytes), driver.allocate(nbytes))
        ends.append(_End(index, memory, driver.stream()))

    run.begin_timing()
    for sender, receiver in itertools.permutations(ends, 2):
        for a, b in ((sender.index, receiver.index), (receiver.index, sender.index)):
            if driver.peer_access(a, b):
                driver.enable_peer(a, b)
        times = {"one": _time_one_way(driver, sender, receiver, nbytes, repeats)}
        if sender.index < receiver.index:
            times["both"] = _time_both_ways(driver, sender, receiver, nbytes, repeats)
        for way, seconds in times.items():
            run.row(
                **{"from": sender.index},
                to=receiver.index,
                way=way,
                direct=driver.peer_access(sender.index, receiver.index),
                bytes_per_s=nbytes * (2 if way == "both" else 1) / seconds,
                series=f"{way} to {receiver.index}",
            )
    for name, way, ways in (("one_way_least", "one", 1), ("both_ways_least", "both", 2)):
        lowest = min((row["bytes_per_s"] for row in run.rows_with(way=way)), default=None)
        run.metric(name, lowest, "B/s", limit=run.rig.hardware.link("peer", ways=ways))

    run.begin_checks()
    # Random bytes from every GPU to every other one; then everything is freed.
    sent = np.random.default_rng(23).integers(0, 256, min(nbytes, MIB), dtype=np.uint8)
    for sender, receiver in itertools.permutations(ends, 2):
        run.check(_check_peer(driver, sender, receiver, sent))
    for end in ends:
        driver.use(end.index)
        driver.destroy("stream", end.stream)
        for address in end.memory:
            driver.free(address)
    driver.use(home)


def _copy(driver: Driver, sender: _End, receiver: _End, nbytes: int) -> None:
    driver.copy_on_device(receiver.memory[1], sender.memory[0], nbytes, sender.stream)


def _time_one_way(driver: Driver, sender: _End, receiver: _End, nbytes: int, repeats: int) -> float:
    driver.use(sender.index)
    _copy(driver, sender, receiver, nbytes)
    start, end = driver.event(), driver.event()
    driver.record(start, sender.stream)
    for _ in range(repeats):
        _copy(driver, sender, receiver, nbytes)
    driver.record(end, sender.stream)
    seconds = driver.elapsed_s(start, end) / repeats
    for event in (start, end):
        driver.destroy("event", event)
    return seconds


def _time_both_ways(driver: Driver, a: _End, b: _End, nbytes: int, repeats: int) -> float:
    def wait() -> None:
        for end in (a, b):
            driver.use(end.index)
            driver.call("stream_synchronize", _P(end.stream))

    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        for sender, receiver in ((a, b), (b, a)):
            driver.use(sender.index)
            _copy(driver, sender, receiver, nbytes)
    wait()
    return (time.perf_counter() - begin) / repeats


def _check_peer(
    driver: Driver, sender: _End, receiver: _End, sent: np.ndarray[Any, np.dtype[np.uint8]]
) -> str | None:
    received = np.empty_like(sent)
    driver.use(sender.index)
    # On the sending stream: a synchronous copy may still be in progress when it returns.
    driver.call(
        "copy_to_device_async",
        *(_P(sender.memory[0]), _P(sent.ctypes.data)),
        *(ctypes.c_size_t(sent.size), _P(sender.stream)),
    )
    _copy(driver, sender, receiver, sent.size)
    driver.call("stream_synchronize", _P(sender.stream))
    driver.use(receiver.index)
    driver.copy_to_host(received.ctypes.data, receiver.memory[1], sent.size)
    if np.array_equal(received, sent):
        return None
    return f"what {receiver.index} got from {sender.index} is not what was sent"
