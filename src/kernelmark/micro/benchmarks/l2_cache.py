"""Read bandwidth of the cache that all SMs/CUs share, over its footprint."""

from __future__ import annotations

import math

from kernelmark.core.immutable import FrozenDict
from kernelmark.micro import _windows
from kernelmark.micro._window_sweep import Sweep, WindowSweep, rate_columns
from kernelmark.micro.base import (
    Column,
    Figure,
    Findings,
    Panel,
    Parameter,
    Settings,
    fitting,
    metric,
    rounded,
)
from kernelmark.micro.rig import CHUNK_BYTES, Rig

KIB, MIB, GIB = 2**10, 2**20, 2**30
_QUICK = (1.5, 2, 3, 4, 5, 8, 12, 16, 20, 25, 32, 40, 48, 56, 64, 96, 128, 256, 1024, 3072)
_FULL = tuple(sorted({*_QUICK, *(1.5 * 1.1**i for i in range(80))}))


def _bytes(megabytes: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(int(m * MIB) // CHUNK_BYTES * CHUNK_BYTES for m in megabytes)


class L2Cache(WindowSweep):
    name = "l2-cache"
    summary = "Read bandwidth of the shared cache over the footprint, out to main memory."
    measures = (
        "Every SM/CU reads the whole footprint in chunks of 4 KiB. With `apart`, each uses its own "
        "scattered order, so that its private cache serves no more than its fraction of the "
        "footprint and the shared cache the rest. With `together`, all use the same order at about "
        "the same time, and requests for the same lines may be merged. Small footprints are served "
        "by the second level, the largest by main memory."
    )
    misleads = (
        "If the shared cache has several partitions, data that all SMs/CUs read may be replicated "
        "in each: the edge is then at the size of one partition, not at the sum. For a footprint "
        "of n times the private cache, 1/n of the reads still hit it. With `together` one fetch "
        "serves all SMs/CUs, so the curve does not fall beyond the shared cache. The bandwidth of "
        "a single SM/CU is not measured."
    )
    parameters = FrozenDict(
        {
            "sizes": Parameter(
                help="bytes of the footprint",
                quick=_bytes(_QUICK),
                full=_bytes(_FULL),
                brief=_bytes((12, 16, 20, 3072)),
            ),
            "units": Parameter(
                help="apart, together", quick=("apart", "together"), choices=("apart", "together")
            ),
            "seconds": Parameter(help="length of a launch", quick=2e-3, full=3e-3),
            "samples": Parameter(help="launches timed for a point", quick=5, full=7),
        }
    )
    columns = (
        Column(name="units", help="apart or together"),
        Column(name="size_bytes", help="bytes of the footprint", unit="B"),
        *rate_columns("l2", "SM/CU"),
    )
    figure = Figure(
        x="size_bytes",
        title="footprint (MiB)",
        per=MIB,
        scale="log",
        colour="units",
        panels=(Panel(y="bytes_per_s", title="all units (TB/s)", per=1e12, zero=True),),
    )

    def setup(self, rig: Rig, given: Settings) -> Sweep:
        whole, notes = rounded(given.wholes("sizes"), CHUNK_BYTES, CHUNK_BYTES)
        sizes, more = fitting(whole, 0.5 * rig.device.free_bytes(), "half of what is free")
        windows = [
            (units, _windows.shared(rig, size, apart=units == "apart"))
            for units in given.words("units")
            for size in sizes
        ]
        points = [(units, window.nbytes, window) for units, window in windows]
        return self.sweep(rig, given, points, notes + more)

    def metrics(self, rig: Rig, state: Sweep, raw: list[_windows.Reading]) -> Findings:
        cache = int(rig.info.cache_bytes)

        def within(units: str, low: float, high: float) -> float | None:
            """Return the median rate of the footprints from `low` to `high` bytes."""
            return _middle(
                [
                    reading.bytes_per_s
                    for (own, size, _), reading in zip(state.points, raw, strict=True)
                    if own == units and low <= size <= high
                ]
            )

        # `inside`: well above L1, well below the smallest partition of L2. `outside`: so far above
        # L2 that hits in it are negligible.
        inside = 0.2 * cache, 0.4 * cache
        outside = max(32 * cache, 1024 * MIB), math.inf
        l2, dram = rig.hardware.bandwidth("l2"), rig.hardware.bandwidth("dram")
        together = within("together", *inside)
        return Findings(
            rows=self.rows(rig, state, raw),
            metrics=[
                *metric("l2_read", within("apart", *inside), "B/s", limit=l2, roof="bytes l2"),
                *metric(
                    *("l2_read_together", together, "B/s"),
                    limit=l2,
                    headline=False,
                    roof="bytes l2",
                ),
                *metric("dram_read", within("apart", *outside), "B/s", limit=dram),
            ],
            notes=state.notes,
        )


def _middle(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


benchmark = L2Cache()
