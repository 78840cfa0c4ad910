"""Latency of a load over the size of the working set."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.core.units import bytes_text
from kernelmark.micro import _chase
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
    rounded,
)
from kernelmark.micro.rig import Rig, spread_of

KIB, MIB = 2**10, 2**20
_LINE = 128
_NEAR_BYTES = 64 * KIB  # minimum L1 size of a GPU
_NEAR_CORE_BYTES = 16 * KIB  # minimum L1 size of a CPU core
# A CPU's pages are small, and its TLB levels can look like cache levels.
_MAX_CONFIDENCE_ON_CPU = 0.9
# Fractions of the step in latency between two levels: where a level ends, and where the next one
# dominates.
_LEVEL_ENDS, _NEXT_DOMINATES = 0.1, 0.5
_NEAR_LAP = 2**13  # lines: a launch starts with an empty L1, which is smaller than this


def _sizes(last: int, per_octave: int) -> tuple[int, ...]:
    count = int(per_octave * np.log2(last / (4 * KIB))) + 1
    raw = 4 * KIB * 2 ** (np.arange(count) / per_octave)
    return tuple(int(size) // _LINE * _LINE for size in raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    chaser: _chase.Chaser
    sizes: tuple[int, ...]
    samples: int
    most: int
    refine: int
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edge:
    """The end of a cache level, and the confidence in it."""

    size: int
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    hops: tuple[_chase.Hop, ...]
    index: _chase.Hop | None
    levels: tuple[_chase.Level, ...]
    edges: tuple[_Edge, ...]
    wrong: str | None = None


class Latency(Microbenchmark[_State, _Raw]):
    name = "latency"
    summary = "Latency of dependent loads over the working set; sizes of the cache levels."
    kinds = EVERYWHERE
    by_cycles = True
    measures = (
        "One thread follows a chain of addresses through a random permutation of all lines of the "
        "working set, so that every load depends on the one before and no prefetcher can predict "
        "it. Cycles and nanoseconds are read inside the kernel, so neither assumes a clock rate. "
        "Where the curve rises, the size of the level is found by bisection, twice, with different "
        "permutations. Its confidence is that of a Kolmogorov–Smirnov test between hops just below "
        "and just above, times the ratio of the smaller to the larger of the two sizes. On a CPU "
        "the second bisection follows a second sweep in other memory, because the edge depends on "
        "the physical pages; the confidence is also multiplied by the ratio of the sizes at 10 % "
        "and at 50 % of the rise, as a gradual rise has no single edge, and is at most "
        f"{_MAX_CONFIDENCE_ON_CPU}."
    )
    misleads = (
        "The latency of a shared cache is a mean over its near and far parts. Large sizes include "
        "address translation, which depends on the page size; where the TLB no longer covers all "
        "pages, the curve rises as behind a cache, so on a CPU a level may be one of the TLB. One "
        "thread leaves some GPUs at a low memory clock. A chain of element indices instead of "
        "addresses adds address arithmetic: it is measured separately, at one size."
    )
    parameters = FrozenDict(
        {
            "sizes": Parameter(
                help="bytes of the working set",
                quick=_sizes(256 * MIB, 2),
                full=_sizes(512 * MIB, 4),
                brief=tuple(KIB * k for k in (16, 32, 64, 2048, 3072, 4096, 196608, 262144)),
            ),
            "samples": Parameter(help="repeats of a chain", quick=3, full=5),
            "most": Parameter(help="maximum hops timed", quick=2**15, full=2**16),
            "refine": Parameter(help="bisections of each level's edge", quick=4, full=6, brief=0),
        }
    )
    columns = (
        Column(name="size_bytes", help="bytes of the working set", unit="B"),
        Column(name="cycles", help="core cycles per load", unit="cycles"),
        Column(name="ns", help="nanoseconds per load", unit="ns"),
        SPREAD,
    )
    figure = Figure(
        x="size_bytes",
        title="working set (KiB)",
        per=KIB,
        scale="log",
        panels=(
            Panel(y="cycles", title="cycles a load", scale="log"),
            Panel(y="ns", title="ns a load", scale="log"),
        ),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        whole, notes = rounded(given.wholes("sizes"), _LINE, 2 * _LINE)
        sizes, more = fitting(
            sorted(whole), 0.25 * rig.device.free_bytes(), "a quarter of what is free"
        )
        return _State(
            chaser=_chase.Chaser(rig, max(sizes)),
            sizes=tuple(sizes),
            samples=given.whole("samples"),
            most=given.whole("most"),
            refine=given.whole("refine"),
            notes=notes + more,
        )

    def timed(self, rig: Rig, state: _State) -> _Raw:
        hops = tuple(self._at(rig, state, size) for size in state.sizes)
        levels = _chase.levels(state.sizes, [hop.cycles for hop in hops])
        edges: list[_Edge] = []
        wrong = None
        if state.refine and rig.block > 1:
            edges = [self._edge(rig, state, *pair) for pair in itertools.pairwise(levels)]
        elif state.refine and len(levels) > 1:
            again = self._in_other_memory(rig, state, levels[-1])
            edges = self._edges_of_core(rig, state, again, levels)
            wrong = again.chaser.wrong
        index = self._index_hop(rig, state)
        return _Raw(hops=hops, index=index, levels=tuple(levels), edges=tuple(edges), wrong=wrong)

    def _index_hop(self, rig: Rig, state: _State) -> _chase.Hop | None:
        """Return a hop of an index chain, if the smallest size fits in L1."""
        chaser = state.chaser
        if state.sizes[0] > _l1_bytes(rig):
            return None
        ring = chaser.ring(state.sizes[0], _LINE)
        chaser.link(ring, index=True)
        found = [chaser.follow(state.most, ring.size, "index") for _ in range(state.samples)]
        best = min(found, key=lambda hop: hop.cycles)
        spread = spread_of(
            [hop.cycles for hop in found], shortest=True, waited=[hop.waited for hop in found]
        )
        return dataclasses.replace(best, spread=spread)

    def _at(self, rig: Rig, state: _State, size: int) -> _chase.Hop:
        """Return a hop in a working set of `size` bytes: the typical one of several runs."""
        chaser = state.chaser
        ring = chaser.ring(size, _LINE)
        chaser.link(ring)
        hops = int(min(max(ring.size, 2**13), state.most))
        warm = self._lap(rig, state, ring)
        found = []
        for _ in range(state.samples):
            found.append(chaser.follow(hops, warm))
            warm = int(min(ring.size, _NEAR_LAP))
        return _chase.typical(rig, found)

    def _lap(self, rig: Rig, state: _State, ring: _chase.Offsets) -> int:
        """Return the hops of one full cycle, which fills every level. Far beyond the caches, where
        they hold none of the chain, a part is enough."""
        near = ring.size * _LINE <= 2 * rig.info.cache_bytes
        return int(ring.size if near else min(ring.size, 4 * state.most))

    def _edge(self, rig: Rig, state: _State, near: _chase.Level, far: _chase.Level) -> _Edge:
        """Return the largest size with the near level's latency, and the confidence: it is lower if
        a second search finds another size."""
        found = [self._search(rig, state, near, far) for _ in range(2)]
        low, high = min(low for low, _ in found), max(high for _, high in found)
        below = self._spread(rig, state, int(0.9 * low))
        above = self._spread(rig, state, min(int(1.15 * high), state.sizes[-1]))
        confidence = _chase.confidence(below, above) * low / max(low for low, _ in found)
        return _Edge(size=low, confidence=min(confidence, 1.0))

    def _in_other_memory(self, rig: Rig, state: _State, last: _chase.Level) -> _State:
        """Return the state with separate memory, up to a size that certainly belongs to the last
        level."""
        sizes = tuple(size for size in state.sizes if size <= 2 * last.first)
        return dataclasses.replace(state, chaser=_chase.Chaser(rig, max(sizes)), sizes=sizes)

    def _edges_of_core(
        self, rig: Rig, state: _State, again: _State, levels: list[_chase.Level]
    ) -> list[_Edge]:
        """Return the end of each level. It is checked in other memory: pages determine cache sets,
        so a repetition in the same pages would agree with itself but not with another run."""
        hops = [self._at(rig, again, size).cycles for size in again.sizes]
        pairs = itertools.pairwise(_chase.levels(again.sizes, hops))
        places = [self._search(rig, again, *pair)[0] for pair in pairs]
        found = []
        for near, far in itertools.pairwise(levels):
            low, high = self._search(rig, state, near, far)
            gone, _ = self._search(rig, state, near, far, _NEXT_DOMINATES)
            below = self._spread(rig, state, int(0.9 * low))
            above = self._spread(rig, state, min(int(1.15 * high), state.sizes[-1]))
            confidence = _chase.confidence(below, above) * min(low / gone, 1.0)
            confidence *= max((min(low, at) / max(low, at) for at in places), default=0.0)
            found.append(_Edge(size=low, confidence=min(confidence, _MAX_CONFIDENCE_ON_CPU)))
        return found

    def _search(
        self,
        rig: Rig,
        state: _State,
        near: _chase.Level,
        far: _chase.Level,
        fraction: float = _LEVEL_ENDS,
    ) -> tuple[int, int]:
        """Return the sizes between which the near level ends, by bisection."""
        low, high = near.last, far.first
        bound = near.cycles + fraction * (far.cycles - near.cycles)
        for _ in range(state.refine):
            middle = (low + high) // 2 // _LINE * _LINE
            if self._at(rig, state, middle).cycles <= bound:
                low = middle
            else:
                high = middle
        return low, high

    def _spread(self, rig: Rig, state: _State, size: int) -> NDArray[np.float64]:
        """Return many hop times for a size: single hops on a GPU, means of many on a CPU."""
        chaser = state.chaser
        ring = chaser.ring(size, _LINE)
        chaser.link(ring)
        if rig.block > 1:
            chaser.follow(_chase.UNROLLED, self._lap(rig, state, ring))
            return chaser.each(_chase.EACH, int(min(ring.size, _NEAR_LAP)))
        return np.array([chaser.follow(2**12, 2**12).cycles for _ in range(16)])

    def verify(self, rig: Rig, state: _State, raw: _Raw) -> str | None:
        return state.chaser.wrong or raw.wrong

    def metrics(self, rig: Rig, state: _State, raw: _Raw) -> Findings:
        rows: list[Record] = [
            {
                "size_bytes": size,
                "cycles": hop.cycles,
                "ns": hop.seconds * 1e9,
                "spread": hop.spread,
            }
            for size, hop in zip(state.sizes, raw.hops, strict=True)
        ]
        on_gpu = rig.block > 1
        first = _median_hop(state, raw, 0, _l1_bytes(rig))
        found: list[Metric] = []
        if first is not None:
            found += metric("l1_cycles", first.cycles, "cycles", better="lower", least=1.0)
            found += metric("l1_ns", first.seconds * 1e9, "ns", better="lower", least=0.1)
        else:
            # For any choice of sizes, one metric has a bound.
            least = min(hop.cycles for hop in raw.hops)
            found += metric(
                "least_cycles", least, "cycles", better="lower", least=1.0, headline=False
            )
        found += metric(
            "l1_index_cycles",
            raw.index.cycles if raw.index else None,
            "cycles",
            better="lower",
            least=1.0,
            headline=on_gpu,
            spread=raw.index.spread if raw.index else None,
        )
        second = _median_hop(state, raw, MIB, 4 * MIB) if on_gpu else None
        if second is not None:
            found += metric("l2_cycles", second.cycles, "cycles", better="lower", least=1.0)
        beyond = 3 * rig.info.cache_bytes
        last = _median_hop(state, raw, beyond, state.sizes[-1])
        notes = list(state.notes)
        if last is None:
            notes.append(
                f"no dram_ns: that takes {bytes_text(beyond)}, three times the last cache, and the "
                f"largest size is {bytes_text(state.sizes[-1])}"
            )
        else:
            nanoseconds = last.seconds * 1e9
            found += metric("dram_ns", nanoseconds, "ns", better="lower", least=10.0)
        for number, edge in enumerate(raw.edges, 1):
            found += metric(f"level{number}_size", edge.size, "B", better="", headline=False)
            found += metric(
                f"level{number}_confidence", edge.confidence, "", better="", headline=False
            )
        notes.append(_levels_text(raw))
        return Findings(rows=rows, metrics=found, notes=notes)


def _levels_text(raw: _Raw) -> str:
    """Return a text of the levels, with the sizes in the metrics if they were searched for."""
    if not raw.levels:
        return "no levels detected: no two sizes in a row have the same latency"
    ends = [edge.size for edge in raw.edges]
    ends += [level.last for level in raw.levels[len(ends) :]]
    shown = (
        f"{level.cycles:.1f} cycles up to {bytes_text(end)}"
        for level, end in zip(raw.levels, ends, strict=True)
    )
    return f"levels: {'; '.join(shown)}"


def _l1_bytes(rig: Rig) -> int:
    """Return the bytes that L1 holds on any device."""
    return _NEAR_BYTES if rig.block > 1 else _NEAR_CORE_BYTES


def _median_hop(state: _State, raw: _Raw, low: int, high: int) -> _chase.Hop | None:
    """Return the hop of median latency among sizes from `low` to `high`."""
    found = sorted(
        (hop for size, hop in zip(state.sizes, raw.hops, strict=True) if low <= size <= high),
        key=lambda hop: hop.cycles,
    )
    return found[len(found) // 2] if found else None


benchmark = Latency()
