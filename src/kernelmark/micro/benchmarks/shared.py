"""Shared memory (LDS): bandwidth by width, bank conflicts by stride, latency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.devices.base import Buffer
from kernelmark.micro.base import (
    SPREAD,
    Column,
    Figure,
    Findings,
    Microbenchmark,
    Panel,
    Parameter,
    Record,
    Settings,
    metric,
)
from kernelmark.micro.rig import Call, Rig, Typical

FILE = "micro_shared.cu"
_IN_FLIGHT = 8
_LINKS = 4096
_WIDTHS = (4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    points: tuple[tuple[int, int], ...]
    clocks: Buffer
    sums: Buffer
    out: Buffer
    rounds: int
    hops: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    cycles: tuple[Typical, ...]
    latency: Typical


class Shared(Microbenchmark[_State, _Raw]):
    name = "shared"
    summary = "Shared memory: bandwidth by width, bank conflicts by stride, latency."
    by_cycles = True
    measures = (
        "A full block on every SM/CU reads its shared memory, 4, 8 or 16 bytes per lane, with a "
        "stride between lanes: stride 1 is the bandwidth, larger ones show bank conflicts. The "
        "latency is that of one thread's dependent chain of offsets. Cycles are counted inside the "
        "kernel."
    )
    misleads = (
        "Stores and atomics have other rates. A stride of 0 is a broadcast: its bytes per cycle "
        "count every lane's copy and may exceed what the memory delivers."
    )
    parameters = FrozenDict(
        {
            "strides": Parameter(
                help="elements between lanes",
                quick=(1, 2, 3, 4, 5, 8, 16, 17, 31, 32),
                full=tuple(range(1, 33)),
                brief=(1, 2, 32),
                most=32,  # the limit of micro_shared.cu
            ),
            "bytes": Parameter(help="bytes per lane", quick=_WIDTHS, choices=_WIDTHS),
            "rounds": Parameter(help="rounds of 8 loads", quick=400, full=4000),
            "hops": Parameter(help="loads of the chain", quick=2**14, full=2**17, least=32),
            "samples": Parameter(help="launches timed for a point", quick=3, full=9),
        }
    )
    columns = (
        Column(name="bytes", help="bytes per lane", unit="B"),
        Column(name="stride", help="elements between lanes"),
        Column(name="cycles", help="cycles of the SM/CU per warp load", unit="cycles"),
        Column(
            name="bytes_per_clk",
            help="bytes loaded per cycle by an SM/CU",
            unit="B/clk",
            limit=lambda h: h.rate("shared"),
        ),
        SPREAD,
    )
    figure = Figure(
        x="stride",
        title="stride between lanes (elements)",
        colour="bytes",
        panels=(Panel(y="bytes_per_clk", title="B/clk of a unit", scale="log"),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        threads = rig.grid * rig.block
        points = [(w, s) for w in given.wholes("bytes") for s in given.wholes("strides")]
        return _State(
            points=tuple(points),
            clocks=rig.memory(rig.grid * 16),
            sums=rig.memory(threads * 4),
            out=rig.memory(64),
            rounds=given.whole("rounds"),
            hops=given.whole("hops") // 32 * 32,
            samples=given.whole("samples"),
        )

    def _call(self, rig: Rig, state: _State, width: int, stride: int, rounds: int) -> Call:
        return rig.call(
            *(FILE, f"shared_read_{width}", stride, rounds, 0, state.clocks, state.sums),
            grid=rig.grid,
            block=rig.block,
        )

    def timed(self, rig: Rig, state: _State) -> _Raw:
        found = []
        for width, stride in state.points:
            call = self._call(rig, state, width, stride, state.rounds)
            seen = []
            for _ in range(state.samples):
                rig.run(call)
                seen.append(float(np.median(rig.cycles(state.clocks, rig.grid))))
            found.append(rig.typical(seen).over(state.rounds * _IN_FLIGHT * rig.warps))
        chase = rig.call(FILE, "shared_chase", state.hops, 0, state.out, block=1)
        taken = []
        for _ in range(state.samples):
            rig.run(chase)
            taken.append(float(rig.read(state.out, np.uint64, 1)[0]))
        return _Raw(cycles=tuple(found), latency=rig.typical(taken).over(state.hops))

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        end = int(rig.read(state.out, np.uint64, 2)[1])
        if end != state.hops * 33 % _LINKS:
            return f"the chain ended at {end}, not at {state.hops * 33 % _LINKS}"
        for width, stride in state.points[:: max(1, len(state.points) // 6)]:
            rig.run(self._call(rig, state, width, stride, 3))
            found = rig.read(state.sums, np.uint32, rig.lanes)
            per = width // 4
            first = np.arange(rig.lanes, dtype=np.int64) * stride * per
            offsets = np.arange(_IN_FLIGHT)[:, None] * 512 + np.arange(per)[None, :]
            wanted = 3 * (first[:, None] + offsets.ravel()[None, :]).sum(axis=1)
            if not np.array_equal(found, wanted.astype(np.uint32)):
                return f"{width} bytes with stride {stride}: wrong words were read"
        return None

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        rows: list[Record] = []
        found: list[Metric] = []
        for (width, stride), point in zip(state.points, raw.cycles, strict=True):
            cycles = point.value
            rate = rig.lanes * width / cycles
            rows.append(
                {
                    "bytes": width,
                    "stride": stride,
                    "cycles": cycles,
                    "bytes_per_clk": rate,
                    "spread": point.spread,
                }
            )
            if stride == 1:
                limit = rig.hardware.rate("shared")
                found += metric(f"bytes_per_clk_{width}", rate, "B/clk", limit=limit)
            if stride == 32 and width == 4:
                found += metric(
                    "conflict_cycles", cycles, "cycles", better="lower", headline=False, least=1.0
                )
        found += metric(
            *("latency", raw.latency.value, "cycles"),
            better="lower",
            least=1.0,
            spread=raw.latency.spread,
        )
        return Findings(rows=rows, metrics=found)


benchmark = Shared()
