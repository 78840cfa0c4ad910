"""Windows of memory read round and round by micro_window.cu: calls, timing and the exact check."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.devices.base import Buffer
from kernelmark.micro.rig import CHUNK_BYTES, Call, Rig, Samples

FILE = "micro_window.cu"
PERIOD = 1021  # of the numbers that memory is filled with; a prime, so that chunks differ
_PER_CHUNK = CHUNK_BYTES // 8
_FIRST_BYTES = 8 * 2**30  # read by the first, untimed launch at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """`windows` windows of `chunks` chunks; see micro_window.cu for `rotate` and `step`."""

    chunks: int
    windows: int = 1
    rotate: int = 0
    step: int = 1

    @property
    def nbytes(self) -> int:
        return self.chunks * self.windows * CHUNK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How fast a window was read: by all blocks a second, by one block a core cycle."""

    bytes_per_s: float
    bytes_per_clk: float
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Filled memory, and places for clocks and sums."""

    data: Buffer
    clocks: Buffer
    sums: Buffer


def private(rig: Rig, size: int) -> Window:
    """A window of `size` bytes for each block."""
    chunks = max(1, size // CHUNK_BYTES)
    return Window(chunks=chunks, windows=rig.grid, step=rig.warps % chunks)


def shared(rig: Rig, size: int, *, apart: bool) -> Window:
    """One window for all blocks, which begin together, or `apart` from each other."""
    chunks = max(1, size // CHUNK_BYTES)
    rotate = max(1, chunks // rig.grid) if apart else 0
    return Window(chunks=chunks, rotate=rotate, step=rig.warps % chunks)


def shared_out(rig: Rig, size: int) -> Window:
    """One window that the blocks share out among them."""
    chunks = max(1, size // CHUNK_BYTES)
    return Window(chunks=chunks, rotate=rig.warps, step=rig.grid * rig.warps % chunks)


def room(rig: Rig, nbytes: int) -> Room:
    """Memory filled with a known pattern."""
    data = rig.memory(nbytes)
    fill = rig.call(
        *("micro_stream.cu", "stream_fill", data, nbytes // 8, PERIOD),
        grid=rig.grid * (8 if rig.block > 1 else 1),
        block=min(rig.block, 256),
    )
    rig.run(fill)
    threads = rig.grid * rig.block
    return Room(data=data, clocks=rig.memory(rig.grid * 16), sums=rig.memory(threads * 4))


def read_call(rig: Rig, where: Room, window: Window, rounds: int) -> Call:
    """Every warp reads `rounds` chunks."""
    call = rig.call(
        *(FILE, "window_read", where.data, window.chunks, window.windows, window.rotate),
        *(window.step, rounds, where.clocks, where.sums),
        grid=rig.grid,
        block=rig.block,
    )
    rig.prefer_cache(call)
    return call


def measure(rig: Rig, where: Room, window: Window, *, seconds: float, samples: int) -> Reading:
    """Read long enough that filling the caches does not count, `samples` times."""
    per_round = rig.grid * rig.warps * CHUNK_BYTES
    sweep = math.ceil(window.chunks / rig.warps)
    first = max(8, min(2 * sweep, _FIRST_BYTES // per_round))
    rounds, call = rig.calibrated(lambda n: read_call(rig, where, window, n), first, seconds)
    cycles: list[float] = []

    def note() -> None:
        cycles.append(float(np.median(rig.cycles(where.clocks, rig.grid))))

    timed = rig.sample(call, samples=samples, launches=1, after=note)
    return Reading(
        bytes_per_s=rounds * per_round / timed.typical_s,
        bytes_per_clk=rounds * rig.warps * CHUNK_BYTES / rig.typical(cycles),
        samples=timed,
    )


def check(rig: Rig, where: Room, window: Window, rounds: int = 37) -> str | None:
    """A short launch whose every thread's sum is known exactly, block by block."""
    rig.run(read_call(rig, where, window, rounds))
    found = rig.read(where.sums, np.uint32, rig.grid * rig.block)
    by_block = found.reshape(rig.grid, rig.block).sum(axis=1, dtype=np.uint32)
    wanted = expected_sums(rig, window, rounds)
    wrong = np.flatnonzero(by_block != wanted)
    if wrong.size == 0:
        return None
    return (
        f"{wrong.size} of {rig.grid} blocks read something else than their window of "
        f"{window.chunks} chunks (block {wrong[0]}: {by_block[wrong[0]]}, not {wanted[wrong[0]]})"
    )


def expected_sums(rig: Rig, window: Window, rounds: int) -> NDArray[np.uint32]:
    """The sum, modulo 2³², of all 32-bit words that each block reads in `rounds` rounds."""
    sums = _chunk_sums()
    warps = np.arange(rig.warps, dtype=np.uint64)[:, None]
    turns = np.arange(rounds, dtype=np.uint64)[None, :] * np.uint64(window.step)
    wanted = np.zeros(rig.grid, np.uint32)
    for block in range(rig.grid):
        at = (warps + np.uint64(block * window.rotate) + turns) % np.uint64(window.chunks)
        chunk = at + np.uint64(block % window.windows * window.chunks)
        wanted[block] = sums[chunk * np.uint64(_PER_CHUNK) % np.uint64(PERIOD)].sum(dtype=np.uint32)
    return wanted


def _chunk_sums() -> NDArray[np.uint32]:
    """The word sum of a chunk by what its first number is."""
    numbers = (np.arange(PERIOD + _PER_CHUNK) % PERIOD).astype(np.float64)
    words = numbers.view(np.uint32).reshape(-1, 2).sum(axis=1, dtype=np.uint32)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)])
    sums: NDArray[np.uint64] = total[_PER_CHUNK : _PER_CHUNK + PERIOD] - total[:PERIOD]
    return (sums & np.uint64(0xFFFFFFFF)).astype(np.uint32)
