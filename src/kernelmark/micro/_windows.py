"""Windows of memory read repeatedly by micro_window.cu: calls, timing and the exact check."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmark.devices.base import Buffer
from kernelmark.micro.rig import CHUNK_BYTES, Call, Rig, Samples

FILE = "micro_window.cu"
PERIOD = 1021  # of the fill pattern; a prime, so that chunks differ
_PER_CHUNK = CHUNK_BYTES // 8
_FIRST_BYTES = 8 * 2**30  # maximum read by the first, untimed launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """`windows` windows of `chunks` chunks; see micro_window.cu for `rotate` and `step`. If `step`
    is None, chunks are read in scattered order."""

    chunks: int
    windows: int = 1
    rotate: int = 0
    step: int | None = None

    @property
    def nbytes(self) -> int:
        return self.chunks * self.windows * CHUNK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Read rate of a window: of all blocks per second, of one block per core cycle."""

    bytes_per_s: float
    bytes_per_clk: float | None
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Filled memory, and memory for clocks and sums."""

    data: Buffer
    clocks: Buffer
    sums: Buffer


def private(rig: Rig, size: int) -> Window:
    """Return a window of `size` bytes for each block."""
    chunks = max(1, size // CHUNK_BYTES)
    return Window(chunks=chunks, windows=rig.grid, step=_step(rig, chunks))


def shared(rig: Rig, size: int, *, apart: bool) -> Window:
    """Return one window for all blocks. They read the same chunks at about the same time, or
    different ones if `apart`."""
    chunks = max(1, size // CHUNK_BYTES)
    step = _step(rig, chunks)
    rotate = rig.warps if step is None else max(1, chunks // rig.grid)
    return Window(chunks=chunks, rotate=rotate if apart else 0, step=step)


def shared_out(rig: Rig, size: int) -> Window:
    """Return one window of at most `size` bytes, divided among the blocks. The number of chunks has
    no common factor with the number of warps, so that every warp reads all chunks over time."""
    warps = rig.grid * rig.warps
    chunks = max(1, size // CHUNK_BYTES)
    while math.gcd(warps, chunks) > 1:
        chunks -= 1
    return Window(chunks=chunks, rotate=rig.warps, step=warps % chunks)


def _step(rig: Rig, chunks: int) -> int | None:
    """Return None (scattered) if a block has several warps, which can drift apart, else 1."""
    return None if rig.warps > 1 else 1 % chunks


def allocate(rig: Rig, nbytes: int) -> Buffers:
    """Return memory filled with a known pattern."""
    data = rig.memory(nbytes)
    fill = rig.call(
        *("micro_stream.cu", "stream_fill", data, 0, nbytes // 8, PERIOD),
        grid=rig.grid * (8 if rig.block > 1 else 1),
        block=min(rig.block, 256),
    )
    rig.run(fill)
    threads = rig.grid * rig.block
    return Buffers(data=data, clocks=rig.memory(rig.grid * 16), sums=rig.memory(threads * 4))


def read_call(rig: Rig, buffers: Buffers, window: Window, rounds: int) -> Call:
    """Return a call in which every warp reads `rounds` chunks."""
    scattered = window.step is None
    call = rig.call(
        *(FILE, "window_scatter" if scattered else "window_read", buffers.data),
        *(window.chunks, window.windows, window.rotate),
        *(() if scattered else (window.step,)),
        *(rounds, buffers.clocks, buffers.sums),
        grid=rig.grid,
        block=rig.block,
    )
    rig.prefer_cache(call)
    return call


def measure(rig: Rig, buffers: Buffers, window: Window, *, seconds: float, samples: int) -> Reading:
    """Read a window `samples` times, each long enough that filling the caches is negligible."""
    per_round = rig.grid * rig.warps * CHUNK_BYTES
    sweep = math.ceil(window.chunks / rig.warps)
    first = max(8, min(2 * sweep, _FIRST_BYTES // per_round))
    rounds, call = rig.calibrated(lambda n: read_call(rig, buffers, window, n), first, seconds)
    cycles: list[float] = []

    def note() -> None:
        if rig.no_cycles is None:
            cycles.append(float(np.median(rig.cycles(buffers.clocks, rig.grid))))

    timed = rig.sample(call, samples=samples, launches=1, after=note)
    return Reading(
        bytes_per_s=rounds * per_round / timed.typical_s,
        bytes_per_clk=rounds * rig.warps * CHUNK_BYTES / rig.typical(cycles).value
        if cycles
        else None,
        samples=timed,
    )


def check(rig: Rig, buffers: Buffers, window: Window, rounds: int = 37) -> str | None:
    """Compare the sum of each block in a short launch with its exact value; return an error or
    None."""
    rig.run(read_call(rig, buffers, window, rounds))
    found = rig.read(buffers.sums, np.uint32, rig.grid * rig.block)
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
    """Return the sum, modulo 2³², of all 32-bit words that each block reads in `rounds` rounds."""
    sums = _chunk_sums()
    warps = np.arange(rig.warps, dtype=np.uint64)[:, None]
    wanted = np.zeros(rig.grid, np.uint32)
    for block in range(rig.grid):
        first = warps + np.uint64(block * window.rotate)
        if window.step is None:
            at = _scattered(first, window.chunks, rounds)
        else:
            turns = np.arange(rounds, dtype=np.uint64)[None, :] * np.uint64(window.step)
            at = (first + turns) % np.uint64(window.chunks)
        chunk = at + np.uint64(block % window.windows * window.chunks)
        wanted[block] = sums[chunk * np.uint64(_PER_CHUNK) % np.uint64(PERIOD)].sum(dtype=np.uint32)
    return wanted


def _scattered(numbers: NDArray[np.uint64], chunks: int, rounds: int) -> NDArray[np.uint64]:
    """Return the chunks that the warps `numbers` read: micro_window.cu's sequence, in 32 bits."""
    mask = np.uint64(0xFFFFFFFF)
    state = (numbers + np.uint64(1)) * np.uint64(0x9E3779B9) & mask
    state ^= state >> np.uint64(15)
    found = np.empty((numbers.shape[0], rounds), np.uint64)
    for r in range(rounds):
        state = state * np.uint64(1664525) + np.uint64(1013904223) & mask
        found[:, r] = (state * np.uint64(chunks) >> np.uint64(32))[:, 0]
    return found


def _chunk_sums() -> NDArray[np.uint32]:
    """Return the word sum of a chunk by its first number."""
    numbers = (np.arange(PERIOD + _PER_CHUNK) % PERIOD).astype(np.float64)
    words = numbers.view(np.uint32).reshape(-1, 2).sum(axis=1, dtype=np.uint32)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)])
    sums: NDArray[np.uint64] = total[_PER_CHUNK : _PER_CHUNK + PERIOD] - total[:PERIOD]
    return (sums & np.uint64(0xFFFFFFFF)).astype(np.uint32)
