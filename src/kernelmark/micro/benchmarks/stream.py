"""Bandwidth of main memory, over occupancy."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

import numpy as np

from kernelmark.core.errors import CaseError, Unsupported
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.metric import Metric
from kernelmark.core.reason import Reason
from kernelmark.micro import _streams
from kernelmark.micro.base import (
    EVERYWHERE,
    SPREAD,
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
from kernelmark.micro.rig import Rig, Samples, waited_in_shortest

MIB = 2**20
_HEADLINES = ("init", "read", "copy", "triad")
_LEAST_CPU_BYTES = 64 * MIB
_FULL = 1024  # threads that fill an SM/CU; a request for no fewer means no sweep
_PASSES = 8  # per sample of a round on a CPU
_NUMPY = "numpy_copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A launch shape: `blocks` resident blocks of `block` threads per SM/CU."""

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
    arrays: _streams.Arrays | None  # None if numpy is the substitute
    points: tuple[tuple[str, _Shape], ...]
    samples: int
    nbytes: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    samples: Samples
    steady: bool | None = None  # on a CPU: whether two more rounds confirmed it


class Stream(Microbenchmark[_State, list[_Point]]):
    name = "stream"
    summary = "Init, read, copy, scale, add, triad, dot and stencils over occupancy."
    kinds = EVERYWHERE
    measures = (
        "Arrays far larger than every cache, in double precision, 16 bytes per load, four loads of "
        "each array in flight per thread. The grid is `staying` (persistent: as many blocks as "
        "fit), or `passing` (one thread per four vectors, or per element of a stencil), which "
        "accesses memory more nearly in order. Threads per SM/CU are swept from few to as many as "
        "fit. `triad` is a=b+q·c with three arrays, `schoenauer` a=b+c·d with four; stencils along "
        "one dimension count two arrays. Each array is counted once. On a CPU the sweep is over "
        "cores, and a pass takes an eighth of the arrays, about a millisecond; passes repeat until "
        "two more rounds confirm the best. Without a C++ compiler, numpy's copy is timed instead."
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
        SPREAD,
        Column(name="steady", help="whether two more rounds confirmed it, of a CPU"),
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
            least = max(_LEAST_CPU_BYTES, rig.threads * _streams.PARTS * MIB)
            nbytes = min(nbytes, max(least, 2 * rig.info.cache_bytes))
        nbytes = nbytes // MIB * MIB
        most = rig.grid * 2048 if rig.block > 1 else rig.threads
        try:
            rig.kernels(_streams.FILE)
        except CaseError as error:
            if rig.block > 1:
                raise
            return _State(
                arrays=None,
                points=((_NUMPY, _Shape(block=1, blocks=1, grid=rig.threads)),),
                samples=given.whole("samples"),
                nbytes=nbytes,
                note=f"{error.message}: numpy's copy stands in",
            )
        arrays = _streams.arrays(rig, nbytes, most)
        points = [
            (kernel, shape)
            for kernel in given.words("kernels")
            for kind in given.words("grids")
            for shape in _shapes(rig, arrays, kernel, kind, given.wholes("threads"))
        ]
        if not points:
            kernels = given.words("kernels")
            raise Unsupported(Reason("grid-missing", kernels=kernels, device=rig.info.name))
        return _State(
            arrays=arrays,
            points=tuple(points),
            samples=given.whole("samples"),
            nbytes=nbytes,
            note=f"arrays of {nbytes // MIB} MiB",
        )

    def timed(self, rig: Rig, state: _State) -> list[_Point]:
        found = []
        for kernel, shape in state.points:
            if rig.block == 1:
                found.append(_on_cpu(rig, state, kernel, shape.grid))
                continue
            assert state.arrays is not None
            call = _streams.call(
                rig,
                state.arrays,
                kernel,
                grid=shape.grid,
                block=shape.block,
                shared_bytes=shape.shared_bytes,
            )
            found.append(_Point(samples=rig.sample(call, samples=state.samples, seconds=1.5e-3)))
        return found

    def verify(self, rig: Rig, state: _State, raw: list[_Point]) -> str | None:
        if state.arrays is None:
            return None  # no kernel of ours was run
        last = {(kernel, shape.kind): shape for kernel, shape in state.points}
        for (kernel, _), shape in last.items():
            wrong = _streams.check(rig, state.arrays, kernel, grid=shape.grid, block=shape.block)
            if wrong is not None:
                return wrong
        return None

    def metrics(self, rig: Rig, state: _State, raw: list[_Point]) -> Findings:
        rows: list[Record] = []
        for (kernel, shape), point in zip(state.points, raw, strict=True):
            moved = _streams.STREAMS.get(kernel, 2) * state.nbytes
            rows.append(
                {
                    "kernel": kernel,
                    "threads": shape.threads if rig.block > 1 else shape.grid,
                    "block": shape.block,
                    "grid": shape.kind,
                    "bytes_per_s": moved / point.samples.typical_s,
                    "spread": point.samples.spread(),
                    "steady": point.steady,
                }
            )
        found: list[Metric] = []
        limit = rig.hardware.bandwidth("dram")
        for kernel in dict.fromkeys(kernel for kernel, _ in state.points):
            mine = [row for row in rows if row["kernel"] == kernel]
            best = max(mine, key=lambda row: float(row["bytes_per_s"] or 0))
            # Writes on a CPU may or may not also read the line (write-allocate); such reads are not
            # counted.
            counts = kernel in (_HEADLINES if rig.block > 1 else ("read", "copy", "triad", _NUMPY))
            found += metric(
                *(kernel, float(best["bytes_per_s"] or 0), "B/s"),
                limit=limit,
                headline=kernel in (*_HEADLINES, _NUMPY),
                roof="bytes dram" if counts else "",
                steady=best["steady"] is not False,
                stand_in=kernel == _NUMPY,
            )
        return Findings(rows=rows, metrics=found, notes=[state.note])


def _on_cpu(rig: Rig, state: _State, kernel: str, grid: int) -> _Point:
    """Time rounds of passes over parts of the arrays; the best pass of each round is scaled to the
    whole arrays."""
    from kernelmark.micro._cpu_rig import CpuRig, confirmed

    assert isinstance(rig, CpuRig)
    if state.arrays is None:
        return _by_numpy(state, grid)
    parts = _streams.parts(state.arrays)
    if kernel == "read":  # read all arrays: a single one is not much larger than the cache
        parts = [replace(part, b=where) for part in parts for where in (part.b, part.c, part.d)]
    calls = [_streams.call(rig, part, kernel, grid=grid, block=1) for part in parts]
    seconds: list[float] = []
    waited: list[float] = []

    def one_round() -> float:
        done = rig.passes(calls, max(len(calls), _PASSES * state.samples))
        seconds.append(max(min(done.whole_s), 1e-9) * _streams.PARTS)
        waited.append(waited_in_shortest(done.whole_s, done.waited))
        return 1 / seconds[-1]

    _, steady = confirmed(one_round)
    samples = Samples(seconds=tuple(seconds), exclusive=False, waited=tuple(waited))
    return _Point(samples=samples, steady=steady)


def _by_numpy(state: _State, threads: int) -> _Point:
    count = state.nbytes // 8 // threads
    pairs = [(np.ones(count), np.ones(count)) for _ in range(threads)]
    seconds = []
    for _ in range(1 + state.samples):
        workers = [threading.Thread(target=np.copyto, args=pair) for pair in pairs]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds.append(time.perf_counter() - start)
    return _Point(samples=Samples(seconds=tuple(seconds[1:]), exclusive=False))


def _shapes(
    rig: Rig, arrays: _streams.Arrays, kernel: str, kind: str, wanted: list[int]
) -> list[_Shape]:
    """Return shapes with about `wanted` threads per SM/CU, as far as they fit."""
    passing = kind == "passing"
    if rig.block == 1:
        few = {1, max(1, rig.threads // 2)} if min(wanted) < _FULL else set()
        cores = [] if passing else sorted({*few, rig.threads})
        return [_Shape(block=1, blocks=1, grid=count) for count in cores]
    if passing and kernel in _streams.SUMS:
        return []  # one sum per thread would itself be a stream
    from kernelmark.micro._gpu_rig import GpuRig

    assert isinstance(rig, GpuRig)
    found: dict[int, _Shape] = {}
    for threads in wanted:
        blocks = 1 if threads <= 512 else 2
        # Whole warps: a group of loads belongs to a warp.
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
