"""Copies between GPUs, all pairs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.gpu.driver import Driver
from kernelmark.micro._copies import as_gpu
from kernelmark.micro.base import (
    Column,
    Figure,
    Findings,
    Microbenchmark,
    Panel,
    Parameter,
    Record,
    Settings,
    fitting,
    metric,
)
from kernelmark.micro.rig import Rig

MIB = 2**20
_P = ctypes.c_void_p


@dataclass(slots=True)
class _End:
    """One GPU's memory and stream."""

    index: int
    memory: tuple[int, int]
    stream: int


@dataclass(slots=True)
class _State:
    driver: Driver
    home: int
    ends: list[_End]
    nbytes: int
    repeats: int
    wrong: list[str] = field(default_factory=list)


_Raw = dict[tuple[int, int, str], float]


class Peer(Microbenchmark[_State, _Raw]):
    name = "peer"
    summary = "Copies between every pair of GPUs, one way and both ways."
    measures = (
        "The driver copies from the memory of one GPU to that of another, for all pairs: one way "
        "by events on the sender's stream, both ways at once by the host clock."
    )
    misleads = (
        "If GPUs cannot access each other's memory, the driver copies through the host: see the "
        "column `direct`. Pairs are measured one after the other, so contention on links that "
        "several pairs share does not show."
    )
    parameters = FrozenDict(
        {
            "nbytes": Parameter(help="bytes of a copy", quick=256 * MIB, full=1024 * MIB),
            "repeats": Parameter(help="copies timed together", quick=5, full=20),
        }
    )
    columns = (
        Column(name="from", help="sending GPU"),
        Column(name="to", help="receiving GPU"),
        Column(name="way", help="one or both"),
        Column(name="direct", help="whether they can access each other's memory"),
        Column(
            name="bytes_per_s",
            help="bytes copied per second",
            unit="B/s",
            limit=lambda h: h.link("peer", ways=2),
        ),
        Column(name="series", help="way and receiver, for the figure"),
    )
    no_spread = FrozenDict(
        dict.fromkeys(
            ("one_way_least", "both_ways_least"), "the copies of a pair are timed together"
        )
    )
    figure = Figure(
        x="from",
        title="sending GPU",
        scale="band",
        colour="series",
        panels=(Panel(y="bytes_per_s", title="GB/s", per=1e9, mark="point"),),
    )

    def unsupported(self, rig: Rig) -> str | None:
        count = as_gpu(rig.device).driver.count()
        return None if count > 1 else Reason("device-single", kind=rig.info.kind)

    def setup(self, rig: Rig, given: Settings) -> _State:
        driver = as_gpu(rig.device).driver
        nbytes = given.whole("nbytes")
        for index in range(driver.count()):
            driver.use(index)
            free = driver.memory_info()[0]
            driver.use(rig.info.index)
            fitting([nbytes], free // 4, f"a quarter of what is free on device {index}")
        ends = []
        for index in range(driver.count()):
            driver.use(index)
            memory = (driver.allocate(nbytes), driver.allocate(nbytes))
            ends.append(_End(index=index, memory=memory, stream=driver.stream()))
        return _State(
            driver=driver,
            home=rig.info.index,
            ends=ends,
            nbytes=nbytes,
            repeats=given.whole("repeats"),
        )

    def timed(self, rig: Rig, state: _State) -> _Raw:
        raw: _Raw = {}
        for sender in state.ends:
            for receiver in state.ends:
                if sender.index == receiver.index:
                    continue
                self._reach(state, sender, receiver)
                raw[sender.index, receiver.index, "one"] = self._one(state, sender, receiver)
                if sender.index < receiver.index:
                    both = self._both(state, sender, receiver)
                    raw[sender.index, receiver.index, "both"] = both
        return raw

    def _reach(self, state: _State, sender: _End, receiver: _End) -> None:
        for one, other in ((sender, receiver), (receiver, sender)):
            if state.driver.peer_access(one.index, other.index):
                state.driver.enable_peer(one.index, other.index)

    def _copy(self, state: _State, sender: _End, receiver: _End) -> None:
        state.driver.copy_on_device(
            receiver.memory[1], sender.memory[0], state.nbytes, sender.stream
        )

    def _one(self, state: _State, sender: _End, receiver: _End) -> float:
        driver = state.driver
        driver.use(sender.index)
        self._copy(state, sender, receiver)
        start, end = driver.event(), driver.event()
        driver.record(start, sender.stream)
        for _ in range(state.repeats):
            self._copy(state, sender, receiver)
        driver.record(end, sender.stream)
        seconds = driver.elapsed_s(start, end) / state.repeats
        for event in (start, end):
            driver.destroy("event", event)
        return seconds

    def _both(self, state: _State, one: _End, other: _End) -> float:
        driver = state.driver

        def wait() -> None:
            for end in (one, other):
                driver.use(end.index)
                driver.call("stream_synchronize", _P(end.stream))

        wait()
        begin = time.perf_counter()
        for _ in range(state.repeats):
            for sender, receiver in ((one, other), (other, one)):
                driver.use(sender.index)
                self._copy(state, sender, receiver)
        wait()
        return (time.perf_counter() - begin) / state.repeats

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        """Copy random bytes from every GPU to every other one, then free everything."""
        driver, wrong = state.driver, None
        count = min(state.nbytes, MIB)
        sent: np.ndarray[Any, np.dtype[np.uint8]] = np.random.default_rng(23).integers(
            0, 256, count, dtype=np.uint8
        )
        got = np.empty_like(sent)
        for sender, receiver in ((s, r) for s in state.ends for r in state.ends):
            if sender.index == receiver.index or wrong:
                continue
            driver.use(sender.index)
            # On the sending stream: a synchronous copy may still be in progress when it returns.
            driver.call(
                "copy_to_device_async",
                *(_P(sender.memory[0]), _P(sent.ctypes.data)),
                *(ctypes.c_size_t(count), _P(sender.stream)),
            )
            self._copy(state, sender, receiver)
            driver.call("stream_synchronize", _P(sender.stream))
            driver.use(receiver.index)
            driver.copy_to_host(got.ctypes.data, receiver.memory[1], count)
            if not np.array_equal(got, sent):
                wrong = f"what {receiver.index} got from {sender.index} is not what was sent"
        for end in state.ends:
            driver.use(end.index)
            driver.destroy("stream", end.stream)
            for address in end.memory:
                driver.free(address)
        driver.use(state.home)
        return wrong

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        rows: list[Record] = []
        rates: dict[str, list[float]] = {"one": [], "both": []}
        for (sender, receiver, way), seconds in raw.items():
            rate = state.nbytes * (2 if way == "both" else 1) / seconds
            rates[way].append(rate)
            rows.append(
                {
                    "from": sender,
                    "to": receiver,
                    "way": way,
                    "direct": state.driver.peer_access(sender, receiver),
                    "bytes_per_s": rate,
                    "series": f"{way} to {receiver}",
                }
            )
        one, both = (rig.hardware.link("peer", ways=ways) for ways in (1, 2))
        lowest: Callable[[list[float]], float | None] = lambda v: min(v, default=None)  # noqa: E731
        return Findings(
            rows=rows,
            metrics=[
                *metric("one_way_least", lowest(rates["one"]), "B/s", limit=one),
                *metric("both_ways_least", lowest(rates["both"]), "B/s", limit=both),
            ],
        )


benchmark = Peer()
