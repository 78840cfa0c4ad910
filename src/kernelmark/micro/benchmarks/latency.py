"""Latency of dependent loads: over the working set, over the span of one load per page, and under
load by the other SMs/CUs. Chains of loads are followed by micro_chase.cu.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.errors import Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.units import bytes_text
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
from kernelmark.micro.benchmarks.cache import filled
from kernelmark.micro.rig import Rig, spread_of, widest

CHASE_FILE = "micro_chase.cu"
UNROLLED = 32  # hops in the unrolled loop
EACH = 1536  # maximum hops of the kernel that reads the clock around every hop: its shared memory
# Latencies of one level differ by less than this factor, and two levels by more than _STEP.
_SAME, _STEP = 1.12, 1.25
Offsets = NDArray[np.uint64]
# How a hop is loaded: see micro_chase.cu. `index` chains hold word indices, not addresses.
Way = Literal["plain", "beyond", "index"]
_KERNELS: dict[Way, str] = {"plain": "chase", "beyond": "chase_beyond", "index": "chase_index"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """The latency of one load of a chain. `waited` is that of `Timed`, `spread` that of `Typical`
    over several runs of the chain."""

    cycles: float
    seconds: float
    waited: float = 0.0
    spread: float | None = None


def typical_hop(rig: Rig, hops: Sequence[Hop]) -> Hop:
    """Return the typical hop of several runs of a chain."""
    waited = [hop.waited for hop in hops]
    cycles = rig.typical((hop.cycles for hop in hops), waited)
    seconds = rig.typical((hop.seconds for hop in hops), waited)
    return Hop(
        cycles=cycles.value, seconds=seconds.value, spread=widest((cycles.spread, seconds.spread))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A range of sizes with the same latency; `last` is the largest."""

    first: int
    last: int
    cycles: float


