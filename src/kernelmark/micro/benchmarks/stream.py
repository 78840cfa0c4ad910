"""Bandwidth of main memory, over how full the units are."""

from __future__ import annotations

from dataclasses import dataclass

from kernelmark.core.errors import Unsupported
from kernelmark.core.frozen import FrozenDict
from kernelmark.core.micro import MicroMetric
from kernelmark.micro import _streams
from kernelmark.micro.base import (
    EVERYWHERE,
    Column,
    Figure,
    Findings,
    Microbenchmark,
    Panel,
    Parameter,
    Record,
    Settings,
    metric,
)
from kernelmark.micro.rig import Rig, Samples

MIB = 2**20
_HEADLINES = ("init", "read", "copy", "triad")
_LEAST_CPU_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How many threads: `blocks` blocks of `block` threads on each unit at a time."""

    block: int
    blocks: int
    grid: int
    shared_bytes: int = 0
    kind: str = "staying"

    @property
    def threads(self) -> int:
        return self.block * self.blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    arrays: _streams.Arrays
    points: tuple[tuple[str, _Shape], ...]
    samples: int


class Stream(Microbenchmark[_State, list[Samples]]):
    name = "stream"
    summary = "Init, read, copy, scale, add, triad, dot and stencils over occupancy."
    kinds = EVERYWHERE
    measures = (
        "Arrays far larger than every cache, in double precision, 16 bytes per load, four loads of "
        "each array in flight per thread. The grid is `staying` (persistent: as many blocks as "
        "fit), or `passing` (one thread per four vectors, or per element of a stencil), which "
        "follows the order of the memory more closely. Threads per SM/CU are swept from few to as "
        "many as fit. `triad` is a=b+q·c with three arrays, "
        "`schoenauer` a=b+c·d with four; stencils along one dimension count two arrays. Bytes are "
        "each array once. On a CPU the sweep is over cores."
    )
    misleads = (
        "A write may also cost a read of the same line (on most CPUs it does), which is not "
        "counted. Bytes in flight saturate the memory, not threads: with wider loads fewer threads "
        "are enough. Because of refresh and error correction no kernel reaches the bus rate."
    )
    parameters = FrozenDict(
        {
            "kernels": Parameter(
                help="streams",
                quick=tuple(_streams.STREAMS),
                brief=(*_HEADLINES, "schoenauer"),
                choices=tuple(_streams.STREAMS),
            ),
            "threads": Parameter(
                help="threads per SM/CU; cores of a CPU",
                quick=(64, 128, 256, 512, 1024, 2048),
                full=(32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
                brief=(1024, 2048),
            ),
            "grids": Parameter(
                help="staying, passing",
                quick=("staying", "passing"),
                choices=("staying", "passing"),
            ),
            "nbytes": Parameter(
                help="bytes of an array", quick=1024 * MIB, full=2048 * MIB, least=MIB
            ),
            "samples": Parameter(help="launches timed for a point", quick=5, full=11),
        }
    )
    columns = (
        Column(name="kernel", help="stream"),
        Column(name="threads", help="threads per SM/CU; cores of a CPU"),
        Column(name="block", help="threads of a block"),
        Column(name="grid", help="staying or passing"),
        Column(
            name="bytes_per_s",
            help="bytes read and written per second",
            unit="B/s",
            limit=lambda h: h.bandwidth("dram"),
        ),
        Column(name="spread", help="(longest − shortest) / median time of the launches"),
    )
    figure = Figure(
        x="threads",
        title="threads on a unit; cores of a CPU",
        scale="log",
        colour="kernel",
        facet="grid",
        panels=(Panel(y="bytes_per_s", title="GB/s", per=1e9, zero=True),),
    )

    def setup(self, rig: Rig, given: Settings) -> _State:
        nbytes = min(given.whole("nbytes"), int(0.15 * rig.device.free_bytes()))
        if rig.block == 1:
            nbytes = min(nbytes, max(_LEAST_CPU_BYTES, 2 * rig.info.cache_bytes))
        nbytes = nbytes // MIB * MIB
        most = rig.grid * 2048 if rig.block > 1 else rig.threads
        arrays = _streams.arrays(rig, nbytes, most)
        points = [
            (kernel, shape)
            for kernel in given.words("kernels")
            for kind in given.words("grids")
            for shape in _shapes(rig, arrays, kernel, kind, given.wholes("threads"))
        ]
        if not points:
            kernels = ", ".join(given.words("kernels"))
            raise Unsupported(f"there is no passing grid for {kernels} on {rig.info.name}")
        samples = given.whole("samples") * (1 if rig.exclusive else 3)
        return _State(arrays=arrays, points=tuple(points), samples=samples)

    def timed(self, rig: Rig, state: _State) -> list[Samples]:
        found = []
        for kernel, shape in state.points:
            call = _streams.call(
                rig,
                state.arrays,
                kernel,
                grid=shape.grid,
                block=shape.block,
                shared_bytes=shape.shared_bytes,
            )
            found.append(rig.sample(call, samples=state.samples, seconds=1.5e-3))
        return found

    def verify(self, rig: Rig, state: _State, raw: list[Samples]) -> str | None:
        last = {(kernel, shape.kind): shape for kernel, shape in state.points}
        for (kernel, _), shape in last.items():
            wrong = _streams.check(rig, state.arrays, kernel, grid=shape.grid, block=shape.block)
            if wrong is not None:
                return wrong
        return None

    def metrics(self, rig: Rig, state: _State, raw: list[Samples]) -> Findings:
        rows: list[Record] = []
        for (kernel, shape), samples in zip(state.points, raw, strict=True):
            moved = _streams.STREAMS[kernel] * state.arrays.nbytes
            rows.append(
                {
                    "kernel": kernel,
                    "threads": shape.threads if rig.block > 1 else shape.grid,
                    "block": shape.block,
                    "grid": shape.kind,
                    "bytes_per_s": moved / samples.typical_s,
                    "spread": samples.spread(),
                }
            )
        found: list[MicroMetric] = []
        limit = rig.hardware.bandwidth("dram")
        for kernel in dict.fromkeys(kernel for kernel, _ in state.points):
            best = max(float(row["bytes_per_s"] or 0) for row in rows if row["kernel"] == kernel)
            headline = kernel in _HEADLINES
            found += metric(kernel, best, "B/s", limit=limit, headline=headline)
        note = f"arrays of {state.arrays.nbytes // MIB} MiB"
        return Findings(rows=rows, metrics=found, notes=[note])


def _shapes(
    rig: Rig, arrays: _streams.Arrays, kernel: str, kind: str, wanted: list[int]
) -> list[_Shape]:
    """Shapes with about so many threads on a unit, as far as they fit."""
    passing = kind == "passing"
    if rig.block == 1:
        cores = [] if passing else sorted({1, max(1, rig.threads // 2), rig.threads})
        return [_Shape(block=1, blocks=1, grid=count) for count in cores]
    if passing and kernel in _streams.SUMS:
        return []  # a sum a thread would be a stream of its own
    from kernelmark.micro._gpu_rig import GpuRig

    assert isinstance(rig, GpuRig)
    found: dict[int, _Shape] = {}
    for threads in wanted:
        blocks = 1 if threads <= 512 else 2
        # Whole warps: a group of loads is a warp's.
        block = max(1, min(1024, threads // blocks) // rig.lanes) * rig.lanes
        call = _streams.call(rig, arrays, kernel, grid=1, block=block)
        blocks = min(blocks, rig.resident(call))
        every = -(-_streams.groups(rig, arrays, kernel) // block)
        shape = _Shape(
            block=block,
            blocks=blocks,
            grid=every if passing else rig.grid * blocks,
            shared_bytes=rig.spoiler(blocks),
            kind=kind,
        )
        found.setdefault(shape.threads, shape)
    return list(found.values())


benchmark = Stream()
