"""Cache line size, and bytes fetched per miss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.micro import _chase
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

KIB, MIB = 2**10, 2**20
_REGION = 64 * MIB
_SPARSE_SPACING = 1024  # bytes between elements of the sparse chain: more than any line


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    chaser: _chase.Chaser
    strides: tuple[int, ...]
    bisections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    near: float  # cycles of a hit in the first-level cache
    far: float  # of a hit in the shared cache
    outside: float  # of a load from main memory
    first: dict[int, float]  # fraction of hops that missed the first-level cache, by stride
    second: dict[int, float]  # fraction that missed the shared cache
    dense_bytes: int  # capacity of the first-level cache with all bytes of a line used
    sparse_lines: int  # its capacity in lines, with one word used per line


class Lines(Microbenchmark[_State, _Raw]):
    name = "lines"
    summary = "Line size of the first-level cache, and bytes fetched per miss into each level."
    by_cycles = True
    measures = (
        "A chain walks through cold memory with a fixed stride, and every hop is timed: with a "
        "stride of a quarter of the fetch size, one hop in four misses. The miss rate by stride "
        "gives the fetch size of the first-level and of the shared cache. The line size follows "
        "from how much fits: all bytes of adjacent lines, against single words far apart, each of "
        "which occupies a whole line."
    )
    misleads = (
        "A level that also fetches the adjacent line shows the sum of both. The line size is "
        "rounded to a power of two, because unevenly filled sets blur it."
    )
    parameters = FrozenDict(
        {
            "strides": Parameter(
                help="bytes between two loads",
                quick=(8, 16, 32, 64, 128, 256),
                least=8,
                most=_REGION // _chase.EACH // 8 * 8,
                multiple=8,  # a hop is a word of this size
            ),
            "bisections": Parameter(
                help="steps of the bisection for the capacity", quick=7, full=9
            ),
        }
    )
    columns = (
        Column(name="stride_bytes", help="bytes between two loads", unit="B"),
        Column(name="level", help="cache level"),
        Column(name="miss_share", help="fraction of hops that missed it"),
        Column(name="fetch_bytes", help="stride / miss rate: bytes fetched per miss", unit="B"),
    )
    figure = Figure(
        x="stride_bytes",
        title="step (bytes)",
        scale="log",
        colour="level",
        panels=(Panel(y="miss_share", title="share of misses"),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        return _State(
            chaser=_chase.Chaser(rig, _REGION),
            strides=tuple(given.wholes("strides")),
            bisections=given.whole("bisections"),
        )

    def timed(self, rig: Rig, state: _State) -> _Raw:
        chaser = state.chaser
        chaser.link(chaser.ring(16 * KIB, 128))
        near = float(np.median(chaser.each(_chase.EACH, 256)))
        chaser.link(chaser.ring(4 * MIB, 128))
        far = float(np.median(chaser.each(_chase.EACH, 4 * MIB // 128)))
        rig.device.evict_cache()
        chaser.link(chaser.ring(_REGION, 4096))
        rig.device.evict_cache()
        outside = float(np.median(chaser.each(_chase.EACH, 0)))
        first, second = {}, {}
        for stride in state.strides:
            chaser.link(np.arange(_chase.EACH, dtype=np.uint64) * np.uint64(stride))
            seen = chaser.each(_chase.EACH, 0)
            first[stride] = float((seen > (near + far) / 2).mean())
            rig.device.evict_cache()
            seen = chaser.each(_chase.EACH, 0)
            second[stride] = float((seen > (far + outside) / 2).mean())
        middle = (near + far) / 2
        return _Raw(
            near=near,
            far=far,
            outside=outside,
            first=first,
            second=second,
            dense_bytes=32 * self._max_hitting(state, middle, 32, 32 * KIB, MIB),
            sparse_lines=self._max_hitting(state, middle, _SPARSE_SPACING, 256 * KIB, _REGION),
        )

    def _max_hitting(self, state: _State, middle: float, spacing: int, low: int, high: int) -> int:
        """Return the largest number of elements, at least `spacing` bytes apart, with mostly L1
        hits."""
        chaser = state.chaser
        random = np.random.default_rng(17)
        most = _REGION // spacing
        few, many = low // spacing, min(high // spacing, most)
        for _ in range(state.bisections):
            count = int((few * many) ** 0.5)
            chosen = (
                random.choice(most, count, replace=False) if spacing == _SPARSE_SPACING else None
            )
            order = random.permutation(count) if chosen is None else chosen
            chaser.link(order.astype(np.uint64) * np.uint64(spacing))
            # Not a whole number of cycles, so that the end of the chain shows whether it was
            # followed.
            pace = chaser.follow(max(2 * count, 4096) + 3 * _chase.UNROLLED, 2 * count).cycles
            if pace < middle:
                few = count
            else:
                many = count
        return few

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        if state.chaser.wrong is not None or raw.near < raw.far < raw.outside:
            return state.chaser.wrong
        return (
            f"levels cannot be distinguished: {raw.near:.0f}, {raw.far:.0f} and {raw.outside:.0f} "
            "cycles a hop"
        )

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        rows: list[Record] = []
        found: list[Metric] = []
        for level, shares in (("first", raw.first), ("shared", raw.second)):
            sizes = []
            for stride, share in shares.items():
                size = stride / share if share > 0 else None
                rows.append(
                    {
                        "stride_bytes": stride,
                        "level": level,
                        "miss_share": share,
                        "fetch_bytes": size,
                    }
                )
                if size is not None and share < 0.9:
                    sizes.append(size)
            fetched = float(np.median(sizes)) if sizes else float(min(state.strides))
            found += metric(f"{level}_fetch", _power(fetched), "B", better="", headline=False)
        line = raw.dense_bytes / max(1, raw.sparse_lines)
        found += metric("first_line", _power(line), "B", better="", headline=False)
        note = (
            f"{raw.near:.0f}, {raw.far:.0f} and {raw.outside:.0f} cycles a timed hop; "
            f"{raw.dense_bytes // KIB} KiB fit densely, {raw.sparse_lines} places far apart"
        )
        return Findings(rows=rows, metrics=found, notes=[note])


def _power(value: float) -> float:
    return float(2 ** round(np.log2(max(value, 1.0))))


benchmark = Lines()
