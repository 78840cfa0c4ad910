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
_PER_CHUNK = CHUNK_BYTES // 8  # doubles
_FIRST_BYTES = 8 * 2**30  # maximum read by the first, untimed launch: some milliseconds on a GPU
_CHECKED_ROUNDS = 37  # no multiple of the windows' chunks, so that every warp ends inside a lap


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


def private_window(rig: Rig, size: int) -> Window:
    """Return a window of `size` bytes for each block."""
    chunks = max(1, size // CHUNK_BYTES)
    return Window(chunks=chunks, windows=rig.grid, step=_step(rig, chunks))


def shared_window(rig: Rig, size: int, *, apart: bool) -> Window:
    """Return one window for all blocks. They read the same chunks at about the same time, or
    different ones if `apart`."""
    chunks = max(1, size // CHUNK_BYTES)
    step = _step(rig, chunks)
    rotate = rig.warps if step is None else max(1, chunks // rig.grid)
    return Window(chunks=chunks, rotate=rotate if apart else 0, step=step)


def _step(rig: Rig, chunks: int) -> int | None:
    """Return None (scattered) if a block has several warps, which can drift apart, else 1."""
    # Warps that read in order hit the lines that another warp of the block has just loaded, and a
    # window larger than the cache would be served by it.
    return None if rig.warps > 1 else 1 % chunks


def filled(rig: Rig, nbytes: int) -> Buffer:
    """Return memory filled with a known pattern."""
    data = rig.memory(nbytes)
    fill = rig.call(
        *("micro_stream.cu", "stream_fill", data, 0, nbytes // 8, PERIOD),
        grid=rig.grid * (8 if rig.block > 1 else 1),
        block=min(rig.block, 256),
    )
    rig.run(fill)
    return data


class WindowReader:
    """Reads windows in filled memory of `nbytes`."""

    def __init__(self, rig: Rig, nbytes: int) -> None:
        self._rig = rig
        self._data = filled(rig, nbytes)
        self._clocks = rig.memory(rig.grid * 16)
        self._sums = rig.memory(rig.grid * rig.block * 4)

    def _call(self, window: Window, rounds: int) -> Call:
        """Return a call in which every warp reads `rounds` chunks."""
        rig, scattered = self._rig, window.step is None
        call = rig.call(
            *(FILE, "window_scatter" if scattered else "window_read", self._data),
            *(window.chunks, window.windows, window.rotate),
            *(() if scattered else (window.step,)),
            *(rounds, self._clocks, self._sums),
            grid=rig.grid,
            block=rig.block,
        )
        rig.prefer_cache(call)
        return call

    def measure(
        self, window: Window, *, seconds: float, samples: int
    ) -> tuple[float, float | None, Samples]:
        """Read a window `samples` times, each long enough that filling the caches is negligible.
        Return (bytes per second of all blocks, bytes per core cycle of one block, timings)."""
        rig = self._rig
        per_round = rig.grid * rig.warps * CHUNK_BYTES
        # The first launch fills the caches: two sweeps of the window, if that is not too long.
        sweep = math.ceil(window.chunks / rig.warps)
        first = max(8, min(2 * sweep, _FIRST_BYTES // per_round))
        rounds, call = rig.calibrated(lambda n: self._call(window, n), first, seconds)
        timed = rig.sample(call, samples=samples, launches=1, clocks=self._clocks)
        per_clk = None
        if timed.cycles is not None:
            per_clk = rounds * rig.warps * CHUNK_BYTES / timed.cycles.value
        return rounds * per_round / timed.typical_s, per_clk, timed

    def check(self, window: Window, rounds: int = _CHECKED_ROUNDS) -> str | None:
        """Compare the sum of each block in a short launch with its exact value; return an error or
        None."""
        rig = self._rig
        rig.run(self._call(window, rounds))
        sums = rig.read(self._sums, np.uint32, rig.grid * rig.block)
        by_block = sums.reshape(rig.grid, rig.block).sum(axis=1, dtype=np.uint32)
        expected = expected_sums(rig, window, rounds)
        wrong = np.flatnonzero(by_block != expected)
        if wrong.size == 0:
            return None
        first = wrong[0]
        return (
            f"{wrong.size} of {rig.grid} blocks read something else than their window of "
            f"{window.chunks} chunks (block {first}: {by_block[first]}, not {expected[first]})"
        )


def expected_sums(rig: Rig, window: Window, rounds: int) -> NDArray[np.uint32]:
    """Return the sum, modulo 2³², of all 32-bit words that each block reads in `rounds` rounds."""
    sums = _chunk_sums()
    warps = np.arange(rig.warps, dtype=np.uint64)[:, None]
    expected = np.zeros(rig.grid, np.uint32)
    for block in range(rig.grid):
        first = warps + np.uint64(block * window.rotate)
        if window.step is None:
            at = scattered_chunks(first, window.chunks, rounds)
        else:
            steps = np.arange(rounds, dtype=np.uint64)[None, :] * np.uint64(window.step)
            at = (first + steps) % np.uint64(window.chunks)
        chunk = at + np.uint64(block % window.windows * window.chunks)
        numbers = chunk * np.uint64(_PER_CHUNK) % np.uint64(PERIOD)
        expected[block] = sums[numbers].sum(dtype=np.uint32)
    return expected


def scattered_chunks(numbers: NDArray[np.uint64], chunks: int, rounds: int) -> NDArray[np.uint64]:
    """Return the chunks that the warps `numbers` read: micro_window.cu's sequence, in 32 bits."""
    mask = np.uint64(0xFFFFFFFF)
    state = (numbers + np.uint64(1)) * np.uint64(0x9E3779B9) & mask
    state ^= state >> np.uint64(15)
    sequence = np.empty((numbers.shape[0], rounds), np.uint64)
    for r in range(rounds):
        state = state * np.uint64(1664525) + np.uint64(1013904223) & mask
        sequence[:, r] = (state * np.uint64(chunks) >> np.uint64(32))[:, 0]
    return sequence


def _chunk_sums() -> NDArray[np.uint32]:
    """Return the word sum of a chunk by its first number."""
    numbers = (np.arange(PERIOD + _PER_CHUNK) % PERIOD).astype(np.float64)
    halves = numbers.view(np.uint32).reshape(-1, 2).sum(axis=1, dtype=np.uint32)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(halves, dtype=np.uint64)])
    sums: NDArray[np.uint64] = total[_PER_CHUNK : _PER_CHUNK + PERIOD] - total[:PERIOD]
    return (sums & np.uint64(0xFFFFFFFF)).astype(np.uint32)
