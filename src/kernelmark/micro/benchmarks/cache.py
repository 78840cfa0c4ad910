"""Read bandwidth over the working set of an SM/CU."""

from __future__ import annotations

from kernelmark.core.immutable import FrozenDict
from kernelmark.core.units import counted
from kernelmark.micro import _windows
from kernelmark.micro._window_sweep import Sweep, WindowSweep, rate_columns
from kernelmark.micro.base import (
    EVERYWHERE,
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

KIB, MIB = 2**10, 2**20
_NEAR = tuple(KIB * k for k in (4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 208, 224, 240, 256))
_FAR = tuple(KIB * k for k in (320, 384, 512, 768, 1024, 2048, 4096, 8192, 16384, 32768, 65536))
_FINE = tuple(KIB * k for k in range(12, 260, 8))


class Cache(WindowSweep):
    name = "cache"
    summary = (
        "Read bandwidth over the working set of an SM, CU or core, from its private cache outwards."
    )
    kinds = EVERYWHERE
    measures = (
        "Each SM, CU or core runs one block that reads a window of memory repeatedly, in chunks of "
        "4 KiB, 16 bytes per load, with all loads of a warp in flight. The warps of a GPU read the "
        "chunks in a scattered order, so that a cache serves no more than its fraction of the "
        "window; a CPU core reads them in order. `private` windows differ between SMs/CUs; the "
        "`shared` one is the same for all. Bytes per core cycle come from clocks read inside the "
        "kernel, bytes per second from events around it; both metrics are of one private window, "
        "the median of the fastest ones."
    )
    misleads = (
        "Beyond the private cache, a shared window overestimates the next level, because all "
        "SMs/CUs request the same lines at about the same time. Private windows of n SMs/CUs need "
        "n times the capacity in a shared cache. The curve falls not at the cache's size but where "
        "the next level cannot serve the misses: `latency` measures the size."
    )
    parameters = FrozenDict(
        {
            "sizes": Parameter(
                help="bytes of a window",
                quick=_NEAR + _FAR,
                full=tuple(sorted({*_NEAR, *_FINE, *_FAR, 128 * MIB, 256 * MIB})),
                brief=(16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB),
            ),
            "windows": Parameter(
                help="private, shared",
                quick=("private", "shared"),
                brief=("private",),
                choices=("private", "shared"),
            ),
            "most": Parameter(
                help="bytes of all private windows together", quick=2 * 2**30, full=8 * 2**30
            ),
            "seconds": Parameter(help="length of a launch", quick=1.5e-3, full=3e-3),
            "samples": Parameter(help="launches timed for a point", quick=5, full=11),
        }
    )
    columns = (
        Column(name="windows", help="private or shared"),
        Column(name="size_bytes", help="bytes of one window", unit="B"),
        *rate_columns("l1", "SM, CU or core"),
    )
    figure = Figure(
        x="size_bytes",
        title="working set of a unit (KiB)",
        per=KIB,
        scale="log",
        colour="windows",
        panels=(
            Panel(y="bytes_per_s", title="all units (TB/s)", per=1e12, zero=True),
            Panel(y="bytes_per_clk", title="one unit (B/clk)", zero=True),
        ),
    )

    def setup(self, rig: Rig, given: Settings) -> Sweep:
        sizes, notes = rounded(given.wholes("sizes"), CHUNK_BYTES, CHUNK_BYTES)
        points: list[tuple[str, int, _windows.Window]] = []
        for kind in given.words("windows"):
            if kind == "shared":
                points += [(kind, n, _windows.shared(rig, n, apart=False)) for n in sizes]
                continue
            share = f"as `most` is {given.whole('most')} B for {counted(rig.grid, 'window')}"
            near, more = fitting(sizes, given.whole("most") // rig.grid, share)
            notes += [f"private windows {text}" for text in more]
            points += [(kind, n, _windows.private(rig, n)) for n in near]
        return self.sweep(rig, given, points, notes)

    def metrics(self, rig: Rig, state: Sweep, raw: list[_windows.Reading]) -> Findings:
        private = [
            reading
            for (kind, _, _), reading in zip(state.points, raw, strict=True)
            if kind == "private"
        ]
        best = _plateau_median(private or raw)
        hardware = rig.hardware
        return Findings(
            rows=self.rows(rig, state, raw),
            metrics=[
                *metric("l1_bytes_per_clk", best.bytes_per_clk, "B/clk", limit=hardware.rate("l1")),
                *metric(
                    *("l1_bytes_per_s", best.bytes_per_s, "B/s"),
                    limit=hardware.bandwidth("l1"),
                    roof="bytes l1",
                ),
            ],
            notes=state.notes,
        )


def _plateau_median(readings: list[_windows.Reading]) -> _windows.Reading:
    """Return one reading for both metrics, so that they are consistent: the median of the plateau,
    since the highest of many readings is noise."""
    ordered = sorted(readings, key=lambda reading: -reading.bytes_per_s)
    plateau = [r for r in ordered if r.bytes_per_s >= 0.97 * ordered[0].bytes_per_s]
    return plateau[len(plateau) // 2]


benchmark = Cache()
