"""Copies between host and device, and within the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelmark.core.errors import CaseError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.devices.base import Buffer
from kernelmark.micro.base import (
    EVERYWHERE,
    SPREAD,
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
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import Rig, Samples, Timed

KIB, MIB = 2**10, 2**20
_LARGE = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One kind of copy: the timing of a number of bytes. `moved` is how often each byte is
    counted."""

    direction: str
    memory: str
    time: Callable[[int], Timed]
    moved: int = 1


@dataclass(slots=True)
class _State:
    sizes: tuple[int, ...]
    samples: int
    ways: list[_Way] = field(default_factory=list)
    copier: Any = None
    buffers: tuple[Buffer, ...] = ()
    notes: list[str] = field(default_factory=list)


_Raw = dict[tuple[str, str, int], Samples]


class Memcpy(Microbenchmark[_State, _Raw]):
    name = "memcpy"
    summary = (
        "Copies: host to device, device to host, both at once, on the device; on a CPU, memcpy."
    )
    kinds = EVERYWHERE
    measures = (
        "Copies by the driver over sizes, from pinned memory (events on the stream, all copies "
        "queued before the first begins) and from pageable memory (host clock, because the driver "
        "stages them). `both` copies in both directions at once and counts both. On a CPU it is "
        "the C library's memcpy, on one core and on all. Bytes are counted once per copy."
    )
    misleads = (
        "Small copies measure the start-up, not the link. Pageable copies go through the driver's "
        "own pinned memory and depend on the host's cores. A copy on the device reads and writes: "
        "its rate is half that of a stream."
    )
    parameters = FrozenDict(
        {
            "sizes": Parameter(
                help="bytes of a copy",
                quick=(4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB),
                full=tuple(4**n for n in range(5, 16)),
                brief=(128 * MIB,),
            ),
            "memory": Parameter(
                help="pinned, pageable",
                quick=("pinned", "pageable"),
                brief=("pinned",),
                choices=("pinned", "pageable"),
            ),
            "samples": Parameter(help="timings of a copy", quick=3, full=7),
        }
    )
    columns = (
        Column(name="direction", help="h2d, d2h, both or d2d; on a CPU one core, or all"),
        Column(name="memory", help="pinned, pageable or device"),
        Column(name="size_bytes", help="bytes of one copy", unit="B"),
        Column(
            name="bytes_per_s",
            help="bytes copied per second",
            unit="B/s",
            # A copy that fits in the caches may reach their bandwidth; for copies over the link,
            # the metrics have a separate bound.
            limit=lambda h: h.bandwidth("l1" if h.kind == "cpu" else "dram"),
        ),
        Column(name="seconds", help="seconds per copy", unit="s"),
        SPREAD,
        Column(name="series", help="direction and memory, for the figure"),
    )
    host_paced = ("h2d_pageable", "d2h_pageable")
    figure = Figure(
        x="size_bytes",
        title="one copy (KiB)",
        per=KIB,
        scale="log",
        colour="series",
        panels=(Panel(y="bytes_per_s", title="GB/s", per=1e9, scale="log"),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        # Two buffers on the device; on a CPU both are host memory.
        sizes, notes = fitting(
            given.wholes("sizes"), rig.device.free_bytes() // 4, "a quarter of what is free"
        )
        state = _State(sizes=tuple(sizes), samples=given.whole("samples"), notes=notes)
        if rig.info.kind == "cpu":
            self._on_cpu(rig, state)
        else:
            self._on_gpu(rig, state, given.words("memory"))
        return state

    def _on_gpu(self, rig: Rig, state: _State, memories: list[str]) -> None:
        from kernelmark.micro._copies import Copier, as_gpu

        copier = Copier(as_gpu(rig.device), max(state.sizes))
        state.copier = copier
        ways = [("h2d", m) for m in memories] + [("d2h", m) for m in memories]
        ways += [("both", "pinned"), ("d2d", "device")]
        for direction, memory in ways:
            state.ways.append(
                _Way(
                    direction=direction,
                    memory=memory,
                    time=lambda n, d=direction, m=memory: Timed(  # type: ignore[misc]
                        elapsed_s=copier.seconds(d, m, n)
                    ),
                    moved=2 if direction == "both" else 1,
                )
            )

    def _on_cpu(self, rig: Rig, state: _State) -> None:
        most = max(state.sizes)
        a, b = rig.memory(most), rig.memory(most)
        state.buffers = (a, b)
        fill = rig.call("micro_stream.cu", "stream_fill", b, 0, most // 8, 1021, grid=rig.threads)
        rig.run(fill)
        for name, threads in (("one core", 1), ("all cores", rig.threads)):

            def best(nbytes: int, threads: int = threads) -> Timed:
                call = rig.call("micro_stream.cu", "stream_memcpy", a, b, nbytes, grid=threads)
                return rig.sample(call, samples=5, seconds=2e-3).best

            state.ways.append(_Way(direction=name, memory="host", time=best))
            if rig.threads == 1:
                break

    def timed(self, rig: Rig, state: _State) -> _Raw:
        return {
            (way.direction, way.memory, size): _samples(
                [way.time(size) for _ in range(state.samples)]
            )
            for way in state.ways
            for size in state.sizes
        }

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        if state.copier is not None:
            try:
                return state.copier.check(seed=7)  # type: ignore[no-any-return]
            finally:
                with contextlib.suppress(CaseError):
                    state.copier.close()
        a, b = state.buffers
        count = min(a.nbytes, MIB + 13)
        rig.zero(a, count)
        rig.run(rig.call("micro_stream.cu", "stream_memcpy", a, b, count, grid=rig.threads))
        same = np.array_equal(rig.read(a, np.uint8, count), rig.read(b, np.uint8, count))
        return None if same else "a copy differs from what was copied"

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        moved = {(way.direction, way.memory): way.moved for way in state.ways}
        rows: list[Record] = [
            {
                "direction": direction,
                "memory": memory,
                "size_bytes": size,
                "bytes_per_s": size * moved[direction, memory] / samples.median_s,
                "seconds": samples.median_s,
                "spread": samples.spread(),
                "series": f"{direction}, {memory}",
            }
            for (direction, memory, size), samples in raw.items()
        ]
        found: list[Metric] = []
        for (direction, memory), times in moved.items():
            large = [n for n in state.sizes if n >= _LARGE] or [max(state.sizes)]
            best = max(n * times / raw[direction, memory, n].median_s for n in large)
            name = f"{direction}_{memory}".replace(" ", "_")
            headline = memory in ("pinned", "host") and direction != "both"
            limit = _limit(rig.hardware, direction)
            found += metric(name, best, "B/s", limit=limit, headline=headline)
        return Findings(rows=rows, metrics=found, notes=state.notes)


def _samples(timed: list[Timed]) -> Samples:
    """Combine timings, whose median counts also on a CPU: each is already the best of several."""
    return Samples(
        seconds=tuple(one.elapsed_s for one in timed), waited=tuple(one.waited for one in timed)
    )


def _limit(hardware: Hardware, direction: str) -> Limit:
    """Return the limit of a direction: the link between host and device, twice for both ways, or
    memory bandwidth."""
    if direction in ("h2d", "d2h"):
        return hardware.link("host")
    if direction == "both":
        return hardware.link("host", ways=2)
    return hardware.bandwidth("dram" if direction == "d2d" else "l1")


benchmark = Memcpy()
