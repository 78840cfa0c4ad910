"""Read bandwidth of the caches: of an SM/CU over its working set, and of the cache that all
SMs/CUs share over the footprint."""

from __future__ import annotations

import math
from statistics import median_high

from kernelmark.core.units import counted
from kernelmark.micro._windows import Window, WindowReader, private_window, shared_window
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
from kernelmark.micro.rig import CHUNK_BYTES

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
