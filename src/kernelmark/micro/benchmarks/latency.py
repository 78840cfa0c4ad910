"""Latency of dependent loads: over the working set, and over the span of one load per page."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.units import bytes_text
from kernelmark.micro import _chase
from kernelmark.micro._chase import Chaser, Hop, Level
from kernelmark.micro.base import (
    EVERYWHERE,
    GIB,
    KIB,
    MIB,
    SPREAD,
    Column,
    Figure,
    Ints,
    MicroRun,
    Panel,
    Parameter,
    fitting,
    microbenchmark,
    rounded,
)
from kernelmark.micro.rig import Rig, spread_of

_LINE = 128  # the longest line of any supported device: no two elements of a chain share one
_NEAR_BYTES = 64 * KIB  # minimum L1 size of a GPU
_NEAR_CORE_BYTES = 16 * KIB  # minimum L1 size of a CPU core
# A CPU's pages are small, and its TLB levels can look like cache levels.
_MAX_CONFIDENCE_ON_CPU = 0.9
# Fractions of the step in latency between two levels: where a level ends, and where the next one
# dominates.
_LEVEL_ENDS, _NEXT_DOMINATES = 0.1, 0.5
_NEAR_LAP = 2**13  # lines: a launch starts with an empty L1, which is smaller than this (1 MiB)
_LEAST_HOPS = 2**13  # timed: reading the clock at both ends adds a hundredth of a cycle to each
# Core hops are timed in means of many: a hop is shorter than reading the clock.
_CORE_MEANS, _CORE_HOPS = 16, 2**12


def _sizes(last: int, per_octave: int) -> tuple[int, ...]:
    count = int(per_octave * np.log2(last / (4 * KIB))) + 1
    raw = 4 * KIB * 2 ** (np.arange(count) / per_octave)
    return tuple(int(size) // _LINE * _LINE for size in raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The end of a cache level, and the confidence in it."""

    size: int
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Latencies in the memory of one chaser, by working sets of up to `largest` bytes."""

    rig: Rig
    chaser: Chaser
    largest: int
    samples: int
    most: int  # hops timed
    bisections: int

    def hop(self, size: int) -> Hop:
        """Return a hop in a working set of `size` bytes: the typical one of several runs."""
        ring = self.chaser.ring(size, _LINE)
        self.chaser.link(ring)
        hops = int(min(max(ring.size, _LEAST_HOPS), self.most))
        warm = self._lap(ring)
        runs = []
        for _ in range(self.samples):
            runs.append(self.chaser.follow(hops, warm))
            warm = int(min(ring.size, _NEAR_LAP))
        return _chase.typical(self.rig, runs)

    def _lap(self, ring: _chase.Offsets) -> int:
        """Return the hops of one full cycle, which fills every level. Far beyond the caches, where
        they hold none of the chain, a part is enough."""
        near = ring.size * _LINE <= 2 * self.rig.info.cache_bytes
        return int(ring.size if near else min(ring.size, 4 * self.most))

    def index_hop(self, size: int) -> Hop | None:
        """Return a hop of a chain of indices, if `size` fits in L1."""
        if size > _l1_bytes(self.rig):
            return None
        ring = self.chaser.ring(size, _LINE)
        self.chaser.link(ring, index=True)
        runs = [self.chaser.follow(self.most, ring.size, "index") for _ in range(self.samples)]
        spread = spread_of(
            [hop.cycles for hop in runs], shortest=True, waited=[hop.waited for hop in runs]
        )
        return dataclasses.replace(min(runs, key=lambda hop: hop.cycles), spread=spread)

    def search(self, near: Level, far: Level, fraction: float = _LEVEL_ENDS) -> tuple[int, int]:
        """Return the sizes between which the near level ends, by bisection."""
        low, high = near.last, far.first
        bound = near.cycles + fraction * (far.cycles - near.cycles)
        for _ in range(self.bisections):
            middle = (low + high) // 2 // _LINE * _LINE
            if self.hop(middle).cycles <= bound:
                low = middle
            else:
                high = middle
        return low, high

    def differ(self, low: int, high: int) -> float:
        """Return the confidence that hops just below `low` bytes and just above `high` bytes take
        different times."""
        # Away from the edge by more than the width that bisection leaves.
        below = self.distribution(int(0.9 * low))
        above = self.distribution(min(int(1.15 * high), self.largest))
        return _chase.confidence(below, above)

    def distribution(self, size: int) -> NDArray[np.float64]:
        """Return many hop times for a size: single hops on a GPU, means of many on a CPU."""
        ring = self.chaser.ring(size, _LINE)
        self.chaser.link(ring)
        if self.rig.block > 1:
            self.chaser.follow(_chase.UNROLLED, self._lap(ring))
            return self.chaser.each(_chase.EACH, int(min(ring.size, _NEAR_LAP)))
        means = (self.chaser.follow(_CORE_HOPS, _CORE_HOPS) for _ in range(_CORE_MEANS))
        return np.array([hop.cycles for hop in means])

    def edge(self, near: Level, far: Level) -> Edge:
        """Return the largest size with the near level's latency, and the confidence: it is lower if
        a second search finds another size."""
        searches = [self.search(near, far) for _ in range(2)]
        low, high = min(low for low, _ in searches), max(high for _, high in searches)
        confidence = self.differ(low, high) * low / max(low for low, _ in searches)
        return Edge(size=low, confidence=min(confidence, 1.0))

    def edges_of_core(
        self, sizes: Sequence[int], levels: Sequence[Level], again: Curve
    ) -> list[Edge]:
        """Return the end of each level. It is checked in other memory (`again`): pages determine
        cache sets, so a repetition in the same pages would agree with itself but not with another
        run."""
        hops = [again.hop(size).cycles for size in sizes]
        pairs = itertools.pairwise(_chase.levels(sizes, hops))
        ends = [again.search(*pair)[0] for pair in pairs]
        edges = []
        for near, far in itertools.pairwise(levels):
            low, high = self.search(near, far)
            gone, _ = self.search(near, far, _NEXT_DOMINATES)
            confidence = self.differ(low, high) * min(low / gone, 1.0)
            confidence *= max((min(low, end) / max(low, end) for end in ends), default=0.0)
            edges.append(Edge(size=low, confidence=min(confidence, _MAX_CONFIDENCE_ON_CPU)))
        return edges


@microbenchmark(
    summary="Latency of dependent loads over the working set; sizes of the cache levels.",
    kinds=EVERYWHERE,
    by_cycles=True,
    measures="One thread follows a chain of addresses through a random permutation of all lines of "
    "the working set, so that every load depends on the one before and no prefetcher can predict "
    "it. Cycles and nanoseconds are read inside the kernel, so neither assumes a clock rate. Where "
    "the curve rises, the size of the level is found by bisection, twice, with different "
    "permutations. Its confidence is that of a Kolmogorov–Smirnov test between hops just below and "
    "just above, times the ratio of the smaller to the larger of the two sizes. On a CPU the "
    "second bisection follows a second sweep in other memory, because the edge depends on the "
    "physical pages; the confidence is also multiplied by the ratio of the sizes at 10 % and at "
    "50 % of the rise, as a gradual rise has no single edge, and is at most "
    f"{_MAX_CONFIDENCE_ON_CPU}.",
    misleads="The latency of a shared cache is a mean over its near and far parts. Large sizes "
    "include address translation, which depends on the page size; where the TLB no longer covers "
    "all pages, the curve rises as behind a cache, so on a CPU a level may be one of the TLB. One "
    "thread leaves some GPUs at a low memory clock. A chain of element indices instead of "
    "addresses adds address arithmetic: it is measured separately, at one size.",
    parameters={
        "sizes": Parameter(
            "bytes of the working set",
            quick=_sizes(256 * MIB, 2),
            full=_sizes(512 * MIB, 4),
            # In the L1, the L2 and the main memory of GPUs: two or three sizes each.
            brief=tuple(KIB * k for k in (16, 32, 64, 2048, 3072, 4096, 196608, 262144)),
        ),
        "samples": Parameter("repeats of a chain", quick=3, full=5),
        "most": Parameter("maximum hops timed", quick=2**15, full=2**16),
        "refine": Parameter("bisections of each level's edge", quick=4, full=6, brief=0),
    },
    columns=(
        Column("size_bytes", "bytes of the working set", "B"),
        Column("cycles", "core cycles per load", "cycles"),
        Column("ns", "nanoseconds per load", "ns"),
        SPREAD,
    ),
    figure=Figure(
        x="size_bytes",
        title="working set (KiB)",
        per=KIB,
        scale="log",
        panels=(
            Panel("cycles", "cycles a load", scale="log"),
            Panel("ns", "ns a load", scale="log"),
        ),
    ),
)
def latency(run: MicroRun, *, sizes: Ints, samples: int, most: int, refine: int) -> None:
    rig = run.rig
    whole, run.notes = rounded(sizes, _LINE, 2 * _LINE)
    share = "a quarter of what is free"
    ordered, notes = fitting(sorted(whole), 0.25 * rig.device.free_bytes(), share)
    run.notes += notes
    largest = max(ordered)
    curve = Curve(
        rig=rig,
        chaser=Chaser(rig, largest),
        largest=largest,
        samples=samples,
        most=most,
        bisections=refine,
    )
    run.begin_timing()
    hops = [curve.hop(size) for size in ordered]
    levels = _chase.levels(ordered, [hop.cycles for hop in hops])
    edges: list[Edge] = []
    if refine and rig.block > 1:
        edges = [curve.edge(*pair) for pair in itertools.pairwise(levels)]
    elif refine and len(levels) > 1:
        # Up to a size that certainly belongs to the last level.
        near = [size for size in ordered if size <= 2 * levels[-1].first]
        again = dataclasses.replace(curve, chaser=Chaser(rig, max(near)), largest=max(near))
        edges = curve.edges_of_core(near, levels, again)
        run.check(again.chaser.wrong)
    report(run, dict(zip(ordered, hops, strict=True)), levels, edges, curve.index_hop(ordered[0]))
    run.begin_checks()
    run.check(curve.chaser.wrong)


def report(
    run: MicroRun,
    hops: dict[int, Hop],
    levels: Sequence[Level],
    edges: Sequence[Edge],
    index: Hop | None,
) -> None:
    """Add the rows and metrics of hops by size, of the levels and their edges, and of a hop of a
    chain of indices."""
    on_gpu, cache_bytes = run.rig.block > 1, run.rig.info.cache_bytes
    for size, hop in hops.items():
        run.row(size_bytes=size, cycles=hop.cycles, ns=hop.seconds * 1e9, spread=hop.spread)
    first = _median_hop(hops, 0, _l1_bytes(run.rig))
    if first is not None:
        run.metric("l1_cycles", first.cycles, "cycles", least=1.0)
        run.metric("l1_ns", first.seconds * 1e9, "ns", least=0.1)
    else:
        # For any choice of sizes, one metric has a bound.
        least = min(hop.cycles for hop in hops.values())
        run.metric("least_cycles", least, "cycles", least=1.0, headline=False)
    run.metric(
        *("l1_index_cycles", index.cycles if index else None, "cycles"),
        least=1.0,
        headline=on_gpu,
        spread=index.spread if index else None,
    )
    # Beyond the L1 of every GPU, and inside an L2 of 4 MiB.
    second = _median_hop(hops, MIB, 4 * MIB) if on_gpu else None
    run.metric("l2_cycles", second.cycles if second else None, "cycles", least=1.0)
    largest, beyond = max(hops), 3 * cache_bytes
    last = _median_hop(hops, beyond, largest)
    if last is None:
        run.notes.append(
            f"no dram_ns: that takes {bytes_text(beyond)}, three times the last cache, and the "
            f"largest size is {bytes_text(largest)}"
        )
    else:
        run.metric("dram_ns", last.seconds * 1e9, "ns", least=10.0)
    for number, edge in enumerate(edges, 1):
        run.metric(f"level{number}_size", edge.size, "B", better="", headline=False)
        run.metric(f"level{number}_confidence", edge.confidence, "", better="", headline=False)
    run.notes.append(_levels_text(levels, edges))


def _levels_text(levels: Sequence[Level], edges: Sequence[Edge]) -> str:
    """Return a text of the levels, with the sizes in the metrics if they were searched for."""
    if not levels:
        return "no levels detected: no two sizes in a row have the same latency"
    ends = [edge.size for edge in edges]
    ends += [level.last for level in levels[len(ends) :]]
    shown = (
        f"{level.cycles:.1f} cycles up to {bytes_text(end)}"
        for level, end in zip(levels, ends, strict=True)
    )
    return f"levels: {'; '.join(shown)}"


def _l1_bytes(rig: Rig) -> int:
    """Return the bytes that L1 holds on any device."""
    return _NEAR_BYTES if rig.block > 1 else _NEAR_CORE_BYTES


def _median_hop(hops: dict[int, Hop], low: int, high: int) -> Hop | None:
    """Return the hop of median latency among sizes from `low` to `high`."""
    inside = [hop for size, hop in hops.items() if low <= size <= high]
    return sorted(inside, key=lambda hop: hop.cycles)[len(inside) // 2] if inside else None


_PAGES = 4  # of the smallest span
_HUGE_PAGE = 2 * MIB  # of both vendors' drivers
# Lower bounds of a load from a shared cache in cycles and nanoseconds: the first level beyond an
# SM/CU's own cache is slower than that.
_LEAST_CYCLES = 20.0
_LEAST_NS = 5.0


@microbenchmark(
    summary="Latency over the span of one load per page: the reach of the TLB levels.",
    by_cycles=True,
    measures="A chain visits one line in every page of a span, at a different offset in each page, "
    "so that the lines stay in the shared cache while the number of pages grows; the private cache "
    "is bypassed. Where the latency rises, a TLB level no longer covers the span.",
    misleads="The page size is the driver's choice, usually 2 MiB; a smaller stride visits the "
    "same pages many times. Lines in the same cache set can look like a limit of the TLB.",
    parameters={
        "strides": Parameter(
            "bytes between two visited lines",
            quick=(_HUGE_PAGE,),
            full=(64 * KIB, _HUGE_PAGE, 32 * MIB),
            least=_LINE,
            multiple=_LINE,
        ),
        "span": Parameter(
            "bytes of the largest span",
            quick=64 * GIB,
            full=128 * GIB,
            brief=4 * GIB,
            least=_PAGES * _LINE,
        ),
        "hops": Parameter("hops timed", quick=2**13, full=2**15, brief=2**12),
        "samples": Parameter("repeats of a chain", quick=3, full=5),
    },
    columns=(
        Column("stride_bytes", "bytes between two visited lines", "B"),
        Column("span_bytes", "bytes from the first to the last line", "B"),
        Column("cycles", "core cycles per load", "cycles"),
        Column("ns", "nanoseconds per load", "ns"),
        SPREAD,
    ),
    figure=Figure(
        x="span_bytes",
        title="span (MiB)",
        per=MIB,
        scale="log",
        colour="stride_bytes",
        panels=(Panel("cycles", "cycles a load", zero=True),),
    ),
)
def tlb(run: MicroRun, *, strides: Ints, span: int, hops: int, samples: int) -> None:
    rig = run.rig
    span = min(span, int(0.7 * rig.device.free_bytes()))
    # The lines of all pages fit in a quarter of the shared cache.
    lines = max(64, rig.info.cache_bytes // 4 // _LINE)
    share = f"a quarter of a span of {bytes_text(span)}"
    kept, run.notes = fitting(strides, span // _PAGES, share)
    points: list[tuple[int, int]] = []
    for stride in kept:
        pages = _PAGES
        while pages * stride <= span and pages <= lines:
            points.append((stride, pages))
            pages *= 2
    chaser = Chaser(rig, span)

    run.begin_timing()
    random = np.random.default_rng(5)
    for stride, pages in points:
        order = random.permutation(pages).astype(np.uint64)
        # A different line in each page: the same offset everywhere would map to one cache set.
        offsets = random.integers(0, stride // _LINE, pages).astype(np.uint64)
        chaser.link(order * np.uint64(stride) + offsets[order] * np.uint64(_LINE))
        hop = _chase.typical(rig, [chaser.follow(hops, pages, "beyond") for _ in range(samples)])
        run.row(
            stride_bytes=stride,
            span_bytes=stride * pages,
            cycles=hop.cycles,
            ns=hop.seconds * 1e9,
            spread=hop.spread,
        )
    stride = _HUGE_PAGE if _HUGE_PAGE in dict(points) else points[-1][0]
    rows = run.rows_with(stride_bytes=stride)
    spans = [row["span_bytes"] for row in rows]
    for number, level in enumerate(_chase.levels(spans, [row["cycles"] for row in rows])[:-1], 1):
        run.metric(f"reach{number}", level.last, "B", headline=False)
    far = rows[-1]
    run.metric("far_cycles", far["cycles"], "cycles", least=_LEAST_CYCLES, headline=False)
    run.metric("far_ns", far["ns"], "ns", least=_LEAST_NS, headline=False)
    run.begin_checks()
    run.check(chaser.wrong)
