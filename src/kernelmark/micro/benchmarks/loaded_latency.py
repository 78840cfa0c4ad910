"""Latency of main memory under load by the other SMs/CUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.core.reason import Reason
from kernelmark.devices.base import Buffer
from kernelmark.micro import _chase, _windows
from kernelmark.micro.base import (
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
from kernelmark.micro.rig import Rig

MIB = 2**20
_LINE = 128
_MOST_CYCLES = 4e9  # limit for the other SMs/CUs, in case the chain never ends
_IN_FLIGHT = 4
_WARM = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    chaser: _chase.Chaser
    data: Buffer
    pauses: tuple[int, ...]
    hops: int
    out: Buffer
    done: Buffer
    chunks: Buffer
    sums: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    hop: _chase.Hop
    bytes_per_s: float
    ended: bool


class LoadedLatency(Microbenchmark[_State, list[_Point]]):
    name = "loaded-latency"
    summary = "Latency of main memory over the bandwidth that other SMs/CUs use."
    by_cycles = True
    measures = (
        "One SM/CU follows a random chain through main memory while all others read it, one chunk "
        "at a time with a pause after each. The pauses are swept from long to none; the latency is "
        "plotted over the bandwidth measured meanwhile."
    )
    misleads = (
        "The latency is too low where requests are queued per SM/CU. The reading SMs/CUs access "
        "their parts in order, which suits the rows of the memory."
    )
    parameters = FrozenDict(
        {
            "pauses": Parameter(
                help="cycles from one chunk to the next",
                quick=(65536, 32768, 16384, 12288, 8192, 6144, 4096, 3072, 2048, 0),
                full=(*(int(65536 / 1.3**n) for n in range(24)), 0),
                brief=(2**20, 0),
            ),
            "hops": Parameter(
                help="hops of the chain",
                quick=2**12,
                full=2**14,
                brief=2**11,
                least=_chase.UNROLLED,
            ),
            "nbytes": Parameter(
                help="bytes of the chain and of the data", quick=1024 * MIB, least=MIB
            ),
        }
    )
    columns = (
        Column(name="pause", help="cycles from one chunk to the next", unit="cycles"),
        Column(
            name="bytes_per_s",
            help="bytes per second read meanwhile by the other SMs/CUs",
            unit="B/s",
            limit=lambda h: h.bandwidth("dram"),
        ),
        Column(name="ns", help="nanoseconds per load of the chain", unit="ns"),
        Column(name="cycles", help="core cycles per load of the chain", unit="cycles"),
    )
    no_spread = FrozenDict(
        dict.fromkeys(("quiet_ns", "busy_ns", "busy_bytes"), "each pause is one launch")
    )
    figure = Figure(
        x="bytes_per_s",
        title="drawn by the others (TB/s)",
        per=1e12,
        panels=(Panel(y="ns", title="ns a load", zero=True),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        nbytes = min(given.whole("nbytes"), int(0.2 * rig.device.free_bytes())) // MIB * MIB
        # A sample of the lines is enough: the chain never wraps around.
        count = 4 * given.whole("hops")
        if count * _LINE > nbytes:
            chain = f"a chain of {given.whole('hops')} hops"
            reason = Reason("out-of-memory", needed=count * _LINE, what=chain, free=nbytes)
            raise Unsupported(reason)
        chaser = _chase.Chaser(rig, nbytes)
        lines = np.random.default_rng(11).choice(nbytes // _LINE, count, replace=False)
        chaser.link(lines.astype(np.uint64) * np.uint64(_LINE))
        return _State(
            chaser=chaser,
            data=_windows.allocate(rig, nbytes).data,
            pauses=tuple(given.wholes("pauses")),
            hops=given.whole("hops"),
            out=rig.memory(64),
            done=rig.memory(64),
            chunks=rig.memory(rig.grid * 4),
            sums=rig.memory(rig.grid * rig.block * 4),
        )

    def timed(self, rig: Rig, state: _State) -> list[_Point]:
        return [self._at(rig, state, pause) for pause in state.pauses]

    def _at(self, rig: Rig, state: _State, pause: int) -> _Point:
        rig.zero(state.done)
        rig.zero(state.chunks)
        quads = state.data.nbytes // 16
        start = state.chaser.start
        hops = state.hops // _chase.UNROLLED * _chase.UNROLLED
        most = int(_MOST_CYCLES / max(pause, 4096))
        call = rig.call(
            *(_chase.FILE, "chase_loaded", start, _WARM, hops, state.out, 0, state.data, quads),
            *(pause, most, state.done, state.chunks, state.sums),
            grid=rig.grid,
            block=rig.block,
        )
        elapsed = rig.time(call).elapsed_s
        ticks, wall, end = rig.read(state.out, np.uint64, 3)
        state.chaser.check(int(end), _WARM + hops)
        chunks = rig.read(state.chunks, np.uint32, rig.grid)[1:]
        moved = float(chunks.sum()) * rig.block * _IN_FLIGHT * 16
        # The other SMs/CUs read from the start of the launch to the end of the chain.
        return _Point(
            hop=_chase.Hop(
                cycles=float(ticks) / hops, seconds=float(wall) * rig.wall_tick_s / hops
            ),
            bytes_per_s=moved / elapsed,
            ended=bool((chunks < most).all()),
        )

    def verify(self, rig: Rig, state: _State, raw: list[_Point]) -> str | None:
        if state.chaser.wrong is not None or all(point.ended for point in raw):
            return state.chaser.wrong
        return "the units that make the load stopped before the chain had ended"

    def metrics(self, rig: Rig, state: _State, raw: list[_Point]) -> Findings:
        rows: list[Record] = [
            {
                "pause": pause,
                "bytes_per_s": point.bytes_per_s,
                "ns": point.hop.seconds * 1e9,
                "cycles": point.hop.cycles,
            }
            for pause, point in zip(state.pauses, raw, strict=True)
        ]
        quiet = min(raw, key=lambda point: point.bytes_per_s)
        busy = max(raw, key=lambda point: point.bytes_per_s)
        found: list[Metric] = [
            *metric("quiet_ns", quiet.hop.seconds * 1e9, "ns", better="lower", least=10.0),
            *metric(
                "busy_ns", busy.hop.seconds * 1e9, "ns", better="lower", headline=False, least=10.0
            ),
        ]
        limit = rig.hardware.bandwidth("dram")
        found += metric("busy_bytes", busy.bytes_per_s, "B/s", headline=False, limit=limit)
        return Findings(rows=rows, metrics=found)


benchmark = LoadedLatency()
