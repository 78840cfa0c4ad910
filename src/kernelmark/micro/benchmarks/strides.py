"""First-level cache bandwidth by the distance between the lanes of a warp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.devices.base import Buffer
from kernelmark.micro._chains import most_lanes
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
from kernelmark.micro.hardware import Hardware, Limit
from kernelmark.micro.rig import Call, Rig, Typical

FILE = "micro_strides.cu"
_IN_FLIGHT = 8
_ROOM = 256 * 2**10
_WIDTHS = (4, 8, 16)
_PITCH = 130  # elements between two rows of lanes: not a multiple of a line


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """Lanes in rows of `width`, `stride` elements apart in a row."""

    name: str
    nbytes: int
    width: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    patterns: tuple[_Pattern, ...]
    data: Buffer
    clocks: Buffer
    sums: Buffer
    rounds: int
    samples: int
    notes: list[str]


class Strides(Microbenchmark[_State, list[Typical]]):
    name = "strides"
    summary = "Cycles of a load that hits the first-level cache, by the stride between lanes."
    by_cycles = True
    measures = (
        "One full block per SM/CU loads 4, 8 or 16 bytes per lane that all hit the first-level "
        "cache, with a stride between lanes, or in rows (`block w`: w adjacent lanes, then another "
        "row). Cycles are counted inside the kernel: they show how many banks and lines a load "
        "touches."
    )
    misleads = (
        "Only the pattern inside a warp matters here; working sets stay in the cache. Bytes per "
        "cycle count requested bytes: a stride leaves most of each line unused."
    )
    parameters = FrozenDict(
        {
            "strides": Parameter(
                help="elements between lanes",
                quick=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64),
                full=tuple(range(65)),
                brief=(1, 2, 4),
            ),
            "widths": Parameter(
                help="adjacent lanes", quick=(1, 2, 4, 8, 16), full=(1, 2, 4, 8, 16), brief=(8,)
            ),
            "bytes": Parameter(
                help="bytes per lane", quick=_WIDTHS, brief=(4, 16), choices=_WIDTHS
            ),
            "rounds": Parameter(help="rounds of 8 loads", quick=200, full=1000),
            "samples": Parameter(help="launches timed for a point", quick=3, full=7),
        }
    )
    columns = (
        Column(name="pattern", help="stride s or block w"),
        Column(name="bytes", help="bytes per lane", unit="B"),
        Column(name="stride", help="elements between lanes"),
        Column(name="width", help="adjacent lanes"),
        Column(name="cycles", help="cycles of the SM/CU per warp load", unit="cycles"),
        Column(
            name="bytes_per_clk",
            help="bytes requested per cycle by an SM/CU",
            unit="B/clk",
            limit=lambda h: _requested_limit(h),
        ),
        SPREAD,
    )
    figure = Figure(
        x="stride",
        title="stride between lanes (elements)",
        colour="bytes",
        where=FrozenDict({"pattern": "stride"}),
        panels=(Panel(y="cycles", title="cycles a warp's load", scale="log"),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        lanes = rig.lanes
        every = [
            _Pattern(name="stride", nbytes=size, width=lanes, stride=stride)
            for size in given.wholes("bytes")
            for stride in given.wholes("strides")
        ]
        most = (_ROOM - _IN_FLIGHT * 2048) // (lanes - 1)
        patterns = [p for p in every if p.stride * p.nbytes <= most]
        wide = ", ".join(f"{p.stride} × {p.nbytes} B" for p in every if p not in patterns)
        patterns += [
            _Pattern(name="block", nbytes=size, width=width, stride=1)
            for size in given.wholes("bytes")
            for width in given.wholes("widths")
        ]
        threads = rig.grid * rig.block
        return _State(
            patterns=tuple(patterns),
            data=rig.place(np.arange(_ROOM // 4, dtype=np.uint32)),
            clocks=rig.memory(rig.grid * 16),
            sums=rig.memory(threads * 4),
            rounds=given.whole("rounds"),
            samples=given.whole("samples"),
            notes=[f"left out, since the cache has no room for them: {wide}"] if wide else [],
        )

    def _call(self, rig: Rig, state: _State, pattern: _Pattern, rounds: int) -> Call:
        call = rig.call(
            *(FILE, f"strided_read_{pattern.nbytes}", state.data, pattern.width),
            *(pattern.stride, _PITCH, rounds, 0, state.clocks, state.sums),
            grid=rig.grid,
            block=rig.block,
        )
        rig.prefer_cache(call)
        return call

    def timed(self, rig: Rig, state: _State) -> list[Typical]:
        found = []
        for pattern in state.patterns:
            call = self._call(rig, state, pattern, state.rounds)
            seen = []
            for _ in range(state.samples):
                rig.run(call)
                seen.append(float(np.median(rig.cycles(state.clocks, rig.grid))))
            found.append(rig.typical(seen).over(state.rounds * _IN_FLIGHT * rig.warps))
        return found

    def verify(self, rig: Rig, state: _State, raw: list[Typical]) -> str | None:
        words = np.arange(_ROOM // 4, dtype=np.uint32)
        for pattern in state.patterns[:: max(1, len(state.patterns) // 8)]:
            rig.run(self._call(rig, state, pattern, 3))
            found = rig.read(state.sums, np.uint32, rig.block)[: rig.lanes]
            lane = np.arange(rig.lanes)
            element = lane % pattern.width * pattern.stride + lane // pattern.width * _PITCH
            per = pattern.nbytes // 4
            first = element * per
            at = first[:, None, None] + np.arange(_IN_FLIGHT)[None, :, None] * 512
            at = at + np.arange(per)[None, None, :]
            wanted = words[at].sum(axis=(1, 2), dtype=np.uint32) * np.uint32(4)  # one more round
            if not np.array_equal(found, wanted):
                return f"{pattern.name} {pattern.stride}/{pattern.width}: wrong words were read"
        return None

    def metrics(self, rig: Rig, state: _State, raw: list[Typical]) -> Findings:
        rows: list[Record] = []
        found: list[Metric] = []
        for pattern, cycles in zip(state.patterns, raw, strict=True):
            rate = rig.lanes * pattern.nbytes / cycles.value
            rows.append(
                {
                    "pattern": pattern.name,
                    "bytes": pattern.nbytes,
                    "stride": pattern.stride,
                    "width": pattern.width,
                    "cycles": cycles.value,
                    "bytes_per_clk": rate,
                    "spread": cycles.spread,
                }
            )
            if pattern.name == "stride" and pattern.nbytes == 4 and pattern.stride in (1, 2, 4):
                found += metric(
                    f"stride{pattern.stride}_bytes_per_clk",
                    rate,
                    "B/clk",
                    limit=rig.hardware.rate("l1"),
                )
        return Findings(rows=rows, metrics=found, notes=state.notes)


def _requested_limit(hardware: Hardware) -> Limit:
    """Return the limit: lanes that load the same bytes are served together, so the bytes of all
    lanes count."""
    lanes, widest = most_lanes(hardware), _WIDTHS[-1]
    return Limit(value=lanes.value * widest, why=f"{lanes.value:g} lanes × {widest} B")


benchmark = Strides()
