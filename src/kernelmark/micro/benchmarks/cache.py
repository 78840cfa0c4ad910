"""Caches: read bandwidth of an SM/CU over its working set and of the cache that all SMs/CUs share
over the footprint, and loads from the first-level cache and from shared memory (LDS) by the stride
between the lanes of a warp. Windows of memory are read repeatedly by micro_window.cu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median_high

import numpy as np
from numpy.typing import NDArray

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.units import counted
from kernelmark.devices.base import Buffer
from kernelmark.micro.base import (
    EVERYWHERE,
    KIB,
    MIB,
    SPREAD,
    Column,
    Figure,
    Ints,
    MicroRun,
    Names,
    Panel,
    Parameter,
    Record,
    fitting,
    microbenchmark,
    rounded,
)
from kernelmark.micro.hardware import Hardware, Limit, most_lanes
from kernelmark.micro.rig import CHUNK_BYTES, BoundKernel, Rig, Samples

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

    def _call(self, window: Window, rounds: int) -> BoundKernel:
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


# Dense around the L1 sizes of GPUs: 16 KiB (CDNA 2), 32 (CDNA 3), 128 (Turing), up to 256 (Hopper).
_NEAR = tuple(KIB * k for k in (4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 208, 224, 240, 256))
_FAR = tuple(KIB * k for k in (320, 384, 512, 768, 1024, 2048, 4096, 8192, 16384, 32768, 65536))
_FINE = tuple(KIB * k for k in range(12, 260, 8))
# Dense between the L1 caches together and the partitions of L2 (25 MiB each on an H100 and H200);
# the largest is main memory even behind an Infinity Cache of 256 MiB.
_FOOTPRINTS = (1.5, 2, 3, 4, 5, 8, 12, 16, 20, 25, 32, 40, 48, 56, 64, 96, 128, 256, 1024, 3072)
_FINE_FOOTPRINTS = tuple(sorted({*_FOOTPRINTS, *(1.5 * 1.1**i for i in range(80))}))
_PLATEAU = 0.97  # of the highest rate: readings of the same level


def _bytes(megabytes: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(int(m * MIB) // CHUNK_BYTES * CHUNK_BYTES for m in megabytes)


def _rate_columns(level: str, reader: str) -> tuple[Column, ...]:
    """Return the columns of a read rate that a cache level limits; `reader` is what runs one
    block."""
    return (
        Column(
            "bytes_per_s",
            "bytes read per second by the whole device",
            "B/s",
            lambda h: h.bandwidth(level),
        ),
        Column(
            "bytes_per_clk",
            f"bytes read per core cycle by one {reader}",
            "B/clk",
            lambda h: h.rate(level),
        ),
        Column("clock_mhz", "core clock meanwhile (GPU)", "MHz"),
        SPREAD,
    )


def _sweep(
    run: MicroRun, column: str, points: list[tuple[str, int, Window]], seconds: float, samples: int
) -> None:
    """Read windows, each given as (kind, size, window), and add a row for each, with the kind in
    `column`."""
    reader = WindowReader(run.rig, max(window.nbytes for _, _, window in points))
    run.begin_timing()
    for kind, size, window in points:
        per_s, per_clk, timed = reader.measure(window, seconds=seconds, samples=samples)
        run.row(
            **{column: kind},
            size_bytes=size,
            bytes_per_s=per_s,
            bytes_per_clk=per_clk,
            clock_mhz=run.rig.clock_during(timed),
            spread=timed.spread,
        )
    run.begin_checks()
    for at in (0, len(points) // 2, -1):
        run.check(reader.check(points[at][2]))


@microbenchmark(
    summary="Read bandwidth over the working set of an SM, CU or core, from its private cache "
    "outwards.",
    kinds=EVERYWHERE,
    measures="Each SM, CU or core runs one block that reads a window of memory repeatedly, in "
    "chunks of 4 KiB, 16 bytes per load, with all loads of a warp in flight. The warps of a GPU "
    "read the chunks in a scattered order, so that a cache serves no more than its fraction of the "
    "window; a CPU core reads them in order. `private` windows differ between SMs/CUs; the "
    "`shared` one is the same for all. Bytes per core cycle come from clocks read inside the "
    "kernel, bytes per second from events around it; both metrics are of one private window, the "
    "median of the fastest ones.",
    misleads="Beyond the private cache, a shared window overestimates the next level, because all "
    "SMs/CUs request the same lines at about the same time. Private windows of n SMs/CUs need n "
    "times the capacity in a shared cache. The curve falls not at the cache's size but where the "
    "next level cannot serve the misses: `latency` measures the size.",
    parameters={
        "sizes": Parameter(
            "bytes of a window",
            quick=_NEAR + _FAR,
            full=tuple(sorted({*_NEAR, *_FINE, *_FAR, 128 * MIB, 256 * MIB})),
            # One of these is in the middle of the L1 of any GPU and of any CPU core.
            brief=(16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB),
        ),
        "windows": Parameter(
            "private, shared",
            quick=("private", "shared"),
            brief=("private",),
            choices=("private", "shared"),
        ),
        "most": Parameter("bytes of all private windows together", quick=2 * 2**30, full=8 * 2**30),
        # A thousand times the resolution of events (about a microsecond).
        "seconds": Parameter("length of a launch", quick=1.5e-3, full=3e-3),
        "samples": Parameter("launches timed for a point", quick=5, full=11),
    },
    columns=(
        Column("windows", "private or shared"),
        Column("size_bytes", "bytes of one window", "B"),
        *_rate_columns("l1", "SM, CU or core"),
    ),
    figure=Figure(
        x="size_bytes",
        title="working set of a unit (KiB)",
        per=KIB,
        scale="log",
        colour="windows",
        panels=(
            Panel("bytes_per_s", "all units (TB/s)", per=1e12, zero=True),
            Panel("bytes_per_clk", "one unit (B/clk)", zero=True),
        ),
    ),
)
def cache(
    run: MicroRun, *, sizes: Ints, windows: Names, most: int, seconds: float, samples: int
) -> None:
    rig = run.rig
    whole, run.notes = rounded(sizes, CHUNK_BYTES, CHUNK_BYTES)
    points: list[tuple[str, int, Window]] = []
    for kind in windows:
        if kind == "shared":
            points += [(kind, n, shared_window(rig, n, apart=False)) for n in whole]
            continue
        share = f"as `most` is {most} B for {counted(rig.grid, 'window')}"
        near, notes = fitting(whole, most // rig.grid, share)
        run.notes += [f"private windows {text}" for text in notes]
        points += [(kind, n, private_window(rig, n)) for n in near]
    _sweep(run, "windows", points, seconds, samples)
    best = _plateau_median(run.rows_with(windows="private") or run.rows)
    hardware = rig.hardware
    run.metric("l1_bytes_per_clk", best["bytes_per_clk"], "B/clk", limit=hardware.rate("l1"))
    run.metric(
        *("l1_bytes_per_s", best["bytes_per_s"], "B/s"),
        limit=hardware.bandwidth("l1"),
        roof="bytes l1",
    )


def _plateau_median(rows: list[Record]) -> Record:
    """Return one row for both metrics, so that they are consistent: the median of the plateau,
    since the highest of many readings is noise."""
    ordered = sorted(rows, key=lambda row: -row["bytes_per_s"])
    plateau = [r for r in ordered if r["bytes_per_s"] >= _PLATEAU * ordered[0]["bytes_per_s"]]
    return plateau[len(plateau) // 2]


@microbenchmark(
    summary="Read bandwidth of the shared cache over the footprint, out to main memory.",
    measures="Every SM/CU reads the whole footprint in chunks of 4 KiB. With `apart`, each uses "
    "its own scattered order, so that its private cache serves no more than its fraction of the "
    "footprint and the shared cache the rest. With `together`, all use the same order at about the "
    "same time, and requests for the same lines may be merged. Small footprints are served by the "
    "second level, the largest by main memory.",
    misleads="If the shared cache has several partitions, data that all SMs/CUs read may be "
    "replicated in each: the edge is then at the size of one partition, not at the sum. For a "
    "footprint of n times the private cache, 1/n of the reads still hit it. With `together` one "
    "fetch serves all SMs/CUs, so the curve does not fall beyond the shared cache. The bandwidth "
    "of a single SM/CU is not measured.",
    parameters={
        "sizes": Parameter(
            "bytes of the footprint",
            quick=_bytes(_FOOTPRINTS),
            full=_bytes(_FINE_FOOTPRINTS),
            brief=_bytes((12, 16, 20, 3072)),
        ),
        "units": Parameter(
            "apart, together", quick=("apart", "together"), choices=("apart", "together")
        ),
        "seconds": Parameter("length of a launch", quick=2e-3, full=3e-3),
        "samples": Parameter("launches timed for a point", quick=5, full=7),
    },
    columns=(
        Column("units", "apart or together"),
        Column("size_bytes", "bytes of the footprint", "B"),
        *_rate_columns("l2", "SM/CU"),
    ),
    figure=Figure(
        x="size_bytes",
        title="footprint (MiB)",
        per=MIB,
        scale="log",
        colour="units",
        panels=(Panel("bytes_per_s", "all units (TB/s)", per=1e12, zero=True),),
    ),
)
def l2_cache(run: MicroRun, *, sizes: Ints, units: Names, seconds: float, samples: int) -> None:
    rig = run.rig
    whole, run.notes = rounded(sizes, CHUNK_BYTES, CHUNK_BYTES)
    kept, notes = fitting(whole, 0.5 * rig.device.free_bytes(), "half of what is free")
    run.notes += notes
    windows = [(u, shared_window(rig, n, apart=u == "apart")) for u in units for n in kept]
    _sweep(run, "units", [(u, w.nbytes, w) for u, w in windows], seconds, samples)

    def within(kind: str, low: float, high: float) -> float | None:
        """Return the median rate of the footprints from `low` to `high` bytes."""
        rows = [r for r in run.rows_with(units=kind) if low <= r["size_bytes"] <= high]
        return median_high(r["bytes_per_s"] for r in rows) if rows else None

    # `inside`: well above L1, well below the smallest partition of L2 (half of it on Ampere and
    # Hopper). `outside`: so far above L2 that hits in it are negligible: 3 % at 32 times its size.
    size = int(rig.info.cache_bytes)
    inside, outside = (0.2 * size, 0.4 * size), (max(32 * size, 1024 * MIB), math.inf)
    l2, dram = rig.hardware.bandwidth("l2"), rig.hardware.bandwidth("dram")
    run.metric("l2_read", within("apart", *inside), "B/s", limit=l2, roof="bytes l2")
    run.metric(
        *("l2_read_together", within("together", *inside), "B/s"),
        limit=l2,
        headline=False,
        roof="bytes l2",
    )
    run.metric("dram_read", within("apart", *outside), "B/s", limit=dram)


_SHARED, _STRIDED = "micro_shared.cu", "micro_strides.cu"
_WIDTHS = (4, 8, 16)  # bytes per lane of one load instruction
_IN_FLIGHT = 8  # loads of a round, in both kernels
_LINKS = 4096  # of the chain in shared memory
_LINK_STEP = 33  # of the chain: one more than the banks of an NVIDIA GPU, so that it visits all
_ROOM = 256 * 2**10  # bytes of the strided array: it fits in the L1 of a Hopper SM
_PITCH = 130  # elements between two rows of lanes: not a multiple of a line
_CHECKS = 8  # patterns checked: a wrong address pattern shows in any of them


@microbenchmark(
    summary="Shared memory: bandwidth by width, bank conflicts by stride, latency.",
    by_cycles=True,
    measures="A full block on every SM/CU reads its shared memory, 4, 8 or 16 bytes per lane, with "
    "a stride between lanes: stride 1 is the bandwidth, larger ones show bank conflicts. The "
    "latency is that of one thread's dependent chain of offsets. Cycles are counted inside the "
    "kernel.",
    misleads="Stores and atomics have other rates. A stride of 0 is a broadcast: its bytes per "
    "cycle count every lane's copy and may exceed what the memory delivers.",
    parameters={
        "strides": Parameter(
            "elements between lanes",
            quick=(1, 2, 3, 4, 5, 8, 16, 17, 31, 32),
            full=tuple(range(1, 33)),
            brief=(1, 2, 32),
            most=32,  # the limit of micro_shared.cu
        ),
        "bytes": Parameter("bytes per lane", quick=_WIDTHS, choices=_WIDTHS),
        "rounds": Parameter("rounds of 8 loads", quick=400, full=4000),
        "hops": Parameter("loads of the chain", quick=2**14, full=2**17, least=32),
        "samples": Parameter("launches timed for a point", quick=3, full=9),
    },
    columns=(
        Column("bytes", "bytes per lane", "B"),
        Column("stride", "elements between lanes"),
        Column("cycles", "cycles of the SM/CU per warp load", "cycles"),
        Column(
            "bytes_per_clk",
            "bytes loaded per cycle by an SM/CU",
            "B/clk",
            lambda h: h.rate("shared"),
        ),
        SPREAD,
    ),
    figure=Figure(
        x="stride",
        title="stride between lanes (elements)",
        colour="bytes",
        panels=(Panel("bytes_per_clk", "B/clk of a unit", scale="log"),),
    ),
)
def shared(
    run: MicroRun, *, strides: Ints, bytes: Ints, rounds: int, hops: int, samples: int
) -> None:
    rig = run.rig
    points = [(width, stride) for width in bytes for stride in strides]
    clocks, sums = rig.memory(rig.grid * 16), rig.memory(rig.grid * rig.block * 4)
    out = rig.memory(64)
    hops = hops // 32 * 32  # the kernel's loop is unrolled that often

    def call(width: int, stride: int, rounds: int) -> BoundKernel:
        return rig.call(
            *(_SHARED, f"shared_read_{width}", stride, rounds, 0, clocks, sums),
            grid=rig.grid,
            block=rig.block,
        )

    run.begin_timing()
    for width, stride in points:
        timed = rig.sample(call(width, stride, rounds), samples=samples, launches=1, clocks=clocks)
        cycles = timed.cycles_over(rounds * _IN_FLIGHT * rig.warps)
        rate = rig.lanes * width / cycles.value
        run.row(
            bytes=width,
            stride=stride,
            cycles=cycles.value,
            bytes_per_clk=rate,
            spread=cycles.spread,
        )
        if stride == 1:
            limit = rig.hardware.rate("shared")
            run.metric(f"bytes_per_clk_{width}", rate, "B/clk", limit=limit)
        if stride == 32 and width == 4:  # all lanes in one bank
            run.metric("conflict_cycles", cycles.value, "cycles", least=1.0, headline=False)
    chase, ticks = rig.call(_SHARED, "shared_chase", hops, 0, out, block=1), []
    for _ in range(samples):
        rig.run(chase)
        ticks.append(float(rig.read(out, np.uint64, 1)[0]))
    latency = rig.typical(ticks).over(hops)
    run.metric("latency", latency.value, "cycles", least=1.0, spread=latency.spread)

    run.begin_checks()
    end = int(rig.read(out, np.uint64, 2)[1])
    if end != hops * _LINK_STEP % _LINKS:
        run.check(f"the chain ended at {end}, not at {hops * _LINK_STEP % _LINKS}")
    for width, stride in points[:: max(1, len(points) // _CHECKS)]:
        rig.run(call(width, stride, 3))
        numbers = rig.read(sums, np.uint32, rig.lanes)
        per = width // 4
        first = np.arange(rig.lanes, dtype=np.int64) * stride * per
        offsets = np.arange(_IN_FLIGHT)[:, None] * 512 + np.arange(per)[None, :]
        expected = 3 * (first[:, None] + offsets.ravel()[None, :]).sum(axis=1)
        if not np.array_equal(numbers, expected.astype(np.uint32)):
            run.check(f"{width} bytes with stride {stride}: wrong words were read")


def _requested_limit(hardware: Hardware) -> Limit:
    """Return the limit: lanes that load the same bytes are served together, so the bytes of all
    lanes count."""
    lanes, widest = most_lanes(hardware), _WIDTHS[-1]
    return Limit(value=lanes.value * widest, why=f"{lanes.value:g} lanes × {widest} B")


@microbenchmark(
    summary="Cycles of a load that hits the first-level cache, by the stride between lanes.",
    by_cycles=True,
    measures="One full block per SM/CU loads 4, 8 or 16 bytes per lane that all hit the "
    "first-level cache, with a stride between lanes, or in rows (`block w`: w adjacent lanes, then "
    "another row). Cycles are counted inside the kernel: they show how many banks and lines a load "
    "touches.",
    misleads="Only the pattern inside a warp matters here; working sets stay in the cache. Bytes "
    "per cycle count requested bytes: a stride leaves most of each line unused.",
    parameters={
        "strides": Parameter(
            "elements between lanes",
            # Around the powers of two, where banks and lines repeat.
            quick=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64),
            full=tuple(range(65)),
            brief=(1, 2, 4),
        ),
        "widths": Parameter(
            "adjacent lanes", quick=(1, 2, 4, 8, 16), full=(1, 2, 4, 8, 16), brief=(8,)
        ),
        "bytes": Parameter("bytes per lane", quick=_WIDTHS, brief=(4, 16), choices=_WIDTHS),
        "rounds": Parameter("rounds of 8 loads", quick=200, full=1000),
        "samples": Parameter("launches timed for a point", quick=3, full=7),
    },
    columns=(
        Column("pattern", "stride s or block w"),
        Column("bytes", "bytes per lane", "B"),
        Column("stride", "elements between lanes"),
        Column("width", "adjacent lanes"),
        Column("cycles", "cycles of the SM/CU per warp load", "cycles"),
        Column("bytes_per_clk", "bytes requested per cycle by an SM/CU", "B/clk", _requested_limit),
        SPREAD,
    ),
    figure=Figure(
        x="stride",
        title="stride between lanes (elements)",
        colour="bytes",
        where=FrozenDict({"pattern": "stride"}),
        panels=(Panel("cycles", "cycles a warp's load", scale="log"),),
    ),
)
def strides(
    run: MicroRun, *, strides: Ints, widths: Ints, bytes: Ints, rounds: int, samples: int
) -> None:
    rig = run.rig
    # (pattern, bytes per lane, lanes in a row, elements between them)
    every = [("stride", size, rig.lanes, stride) for size in bytes for stride in strides]
    # The last lane of the last load in flight must stay inside the array.
    most = (_ROOM - _IN_FLIGHT * 2048) // (rig.lanes - 1)
    points = [p for p in every if p[3] * p[1] <= most]
    wide = ", ".join(f"{p[3]} × {p[1]} B" for p in every if p not in points)
    if wide:
        run.notes.append(f"left out, since the cache has no room for them: {wide}")
    points += [("block", size, width, 1) for size in bytes for width in widths]
    word_values = np.arange(_ROOM // 4, dtype=np.uint32)
    data, clocks = rig.upload(word_values), rig.memory(rig.grid * 16)
    sums = rig.memory(rig.grid * rig.block * 4)

    def call(size: int, width: int, stride: int, rounds: int) -> BoundKernel:
        strided = rig.call(
            *(_STRIDED, f"strided_read_{size}", data, width),
            *(stride, _PITCH, rounds, 0, clocks, sums),
            grid=rig.grid,
            block=rig.block,
        )
        rig.prefer_cache(strided)
        return strided

    run.begin_timing()
    for pattern, size, width, stride in points:
        launch = call(size, width, stride, rounds)
        timed = rig.sample(launch, samples=samples, launches=1, clocks=clocks)
        cycles = timed.cycles_over(rounds * _IN_FLIGHT * rig.warps)
        rate = rig.lanes * size / cycles.value
        run.row(
            pattern=pattern,
            bytes=size,
            stride=stride,
            width=width,
            cycles=cycles.value,
            bytes_per_clk=rate,
            spread=cycles.spread,
        )
        if pattern == "stride" and size == 4 and stride in (1, 2, 4):
            limit = rig.hardware.rate("l1")
            run.metric(f"stride{stride}_bytes_per_clk", rate, "B/clk", limit=limit)

    run.begin_checks()
    for pattern, size, width, stride in points[:: max(1, len(points) // _CHECKS)]:
        rig.run(call(size, width, stride, 3))
        numbers = rig.read(sums, np.uint32, rig.block)[: rig.lanes]
        lane, per = np.arange(rig.lanes), size // 4
        first = (lane % width * stride + lane // width * _PITCH) * per
        at = first[:, None, None] + np.arange(_IN_FLIGHT)[None, :, None] * 512
        at = at + np.arange(per)[None, None, :]
        expected = word_values[at].sum(axis=(1, 2), dtype=np.uint32) * np.uint32(
            4
        )  # one more round
        if not np.array_equal(numbers, expected):
            run.check(f"{pattern} {stride}/{width}: wrong words were read")
