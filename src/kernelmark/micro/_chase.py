"""Pointer chasing (micro_chase.cu): build and follow chains of loads, find plateaus of latency."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kernelmark.micro.rig import Rig, widest

FILE = "micro_chase.cu"
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


def typical(rig: Rig, hops: Sequence[Hop]) -> Hop:
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

    def __init__(self, rig: Rig, nbytes: int, seed: int = 1) -> None:
        self._rig = rig
        self.base = rig.memory(nbytes)
        # Enough for a chain through every line of 32 bytes; longer ones replace it.
        self._offsets = rig.memory(min(nbytes, 2**28) // 4 + 4096)
        self._out = rig.memory(64)
        self._random = np.random.default_rng(seed)
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
                *(FILE, kernel, self.base, self._offsets, offsets.size),
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
        call = rig.call(FILE, _KERNELS[way], start, warm, hops, self._out, 0)
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
        call = rig.call(FILE, "chase_each", self.start, _whole(warm), count, out, 0)
        rig.prefer_cache(call)
        rig.run(call)
        self._advance(_whole(warm) + count)
        cycles = rig.read(out, np.uint32, count).astype(np.float64)
        rig.release([out])
        return cycles


def levels(sizes: Sequence[int], cycles: Sequence[float]) -> list[Level]:
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


def confidence(below: NDArray[np.float64], above: NDArray[np.float64]) -> float:
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
