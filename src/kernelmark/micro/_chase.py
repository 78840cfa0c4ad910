"""Chains of loads (micro_chase.cu): building them, following them, and finding where they slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kernelmark.micro.rig import Rig

FILE = "micro_chase.cu"
UNROLLED = 32  # hops in the unrolled loop
EACH = 1536  # hops that the kernel with a clock around every one takes at most
Offsets = NDArray[np.uint64]
# How a hop is loaded: see micro_chase.cu. `index` chains hold numbers of words, not addresses.
Way = Literal["plain", "beyond", "index"]
_KERNELS: dict[Way, str] = {"plain": "chase", "beyond": "chase_beyond", "index": "chase_index"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """What one load of a chain takes."""

    cycles: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Sizes that a chain is followed at the same pace in; `last` is the largest of them."""

    first: int
    last: int
    cycles: float


class Chaser:
    """Follows chains in one buffer. Each following goes on where the one before ended: whoever
    began again would find in a cache what was just there."""

    def __init__(self, rig: Rig, nbytes: int, seed: int = 1) -> None:
        self._rig = rig
        self.base = rig.memory(nbytes)
        self._offsets = rig.memory(min(nbytes, 2**28) // 4 + 4096)
        self._out = rig.memory(64)
        self._random = np.random.default_rng(seed)
        self._ring: Offsets = np.zeros(1, np.uint64)
        self._at = 0  # place in the ring
        # Where a chain led elsewhere than it should: nothing it measured counts then.
        self.wrong: str | None = None

    def ring(self, size: int, spacing: int) -> Offsets:
        """Return a random order of every `spacing`-th byte of the first `size` bytes."""
        count = max(2, size // spacing)
        return self._random.permutation(count).astype(np.uint64) * np.uint64(spacing)

    def link(self, offsets: Offsets, *, index: bool = False) -> None:
        """Make the chain that visits `offsets` in order, and then begins again."""
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
        # A chain of numbers begins at number 0, wherever in the ring that is.
        self._at = int(np.flatnonzero(offsets == 0)[0]) if index else 0

    def follow(self, hops: int, warm: int, way: Way = "plain") -> Hop:
        """Return the mean of `hops` hops, after `warm` untimed ones; both in whole unrolled
        loops."""
        rig = self._rig
        hops, warm = _whole(hops), _whole(warm)
        start = self.base.address if way == "index" else self.start
        call = rig.call(FILE, _KERNELS[way], start, warm, hops, self._out, 0)
        rig.prefer_cache(call)
        rig.run(call)
        ticks, wall, end = rig.read(self._out, np.uint64, 3)
        self.check(int(end), warm + hops, index=way == "index")
        if way != "index":
            self._go(warm + hops)
        return Hop(
            cycles=float(ticks) * rig.ticks_to_cycles / hops,
            seconds=float(wall) * rig.wall_tick_s / hops,
        )

    @property
    def start(self) -> int:
        """The address of the element that the next following begins at."""
        return self.base.address + int(self._ring[self._at])

    def _go(self, hops: int) -> None:
        self._at = (self._at + hops) % self._ring.size

    def check(self, end: int, hops: int, *, index: bool = False) -> None:
        """Note it if so many hops do not end at `end`, an address or the number of a word."""
        offset = int(self._ring[(self._at + hops) % self._ring.size])
        wanted = offset // 4 if index else self.base.address + offset
        if end != wanted:
            self.wrong = self.wrong or f"{hops} hops of a chain ended at {end}, not at {wanted}"

    def each(self, hops: int, warm: int) -> NDArray[np.float64]:
        """Cycles of every single hop; only on a GPU."""
        rig = self._rig
        count = min(hops, EACH)
        out = rig.memory(count * 4)
        call = rig.call(FILE, "chase_each", self.start, _whole(warm), count, out, 0)
        rig.prefer_cache(call)
        rig.run(call)
        self._go(_whole(warm) + count)
        found = rig.read(out, np.uint32, count).astype(np.float64)
        rig.release([out])
        return found


def levels(sizes: Sequence[int], cycles: Sequence[float]) -> list[Level]:
    """Return the plateaus of a latency curve, nearest first: runs of sizes within 12 % of their
    first, at least two long, each at least a quarter slower than the one before."""
    found: list[Level] = []
    at = 0
    while at < len(sizes):
        end = at
        while end + 1 < len(sizes) and 1 / 1.12 <= cycles[end + 1] / cycles[at] <= 1.12:
            end += 1
        pace = float(np.median(cycles[at : end + 1]))
        if end > at and (not found or pace > 1.25 * found[-1].cycles):
            found.append(Level(first=sizes[at], last=sizes[end], cycles=pace))
        elif end > at and pace <= 1.12 * found[-1].cycles:
            # The same level again: a hump in between does not end it.
            found[-1] = dataclasses.replace(found[-1], last=sizes[end])
        at = end + 1
    return found


def confidence(below: NDArray[np.float64], above: NDArray[np.float64]) -> float:
    """Return how sure it is that hops of two sizes take different times: 1 − p of a
    Kolmogorov–Smirnov test, by its series for large samples."""
    if below.size < 2 or above.size < 2:
        return 0.0
    places = np.sort(np.concatenate([below, above]))
    shares = [
        np.searchsorted(np.sort(sample), places, side="right") / sample.size
        for sample in (below, above)
    ]
    distance = float(np.abs(shares[0] - shares[1]).max())
    root = (below.size * above.size / (below.size + above.size)) ** 0.5
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:  # the series converges too slowly, and p is 1
        return 0.0
    terms = np.arange(1, 101)
    p = 2 * float((-((-1.0) ** terms) * np.exp(-2 * (terms * scaled) ** 2)).sum())
    return 1.0 - min(1.0, max(0.0, p))


def _whole(hops: int) -> int:
    return -(-hops // UNROLLED) * UNROLLED
