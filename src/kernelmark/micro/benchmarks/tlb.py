"""Reach of the TLB levels, and their latency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.core.units import bytes_text
from kernelmark.micro import _chase
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
    fitting,
    metric,
)
from kernelmark.micro.rig import Rig

KIB, MIB, GIB = 2**10, 2**20, 2**30
_LINE = 128
_PAGES = 4  # of the smallest span
# Lower bounds of a load from a shared cache in cycles and nanoseconds: the first level beyond an
# SM/CU's own cache is slower than that.
_LEAST_CYCLES = 20.0
_LEAST_NS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    chaser: _chase.Chaser
    points: tuple[tuple[int, int], ...]  # stride, pages
    hops: int
    samples: int
    notes: list[str]


class Tlb(Microbenchmark[_State, list[_chase.Hop]]):
    name = "tlb"
    summary = "Latency over the span of one load per page: the reach of the TLB levels."
    by_cycles = True
    measures = (
        "A chain visits one line in every page of a span, at a different offset in each page, so "
        "that the lines stay in the shared cache while the number of pages grows; the private "
        "cache is bypassed. Where the latency rises, a TLB level no longer covers the span."
    )
    misleads = (
        "The page size is the driver's choice, usually 2 MiB; a smaller stride visits the same "
        "pages many times. Lines in the same cache set can look like a limit of the TLB."
    )
    parameters = FrozenDict(
        {
            "strides": Parameter(
                help="bytes between two visited lines",
                quick=(2 * MIB,),
                full=(64 * KIB, 2 * MIB, 32 * MIB),
                least=_LINE,
                multiple=_LINE,
            ),
            "span": Parameter(
                help="bytes of the largest span",
                quick=64 * GIB,
                full=128 * GIB,
                brief=4 * GIB,
                least=_PAGES * _LINE,
            ),
            "hops": Parameter(help="hops timed", quick=2**13, full=2**15, brief=2**12),
            "samples": Parameter(help="repeats of a chain", quick=3, full=5),
        }
    )
    columns = (
        Column(name="stride_bytes", help="bytes between two visited lines", unit="B"),
        Column(name="span_bytes", help="bytes from the first to the last line", unit="B"),
        Column(name="cycles", help="core cycles per load", unit="cycles"),
        Column(name="ns", help="nanoseconds per load", unit="ns"),
        SPREAD,
    )
    figure = Figure(
        x="span_bytes",
        title="span (MiB)",
        per=MIB,
        scale="log",
        colour="stride_bytes",
        panels=(Panel(y="cycles", title="cycles a load", zero=True),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        span = min(given.whole("span"), int(0.7 * rig.device.free_bytes()))
        lines = max(64, rig.info.cache_bytes // 4 // _LINE)
        points = []
        strides, notes = fitting(
            given.wholes("strides"), span // _PAGES, f"a quarter of a span of {bytes_text(span)}"
        )
        for stride in strides:
            pages = _PAGES
            while pages * stride <= span and pages <= lines:
                points.append((stride, pages))
                pages *= 2
        return _State(
            chaser=_chase.Chaser(rig, span),
            points=tuple(points),
            hops=given.whole("hops"),
            samples=given.whole("samples"),
            notes=notes,
        )

    def timed(self, rig: Rig, state: _State) -> list[_chase.Hop]:
        found = []
        random = np.random.default_rng(5)
        for stride, pages in state.points:
            order = random.permutation(pages).astype(np.uint64)
            # A different line in each page: the same offset everywhere would map to one cache set.
            lines = random.integers(0, stride // _LINE, pages).astype(np.uint64)
            state.chaser.link(order * np.uint64(stride) + lines[order] * np.uint64(_LINE))
            hops = [state.chaser.follow(state.hops, pages, "beyond") for _ in range(state.samples)]
            found.append(_chase.typical(rig, hops))
        return found

    def verify(self, rig: Rig, state: _State, raw: list[_chase.Hop]) -> str | None:
        return state.chaser.wrong

    def metrics(self, rig: Rig, state: _State, raw: list[_chase.Hop]) -> Findings:
        rows: list[Record] = [
            {
                "stride_bytes": stride,
                "span_bytes": stride * pages,
                "cycles": hop.cycles,
                "ns": hop.seconds * 1e9,
                "spread": hop.spread,
            }
            for (stride, pages), hop in zip(state.points, raw, strict=True)
        ]
        stride = state.points[-1][0] if 2 * MIB not in dict(state.points) else 2 * MIB
        mine = [
            (stride * pages, hop.cycles)
            for (own, pages), hop in zip(state.points, raw, strict=True)
            if own == stride
        ]
        spans, cycles = [span for span, _ in mine], [value for _, value in mine]
        found: list[Metric] = []
        levels = _chase.levels(spans, cycles)
        for number, level in enumerate(levels[:-1], 1):
            found += metric(f"reach{number}", level.last, "B", headline=False)
        far = dict(zip(state.points, raw, strict=True))[stride, spans[-1] // stride]
        for name, value, unit, least in (
            ("far_cycles", far.cycles, "cycles", _LEAST_CYCLES),
            ("far_ns", far.seconds * 1e9, "ns", _LEAST_NS),
        ):
            found += metric(name, value, unit, better="lower", headline=False, least=least)
        return Findings(rows=rows, metrics=found, notes=state.notes)


benchmark = Tlb()