class Chaser:
    """Follows chains in one buffer. Each call continues where the previous one ended: starting
    again at the same element would hit lines that were just loaded."""

    def __init__(self, rig: Rig, nbytes: int) -> None:
        self._rig = rig
        self.base = rig.memory(nbytes)
        # Enough for a chain through every line of 32 bytes; longer ones replace it.
        self._offsets = rig.memory(min(nbytes, 2**28) // 4 + 4096)
        self._out = rig.memory(64)
        self._random = np.random.default_rng(1)
        self._ring: Offsets = np.zeros(1, np.uint64)
        self._at = 0  # index in the ring
        # Set if a chain ended at the wrong element: all measurements are then invalid.
        self.wrong: str | None = None

    def ring(self, size: int, spacing: int) -> Offsets:
        """Return the multiples of `spacing` below `size` in random order."""
        count = max(2, size // spacing)
        return self._random.permutation(count).astype(np.uint64) * np.uint64(spacing)

    def link(self, offsets: Offsets, *, index: bool = False) -> None:
        """Build the cyclic chain that visits `offsets` in order."""
        rig = self._rig
        if offsets.nbytes > self._offsets.nbytes:
            rig.release([self._offsets])
            self._offsets = rig.memory(offsets.nbytes)
        rig.device.write(self._offsets, 0, offsets.view(np.uint8))
        kernel = "chase_link_index" if index else "chase_link"
        wide = rig.block > 1
        rig.run(
            rig.call(
                *(CHASE_FILE, kernel, self.base, self._offsets, offsets.size),
                grid=rig.grid * (4 if wide else 1),
                block=256 if wide else 1,
            )
        )
        self._ring = offsets
        # An index chain starts at index 0, wherever that is in the ring.
        self._at = int(np.flatnonzero(offsets == 0)[0]) if index else 0

    def follow(self, hops: int, warm: int, way: Way = "plain") -> Hop:
        """Return the mean of `hops` hops, after `warm` untimed ones; both are rounded up to whole
        unrolled loops."""
        rig = self._rig
        hops, warm = _whole(hops), _whole(warm)
        start = self.base.address if way == "index" else self.start
        call = rig.call(CHASE_FILE, _KERNELS[way], start, warm, hops, self._out, 0)
        rig.prefer_cache(call)
        timed = rig.run(call)
        ticks, wall, end = rig.read(self._out, np.uint64, 3)
        self.check(int(end), warm + hops, index=way == "index")
        if way != "index":
            self._advance(warm + hops)
        return Hop(
            cycles=float(ticks) * rig.ticks_to_cycles / hops,
            seconds=float(wall) * rig.wall_tick_s / hops,
            waited=timed.waited,
        )

    @property
    def start(self) -> int:
        """Return the address of the element at which the next call starts."""
        return self.base.address + int(self._ring[self._at])

    def _advance(self, hops: int) -> None:
        self._at = (self._at + hops) % self._ring.size

    def check(self, end: int, hops: int, *, index: bool = False) -> None:
        """Set `wrong` if `hops` hops should not end at `end`, an address or a word index."""
        offset = int(self._ring[(self._at + hops) % self._ring.size])
        expected = offset // 4 if index else self.base.address + offset
        if end != expected:
            self.wrong = self.wrong or f"{hops} hops of a chain ended at {end}, not at {expected}"

    def each(self, hops: int, warm: int) -> NDArray[np.float64]:
        """Return the cycles of each hop; only on a GPU."""
        rig = self._rig
        count = min(hops, EACH)
        out = rig.memory(count * 4)
        call = rig.call(CHASE_FILE, "chase_each", self.start, _whole(warm), count, out, 0)
        rig.prefer_cache(call)
        rig.run(call)
        self._advance(_whole(warm) + count)
        cycles = rig.read(out, np.uint32, count).astype(np.float64)
        rig.release([out])
        return cycles


def find_levels(sizes: Sequence[int], cycles: Sequence[float]) -> list[Level]:
    """Return the plateaus of a latency curve, nearest first: runs of at least two sizes within 12 %
    of their first, each at least a quarter slower than the plateau before."""
    plateaus: list[Level] = []
    at = 0
    while at < len(sizes):
        end = at
        while end + 1 < len(sizes) and 1 / _SAME <= cycles[end + 1] / cycles[at] <= _SAME:
            end += 1
        pace = float(np.median(cycles[at : end + 1]))
        if end > at and (not plateaus or pace > _STEP * plateaus[-1].cycles):
            plateaus.append(Level(first=sizes[at], last=sizes[end], cycles=pace))
        elif end > at and pace <= _SAME * plateaus[-1].cycles:
            # The same level continues: a hump in between does not end it.
            plateaus[-1] = dataclasses.replace(plateaus[-1], last=sizes[end])
        at = end + 1
    return plateaus


def edge_confidence(below: NDArray[np.float64], above: NDArray[np.float64]) -> float:
    """Return the confidence that hops of two sizes take different times: 1 − p of a
    Kolmogorov–Smirnov test, by its series for large samples."""
    if below.size < 2 or above.size < 2:
        return 0.0
    values = np.sort(np.concatenate([below, above]))
    cdfs = [
        np.searchsorted(np.sort(sample), values, side="right") / sample.size
        for sample in (below, above)
    ]
    distance = float(np.abs(cdfs[0] - cdfs[1]).max())
    root = (below.size * above.size / (below.size + above.size)) ** 0.5
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:  # the series converges too slowly, and p is 1
        return 0.0
    terms = np.arange(1, 101)
    p = 2 * float((-((-1.0) ** terms) * np.exp(-2 * (terms * scaled) ** 2)).sum())
    return 1.0 - min(1.0, max(0.0, p))


def _whole(hops: int) -> int:
    return -(-hops // UNROLLED) * UNROLLED


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
        return typical_hop(self.rig, runs)

    def _lap(self, ring: Offsets) -> int:
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
        return edge_confidence(below, above)

    def distribution(self, size: int) -> NDArray[np.float64]:
        """Return many hop times for a size: single hops on a GPU, means of many on a CPU."""
        ring = self.chaser.ring(size, _LINE)
        self.chaser.link(ring)
        if self.rig.block > 1:
            self.chaser.follow(UNROLLED, self._lap(ring))
            return self.chaser.each(EACH, int(min(ring.size, _NEAR_LAP)))
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
        pairs = itertools.pairwise(find_levels(sizes, hops))
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
    levels = find_levels(ordered, [hop.cycles for hop in hops])
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
        hop = typical_hop(rig, [chaser.follow(hops, pages, "beyond") for _ in range(samples)])
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
    for number, level in enumerate(find_levels(spans, [row["cycles"] for row in rows])[:-1], 1):
        run.metric(f"reach{number}", level.last, "B", headline=False)
    far = rows[-1]
    run.metric("far_cycles", far["cycles"], "cycles", least=_LEAST_CYCLES, headline=False)
    run.metric("far_ns", far["ns"], "ns", least=_LEAST_NS, headline=False)
    run.begin_checks()
    run.check(chaser.wrong)


# Limit for the other SMs/CUs, in case the chain never ends: two seconds at 2 GHz.
_MOST_CYCLES = 4e9
_LEAST_PAUSE = 4096  # cycles that a chunk takes at least, for that limit
_IN_FLIGHT = 4  # loads of a thread in a chunk
_WARM = 256  # hops until the load has built up
_LINES_PER_HOP = 4  # a sample of the lines is enough: the chain never wraps around


@microbenchmark(
    summary="Latency of main memory over the bandwidth that other SMs/CUs use.",
    by_cycles=True,
    measures="One SM/CU follows a random chain through main memory while all others read it, one "
    "chunk at a time with a pause after each. The pauses are swept from long to none; the latency "
    "is plotted over the bandwidth measured meanwhile.",
    misleads="The latency is too low where requests are queued per SM/CU. The reading SMs/CUs "
    "access their parts in order, which suits the rows of the memory.",
    parameters={
        "pauses": Parameter(
            "cycles from one chunk to the next",
            quick=(65536, 32768, 16384, 12288, 8192, 6144, 4096, 3072, 2048, 0),
            full=(*(int(65536 / 1.3**n) for n in range(24)), 0),
            brief=(2**20, 0),
        ),
        "hops": Parameter(
            "hops of the chain", quick=2**12, full=2**14, brief=2**11, least=UNROLLED
        ),
        "nbytes": Parameter("bytes of the chain and of the data", quick=1024 * MIB, least=MIB),
    },
    columns=(
        Column("pause", "cycles from one chunk to the next", "cycles"),
        Column(
            "bytes_per_s",
            "bytes per second read meanwhile by the other SMs/CUs",
            "B/s",
            lambda h: h.bandwidth("dram"),
        ),
        Column("ns", "nanoseconds per load of the chain", "ns"),
        Column("cycles", "core cycles per load of the chain", "cycles"),
    ),
    no_spread=FrozenDict(
        dict.fromkeys(("quiet_ns", "busy_ns", "busy_bytes"), "each pause is one launch")
    ),
    figure=Figure(
        x="bytes_per_s",
        title="drawn by the others (TB/s)",
        per=1e12,
        panels=(Panel("ns", "ns a load", zero=True),),
    ),
)
def loaded_latency(run: MicroRun, *, pauses: Ints, hops: int, nbytes: int) -> None:
    rig = run.rig
    nbytes = min(nbytes, int(0.2 * rig.device.free_bytes())) // MIB * MIB
    count = _LINES_PER_HOP * hops
    if count * _LINE > nbytes:
        chain = f"a chain of {hops} hops"
        reason = Reason(
            f"{bytes_text(count * _LINE)} needed for {chain}, {bytes_text(nbytes)} free",
            "out-of-memory",
            needed=count * _LINE,
            what=chain,
            free=nbytes,
        )
        raise Unsupported(reason)
    chaser = Chaser(rig, nbytes)
    lines = np.random.default_rng(11).choice(nbytes // _LINE, count, replace=False)
    chaser.link(lines.astype(np.uint64) * np.uint64(_LINE))
    data, out, done = filled(rig, nbytes), rig.memory(64), rig.memory(64)
    chunks, sums = rig.memory(rig.grid * 4), rig.memory(rig.grid * rig.block * 4)
    hops = hops // UNROLLED * UNROLLED

    run.begin_timing()
    ended = True
    for pause in pauses:
        rig.zero(done)
        rig.zero(chunks)
        most = int(_MOST_CYCLES / max(pause, _LEAST_PAUSE))
        call = rig.call(
            *(CHASE_FILE, "chase_loaded", chaser.start, _WARM, hops, out, 0, data, nbytes // 16),
            *(pause, most, done, chunks, sums),
            grid=rig.grid,
            block=rig.block,
        )
        elapsed = rig.time(call).elapsed_s
        ticks, wall, end = rig.read(out, np.uint64, 3)
        chaser.check(int(end), _WARM + hops)
        # The other SMs/CUs read from the start of the launch to the end of the chain.
        read = rig.read(chunks, np.uint32, rig.grid)[1:]
        ended = ended and bool((read < most).all())
        run.row(
            pause=pause,
            bytes_per_s=float(read.sum()) * rig.block * _IN_FLIGHT * 16 / elapsed,
            ns=float(wall) * rig.wall_tick_s / hops * 1e9,
            cycles=float(ticks) / hops,
        )
    quiet = min(run.rows, key=lambda row: row["bytes_per_s"])
    busy = max(run.rows, key=lambda row: row["bytes_per_s"])
    run.metric("quiet_ns", quiet["ns"], "ns", least=10.0)
    run.metric("busy_ns", busy["ns"], "ns", least=10.0, headline=False)
    limit = rig.hardware.bandwidth("dram")
    run.metric("busy_bytes", busy["bytes_per_s"], "B/s", limit=limit, headline=False)
    run.begin_checks()
    run.check(chaser.wrong)
    if not ended:
        run.check("the units that make the load stopped before the chain had ended")
